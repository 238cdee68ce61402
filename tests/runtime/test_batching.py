"""Test dynamic batching: waiting requests share a batch, and errors stay separate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from bert_probe.runtime import shared_cache
from bert_probe.runtime.jobs import Semaphore
from bert_probe.runtime.shared_cache import DynamicBatcher


def is_wanted() -> None:
    """A cancellation check that never cancels."""


class Work:
    """A batch function that waits for the test, then doubles the items, or raises an error for odd items."""

    def __init__(self) -> None:
        self.goes: list[list[int]] = []
        self.begun, self.let_go = threading.Event(), threading.Event()

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.goes.append(sorted(items))
        self.begun.set()
        assert self.let_go.wait(30)
        if any(item % 2 for item in items):
            raise ValueError(f"{[item for item in items if item % 2]} are odd")
        return [2 * item for item in items]


class ConcurrentCallers:
    """Concurrent callers of a `DynamicBatcher`: the first is being served while the others arrive."""

    def __init__(self, pool: ThreadPoolExecutor, slots: int = 2) -> None:
        self.slots, self.work = Semaphore(slots), Work()
        self._together: DynamicBatcher[int, int] = DynamicBatcher(self.slots)
        self._pool = pool
        self.first = self.ask(0)
        assert self.work.begun.wait(30)

    def ask(
        self, item: int, group: str = "a", max_size: int = 8, check: Callable[[], None] = is_wanted
    ) -> Future[int]:
        return self._pool.submit(self._together.make, item, self.work, group, max_size, check)

    def await_waiting(self, many: int) -> None:
        end = time.monotonic() + 30
        while self.slots.waiting != many:
            assert time.monotonic() < end
            time.sleep(0.001)


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(12)


@pytest.fixture
def crowd(pool: ThreadPoolExecutor) -> ConcurrentCallers:
    return ConcurrentCallers(pool)


def test_waiting_requests_share_a_batch(crowd: ConcurrentCallers) -> None:
    futures = [crowd.ask(item) for item in (2, 4, 6)]
    crowd.await_waiting(3)
    crowd.work.let_go.set()
    assert [future.result(30) for future in (crowd.first, *futures)] == [0, 4, 8, 12]
    assert crowd.work.goes == [[0], [2, 4, 6]]


def test_batch_size_is_limited(crowd: ConcurrentCallers) -> None:
    futures = [crowd.ask(item, max_size=2) for item in (2, 4, 6, 8)]
    crowd.await_waiting(4)
    crowd.work.let_go.set()
    assert [future.result(30) for future in futures] == [4, 8, 12, 16]
    assert sorted(map(len, crowd.work.goes)) == [1, 2, 2]


def test_groups_are_independent(crowd: ConcurrentCallers) -> None:
    crowd.work.begun.clear()
    other = crowd.ask(2, group="b")
    assert crowd.work.begun.wait(30)
    crowd.work.let_go.set()
    assert other.result(30) == 4
    assert crowd.work.goes == [[0], [2]]


def test_unbatched_requests_take_a_slot_each(pool: ThreadPoolExecutor) -> None:
    crowd = ConcurrentCallers(pool, slots=1)
    futures = [crowd.ask(item, max_size=1) for item in (2, 4)]
    crowd.await_waiting(2)
    crowd.work.let_go.set()
    assert [future.result(30) for future in futures] == [4, 8]
    assert sorted(crowd.work.goes) == [[0], [2], [4]]


def test_error_of_one_item_does_not_affect_others(crowd: ConcurrentCallers) -> None:
    futures = {item: crowd.ask(item) for item in (2, 3, 4)}
    crowd.await_waiting(3)
    crowd.work.let_go.set()
    assert (futures[2].result(30), futures[4].result(30)) == (4, 8)
    with pytest.raises(ValueError, match=r"^\[3\] are odd$"):
        futures[3].result(30)
    assert crowd.work.goes[1] == [2, 3, 4]
    assert sorted(crowd.work.goes[2:]) == [[2], [3], [4]]


class GivenUpError(Exception):
    """Raised by a caller that cancels."""


@pytest.mark.parametrize("who", [0, 1], ids=["who leads", "who follows"])
def test_cancelled_request_does_not_affect_others(crowd: ConcurrentCallers, who: int) -> None:
    gone = threading.Event()

    def check() -> None:
        if gone.is_set():
            raise GivenUpError

    futures = []
    for place, item in enumerate((2, 4, 6)):
        futures.append(crowd.ask(item, check=check if place == who else is_wanted))
        crowd.await_waiting(place + 1)
    gone.set()
    with pytest.raises(GivenUpError):
        futures[who].result(30)
    crowd.work.let_go.set()
    remaining = [place for place in range(3) if place != who]
    assert [futures[place].result(30) for place in remaining] == [2 * (2, 4, 6)[place] for place in remaining]


def test_single_caller_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_cache, "LINGER", 1e9)
    work, alone = Work(), DynamicBatcher[int, int](Semaphore(2))
    work.let_go.set()
    assert [alone.make(item, work, "a", 8, is_wanted) for item in (2, 4, 6)] == [4, 8, 12]


def test_batch_waits_for_recent_callers(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    # LINGER and GAP are relative to the duration of the first batch, which may be only a millisecond.
    monkeypatch.setattr(shared_cache, "LINGER", 1e6)
    monkeypatch.setattr(shared_cache, "GAP", 1e6)
    crowd = ConcurrentCallers(pool)
    futures = [crowd.ask(2)]
    crowd.await_waiting(1)
    crowd.work.let_go.set()
    crowd.first.result(30)
    futures.append(crowd.ask(4))
    assert [future.result(30) for future in futures] == [4, 8]
    assert crowd.work.goes == [[0], [2, 4]]
