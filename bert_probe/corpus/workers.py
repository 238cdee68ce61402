"""Divide a corpus into chunks, and process the chunks with threads or another runner."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import torch

from bert_probe.corpus.extract import extract_tables
from bert_probe.corpus.inputs import (
    NEIGHBORS,
    VECTORS,
    IngestConfig,
    InputFile,
    Record,
    check_unchanged,
    records,
)
from bert_probe.corpus.store import Shard, write_shard
from bert_probe.corpus.tables import TableSchema, layouts
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress

Chunk: TypeAlias = tuple[int, Sequence[Record]]
"""A chunk of records: the index of its shard, from 0, and the records."""


@dataclass(frozen=True)
class PendingChunks:
    """The chunks of the inputs that are not in a store yet. Each iteration reads the inputs again.

    Attributes:
        files: the inputs.
        column: the text column of tables among the files.
        shard_rows: maximum number of records in a chunk, see `chunked`.
        shard_bytes: maximum size of the texts in a chunk, in bytes of UTF-8; see `chunked`.
        done: indices of the shards that the store already has.
    """

    files: tuple[InputFile, ...]
    column: str | None
    shard_rows: int
    shard_bytes: int
    done: frozenset[int] = frozenset()

    def __iter__(self) -> Iterator[Chunk]:
        chunks = chunked(records(self.files, self.column), self.shard_rows, self.shard_bytes)
        for number, chunk in enumerate(chunks):
            check_unchanged(self.files)  # fails before a changed file is processed
            if number not in self.done:
                yield number, chunk


@dataclass(frozen=True, eq=False)
class ShardJob:
    """Processes chunks into shards, in any thread or process.

    Attributes:
        folder: the folder of the store.
        checkpoint: the model.
        question: what to extract, resolved by `IngestConfig.of`.
        progress_of: a function that takes the index of a shard, and returns a progress callback for it.
        cancel: called at the end of a run. Progress callbacks of unfinished shards then raise `Cancelled`.
    """

    folder: Path
    checkpoint: Checkpoint
    question: IngestConfig
    progress_of: Callable[[int], Progress] = lambda _: no_progress
    cancel: Callable[[], None] = lambda: None

    @cached_property
    def _schemas(self) -> dict[str, TableSchema]:
        return layouts(self.question, self.checkpoint.description.hidden_size)

    def run(self, number: int, chunk: Sequence[Record]) -> Shard:
        """Process a chunk and write its shard."""
        tables = extract_tables(self.checkpoint, self.question, chunk, self.progress_of(number))
        return write_shard(self.folder, number, chunk[0].row, len(chunk), tables, self._schemas)


class ShardRunner(Protocol):
    """The interface of a runner, which processes the chunks of a corpus in threads or other processes."""

    def device(self, checkpoint: Checkpoint) -> str:
        """Return the name of the device on which the model runs, which is recorded in the manifest.

        Raises:
            UnavailableError: the runner cannot use this checkpoint.
        """

    def shards(self, job: ShardJob, chunks: PendingChunks) -> Generator[Shard]:
        """Yield shards as they are completed, in any order. Only a few chunks may be read in advance."""


@dataclass(frozen=True)
class ThreadRunner:
    """Processes chunks in threads of this process, which share the weights of the model.

    Attributes:
        workers: number of shards that are processed at the same time.
    """

    workers: int = 1

    def device(self, checkpoint: Checkpoint) -> str:
        """Return the name of the checkpoint's device."""
        return checkpoint.description.device

    def shards(self, job: ShardJob, chunks: PendingChunks) -> Generator[Shard]:
        """Yield shards as they are completed. A chunk is read only when a thread is free to process it."""
        remaining = iter(chunks)
        if self.workers == 1:
            yield from (job.run(*chunk) for chunk in remaining)
            return
        pool = ThreadPoolExecutor(self.workers, "bert-probe corpus")
        try:
            with _limited_torch_threads(self.workers):
                waiting = {pool.submit(job.run, *chunk) for chunk in islice(remaining, self.workers)}
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    waiting |= {pool.submit(job.run, *chunk) for chunk in islice(remaining, len(done))}
                    yield from (future.result() for future in done)
        finally:
            job.cancel()
            pool.shutdown(cancel_futures=True)


def threads_per_worker(workers: int) -> int:
    """Return the number of torch threads per worker with which all workers together use each core once."""
    return max(1, torch.get_num_threads() // workers)


@contextmanager
def _limited_torch_threads(workers: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads_per_worker(workers))
    try:
        yield
    finally:
        torch.set_num_threads(before)


SHARD_ROWS = 2000
"""Default maximum number of records in a chunk. An interrupted run loses the chunks in progress."""
SHARD_BYTES = 2**29
"""Memory limit of a chunk in bytes, approximately. With long texts or many layers, chunks are smaller."""
TEXT_BYTES = 4
"""Approximate length of a token's text in bytes (UTF-8)."""
TOKEN_BYTES = 2048
"""Approximate memory for a token in bytes, without its vectors and neighbors."""
NEIGHBOR_BYTES = 32
"""Approximate memory for the neighbor of a token in one head, in bytes."""


def max_text_bytes(question: IngestConfig, checkpoint: Checkpoint) -> int:
    """Return the maximum size of the texts in a chunk, in bytes of UTF-8.

    A chunk of this size takes about `SHARD_BYTES` of memory.

    Args:
        question: what to extract, resolved by `IngestConfig.of`.
        checkpoint: the model.
    """
    description, token_bytes = checkpoint.description, TOKEN_BYTES
    if VECTORS in question.keep:
        layers = len(question.layers or ())
        token_bytes += layers * description.hidden_size * np.dtype(question.dtype).itemsize
    if NEIGHBORS in question.keep:
        token_bytes += description.layers * description.heads * NEIGHBOR_BYTES
    return SHARD_BYTES // token_bytes * TEXT_BYTES


def chunked(records: Iterable[Record], max_records: int, max_bytes: int) -> Iterator[tuple[Record, ...]]:
    """Split records into chunks. The same records always give the same chunks.

    Args:
        records: the records in input order.
        max_records: maximum number of records in a chunk.
        max_bytes: maximum size of the texts in a chunk, in bytes of UTF-8; a longer text is its own chunk.
    """
    chunk: list[Record] = []
    chunk_bytes = 0
    for record in records:
        record_bytes = len((record.text or "").encode())
        if chunk and (len(chunk) == max_records or chunk_bytes + record_bytes > max_bytes):
            yield tuple(chunk)
            chunk, chunk_bytes = [], 0
        chunk.append(record)
        chunk_bytes += record_bytes
    if chunk:
        yield tuple(chunk)
