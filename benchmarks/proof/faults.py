"""Test commands and the app with full disks, read-only folders, changed files, and failed downloads."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import psutil

from benchmarks import running_app
from benchmarks.pairs import Line
from benchmarks.proof.theme import Run
from bert_probe.core import writing
from bert_probe.corpus.build import reserved_store
from bert_probe.errors import ExportError
from bert_probe.model.loading import load
from bert_probe.training import saving
from tests.helpers.families import TEXT, build
from tests.helpers.hub import REPOSITORY, Hub, serve_hub
from tests.helpers.unprivileged import as_nobody, read_only_folder

_ROOT = Path(__file__).parents[2]
_SECONDS = 100
_SENTENCES = 3_000
_BUSY = 5.0
"""Seconds of CPU time after which a command has read some but not all of its sentences."""

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
from bert_probe.runtime.jobs import Job
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
        _full_disk_of_models,
        _unwritable,
        _read_only,
        _two_writers,
        _killed_writer,
        _foreign_files,
        _other_formats,
        _homeless,
        _file_changed,
        _clock_back,
        _download,
        _ended_command,
        _ended_app,
    ):
        if run.left < 0:
            run.failed(f"{check.__name__[1:]} was not started within the time limit.")
            return
        failed = len(run.failures)
        name, how, measured = check(run, folder)
        yield Line(name, how, measured, "an error message, or correct numbers", len(run.failures) == failed)


def _bert_probe(
    *arguments: str,
    stdout: str | None = None,
    file_bytes: int | None = None,
    variables: Mapping[str, str] | None = None,
    cwd: Path = _ROOT,
) -> tuple[int, str, str]:
    """Run a command; return its exit status, standard output and standard error."""

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


def _must_refuse(run: Run, name: str, ended: tuple[int, str, str]) -> str:
    """Check that a command failed with exactly one line on standard error, and return that error message."""
    status, _, error = ended
    if status != 2 or error.count("\n") != 1 or not error.startswith("bert-probe: "):
        run.failed(f"{name}: status {status}, {error[-300:]}")
    return (error.splitlines() or [""])[-1]


def _full_disk(run: Run, folder: Path) -> tuple[str, str, str]:
    out = run.folder / "out"
    out.mkdir()
    messages = [
        _must_refuse(
            run, "to /dev/full", _bert_probe("attention", TEXT, f"--model={folder}", stdout="/dev/full")
        )
    ]
    for form in ("csv", "json", "parquet", "npz"):
        file = out / f"table.{form}"
        ended = _bert_probe("heads", TEXT, f"--model={folder}", f"--out={file}", file_bytes=500)
        messages.append(_must_refuse(run, f"--out {file.name} with no room", ended))
        if left := [path.name for path in out.iterdir()]:
            run.failed(f"--out {file.name} with no room leaves {', '.join(left)}")
            for path in out.iterdir():
                path.unlink()
    return (
        "No space on the disk",
        "/dev/full; files of at most 500 bytes",
        f"{len(messages)} commands: {messages[-1]}",
    )


def _unwritable(run: Run, folder: Path) -> tuple[str, str, str]:
    command = ("attention", TEXT, f"--model={folder}", "--out=/proc/table.csv")
    message = _must_refuse(run, "--out in /proc", _bert_probe(*command))
    return "A read-only folder", "/proc, even for root", message


def _full_disk_of_models(run: Run, folder: Path) -> tuple[str, str, str]:
    """Train models and build stores on a disk that becomes full; check that existing files do not change."""
    data, out = _data(run), run.folder / "models"
    out.mkdir()
    train = ("train", str(data), f"--model={folder}", f"--out={out / 'model'}", "--epochs=1", "--force")
    status, _, error = _bert_probe(*train)
    if status:
        run.failed(f"A training with room: status {status}, {error[-300:]}")
    before = _contents(out)
    sizes = [100, 2_000, 20_000, 60_000]
    for size in sizes:
        _must_end_in_a_sentence(run, f"train with {size} bytes of room", _bert_probe(*train, file_bytes=size))
        if _contents(out) != before:
            run.failed(f"A training with {size} bytes of room changes the folder.")
    store = ("corpus", "run", str(data), f"--model={folder}", f"--out={run.folder / 'full store'}")
    _must_end_in_a_sentence(run, "corpus run with no room", _bert_probe(*store, file_bytes=500))
    status, _, error = _bert_probe(*store)
    if status:
        run.failed(f"A corpus run continued with free space: status {status}, {error[-300:]}")
    return (
        "No space for a model or a store",
        f"files of at most {sizes} bytes",
        "existing files are unchanged",
    )


def _must_end_in_a_sentence(run: Run, name: str, ended: tuple[int, str, str]) -> None:
    """Check that a command failed, and that its last line on standard error is an error message."""
    status, _, error = ended
    last = (error.splitlines() or [""])[-1]
    if status != 2 or not last.startswith("bert-probe: ") or "Traceback" in error:
        run.failed(f"{name}: status {status}, {error[-300:]}")


def _data(run: Run) -> Path:
    file = run.folder / "data.csv"
    rows = "".join(f"We left the {word} {n},{word}\n" for n in range(20) for word in ("ground", "river"))
    file.write_text(f"text,label\n{rows}")
    return file


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def _read_only(run: Run, _: Path) -> tuple[str, str, str]:
    """Try to write a table, a model and a store as an ordinary user to a folder that only root can write."""

    def entered(reservation: AbstractContextManager[None]) -> None:
        with reservation:
            pass

    messages = []
    run.folder.chmod(0o711)  # so that the other user can enter the folders in it
    with read_only_folder() as folder:
        for name, reserve in (
            ("table.csv", lambda place: writing.reserved([place], overwrite=True)),
            ("model", lambda place: saving.reserve_folder(place, True)),
            ("store", reserved_store),
        ):
            messages.append(as_nobody(lambda: entered(reserve(folder / name))))  # noqa: B023
            if not messages[-1].endswith("Choose another path."):
                run.failed(f"{name} in a read-only folder: {messages[-1]}")
            if (message := as_nobody(lambda: entered(reserve(folder / "open" / name)))) != "done":  # noqa: B023
                run.failed(f"{name} in a folder that can be written: {message}")
            if left := [path.name for path in (folder / "open").iterdir()]:
                run.failed(f"{name}: a reservation leaves {', '.join(left)}")
    return "A read-only folder", "a user who is not root; table, model, store", messages[0]


def _two_writers(run: Run, folder: Path) -> tuple[str, str, str]:
    """Start two commands with the same output at the same time; one must succeed, and the other must fail."""
    data, out = _data(run), run.folder / "raced"
    out.mkdir()
    rounds = run.times(2)
    for number in range(rounds):
        for words in (
            ("train", str(data), f"--out={out / f'model {number}'}", "--epochs=1"),
            ("corpus", "run", str(data), f"--out={out / f'store {number}'}"),
            ("heads", TEXT, f"--out={out / f'table {number}.csv'}"),
            ("attention", TEXT, f"--save-view={out / f'view {number}.json'}"),
        ):
            endings = _started_together([*words, f"--model={folder}"])
            name = " ".join(words[:2])
            refused = "is being written by another command|already exists"
            statuses = sorted(status for status, _ in endings)
            if name == "corpus run" and statuses == [0, 0]:
                continue  # success, because the second command found the complete store of the first
            if statuses != [0, 2] or not any(re.search(refused, error) for _, error in endings):
                run.failed(f"two of {name}: {endings}")
    if left := [path.name for path in out.iterdir() if path.name.startswith(".")]:
        run.failed(f"Two writers leave {', '.join(left)}.")
    return (
        "Two commands with one output",
        f"started together, {rounds} rounds of 4",
        "one writes, one is refused",
    )


_WAITING = """
import sys
import bert_probe.training.train, bert_probe.corpus.build
from bert_probe.cli.main import main
print("ready", file=sys.stderr, flush=True)
sys.stdin.readline()
main(sys.argv[1:])
"""


def _started_together(words: Sequence[str]) -> list[tuple[int, str]]:
    """Run a command twice at the same time; return exit status and standard error of both processes."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _WAITING, *words],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stderr is not None  # not None, because the process was started with a pipe
        process.stderr.readline()
    for process in processes:
        assert process.stdin is not None  # not None, because the process was started with a pipe
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [process.communicate(timeout=_SECONDS)[1] for process in processes]
    return [(process.returncode, error) for process, error in zip(processes, ended, strict=True)]


def _killed_writer(run: Run, folder: Path) -> tuple[str, str, str]:
    """Send signals to trainings before and after their first evaluation.

    SIGKILL may leave lock files, which the next training removes. The other signals save the model if there
    was an evaluation.
    """
    data = _data(run)
    for number, is_evaluated in (
        (signal.SIGKILL, False),
        (signal.SIGTERM, False),
        (signal.SIGTERM, True),
        (signal.SIGHUP, True),
        (signal.SIGINT, True),
    ):
        name = f"{number.name} {'after' if is_evaluated else 'before'} an evaluation"
        out = run.folder / name
        out.mkdir()
        log = out / "log.jsonl"
        words = ("train", str(data), f"--model={folder}", f"--out={out / 'model'}", f"--log={log}", "--force")
        process = subprocess.Popen(
            [sys.executable, "-m", "bert_probe", *words, "--epochs=10000", "--batch=1", "--update=all"],
            cwd=_ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and not (_has_content(log) if is_evaluated else any(out.iterdir())):
            time.sleep(0.02)
        process.send_signal(number)
        status = process.wait(timeout=_SECONDS)
        left = {path.name for path in out.iterdir()} - {log.name}
        if number == signal.SIGKILL:
            is_expected = all(writing.is_lock_file(out / file) for file in left)
        else:
            is_expected = left == {"model"} and status == 0 if is_evaluated else left <= {"model"}
        if not is_expected:
            run.failed(f"{name}: a training ends with status {status}, and leaves {sorted(left)}")
        if "model" in left and not load(out / "model").tasks:
            run.failed(f"{name}: a training saves a model without a task.")
        if number == signal.SIGKILL:
            status, _, error = _bert_probe(*words, "--epochs=1")
            left = {path.name for path in out.iterdir()}
            if status or left != {"model", log.name}:
                run.failed(f"{name}: the next training has status {status}, {sorted(left)}, {error[-300:]}")
    return (
        "A training that is killed",
        "SIGKILL and SIGTERM before an evaluation; SIGTERM, SIGHUP and SIGINT after it",
        "complete models, no partial files; after SIGKILL, the next training is saved",
    )


def _has_content(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


def _foreign_files(run: Run, folder: Path) -> tuple[str, str, str]:
    """Train with --force into model folders that also contain files of the user; none may be replaced."""
    data, out = _data(run), run.folder / "mine"
    words = ("train", str(data), f"--model={folder}", f"--out={out}", "--epochs=1", "--force")
    lots, rounds = run.lots("foreign files"), run.times(40)
    status, _, error = _bert_probe(*words)
    if status:
        run.failed(f"A first training: status {status}, {error[-300:]}")
    names = [
        *_contents(out),
        ".git/HEAD",
        "thesis.docx",
        "adapter/photo.png",
        "model.safetensors.bak",
        "bert_probe.json",
    ]
    for _ in range(rounds):
        copy = run.folder / "copy"
        shutil.copytree(out, copy, symlinks=True)
        name = lots.choice(names)
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(lots.randbytes(lots.randint(0, 50)))
        before = _contents(run.folder)
        try:
            saving.write_folder(copy, lambda part: (part / "config.json").write_text("{}"), replaces=True)  # type: ignore[arg-type]
        except ExportError:
            if _contents(run.folder) != before:
                run.failed(f"{name} among a model's files: refused, and something changed")
        else:
            run.failed(f"{name} among a model's files: replaced")
        shutil.rmtree(copy)
    return "--force with files of the user", f"{rounds} random folders", "refused, all files unchanged"


def _other_formats(run: Run, folder: Path) -> tuple[str, str, str]:
    """Run four commands on files whose content does not match their extension; all must refuse it."""
    contents = {
        "jsonl": '{"text": "We left", "label": "a"}\n{"text": "We came", "label": "b"}\n',
        "csv": "text,label\nWe left,a\nWe came,b\n",
        "conll": "We PRON\nleft VERB\n\nWe PRON\ncame VERB\n",
        "html": "<!DOCTYPE html>\n<p>We left\n",
    }
    endings = {"jsonl": "txt", "csv": "txt", "conll": "txt", "html": "csv"}
    refused = 0
    for kind, content in contents.items():
        file = run.folder / f"{kind}.{endings[kind]}"
        file.write_text(content)
        for words in (
            ("sentences", str(file)),
            ("head-means", str(file)),
            ("train", str(file), f"--out={run.folder / 'formats'}"),
            ("corpus", "run", str(file), f"--out={run.folder / 'formats'}"),
        ):
            ended = _bert_probe(*words, f"--model={folder}")
            _must_end_in_a_sentence(run, f"{kind} to {words[0]}", ended)
            refused += "it looks like" in ended[2]
    if refused < 4 * len(contents):
        run.failed(f"{refused} of {4 * len(contents)} files of another format are refused as such.")
    return (
        "Files with the extension of another format",
        "4 formats, 4 commands",
        f"{refused} refused with the reason",
    )


def _homeless(run: Run, folder: Path) -> tuple[str, str, str]:
    variables_without_home = {
        name: value for name, value in os.environ.items() if name not in ("HOME", "TMPDIR", "XDG_CACHE_HOME")
    }
    ways = {
        "no HOME, no TMPDIR": variables_without_home,
        "HOME and TMPDIR that are not there": variables_without_home
        | {"HOME": "/nowhere/home", "TMPDIR": "/nowhere/tmp"},
    }
    printed = set()
    for name, variables in ways.items():
        status, out, error = _bert_probe(
            "attention",
            TEXT,
            f"--model={folder}",
            variables=variables | {"PYTHONPATH": str(_ROOT)},
            cwd=Path("/"),
        )
        printed.add(out)
        if status or error:
            run.failed(f"{name}: status {status}, {error[-300:]}")
    with running_app.started(HOME="/nowhere/home", TMPDIR="/nowhere/tmp"):
        pass  # on exit, the context raises an error unless the app responds
    if len(printed) != 1:
        run.failed("Without HOME and TMPDIR a command prints something else.")
    return "No HOME, no TMPDIR", "a command in /, and the app", "same table, app responds"


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
        "a temporary folder",
        ", ".join(f"{k}: {v}" for k, v in ended.items()),
    )


def _clock_back(run: Run, folder: Path) -> tuple[str, str, str]:
    status, out, error = _bert_probe("-c", _CLOCK, str(folder))
    if (status, out.split()) != (0, ["4", "done"]):
        run.failed(f"The clock set back: status {status}, {out} {error[-300:]}")
    return (
        "The clock set back to 1970 during a job",
        "a patched time.time; monotonic time continues",
        out.strip(),
    )


def _download(run: Run, folder: Path) -> tuple[str, str, str]:
    hub = Hub({path.name: path.read_bytes() for path in folder.iterdir()})
    size = len(hub.files["model.safetensors"])
    hub.cuts["model.safetensors"] = size // 2
    with serve_hub(hub) as endpoint:
        variables = dict(os.environ) | {
            "HF_ENDPOINT": endpoint,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(run.folder / "cache"),
            "NO_PROXY": "127.0.0.1",
        }
        command = ("attention", TEXT, f"--model={REPOSITORY}")
        message = _must_refuse(run, "a download that breaks", _bert_probe(*command, variables=variables))
        hub.fails.clear()
        status, out, error = _bert_probe(*command, variables=variables)
    _, own, _ = _bert_probe("attention", TEXT, f"--model={folder}")
    if status or out != own:
        run.failed(f"The same download, repeated: status {status}, {error[-300:]}")
    resumed = [first for name, first in hub.ranges if name == "model.safetensors" and first]
    where = f"continues at byte {resumed[-1]:,} of {size:,}" if resumed else "starts again"
    return (
        "An interrupted download, repeated",
        "a local hub",
        f"{message} Then it {where}; correct numbers.",
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
        run.failed(f"A command that was terminated leaves {', '.join(left)}.")


def _ended_app(run: Run, folder: Path) -> tuple[str, str, str]:
    from benchmarks.proof.session import Session

    with running_app.started() as app, Session(app.port) as session:
        session.ask("heads", a=TEXT, heads_part="many", model=str(folder))  # the response is not awaited
        return _terminated(
            run, app.process.pid, app.process.wait, "the app while a page computes", lambda: None
        )


def _terminated(
    run: Run, pid: int, wait: Callable[..., int], name: str, then: Callable[[], None]
) -> tuple[str, str, str]:
    start = time.monotonic()
    try:
        os.kill(pid, signal.SIGTERM)
        status = wait(timeout=20)
    except subprocess.TimeoutExpired:
        run.failed(f"SIGTERM to {name}: still running after 20 s.")
        return "SIGTERM", name, "still running after 20 s"
    then()
    return (
        "SIGTERM",
        name,
        f"ended in {time.monotonic() - start:.1f} s with status {status}, no partial files",
    )
