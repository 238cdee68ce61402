"""All files of a store compared with what the store says of them, byte by byte."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bert_probe.corpus.search import vector_index
from bert_probe.corpus.search.method import FOLDER as INDEXES
from bert_probe.corpus.store import Store, read_store, table_files
from bert_probe.corpus.summary import SUMMARY, added_up, belongs_to
from bert_probe.corpus.tables import STATISTICS
from bert_probe.errors import StoreError
from bert_probe.model.progress import Progress, no_progress


@dataclass(frozen=True)
class FileDifference:
    """A file of a store that is not what the store says.

    Attributes:
        file: its path within the store.
        problem: what is wrong, as the rest of a sentence.
    """

    file: str
    problem: str


@dataclass(frozen=True)
class Verification:
    """What came of comparing the files of a store with their digests.

    Attributes:
        store: its name.
        files: number of files that were compared.
        bytes: number of bytes in them.
        differences: of the files, in the order of the shards.
    """

    store: str
    files: int
    bytes: int
    differences: tuple[FileDifference, ...]

    def frame(self) -> pd.DataFrame:
        """Return a table with a line for each difference: file and problem."""
        names = ("file", "problem")
        return pd.DataFrame(
            {name: [getattr(difference, name) for difference in self.differences] for name in names},
            dtype=str,
        )

    def summary(self) -> str:
        """Return the outcome in a sentence."""
        found = len(self.differences)
        outcome = f"{found:,} {'differs' if found == 1 else 'differ'}" if found else "nothing differs"
        return f"{self.store}: {self.files:,} files with {self.bytes:,} bytes compared, {outcome}."


def verify_corpus(folder: str | os.PathLike[str], report: Progress = no_progress) -> Verification:
    """Compare every byte of a store's tables with the digests that were written with them.

    A digest says that a file is the one that was written, and not that its numbers are right: whoever can
    change a table can change its digest too. An index of vectors that differs can be deleted: it is made
    again.

    Args:
        report: called with the number of bytes compared, and of all bytes.

    Raises:
        StoreError: the manifest or the file of a shard is gone, broken or contradicts another.
    """
    store = read_store(folder)
    files = list(table_files(store))
    done, total = 0, sum(file.size for file in files)

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        report(min(done, total), total)

    problems = [(file, file.problem(every_byte=True, on_bytes=on_bytes)) for file in files]
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
    for before, after in pairwise(store.shards):
        if after.first != before.first + before.records:
            gap = f"begins with record {after.first:,} instead of {before.first + before.records:,}"
            differences.append(FileDifference(f"shards/{after.name}.json", gap))
    if not differences:
        differences += _of_summary(store)
    return Verification(store.folder.name, len(files) + len(indexes), total, tuple(differences))


def _of_summary(store: Store) -> list[FileDifference]:
    """Compare the statistics of the whole store with those of its shards."""
    path = store.folder / SUMMARY
    if not path.exists() or not store.has(STATISTICS):
        return []
    if not path.is_file():
        return [FileDifference(SUMMARY, "is not a regular file")]
    try:
        table = pq.read_table(path, partitioning=None)
        if not belongs_to(table, store):
            return [FileDifference(SUMMARY, "is of another version of this store; it is not used")]
        same = table.equals(added_up(store))
    except (OSError, pa.ArrowException, StoreError):
        return [FileDifference(SUMMARY, "cannot be read")]
    return [] if same else [FileDifference(SUMMARY, "is not the sum of the statistics of the shards")]
