"""Dynamic batching: concurrent requests share a batch, which is hardly slower than a single request."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Condition
from typing import Final, Generic, TypeVar

import cachetools

from bert_probe.runtime.semaphore import Semaphore, await_done
from bert_probe.runtime.thread_pool import ThreadPool

T = TypeVar("T")
V = TypeVar("V")

LINGER: Final = 1.0
"""Maximum time that a batch waits for callers of the previous batch, relative to that batch's duration."""
GAP: Final = 0.3
"""Time without a new caller after which a batch stops waiting, relative to the previous batch's duration."""
_MAX_GROUPS: Final = 64


@dataclass(eq=False)
class _Batch(Generic[T, V]):
    """The items of a batch, and a future of their results (None if the batch failed or did not run)."""

    items: list[T] = field(default_factory=list)
    future: Future[Sequence[V] | None] = field(default_factory=Future)


@dataclass(eq=False)
class _Queue(Generic[T, V]):
    """The batches of one group.

    Attributes:
        turn: semaphore that allows one batch at a time.
        gathering: the batch that accepts items; None if there is none.
        expected_callers: number of callers of the last batch, plus callers that arrived while it ran.
        end, duration: when the last batch ended (monotonic clock), and its duration.
    """

    turn: Semaphore = field(default_factory=lambda: Semaphore(1))
    gathering: _Batch[T, V] | None = None
    expected_callers: int = 0
    end: float = 0.0
    duration: float = 0.0


class DynamicBatcher(Generic[T, V]):
    """Collects items for the next batch of a group while its previous batch runs.

    Callers often send their next request soon after a result. The next batch waits briefly for them;
    otherwise callers would split into two groups that alternate and wait for each other.

    Args:
        slots: limit on concurrent batches; a running batch holds one slot. A group runs one batch at a time.
    """

    def __init__(self, slots: Semaphore) -> None:
        self._slots = slots
        # All batches run in pooled threads: reusing a warm thread saves a quarter of the time.
        self._threads = ThreadPool("batch")
        self._groups: cachetools.LRUCache[Hashable, _Queue[T, V]] = cachetools.LRUCache(_MAX_GROUPS)
        self._joined = Condition()

    def make(
        self,
        item: T,
        make: Callable[[Sequence[T]], Sequence[V]],
        group: Hashable,
        max_size: int,
        check: Callable[[], None],
    ) -> V:
        """Return the result for an item.

        Args:
            make: processes several items of a group and returns their results in order.
            group: items of one group may share a batch.
            max_size: maximum number of items in a batch.
            check: called periodically while waiting; an exception that it raises ends the waiting.

        Raises:
            Exception: any exception that ``make`` raises for this item. Errors of other items have no effect.
        """
        if max_size > 1:
            with self._joined:
                queue = self._groups.setdefault(group, _Queue())
                batch, index = self._join(queue, item, max_size)
            if index == 0:
                self._lead(batch, make, queue, max_size, check)
            else:
                with self._slots.counted():
                    await_done(batch.future, check)
            results = batch.future.result()
            if results is not None:
                return results[index]
        with self._slots.turn(check):
            return make([item])[0]

    def _join(self, queue: _Queue[T, V], item: T, max_size: int) -> tuple[_Batch[T, V], int]:
        """Add an item to the open batch, and return the batch and the item's index.

        The caller of item 0 runs the batch.
        """
        batch = queue.gathering = queue.gathering or _Batch()
        batch.items.append(item)
        if len(batch.items) == max_size:
            queue.gathering = None
        self._joined.notify_all()
        return batch, len(batch.items) - 1

    def _lead(
        self,
        batch: _Batch[T, V],
        make: Callable[[Sequence[T]], Sequence[V]],
        queue: _Queue[T, V],
        max_size: int,
        check: Callable[[], None],
    ) -> None:
        results: Sequence[V] | None = None
        try:
            with ExitStack() as stack:
                with self._slots.counted():
                    stack.enter_context(queue.turn.turn(check))
                    self._await(batch, queue, max_size)
                stack.enter_context(self._slots.turn(check))
                self._close(batch, queue)
                start = time.monotonic()
                results = self._threads.call(lambda: make(batch.items))
                end = time.monotonic()
                with self._joined:
                    arrived = len(queue.gathering.items) if queue.gathering else 0
                    queue.expected_callers = len(batch.items) + arrived
                    queue.end, queue.duration = end, end - start
        except Exception:
            # It is unknown which item failed, so each caller retries its own item, unless it is cancelled.
            if len(batch.items) == 1:
                raise
            check()
        finally:
            self._close(batch, queue)
            batch.future.set_result(results)

    def _await(self, batch: _Batch[T, V], queue: _Queue[T, V], max_size: int) -> None:
        """Wait for the callers of the last batch, as long as they keep arriving."""
        with self._joined:
            deadline, gap = queue.end + LINGER * queue.duration, GAP * queue.duration
            while (count := len(batch.items)) < min(queue.expected_callers, max_size):
                timeout = min(gap, deadline - time.monotonic())
                if not self._joined.wait_for(lambda: len(batch.items) > count, timeout):
                    break

    def _close(self, batch: _Batch[T, V], queue: _Queue[T, V]) -> None:
        """Close the batch, so that no more items join it."""
        with self._joined:
            if queue.gathering is batch:
                queue.gathering = None
