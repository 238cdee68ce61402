"""Build a corpus store shard by shard, continue an interrupted run, and verify the files of a store."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from bert_probe.core.writing import is_lock_file, locked
from bert_probe.corpus import vector_index
from bert_probe.corpus.contexts import FOLDER as INDEXES
from bert_probe.corpus.heads import SUMMARY, belongs_to, read_summary, sum_statistics, write_summary
from bert_probe.corpus.inputs import (
    SENTENCE_VECTORS,
    IngestConfig,
    InputFile,
    check_unchanged,
    count_records,
    describe_files,
    find_inputs,
    sentence_pooling,
    sentence_vector_size,
)
from bert_probe.corpus.schema import FORMAT, MANIFEST, STATISTICS, VERSION
from bert_probe.corpus.store import (
    Shard,
    Store,
    check_no_link,
    open_corpus,
    read_store,
    remove_partial_files,
    table_files,
    write_errors,
    write_json,
)
from bert_probe.corpus.workers import (
    SHARD_ROWS,
    PendingChunks,
    ShardJob,
    ShardRunner,
    ThreadRunner,
    max_text_bytes,
)
from bert_probe.errors import EmptyTextError, ExportError, SelectionError, StoreError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Cancelled, Progress, StageProgress, no_progress, no_stage_progress

ShardLog = Callable[[Mapping[str, Any]], None]
"""A callback that is called with a log entry for each completed shard. The entry has the shard's number
("shard"), its number of rejected records ("refusals"), the number of records processed so far ("records") and
their total ("of")."""


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
    progress: Progress = no_progress,
    watch: StageProgress = no_stage_progress,
    on_shard: ShardLog = lambda _: None,
    exclude: Sequence[Path] = (),
) -> Store:
    """Process the input records that a store does not contain yet, add them to the store, and return it.

    Args:
        checkpoint: the model.
        question: what to extract from each sentence.
        inputs: files, folders and patterns; see `find_inputs`.
        folder: the folder of the store, which is created or continued.
        column: the text column of tables, JSON lines and Parquet. By default, the only column, or the column
            named "sentence" or "text".
        as_named: whether to trust the file extensions, even if a file looks like another format.
        shard_rows: maximum number of records in a shard. Shards of long texts have fewer; see `chunked`.
        workers: number of shards processed at the same time, in threads that share the weights.
        on: runner that processes the shards, see `ShardRunner`. By default, shards are processed in threads.
        progress: called with the number of processed records and their total, or with (0, 0) while the
            records are counted.
        watch: called for each phase (hashing, counting and reading the inputs); opens a progress bar.
        on_shard: called with a log entry for each completed shard.
        exclude: files that are not inputs, such as a log. The files of the store are never inputs.

    Raises:
        SelectionError: the store was started with other inputs or another configuration; a layer or column
            does not exist; or an input is excluded or is a file of the store.
        TextError: an input cannot be read.
        UnavailableError: the runner or the configuration does not work with this checkpoint.
        StoreError: the folder cannot be written, or another process is writing to it.
        OutOfMemoryError: a single batch does not fit into memory.
    """
    checkpoint = checkpoint.snapshot()
    question = question.of(checkpoint)
    runner = on or ThreadRunner(workers)
    device = runner.device(checkpoint)
    path = Path(folder)
    with _lock(path, reserve=False):
        matched_files = find_inputs(inputs, column, as_named, exclude=[path, *exclude])
        with _watch_preparation(watch, "Hashing", "B", progress) as hashing_progress:
            files = describe_files(matched_files, hashing_progress)
        with _watch_preparation(watch, "Counting", "sentences", progress) as counting_progress:
            count = count_records(matched_files, column, counting_progress)
            check_unchanged(files)
        if not count:
            raise EmptyTextError("The inputs contain no sentences. Write one sentence per line.")
        max_bytes = max_text_bytes(question, checkpoint)
        manifest = {
            **_manifest(checkpoint, question, files, count, column),
            "shard_rows": shard_rows,
            "shard_bytes": max_bytes,
        }
        manifest["model"]["device"] = device
        with write_errors(path):
            done = _start_or_continue(path, manifest, checkpoint)
        chunks = PendingChunks(files, column, shard_rows, max_bytes, frozenset(done))
        with watch("Reading", "sentences") as bar:
            records_done = sum(shard.records for shard in done.values())
            shard_progress = _ShardProgress(records_done, count, _both(progress, bar))
            job = ShardJob(path, checkpoint, question, shard_progress.of, shard_progress.cancel)
            with closing(runner.shards(job, chunks)) as shards:
                for shard in shards:
                    shard_progress.of(shard.number)(shard.records, shard.records)
                    entry = {"shard": shard.number, "refusals": shard.refusals}
                    on_shard({**entry, "records": shard_progress.done, "of": count})
        store = open_corpus(path)
        with write_errors(path):
            write_summary(store)
    return store


@contextmanager
def _watch_preparation(watch: StageProgress, label: str, unit: str, progress: Progress) -> Iterator[Progress]:
    """Show a progress bar for a phase before the records are read, and yield its progress callback.

    Args:
        watch: opens the progress bar.
        label: name of the phase, such as hashing the input files.
        unit: unit of the progress bar.
        progress: called with (0, 0) at each step, so that an exception in it can cancel the phase.
    """
    with watch(label, unit) as bar:
        yield _both(bar, lambda done, total: progress(0, 0))  # noqa: ARG005 - not numbers of records


def _both(first: Progress, second: Progress) -> Progress:
    def progress(done: int, total: int) -> None:
        first(done, total)
        second(done, total)

    return progress


class _ShardProgress:
    """Reports the total number of records processed in all shards, which may run in several threads."""

    def __init__(self, before: int, total: int, progress: Progress) -> None:
        self._total, self._progress = total, progress
        self._is_cancelled = False
        self._done_by_shard = {-1: before}
        progress(before, total)

    @property
    def done(self) -> int:
        """Number of records processed so far, in all shards."""
        return sum(list(self._done_by_shard.values()))  # copy the list, because other threads add shards

    def of(self, number: int) -> Progress:
        """Return the progress callback for the shard with this number."""

        def progress(done: int, _: int) -> None:
            if self._is_cancelled:
                raise Cancelled
            self._done_by_shard[number] = done
            self._progress(self.done, self._total)

        return progress

    def cancel(self) -> None:
        """Cancel each unfinished shard the next time that it reports progress."""
        self._is_cancelled = True


def _manifest(
    checkpoint: Checkpoint,
    question: IngestConfig,
    inputs: Sequence[InputFile],
    count: int,
    column: str | None,
) -> dict[str, Any]:
    """Return the manifest of a new store."""
    description = checkpoint.description
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": checkpoint.provenance(),
        "sizes": {
            "layers": description.layers,
            "heads": description.heads,
            "hidden_size": description.hidden_size,
            "max_tokens": description.max_tokens,
        },
        "question": question.to_json(),
        "column": column,
        "inputs": [{"name": file.name, "bytes": file.size, "sha256": file.sha256} for file in inputs],
        "records": count,
        "sentence_vectors": _sentence_vectors(checkpoint, question),
    }


def _sentence_vectors(checkpoint: Checkpoint, question: IngestConfig) -> dict[str, Any] | None:
    """Return the size and the pooling of the sentence vectors; None if the store has none."""
    if SENTENCE_VECTORS not in question.keep:
        return None
    return {
        "size": sentence_vector_size(checkpoint),
        "recipe": json.loads(json.dumps(sentence_pooling(checkpoint).about)),
    }


def incomplete_note(store: Store) -> str:
    """Return a sentence for the user if a store does not contain all records of its inputs; otherwise ""."""
    if store.finished:
        return ""
    return (
        f"This store is incomplete: it contains {store.records:,} of {store.manifest['records']:,} "
        "sentences, and all results are for these sentences only. To complete it, run the same "
        "bert-probe corpus run command again."
    )


def _start_or_continue(folder: Path, manifest: dict[str, Any], checkpoint: Checkpoint) -> dict[int, Shard]:
    """Write the manifest of a new store, or compare it with the manifest of an existing store.

    Returns:
        The shards of the existing store, by number.
    """
    remove_partial_files(folder)
    if not (folder / MANIFEST).exists():
        write_json(folder / MANIFEST, manifest)
        return {}
    store = open_corpus(folder)
    if not store.shards:  # the store contains no results, so replace its manifest
        write_json(folder / MANIFEST, manifest)
        return {}
    for name, difference in _DIFFERENCES.items():
        if store.manifest[name] != manifest[name]:
            raise SelectionError(
                f"{folder} was started with {difference}. Continue with the original settings, or choose "
                "another path for --out."
            )
    store.check(checkpoint)
    return {shard.number: shard for shard in store.shards}


_DIFFERENCES = {
    "model": "a different model, or different versions of the libraries",
    "question": "different layers or tables",
    "sentence_vectors": "a different pooling of the sentence vectors",
    "inputs": "different inputs, or inputs that have changed since",
    "column": "another column",
    "shard_rows": "a different number of rows per shard",
    "shard_bytes": "a different shard size, by a different version of BERT Probe",
}
"""Manifest entry that must not change when a store is continued → description of a change for the error
message."""


@contextmanager
def reserved_store(folder: Path) -> Iterator[None]:
    """Lock the folder of a store for the duration of a ``with`` block, in which `build_corpus` can write it.

    Raises:
        StoreError: another process is writing to this store, the folder contains files that do not belong to
            a store, or it cannot be created.
    """
    with _lock(folder, reserve=True):
        yield


@contextmanager
def _lock(folder: Path, reserve: bool) -> Iterator[None]:
    """Lock the folder of a store, and create it if needed. A new folder that stays empty is removed again."""
    with ExitStack() as stack:
        try:
            path = Path(os.path.realpath(folder))
            str(path).encode()
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked([path], reserve))
            is_store = (path / MANIFEST).exists()
            if path.exists() and not is_store and not all(map(_may_be_in_new_store, path.iterdir())):
                raise StoreError(
                    f"{folder} contains files that do not belong to a store. Choose another path for --out."
                )
            if not path.exists():
                path.mkdir()
                stack.callback(_remove_if_empty, path)
            for part in filter(Path.is_dir, path.iterdir()):
                check_no_link(part)
            if not os.access(path, os.W_OK | os.X_OK):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        except UnicodeEncodeError:
            raise StoreError(
                f"The path {str(Path(folder).resolve())!a} is not UTF-8. Choose another path for --out."
            ) from None
        except ExportError as error:
            raise StoreError(str(error)) from None
        except (OSError, ValueError) as error:  # Python raises ValueError if a path contains NUL.
            reason = getattr(error, "strerror", None) or error
            raise StoreError(f"{folder} cannot be written: {reason}. Choose another path.") from None
        yield


_PARTIAL_MANIFEST = re.compile(rf"\.{re.escape(MANIFEST)}\.[0-9a-f]{{8}}\.part")


def _may_be_in_new_store(file: Path) -> bool:
    """Return whether a file is a lock, or a manifest that an interrupted run did not complete."""
    return is_lock_file(file) or _PARTIAL_MANIFEST.fullmatch(file.name) is not None


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


@dataclass(frozen=True)
class FileDifference:
    """A file of a store that does not match the metadata of the store.

    Attributes:
        file: path of the file within the store.
        problem: a phrase that describes what is wrong with the file, such as "has grown".
    """

    file: str
    problem: str


@dataclass(frozen=True)
class Verification:
    """The result of verifying a store.

    Attributes:
        store: name of the store.
        files: number of files that were compared.
        bytes: total size of these files in bytes.
        differences: the files that differ, in the order of the shards.
        missing: number of records of the inputs that are not in the store, because the run was interrupted or
            shards at the end are missing.
    """

    store: str
    files: int
    bytes: int
    differences: tuple[FileDifference, ...]
    missing: int = 0

    def frame(self) -> pd.DataFrame:
        """Return the differences as a table with the columns file and problem."""
        names = ("file", "problem")
        return pd.DataFrame(
            {name: [getattr(difference, name) for difference in self.differences] for name in names},
            dtype=str,
        )

    def summary(self) -> str:
        """Return a sentence with the number of compared files and the number of files that differ."""
        count = len(self.differences)
        outcome = f"{count:,} {'differs' if count == 1 else 'differ'}" if count else "nothing differs"
        missing = (
            f" {self.missing:,} records of the inputs are not in the store. Run corpus run again to add them."
            if self.missing
            else ""
        )
        return f"{self.store}: compared {self.files:,} files with {self.bytes:,} bytes; {outcome}.{missing}"


def verify_corpus(folder: str | os.PathLike[str], progress: Progress = no_progress) -> Verification:
    """Compare every byte of a store's tables with the recorded digests.

    The comparison detects accidental damage but not manipulation, because someone who changes a table can
    also change its digest. A vector index that differs can be deleted; it is rebuilt when it is needed.

    Args:
        folder: the folder of the store.
        progress: called with the number of compared bytes and their total.

    Raises:
        StoreError: the manifest or a shard's JSON file is missing, broken, or contradicts another JSON file.
    """
    store = read_store(folder)
    files = list(table_files(store, store.layouts))
    done, total = 0, sum(file.size for file in files)

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        progress(min(done, total), total)

    problems = [(file, file.change(every_byte=True, on_bytes=on_bytes) or file.problem()) for file in files]
    differences = [
        FileDifference(file.path.relative_to(store.folder).as_posix(), problem)
        for file, problem in problems
        if problem
    ]
    indexes = vector_index.index_files(store.folder / INDEXES)
    differences += [
        FileDifference(index.relative_to(store.folder).as_posix(), problem)
        for index in indexes
        if (problem := vector_index.problem(index))
    ]
    expected = 1
    for shard in store.shards:
        if shard.first != expected:
            gap = f"begins with record {shard.first:,} instead of {expected:,}"
            differences.append(FileDifference(f"shards/{shard.name}.json", gap))
        expected = shard.first + shard.records
    if not differences:
        differences += _check_summary(store)
    missing = max(0, int(store.manifest["records"]) - expected + 1)
    return Verification(store.folder.name, len(files) + len(indexes), total, tuple(differences), missing)


def _check_summary(store: Store) -> list[FileDifference]:
    """Compare the summary file with the sum of the shards' statistics."""
    path = store.folder / SUMMARY
    if not path.exists() or not store.has(STATISTICS):
        return []
    if not path.is_file():
        return [FileDifference(SUMMARY, "is not a regular file")]
    table = read_summary(store)
    if table is None:
        return [FileDifference(SUMMARY, "cannot be read")]
    if not belongs_to(table, store):
        return [FileDifference(SUMMARY, "belongs to a different version of this store and is not used")]
    try:
        is_equal = _with_nulls(table).equals(_with_nulls(sum_statistics(store)))
    except StoreError:
        return [FileDifference(SUMMARY, "cannot be read")]
    return [] if is_equal else [FileDifference(SUMMARY, "differs from the summed statistics of the shards")]


def _with_nulls(table: pa.Table) -> pa.Table:
    """Return a table with nulls in place of NaN, which does not equal itself."""
    import pyarrow.compute as pc

    columns = [
        pc.if_else(pc.is_nan(column), None, column) if pa.types.is_floating(column.type) else column
        for column in table.columns
    ]
    return pa.table(columns, names=table.column_names)
