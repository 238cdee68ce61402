"""What breaks beneath the app: disks, folders, files, downloads, signals, the clock."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

from benchmarks import running_app
from benchmarks.pairs import Line
from benchmarks.proof.theme import Run
from tests.helpers.families import TEXT, build
from tests.helpers.hub import REPOSITORY, Hub, serving

_ROOT = Path(__file__).parents[2]
_SECONDS = 100
_SENTENCES = 3_000
_BUSY = 5.0
"""Seconds of computing after which a command on so many sentences is in the middle of them."""

_CHANGED = """
import sys, numpy as np, bert_probe
from pathlib import Path
folder, how, text = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
checkpoint = bert_probe.load(folder)
before = checkpoint.trace(text).vectors(-1).copy()
file = folder / "model.safetensors"
if how == "removed":
    [path.unlink() for path in folder.iterdir()]
elif how == "emptied":
    file.write_bytes(b"")
else:
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.seek(size // 2)
        stream.write(b"\\x01" * (size - size // 2))
try:
    after = checkpoint.trace(text).vectors(-1)
    bert_probe.Heads().of(checkpoint.trace(text)).table()
except bert_probe.ProbeError as error:
    print(error)
else:
    print("same" if np.array_equal(before, after) else "other numbers")
"""
_CLOCK = """
import sys, time, bert_probe
from bert_probe.run.jobs import Job
real = time.time
checkpoint = bert_probe.load(sys.argv[1])
seen = []
def work(report):
    for step in range(4):
        if step == 2:
            time.time = lambda: 0.0
        report(step, 4)
        seen.append(bert_probe.Heads().of(checkpoint.trace(f"we left {step}")).nbytes)
    return len(seen)
job = Job("cause", work)
print(job.value(60), job.state)
"""


def lines(run: Run) -> Iterator[Line]:
    folder = run.folder / "bert"
    build("bert", folder)
    for check in (
        _full_disk,
        _unwritable,
        _homeless,
        _file_changed,
        _clock_back,
        _download,
        _ended_command,
        _ended_app,
    ):
        if run.left < 0:
            run.failed(f"{check.__name__[1:]} was not begun within the time.")
            return
        failed = len(run.failures)
        what, how, measured = check(run, folder)
        yield Line(what, how, measured, "a sentence, or right numbers", len(run.failures) == failed)


def _bert_probe(
    *arguments: str,
    stdout: str | None = None,
    file_bytes: int | None = None,
    variables: Mapping[str, str] | None = None,
    cwd: Path = _ROOT,
) -> tuple[int, str, str]:
    """Status, standard output and standard error of a command."""

    def bounded() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    with Path(stdout or os.devnull).open("wb") as output:
        done = subprocess.run(
            [sys.executable, *(arguments if arguments[0] == "-c" else ("-m", "bert_probe", *arguments))],
            cwd=cwd,
            env=dict(variables) if variables is not None else None,
            stdin=subprocess.DEVNULL,
            stdout=output if stdout else subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=_SECONDS,
            preexec_fn=bounded,
            encoding="utf-8",
        )
    return done.returncode, done.stdout or "", done.stderr


def _must_refuse(run: Run, what: str, ended: tuple[int, str, str]) -> str:
    """The sentence of a command that must have refused."""
    status, _, error = ended
    if status != 2 or error.count("\n") != 1 or not error.startswith("bert-probe: "):
        run.failed(f"{what}: status {status}, {error[-300:]}")
    return (error.splitlines() or [""])[-1]


def _full_disk(run: Run, folder: Path) -> tuple[str, str, str]:
    out = run.folder / "out"
    out.mkdir()
    said = [
        _must_refuse(
            run, "to /dev/full", _bert_probe("attention", TEXT, f"--model={folder}", stdout="/dev/full")
        )
    ]
    for form in ("csv", "json", "parquet", "npz"):
        file = out / f"table.{form}"
        ended = _bert_probe("heads", TEXT, f"--model={folder}", f"--out={file}", file_bytes=500)
        said.append(_must_refuse(run, f"--out {file.name} with no room", ended))
        if left := [path.name for path in out.iterdir()]:
            run.failed(f"--out {file.name} with no room leaves {', '.join(left)}")
            for path in out.iterdir():
                path.unlink()
    return "No room on the disk", "/dev/full; files of at most 500 bytes", f"{len(said)} commands: {said[-1]}"


def _unwritable(run: Run, folder: Path) -> tuple[str, str, str]:
    command = ("attention", TEXT, f"--model={folder}", "--out=/proc/table.csv")
    said = _must_refuse(run, "--out in /proc", _bert_probe(*command))
    return "A folder that cannot be written to", "/proc, also for root", said


def _homeless(run: Run, folder: Path) -> tuple[str, str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name not in ("HOME", "TMPDIR", "XDG_CACHE_HOME")
    }
    ways = {
        "no HOME, no TMPDIR": kept,
        "HOME and TMPDIR that are not there": kept | {"HOME": "/nowhere/home", "TMPDIR": "/nowhere/tmp"},
    }
    printed = set()
    for what, variables in ways.items():
        status, out, error = _bert_probe(
            "attention",
            TEXT,
            f"--model={folder}",
            variables=variables | {"PYTHONPATH": str(_ROOT)},
            cwd=Path("/"),
        )
        printed.add(out)
        if status or error:
            run.failed(f"{what}: status {status}, {error[-300:]}")
    with running_app.started(HOME="/nowhere/home", TMPDIR="/nowhere/tmp"):
        pass  # it answers
    if len(printed) != 1:
        run.failed("Without HOME and TMPDIR a command prints something else.")
    return "No HOME, no TMPDIR", "a command from /, and the app", "same table, app answers"


def _file_changed(run: Run, _: Path) -> tuple[str, str, str]:
    ended = {}
    for how in ("overwritten", "emptied", "removed"):
        copy = run.folder / how
        build("bert", copy)
        status, out, error = _bert_probe("-c", _CHANGED, str(copy), how, TEXT)
        ended[how] = out.strip() or f"status {status}"
        if status or (ended[how] != "same" and not ended[how].endswith(".")):
            run.failed(f"weights {how} while they are open: status {status}, {out} {error[-300:]}")
    return (
        "Weights changed while they are open",
        "a folder of ours",
        ", ".join(f"{k}: {v}" for k, v in ended.items()),
    )


def _clock_back(run: Run, folder: Path) -> tuple[str, str, str]:
    status, out, error = _bert_probe("-c", _CLOCK, str(folder))
    if (status, out.split()) != (0, ["4", "done"]):
        run.failed(f"The clock set back: status {status}, {out} {error[-300:]}")
    return "The clock set back to 1970 in a job", "a false time.time; monotonic time goes on", out.strip()


def _download(run: Run, folder: Path) -> tuple[str, str, str]:
    hub = Hub({path.name: path.read_bytes() for path in folder.iterdir()})
    size = len(hub.files["model.safetensors"])
    hub.cuts["model.safetensors"] = size // 2
    with serving(hub) as endpoint:
        variables = dict(os.environ) | {
            "HF_ENDPOINT": endpoint,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(run.folder / "cache"),
            "NO_PROXY": "127.0.0.1",
        }
        command = ("attention", TEXT, f"--model={REPOSITORY}")
        said = _must_refuse(run, "a download that breaks", _bert_probe(*command, variables=variables))
        hub.fails.clear()
        status, out, error = _bert_probe(*command, variables=variables)
    _, own, _ = _bert_probe("attention", TEXT, f"--model={folder}")
    if status or out != own:
        run.failed(f"The same download, begun again: status {status}, {error[-300:]}")
    resumed = [first for name, first in hub.ranges if name == "model.safetensors" and first]
    where = f"goes on at byte {resumed[-1]:,} of {size:,}" if resumed else "begins anew"
    return (
        "A download cut off, and begun again",
        "a hub on this machine",
        f"{said} Then it {where}; right numbers.",
    )


def _ended_command(run: Run, _: Path) -> tuple[str, str, str]:
    sentences, out = run.folder / "sentences.txt", run.folder / "ended"
    out.mkdir()
    sentences.write_text("".join(f"We left the ground {number} times.\n" for number in range(_SENTENCES)))
    command = [
        sys.executable,
        "-m",
        "bert_probe",
        "sentences",
        str(sentences),
        f"--out={out}/table.csv",
    ]
    process = subprocess.Popen(command, cwd=_ROOT, stderr=subprocess.DEVNULL)
    watched = psutil.Process(process.pid)
    while process.poll() is None and watched.cpu_times().user < _BUSY:
        time.sleep(0.05)
    return _terminated(
        run, process.pid, process.wait, "a command on 3,000 sentences", lambda: _left_in(run, out)
    )


def _left_in(run: Run, out: Path) -> None:
    if left := [path.name for path in out.iterdir()]:
        run.failed(f"A command that was ended leaves {', '.join(left)}.")


def _ended_app(run: Run, folder: Path) -> tuple[str, str, str]:
    from benchmarks.proof.session import Session

    with running_app.started() as app, Session(app.port) as session:
        session.ask("heads", a=TEXT, heads_part="many", model=str(folder))  # not waited for
        return _terminated(
            run, app.process.pid, app.process.wait, "the app while a page computes", lambda: None
        )


def _terminated(
    run: Run, pid: int, wait: Callable[..., int], what: str, then: Callable[[], None]
) -> tuple[str, str, str]:
    start = time.monotonic()
    try:
        os.kill(pid, signal.SIGTERM)
        status = wait(timeout=20)
    except subprocess.TimeoutExpired:
        run.failed(f"SIGTERM to {what}: goes on after 20 s.")
        return "SIGTERM", what, "goes on after 20 s"
    then()
    return (
        "SIGTERM",
        what,
        f"ended in {time.monotonic() - start:.1f} s with status {status}, nothing half-written",
    )
