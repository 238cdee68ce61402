"""A corpus read into a store, a shard at a time; a run that was ended goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from bert_probe.corpus.gather import Gather
from bert_probe.corpus.inputs import FoundFile, InputFile, described, find_inputs, records
from bert_probe.corpus.store import (
    FORMAT,
    MANIFEST,
    VERSION,
    Shard,
    Store,
    open_store,
    shards_in,
    sweep,
    write_json,
)
from bert_probe.corpus.summary import write_summary
from bert_probe.corpus.working import Job, Parts, Runner, Threads
from bert_probe.errors import EmptyTextError, SelectionError, StoreError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Cancelled, Report, ignore

SHARD_ROWS = 2000
"""Records of a shard, unless somebody says otherwise: what is lost when a run is ended, and held at once."""

Told = Callable[[Mapping[str, Any]], None]
"""Called with what happened, as a line of a log."""


def make_store(
    checkpoint: Checkpoint,
    question: Gather,
    inputs: Sequence[str | Path],
    folder: str | Path,
    *,
    column: str | None = None,
    shard_rows: int = SHARD_ROWS,
    workers: int = 1,
    on: Runner | None = None,
    report: Report = ignore,
    told: Told = lambda _: None,
) -> Store:
    """Read all of the inputs that a store does not hold yet.

    Args:
        inputs: files, folders and patterns, see `find_inputs`.
        folder: of the store; it is made, or goes on.
        column: of tables, JSON lines and Parquet; the usual one where none is named.
        workers: shards that are worked on at once, each by a thread of its own; all share the weights.
        on: who works on them instead, see `working.Runner`.
        report: told how many records are done, and of how many.
        told: told of every shard that is done.

    Raises:
        SelectionError, TextError: inputs that cannot be read, a layer that is not there, or a store that was
            begun with other inputs or another question.
        UnavailableError: this checkpoint cannot be used there.
        StoreError: the folder cannot be written, or somebody else is writing it.
        OutOfMemoryError: the machine is too small for one batch.
    """
    checkpoint = checkpoint.now()
    question = question.of(checkpoint)
    runner = on or Threads(workers)
    device = runner.device(checkpoint)
    files = find_inputs(inputs, column)
    place = Path(folder)
    with _alone(place):
        manifest = _manifest(checkpoint, question, described(files), files, column, shard_rows)
        manifest["model"]["device"] = device
        done = _begun(place, manifest)
        progress = _Progress(sum(one.records for one in done.values()), manifest["records"], report)
        job = Job(place, checkpoint, question, progress.of)
        parts = Parts(files, column, shard_rows, frozenset(done))
        try:
            with closing(runner.shards(job, parts)) as found:
                for shard in found:
                    progress.of(shard.number)(shard.records, shard.records)
                    told({"shard": shard.number, "refusals": shard.refusals, **progress.plain()})
        finally:
            progress.over = True  # for shards that others still work on
        store = open_store(place)
        write_summary(store)
    return store


class _Progress:
    """How many records are done, of all shards that are worked on.

    Attributes:
        over: nobody wants more of them.
    """

    over = False

    def __init__(self, before: int, total: int, report: Report) -> None:
        self._total, self._report = total, report
        self._done = {-1: before}
        report(before, total)

    def of(self, number: int) -> Report:
        """The report of a shard."""

        def within(done: int, _: int) -> None:
            if self.over:
                raise Cancelled
            self._done[number] = done
            self._report(sum(list(self._done.values())), self._total)

        return within

    def plain(self) -> dict[str, int]:
        """For a log."""
        return {"records": sum(list(self._done.values())), "of": self._total}


def _manifest(
    checkpoint: Checkpoint,
    question: Gather,
    inputs: Sequence[InputFile],
    files: Sequence[FoundFile],
    column: str | None,
    shard_rows: int,
) -> dict[str, Any]:
    """All that a store's content depends on."""
    about = checkpoint.description
    count = sum(1 for _ in records(files, column))
    if not count:
        raise EmptyTextError("The inputs hold no sentences. Write one a line.")
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": checkpoint.provenance(),
        "sizes": {
            "layers": about.layers,
            "heads": about.heads,
            "hidden_size": about.hidden_size,
            "max_tokens": about.max_tokens,
        },
        "question": question.plain(),
        "column": column,
        "inputs": [{"name": one.name, "bytes": one.size, "sha256": one.sha256} for one in inputs],
        "records": count,
        "shard_rows": shard_rows,
        "shards": -(-count // shard_rows),
    }


def _begun(folder: Path, manifest: dict[str, Any]) -> dict[int, Shard]:
    """The shards that are there already, by their numbers; the folder is a store from here on."""
    if not (folder / MANIFEST).exists():
        write_json(folder / MANIFEST, manifest)
        return {}
    before = open_store(folder)
    if not before.shards:  # it was begun and holds nothing: it may as well be another one
        write_json(folder / MANIFEST, manifest)
        return {}
    for name, what in _CAUSES.items():
        if before.manifest[name] != manifest[name]:
            raise SelectionError(
                f"{folder} was begun with {what}. Give it the same again to go on, or choose another --out."
            )
    sweep(folder)
    return {one.number: one for one in shards_in(folder)}


_CAUSES = {
    "model": "another model, or other versions of the libraries that run it",
    "question": "other layers, or other things to keep",
    "inputs": "other inputs, or these have changed since",
    "column": "another column",
    "shard_rows": "another number of rows in a shard",
}
"""What must be the same for a store to go on: name in the manifest → what is said where it differs."""


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else writes this store meanwhile; a process that is killed holds nothing.

    Raises:
        StoreError: somebody does, something else lies there, or it cannot be made.
    """
    try:
        if folder.exists() and not (folder / MANIFEST).exists() and any(_foreign(folder)):
            raise StoreError(f"{folder} holds other things than a store. Choose another --out.")
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("wb")
    except OSError as error:
        reason = error.strerror or error
        raise StoreError(f"{folder} cannot be written: {reason}. Choose another place.") from None
    with lock:
        if not _locked(lock.fileno()):
            raise StoreError(
                f"{folder} is being written by another run. Wait for it, or choose another --out."
            )
        yield


def _foreign(folder: Path) -> Iterator[Path]:
    return (one for one in folder.iterdir() if one.name != _LOCK)


_LOCK = ".lock"


def _locked(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows, where two runs into one folder are not found out
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
