"""``python -m benchmarks.proof [--scale 0.1] [theme …]``: run stress tests and write PROOF.md.

A run of all themes rewrites PROOF.md; a run of selected themes at scale 1 replaces only their sections.

Each theme runs in its own process and folder. After its time limit, the process and its child processes are
killed, so that the run always ends and no process or file remains.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib import import_module
from pathlib import Path
from threading import Timer

import psutil

from benchmarks.pairs import Line
from benchmarks.proof.theme import Run

SECONDS = {
    "requests": 45,
    "api": 240,
    "faults": 360,
    "checkpoints": 110,
    "texts": 600,
    "exports": 370,
    "reports": 240,
    "corpus": 480,
    "sessions": 720,
    "strangers": 240,
    "start": 500,
    "ray": 280,
}
"""Theme -> time limit in seconds at scale 1; 70 minutes in total, of which a run normally takes one hour."""
_MIN_SECONDS = 60
"""Minimum time limit of a theme at any scale, because some themes start a server or import torch."""
_UNSCALED = ("faults",)
"""Themes that ignore the scale."""
_GRACE = 150
"""Extra seconds for imports and for finishing the current step, after which a theme is killed."""

_ENDS = 10
"""Seconds to wait until killed processes have ended."""
_MAX_FAILURES = 30
"""Maximum number of failures of a theme in the report."""

_PROOF = Path(__file__).parents[1] / "PROOF.md"
_SUBREAPER = 36  # value of PR_SET_CHILD_SUBREAPER in prctl(2)


@dataclass
class ThemeResult:
    """The duration, result lines and failures of a theme."""

    name: str
    seconds: float = 0.0
    lines: list[Line] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def main(arguments: list[str]) -> int:
    """Run themes; return 1 if any test failed, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proof")
    parser.add_argument(
        "themes", nargs="*", metavar="theme", help=f"any of {', '.join(SECONDS)} (default: all)"
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="share of the tests to run, from 0 to 1 (default: 1)",
    )
    parser.add_argument("--within", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.themes if name not in SECONDS]
    if unknown or not 0 < options.scale <= 1:
        parser.error(
            f"unknown theme: {', '.join(unknown)}" if unknown else "--scale must be above 0 and at most 1"
        )
    if options.within:
        _run(options.themes[0], options.scale, options.within)
        return 0
    _adopt()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # exit normally, so that the clean-up handlers run
    results = []
    for name in options.themes or SECONDS:
        print(f"{name}: at most {_budget(name, options.scale) + _GRACE:.0f} s", flush=True)
        results.append(_apart(name, options.scale))
    if not options.themes or options.scale == 1:
        _PROOF.write_text(_report(results, options.scale), encoding="utf-8")
        print(f"Written to {_PROOF.relative_to(Path.cwd())}")
    return int(any(result.failures or any(line.met is False for line in result.lines) for result in results))


def _budget(name: str, scale: float) -> float:
    return max(_MIN_SECONDS, SECONDS[name] * (1 if name in _UNSCALED else scale))


# The following code runs in the process of a theme


def _run(name: str, scale: float, folder: Path) -> None:
    """Run a theme, and write its results as JSON lines to standard output, which the parent process reads."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # redirect all other output to standard error

    def send(kind: str, content: object) -> None:
        output.write(json.dumps([kind, content]) + "\n")
        output.flush()

    lines: Callable[[Run], Iterator[Line]] = import_module(f"benchmarks.proof.{name}").lines
    run = Run(scale, _budget(name, scale), folder)  # the time limit starts now
    for line in lines(run):
        send("line", asdict(line))
    for failure in run.failures[:_MAX_FAILURES]:
        send("failure", failure)
    if len(run.failures) > _MAX_FAILURES:
        send("failure", f"… and {len(run.failures) - _MAX_FAILURES:,} more")
    send("over", None)


# The following code runs in the parent process


def _adopt() -> None:
    """Make this process the parent of orphaned descendants, so that they can be found and killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _apart(name: str, scale: float) -> ThemeResult:
    """Run a theme in its own process, and kill that process after the time limit of the theme."""
    result, start, over = ThemeResult(name), time.monotonic(), False
    folder = Path(tempfile.mkdtemp(prefix="bert-probe-proof-"))
    command = [sys.executable, "-m", "benchmarks.proof", name, f"--scale={scale}", f"--within={folder}"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment |= {"HOME": str(folder), "TMPDIR": str(folder)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, encoding="utf-8")
    watch = Timer(_budget(name, scale) + _GRACE, _end_all)
    watch.start()
    try:
        assert process.stdout is not None
        for message in process.stdout:
            kind, content = json.loads(message)
            over = over or kind == "over"
            if kind == "line":
                result.lines.append(line := Line(**content))
                print(
                    f"  {line.what}: {line.measured}{'' if line.met is not False else '  FAILED'}",
                    flush=True,
                )
            elif kind == "failure":
                result.failures.append(content)
                print(f"  FAILED: {content}", flush=True)
    finally:
        watch.cancel()
        _end_all()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    result.seconds = time.monotonic() - start
    if not over:
        result.failures.append(f"{name} did not finish (status {process.returncode}).")
        print(f"  FAILED: {result.failures[-1]}", flush=True)
    return result


def _end_all() -> None:
    """Kill all descendants of this process, including those that start while others are being killed."""
    end = time.monotonic() + _ENDS
    while (descendants := psutil.Process().children(recursive=True)) and time.monotonic() < end:
        for process in descendants:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(descendants, timeout=1)


def _report(results: list[ThemeResult], scale: float) -> str:
    """Return the report, including the existing sections of themes that did not run."""
    from benchmarks import machine  # imported here because the module imports torch

    sections = {result.name: _section(result, machine.table(result.lines)) for result in results}
    if len(results) < len(SECONDS):
        sections = machine.sections(_PROOF) | sections
    head = f"""# Stress tests

{machine.described()} Scale {scale:g}{" (not complete)" if scale < 1 else ""}. Written by `make prove`; \
each section has the date of its run.

Random choices are the same in each run. All data stays on this machine and is deleted afterwards.
"""
    return head + "".join(sections[name] for name in SECONDS if name in sections)


def _section(result: ThemeResult, rows: str) -> str:
    failures = "".join(f"- `{failure.replace('`', ' ')}`\n" for failure in result.failures)
    broken = f"\nFailures:\n\n{failures}" if failures else ""
    return f"""
## {result.name.capitalize()}

{date.today()}, {result.seconds:.0f} s.

| what | how | measured | limit | met |
|---|---|---|---|---|
{rows}{broken}"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
