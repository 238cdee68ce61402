"""``python -m benchmarks.proof [--scale 0.1] [theme …]``: attack, print, write PROOF.md.

All themes at once make the file anew; themes that were named take the place of what it said of them.

Each theme runs in a process of its own, with a folder of its own. When its time is over it is killed with
whatever it started, so that the whole ends by itself and leaves nothing behind.
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
    "faults": 130,
    "checkpoints": 110,
    "texts": 600,
    "exports": 370,
    "reports": 240,
    "corpus": 480,
    "sessions": 720,
    "start": 500,
    "ray": 280,
}
"""Theme → its time limit in seconds at scale 1; an hour together."""
_LEAST = 60
"""Seconds that a theme has at any scale: some start a server, or import torch."""
_WHOLE = ("faults",)
"""Themes that no scale makes shorter."""
_GRACE = 150
"""Seconds beside its budget for imports, and to finish what it has begun; then it is killed."""

_ENDS = 10
"""Seconds in which what was killed must be gone."""
_TOLD = 30
"""Failures of a theme that are told one by one."""

_PROOF = Path(__file__).parents[1] / "PROOF.md"
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass
class Found:
    """What came of a theme."""

    name: str
    seconds: float = 0.0
    lines: list[Line] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def main(arguments: list[str]) -> int:
    """Run themes; 1 if anything did not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proof")
    parser.add_argument("themes", nargs="*", metavar="theme", help=f"of {', '.join(SECONDS)}; else all")
    parser.add_argument("--scale", type=float, default=1.0, help="0.1 for a run of about a tenth")
    parser.add_argument("--within", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    unknown = [name for name in given.themes if name not in SECONDS]
    if unknown or not 0 < given.scale <= 1:
        parser.error(f"there is no theme {', '.join(unknown)}" if unknown else "a scale is above 0, up to 1")
    if given.within:
        _run(given.themes[0], given.scale, given.within)
        return 0
    _adopt()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of what cleans up
    every = []
    for name in given.themes or SECONDS:
        print(f"{name}: at most {_budget(name, given.scale) + _GRACE:.0f} s", flush=True)
        every.append(_apart(name, given.scale))
    if not given.themes or given.scale == 1:
        _PROOF.write_text(_report(every, given.scale), encoding="utf-8")
        print(f"Written to {_PROOF.relative_to(Path.cwd())}")
    return int(any(found.failures or any(line.met is False for line in found.lines) for found in every))


def _budget(name: str, scale: float) -> float:
    return max(_LEAST, SECONDS[name] * (1 if name in _WHOLE else scale))


# In the process of a theme


def _run(name: str, scale: float, folder: Path) -> None:
    """Run a theme, and tell what it finds on what was standard output."""
    telling = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed stands in nobody's way

    def tell(kind: str, what: object) -> None:
        telling.write(json.dumps([kind, what]) + "\n")
        telling.flush()

    lines: Callable[[Run], Iterator[Line]] = import_module(f"benchmarks.proof.{name}").lines
    run = Run(scale, _budget(name, scale), folder)  # from here on its time counts
    for line in lines(run):
        tell("line", asdict(line))
    for failure in run.failures[:_TOLD]:
        tell("failure", failure)
    if len(run.failures) > _TOLD:
        tell("failure", f"… and {len(run.failures) - _TOLD:,} more")
    tell("over", None)


# Outside of it


def _adopt() -> None:
    """Let processes whose parents end become this one's, so that they are found and ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _apart(name: str, scale: float) -> Found:
    """Run a theme in a process of its own, and end it when its time is over."""
    found, start, over = Found(name), time.monotonic(), False
    folder = Path(tempfile.mkdtemp(prefix="bert-probe-proof-"))
    command = [sys.executable, "-m", "benchmarks.proof", name, f"--scale={scale}", f"--within={folder}"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment |= {"HOME": str(folder), "TMPDIR": str(folder)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, encoding="utf-8")
    watch = Timer(_budget(name, scale) + _GRACE, _end_all)
    watch.start()
    try:
        assert process.stdout is not None
        for told in process.stdout:
            kind, what = json.loads(told)
            over = over or kind == "over"
            if kind == "line":
                found.lines.append(line := Line(**what))
                print(
                    f"  {line.what}: {line.measured}{'' if line.met is not False else '  NOT HELD'}",
                    flush=True,
                )
            elif kind == "failure":
                found.failures.append(what)
                print(f"  FAILED: {what}", flush=True)
    finally:
        watch.cancel()
        _end_all()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    found.seconds = time.monotonic() - start
    if not over:
        found.failures.append(f"{name} did not come to its end (status {process.returncode}).")
        print(f"  FAILED: {found.failures[-1]}", flush=True)
    return found


def _end_all() -> None:
    """Kill every process that comes from this one, those too that begin meanwhile."""
    end = time.monotonic() + _ENDS
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < end:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


def _report(every: list[Found], scale: float) -> str:
    """The head and a section for each theme; those that were not run now are kept as they stand."""
    from benchmarks import machine  # which imports torch

    sections = {found.name: _section(found, machine.table(found.lines)) for found in every}
    if len(every) < len(SECONDS):
        sections = machine.sections(_PROOF) | sections
    head = f"""# Proof

{machine.described()} Scale {scale:g}{" (not the whole)" if scale < 1 else ""}. Written by `make prove`; \
each part bears the day on which it was run.

What is drawn by lot is the same in every run. Everything stays on this machine and is gone afterwards.
"""
    return head + "".join(sections[name] for name in SECONDS if name in sections)


def _section(found: Found, rows: str) -> str:
    failures = "".join(f"- `{failure.replace('`', ' ')}`\n" for failure in found.failures)
    broken = f"\nWhat did not hold:\n\n{failures}" if failures else ""
    return f"""
## {found.name.capitalize()}

{date.today()}, {found.seconds:.0f} s.

| what | how | measured | bound | held |
|---|---|---|---|---|
{rows}{broken}"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
