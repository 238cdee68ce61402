"""Who works on the shards of a store: the seam between what is computed of a part of a corpus, and where."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeAlias

import torch

from bert_probe.corpus.chunks import parted
from bert_probe.corpus.extract import gathered
from bert_probe.corpus.ingest import IngestConfig
from bert_probe.corpus.inputs import InputFile, Record, check_unchanged, records
from bert_probe.corpus.store import Shard, write_shard
from bert_probe.corpus.tables import TableSchema, layouts
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress

Part: TypeAlias = tuple[int, Sequence[Record]]
"""The number of a shard, from 0, and its records."""


@dataclass(frozen=True)
class PendingChunks:
    """The parts of the inputs that a store lacks; read anew whenever they are gone through.

    Attributes:
        column: of tables among the files.
        shard_rows, shard_bytes: of a part at most, see `parted`.
        done: numbers of the shards that are there.
    """

    files: tuple[InputFile, ...]
    column: str | None
    shard_rows: int
    shard_bytes: int
    done: frozenset[int] = frozenset()

    def __iter__(self) -> Iterator[Part]:
        every = parted(records(self.files, self.column), self.shard_rows, self.shard_bytes)
        for part in enumerate(every):
            check_unchanged(self.files)  # before anybody works on it
            if part[0] not in self.done:
                yield part


@dataclass(frozen=True, eq=False)
class ShardJob:
    """What is done with every part, whoever does it.

    Attributes:
        folder: of the store.
        question: resolved, see `IngestConfig.of`.
        report_of: number of a shard → the report of its records.
        end: lets those that work on parts give up, so that none does when all is over.
    """

    folder: Path
    checkpoint: Checkpoint
    question: IngestConfig
    report_of: Callable[[int], Progress] = lambda _: no_progress
    end: Callable[[], None] = lambda: None

    @cached_property
    def _layout(self) -> dict[str, TableSchema]:
        return layouts(self.question, self.checkpoint.description.hidden_size)

    def do(self, number: int, part: Sequence[Record]) -> Shard:
        """Read a part, and write its shard."""
        tables = gathered(self.checkpoint, self.question, part, self.report_of(number))
        return write_shard(self.folder, number, part[0].row, len(part), tables, self._layout)


class ShardRunner(Protocol):
    """Who works on shards."""

    def device(self, checkpoint: Checkpoint) -> str:
        """Where the numbers will be computed, as the store says.

        Raises:
            UnavailableError: this checkpoint cannot be used there.
        """

    def shards(self, job: ShardJob, parts: PendingChunks) -> Generator[Shard]:
        """The shards as they are done, in any order; few more parts are read than are worked on."""


@dataclass(frozen=True)
class ThreadRunner:
    """This process, with so many shards at once; all share the weights."""

    workers: int = 1

    def device(self, checkpoint: Checkpoint) -> str:
        """The checkpoint's own."""
        return checkpoint.description.device

    def shards(self, job: ShardJob, parts: PendingChunks) -> Generator[Shard]:
        """No more parts are read than are worked on."""
        left = iter(parts)
        if self.workers == 1:
            yield from (job.do(*part) for part in left)
            return
        pool = ThreadPoolExecutor(self.workers, "bert-probe corpus")
        try:
            with _threads_shared(self.workers):
                waiting = {pool.submit(job.do, *part) for part in islice(left, self.workers)}
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    waiting |= {pool.submit(job.do, *part) for part in islice(left, len(done))}
                    yield from (one.result() for one in done)
        finally:
            job.end()
            pool.shutdown(cancel_futures=True)


def threads_of_each(workers: int) -> int:
    """Several passes at once share the processor's cores, instead of each using all of them."""
    return max(1, torch.get_num_threads() // workers)


@contextmanager
def _threads_shared(workers: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads_of_each(workers))
    try:
        yield
    finally:
        torch.set_num_threads(before)
