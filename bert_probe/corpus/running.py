"""A corpus read into a store, a shard at a time; a run that was ended goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count as counted
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from bert_probe.corpus.gather import Gather
from bert_probe.corpus.inputs import FoundFile, InputFile, Record, described, find_inputs, records
from bert_probe.corpus.passes import gathered
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
    write_shard,
)
from bert_probe.corpus.summary import write_summary
from bert_probe.corpus.tables import layouts
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
    report: Report = ignore,
    told: Told = lambda _: None,
) -> Store:
    """Read all of the inputs that a store does not hold yet.

    Args:
        inputs: files, folders and patterns, see `find_inputs`.
        folder: of the store; it is made, or goes on.
        column: of tables, JSON lines and Parquet; the usual one where none is named.
        workers: shards that are worked on at once, each by a thread of its own; all share the weights.
        report: told how many records are done, and of how many.
        told: told of every shard that is done.

    Raises:
        SelectionError, TextError: inputs that cannot be read, a layer that is not there, or a store that was
            begun with other inputs or another question.
        StoreError: the folder cannot be written, or somebody else is writing it.
        OutOfMemoryError: the machine is too small for one batch.
    """
    checkpoint = checkpoint.now()
    question = question.of(checkpoint)
    files = find_inputs(inputs, column)
    place = Path(folder)
    with _alone(place):
        manifest = _manifest(checkpoint, question, described(files), files, column, shard_rows)
        done = _begun(place, manifest)
        layout = layouts(question, checkpoint.description.hidden_size)
        progress = _Progress(sum(one.records for one in done.values()), manifest["records"], report)

        def work(number: int, part: Sequence[Record]) -> Shard:
            tables = gathered(checkpoint, question, part, progress.of(number))
            return write_shard(place, number, len(part), tables, layout)

        missing = (one for one in shards(files, column, shard_rows) if one[0] not in done)
        try:
            for shard in _each(work, missing, workers):
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


def _each(
    work: Callable[[int, Sequence[Record]], Shard],
    parts: Iterator[tuple[int, Sequence[Record]]],
    workers: int,
) -> Iterator[Shard]:
    """The shards as they are done; no more parts are read than are worked on."""
    if workers == 1:
        yield from (work(*part) for part in parts)
        return
    pool = ThreadPoolExecutor(workers, "bert-probe corpus")
    try:
        with _threads_shared(workers):
            waiting = {pool.submit(work, *part) for part in islice(parts, workers)}
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                waiting |= {pool.submit(work, *part) for part in islice(parts, len(done))}
                yield from (one.result() for one in done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _threads_shared(workers: int) -> Iterator[None]:
    """Several passes at once share the processor's cores, instead of each using all of them."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // workers))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def shards(
    files: Sequence[FoundFile], column: str | None, shard_rows: int
) -> Iterator[tuple[int, tuple[Record, ...]]]:
    """The records of the inputs, so many at a time, each part with its number."""
    every = iter(records(files, column))
    for number in counted():
        part = tuple(islice(every, shard_rows))
        if not part:
            return
        yield number, part


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
    before = open_store(folder).manifest
    for name, what in _CAUSES.items():
        if before[name] != manifest[name]:
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
