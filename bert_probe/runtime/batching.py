"""Those who wait for work of the same kind are served in one go, which takes little longer than for one."""

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
"""Of the time that a go took: so long at most the next one waits for those who just had their answers."""
GAP: Final = 0.3
"""Of the same time: after so long without one of them it does not wait for the others."""
_GROUPS: Final = 64


@dataclass(eq=False)
class _Batch(Generic[T, V]):
    """One go: what is to be made in it, and what came of that; None where it failed, or nobody made it."""

    items: list[T] = field(default_factory=list)
    made: Future[Sequence[V] | None] = field(default_factory=Future)


@dataclass(eq=False)
class _Queue(Generic[T, V]):
    """Work of one kind.

    Attributes:
        turn: of which there is one at a time.
        gathering: the go that may be joined.
        expected: whom the last go served, and who came meanwhile.
        ended, took: when that was over, by the monotonic clock, and after how long.
    """

    turn: Semaphore = field(default_factory=lambda: Semaphore(1))
    gathering: _Batch[T, V] | None = None
    expected: int = 0
    ended: float = 0.0
    took: float = 0.0


class DynamicBatcher(Generic[T, V]):
    """Whoever comes first waits until the go before is over; who comes meanwhile joins.

    Who was served comes again soon, if many ask on and on. The next go waits for them a little, lest they all
    part into two crowds of which each waits for the other.

    Args:
        slots: one is taken for a go, of which there is one at a time in each group.
    """

    def __init__(self, slots: Semaphore) -> None:
        self._slots = slots
        # Whoever leads: what a thread has warm is used by the next go, which takes a quarter less time.
        self._makers = ThreadPool("together")
        self._groups: cachetools.LRUCache[Hashable, _Queue[T, V]] = cachetools.LRUCache(_GROUPS)
        self._joined = Condition()

    def make(
        self,
        item: T,
        make: Callable[[Sequence[T]], Sequence[V]],
        group: Hashable,
        most: int,
        check: Callable[[], None],
    ) -> V:
        """What is made of an item.

        Args:
            make: several items of a group, in their order.
            most: that go together.
            check: called now and then by one who waits; what it raises ends the waiting.

        Raises:
            Exception: what ``make`` raises for this item alone; nobody bears the fault of another.
        """
        if most > 1:
            with self._joined:
                of = self._groups.setdefault(group, _Queue())
                go, place = self._join(of, item, most)
            if place == 0:
                self._lead(go, make, of, most, check)
            else:
                with self._slots.counted():
                    await_done(go.made, check)
            made = go.made.result()
            if made is not None:
                return made[place]
        with self._slots.turn(check):
            return make([item])[0]

    def _join(self, group: _Queue[T, V], item: T, most: int) -> tuple[_Batch[T, V], int]:
        """The go that gathers, and the place in it; whose is the first one leads."""
        go = group.gathering = group.gathering or _Batch()
        go.items.append(item)
        if len(go.items) == most:
            group.gathering = None
        self._joined.notify_all()
        return go, len(go.items) - 1

    def _lead(
        self,
        go: _Batch[T, V],
        make: Callable[[Sequence[T]], Sequence[V]],
        group: _Queue[T, V],
        most: int,
        check: Callable[[], None],
    ) -> None:
        made: Sequence[V] | None = None
        try:
            with ExitStack() as turns:
                with self._slots.counted():
                    turns.enter_context(group.turn.turn(check))
                    self._await(go, group, most)
                turns.enter_context(self._slots.turn(check))
                self._close(go, group)
                began = time.monotonic()
                made = self._makers.made(lambda: make(go.items))
                ended = time.monotonic()
                with self._joined:
                    meanwhile = len(group.gathering.items) if group.gathering else 0
                    group.expected = len(go.items) + meanwhile
                    group.ended, group.took = ended, ended - began
        except Exception:
            # Of several it is not known whose fault it was: each is made by itself, unless it is given up.
            if len(go.items) == 1:
                raise
            check()
        finally:
            self._close(go, group)
            go.made.set_result(made)

    def _await(self, go: _Batch[T, V], group: _Queue[T, V], most: int) -> None:
        """Those whom the last go served, as long as one after another comes again."""
        with self._joined:
            until, gap = group.ended + LINGER * group.took, GAP * group.took
            while (came := len(go.items)) < min(group.expected, most):
                left = min(gap, until - time.monotonic())
                if not self._joined.wait_for(lambda: len(go.items) > came, left):
                    break

    def _close(self, go: _Batch[T, V], group: _Queue[T, V]) -> None:
        """Nobody joins it any more."""
        with self._joined:
            if group.gathering is go:
                group.gathering = None
