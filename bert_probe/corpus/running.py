"""A corpus read into a store, a shard at a time; a run that was ended goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count as counted
from itertools import islice
from pathlib import Path
from typing import Any

from bert_probe.corpus.gather import Gather
from bert_probe.corpus.inputs import InputFile, Record, described, find_inputs, records
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
from bert_probe.model.progress import Report, ignore

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
    report: Report = ignore,
    told: Told = lambda _: None,
) -> Store:
    """Read all of the inputs that a store does not hold yet.

    Args:
        inputs: files, folders and patterns, see `find_inputs`.
        folder: of the store; it is made, or goes on.
        column: of tables, JSON lines and Parquet; the usual one where none is named.
        report: told how many records are done, and of how many.
        told: told of every shard that is done.

    Raises:
        SelectionError, TextError: inputs that cannot be read, a layer that is not there, or a store that was
            begun with other inputs or another question.
        StoreError: the folder cannot be written, or somebody else is writing it.
        OutOfMemoryError: the machine is too small for one batch.
    """
    question = question.of(checkpoint)
    files = find_inputs(inputs, column)
    place = Path(folder)
    with _alone(place):
        manifest = _manifest(checkpoint, question, described(files), files, column, shard_rows)
        done = _begun(place, manifest)
        layout = layouts(question, checkpoint.description.hidden_size)
        count = sum(one.records for one in done.values())
        total = manifest["records"]
        report(count, total)
        for number, part in shards(files, column, shard_rows):
            if number in done:
                continue

            def within(read: int, _: int, before: int = count) -> None:
                report(before + read, total)

            tables = gathered(checkpoint, question, part, within)
            shard = write_shard(place, number, len(part), tables, layout)
            count += shard.records
            told({"shard": number, "records": count, "of": total, "refusals": shard.refusals})
        store = open_store(place)
        write_summary(store)
    return store


def shards(
    files: Sequence[Any], column: str | None, shard_rows: int
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
    files: Sequence[Any],
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
