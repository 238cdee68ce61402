"""Those who wait are served in one go, and nobody bears what is another's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from bert_probe.runtime import batching
from bert_probe.runtime.batching import DynamicBatcher
from bert_probe.runtime.semaphore import Semaphore


def wanted() -> None:
    """What is asked for is still wanted."""


class Work:
    """Doubles numbers, held up until it is let go; what is odd is faulty."""

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


class Crowd:
    """One who is being served, and others who ask meanwhile."""

    def __init__(self, pool: ThreadPoolExecutor, slots: int = 2) -> None:
        self.slots, self.work = Semaphore(slots), Work()
        self._together: DynamicBatcher[int, int] = DynamicBatcher(self.slots)
        self._pool = pool
        self.first = self.ask(0)
        assert self.work.begun.wait(30)

    def ask(
        self, item: int, group: str = "a", most: int = 8, check: Callable[[], None] = wanted
    ) -> Future[int]:
        return self._pool.submit(self._together.make, item, self.work, group, most, check)

    def await_waiting(self, many: int) -> None:
        end = time.monotonic() + 30
        while self.slots.waiting != many:
            assert time.monotonic() < end
            time.sleep(0.001)


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(12)


@pytest.fixture
def crowd(pool: ThreadPoolExecutor) -> Crowd:
    return Crowd(pool)


def test_who_comes_meanwhile_is_served_together(crowd: Crowd) -> None:
    asked = [crowd.ask(item) for item in (2, 4, 6)]
    crowd.await_waiting(3)
    crowd.work.let_go.set()
    assert [one.result(30) for one in (crowd.first, *asked)] == [0, 4, 8, 12]
    assert crowd.work.goes == [[0], [2, 4, 6]]


def test_no_more_go_together_than_may(crowd: Crowd) -> None:
    asked = [crowd.ask(item, most=2) for item in (2, 4, 6, 8)]
    crowd.await_waiting(4)
    crowd.work.let_go.set()
    assert [one.result(30) for one in asked] == [4, 8, 12, 16]
    assert sorted(map(len, crowd.work.goes)) == [1, 2, 2]


def test_other_work_is_not_mixed_in_and_does_not_wait_for_it(crowd: Crowd) -> None:
    crowd.work.begun.clear()
    other = crowd.ask(2, group="b")
    assert crowd.work.begun.wait(30)
    crowd.work.let_go.set()
    assert other.result(30) == 4
    assert crowd.work.goes == [[0], [2]]


def test_what_goes_alone_takes_a_slot_and_joins_nobody(pool: ThreadPoolExecutor) -> None:
    crowd = Crowd(pool, slots=1)
    asked = [crowd.ask(item, most=1) for item in (2, 4)]
    crowd.await_waiting(2)
    crowd.work.let_go.set()
    assert [one.result(30) for one in asked] == [4, 8]
    assert sorted(crowd.work.goes) == [[0], [2], [4]]


def test_the_fault_of_one_is_borne_by_nobody_else(crowd: Crowd) -> None:
    asked = {item: crowd.ask(item) for item in (2, 3, 4)}
    crowd.await_waiting(3)
    crowd.work.let_go.set()
    assert (asked[2].result(30), asked[4].result(30)) == (4, 8)
    with pytest.raises(ValueError, match=r"^\[3\] are odd$"):
        asked[3].result(30)
    assert crowd.work.goes[1] == [2, 3, 4]
    assert sorted(crowd.work.goes[2:]) == [[2], [3], [4]]


class GivenUpError(Exception):
    """Somebody asks no more."""


@pytest.mark.parametrize("who", [0, 1], ids=["who leads", "who follows"])
def test_who_gives_up_leaves_the_others_served(crowd: Crowd, who: int) -> None:
    gone = threading.Event()

    def check() -> None:
        if gone.is_set():
            raise GivenUpError

    asked = []
    for place, item in enumerate((2, 4, 6)):
        asked.append(crowd.ask(item, check=check if place == who else wanted))
        crowd.await_waiting(place + 1)
    gone.set()
    with pytest.raises(GivenUpError):
        asked[who].result(30)
    crowd.work.let_go.set()
    rest = [place for place in range(3) if place != who]
    assert [asked[place].result(30) for place in rest] == [2 * (2, 4, 6)[place] for place in rest]


def test_one_who_asks_alone_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "LINGER", 1e9)
    work, alone = Work(), DynamicBatcher[int, int](Semaphore(2))
    work.let_go.set()
    assert [alone.make(item, work, "a", 8, wanted) for item in (2, 4, 6)] == [4, 8, 12]


def test_those_who_were_just_served_are_waited_for(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "LINGER", 1e9)
    crowd = Crowd(pool)
    asked = [crowd.ask(2)]
    crowd.await_waiting(1)
    crowd.work.let_go.set()
    crowd.first.result(30)
    asked.append(crowd.ask(4))
    assert [one.result(30) for one in asked] == [4, 8]
    assert crowd.work.goes == [[0], [2, 4]]
