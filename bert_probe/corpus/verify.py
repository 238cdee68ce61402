"""Verify a store: compare every byte of its files with the recorded digests."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from bert_probe.corpus.search import vector_index
from bert_probe.corpus.search.contexts import FOLDER as INDEXES
from bert_probe.corpus.store import Store, read_store, table_files
from bert_probe.corpus.summary import SUMMARY, belongs_to, sum_statistics
from bert_probe.corpus.tables import STATISTICS
from bert_probe.errors import StoreError
from bert_probe.model.progress import Progress, no_progress


@dataclass(frozen=True)
class FileDifference:
    """A file of a store that does not match its description.

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
    """

    store: str
    files: int
    bytes: int
    differences: tuple[FileDifference, ...]

    def frame(self) -> pd.DataFrame:
        """Return the differences as a table with the columns file and problem."""
        names = ("file", "problem")
        return pd.DataFrame(
            {name: [getattr(difference, name) for difference in self.differences] for name in names},
            dtype=str,
        )

    def summary(self) -> str:
        """Return a sentence that states how many files were compared, and how many of them differ."""
        count = len(self.differences)
        outcome = f"{count:,} {'differs' if count == 1 else 'differ'}" if count else "nothing differs"
        return f"{self.store}: {self.files:,} files with {self.bytes:,} bytes compared, {outcome}."


def verify_corpus(folder: str | os.PathLike[str], progress: Progress = no_progress) -> Verification:
    """Compare every byte of a store's tables with the recorded digests.

    This detects accidental damage but not manipulation, because someone who changes a table can also change
    its digest. A vector index that differs can be deleted; it is rebuilt when it is needed.

    Args:
        folder: the folder of the store.
        progress: called with the number of compared bytes and their total.

    Raises:
        StoreError: the manifest or a shard's JSON file is missing, broken, or contradicts another JSON file.
    """
    store = read_store(folder)
    files = list(table_files(store))
    done, total = 0, sum(file.size for file in files)

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        progress(min(done, total), total)

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
    for previous, following in pairwise(store.shards):
        expected = previous.first + previous.records
        if following.first != expected:
            gap = f"begins with record {following.first:,} instead of {expected:,}"
            differences.append(FileDifference(f"shards/{following.name}.json", gap))
    if not differences:
        differences += _check_summary(store)
    return Verification(store.folder.name, len(files) + len(indexes), total, tuple(differences))


def _check_summary(store: Store) -> list[FileDifference]:
    """Compare the summary file with the sum of the shards' statistics."""
    path = store.folder / SUMMARY
    if not path.exists() or not store.has(STATISTICS):
        return []
    if not path.is_file():
        return [FileDifference(SUMMARY, "is not a regular file")]
    try:
        table = pq.read_table(path, partitioning=None)
        if not belongs_to(table, store):
            return [FileDifference(SUMMARY, "belongs to another version of this store and is not used")]
        is_equal = table.equals(sum_statistics(store))
    except (OSError, pa.ArrowException, StoreError):
        return [FileDifference(SUMMARY, "cannot be read")]
    return [] if is_equal else [FileDifference(SUMMARY, "is not the sum of the statistics of the shards")]
