"""A corpus read into a store, a shard at a time; a run that was ended goes on where it was."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from bert_probe.core.writing import is_lock_file, locked
from bert_probe.corpus.chunks import SHARD_ROWS, text_bytes
from bert_probe.corpus.ingest import IngestConfig
from bert_probe.corpus.inputs import InputFile, check_unchanged, count_records, described, find_inputs
from bert_probe.corpus.manifest import FORMAT, MANIFEST, VERSION
from bert_probe.corpus.store import (
    Shard,
    Store,
    open_corpus,
    sweep,
    write_json,
    written,
)
from bert_probe.corpus.summary import write_summary
from bert_probe.corpus.workers import PendingChunks, ShardJob, ShardRunner, ThreadRunner
from bert_probe.errors import EmptyTextError, ExportError, SelectionError, StoreError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Cancelled, Progress, Watch, no_progress, unwatched

Told = Callable[[Mapping[str, Any]], None]
"""Called with what happened, as a line of a log."""


def build_corpus(
    checkpoint: Checkpoint,
    question: IngestConfig,
    inputs: Sequence[str | Path],
    folder: str | Path,
    *,
    column: str | None = None,
    as_named: bool = False,
    shard_rows: int = SHARD_ROWS,
    workers: int = 1,
    on: ShardRunner | None = None,
    report: Progress = no_progress,
    watch: Watch = unwatched,
    told: Told = lambda _: None,
) -> Store:
    """Read all of the inputs that a store does not hold yet.

    Args:
        inputs: files, folders and patterns, see `find_inputs`.
        folder: of the store; it is made, or goes on.
        column: of tables, JSON lines and Parquet; the usual one where none is named.
        as_named: read files as their endings say, even if they look like another format.
        shard_rows: records of a shard at most; there are fewer of long texts, see `parted`.
        workers: shards that are worked on at once, each by a thread of its own; all share the weights.
        on: who works on them instead, see `working.Runner`.
        report: told how many records are done, and of how many; of 0 while they are still counted.
        watch: the same for each part of the work: inputs are read for their digests, then counted, then read.
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
    runner = on or ThreadRunner(workers)
    device = runner.device(checkpoint)
    files = find_inputs(inputs, column, as_named)
    place = Path(folder)
    with _locked(place, reserve=False):
        with _watched(watch, "Looking through", "B", report) as looked:
            found = described(files, looked)
        with _watched(watch, "Counting", "sentences", report) as counted:
            count = count_records(files, column, counted)
            check_unchanged(found)
        most_bytes = text_bytes(question, checkpoint)
        manifest = {
            **_manifest(checkpoint, question, found, count, column),
            "shard_rows": shard_rows,
            "shard_bytes": most_bytes,
        }
        manifest["model"]["device"] = device
        with written(place):
            done = _begun(place, manifest)
        parts = PendingChunks(found, column, shard_rows, most_bytes, frozenset(done))
        with watch("Reading", "sentences") as shown:
            progress = _Progress(sum(one.records for one in done.values()), count, _both(report, shown))
            job = ShardJob(place, checkpoint, question, progress.of, progress.end)
            with closing(runner.shards(job, parts)) as made:
                for shard in made:
                    progress.of(shard.number)(shard.records, shard.records)
                    told({"shard": shard.number, "refusals": shard.refusals, **progress.to_json()})
        store = open_corpus(place)
        with written(place):
            write_summary(store)
    return store


@contextmanager
def _watched(watch: Watch, label: str, unit: str, report: Progress) -> Iterator[Progress]:
    """A part of the work before any record is read, which may be ended meanwhile."""
    with watch(label, unit) as shown:
        yield _both(shown, lambda done, total: report(0, 0))  # noqa: ARG005 - they are no records


def _both(first: Progress, second: Progress) -> Progress:
    def report(done: int, total: int) -> None:
        first(done, total)
        second(done, total)

    return report


class _Progress:
    """How many records are done, of all shards that are worked on."""

    def __init__(self, before: int, total: int, report: Progress) -> None:
        self._total, self._report = total, report
        self._over = False
        self._done = {-1: before}
        report(before, total)

    def of(self, number: int) -> Progress:
        """The report of a shard."""

        def within(done: int, _: int) -> None:
            if self._over:
                raise Cancelled
            self._done[number] = done
            self._report(sum(list(self._done.values())), self._total)

        return within

    def end(self) -> None:
        """Nobody wants more of them: shards that are worked on are given up at their next report."""
        self._over = True

    def to_json(self) -> dict[str, int]:
        """For a log."""
        return {"records": sum(list(self._done.values())), "of": self._total}


def _manifest(
    checkpoint: Checkpoint,
    question: IngestConfig,
    inputs: Sequence[InputFile],
    count: int,
    column: str | None,
) -> dict[str, Any]:
    """All that a store's content depends on, but for how it is parted."""
    about = checkpoint.description
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
        "question": question.to_json(),
        "column": column,
        "inputs": [{"name": one.name, "bytes": one.size, "sha256": one.sha256} for one in inputs],
        "records": count,
    }


def _begun(folder: Path, manifest: dict[str, Any]) -> dict[int, Shard]:
    """The shards that are there already, by their numbers; the folder is a store from here on."""
    if not (folder / MANIFEST).exists():
        write_json(folder / MANIFEST, manifest)
        return {}
    before = open_corpus(folder)
    if not before.shards:  # it was begun and holds nothing: it may as well be another one
        write_json(folder / MANIFEST, manifest)
        return {}
    for name, what in _CAUSES.items():
        if before.manifest[name] != manifest[name]:
            raise SelectionError(
                f"{folder} was begun with {what}. Give it the same again to go on, or choose another --out."
            )
    sweep(folder)
    return {shard.number: shard for shard in before.shards}


_CAUSES = {
    "model": "another model, or other versions of the libraries that run it",
    "question": "other layers, or other things to keep",
    "inputs": "other inputs, or these have changed since",
    "column": "another column",
    "shard_rows": "another number of rows in a shard",
    "shard_bytes": "shards of another size, by another version of this program",
}
"""What must be the same for a store to go on: name in the manifest → what is said where it differs."""


@contextmanager
def reserved_store(folder: Path) -> Iterator[None]:
    """Reserve the folder of a store until the block ends; `build_corpus` in the block writes it.

    Raises:
        StoreError: if another command writes this store, something else is there, or it cannot be created.
    """
    with _locked(folder, reserve=True):
        yield


@contextmanager
def _locked(folder: Path, reserve: bool) -> Iterator[None]:
    """Lock a folder and create it; one that is still empty when the block ends is removed."""
    with ExitStack() as stack:
        try:
            place = Path(os.path.realpath(folder))
            str(place).encode()
            place.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked([place], reserve))
            if not (place / MANIFEST).exists() and any(_foreign(place)):
                raise StoreError(f"{folder} holds other things than a store. Choose another --out.")
            if not place.exists():
                place.mkdir()
                stack.callback(_remove_empty, place)
            if not os.access(place, os.W_OK | os.X_OK):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        except UnicodeEncodeError:
            raise StoreError(f"{folder} is not UTF-8. Choose another --out.") from None
        except ExportError as error:
            raise StoreError(str(error)) from None
        except (OSError, ValueError) as error:  # a ValueError if the name holds a NUL
            reason = getattr(error, "strerror", None) or error
            raise StoreError(f"{folder} cannot be written: {reason}. Choose another place.") from None
        yield


def _foreign(folder: Path) -> Iterator[Path]:
    entries = folder.iterdir() if folder.exists() else ()
    return (entry for entry in entries if not is_lock_file(entry))


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
