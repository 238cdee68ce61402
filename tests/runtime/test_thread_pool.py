"""Test thread pool: threads are reused, and each task runs in its own context."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest

from bert_probe.runtime import jobs
from bert_probe.runtime.jobs import ThreadPool
from tests.helpers.waiting import wait_until

LEFT_BEHIND: ContextVar[str] = ContextVar("left behind", default="nothing")


def alive(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_thread_is_reused_with_an_empty_context() -> None:
    crew, results = ThreadPool("one after another"), []

    def work() -> None:
        results.append((threading.get_ident(), LEFT_BEHIND.get()))
        LEFT_BEHIND.set("something")

    for _ in range(3):
        crew.start(work)
        wait_until(lambda: crew._idle_inboxes)
    assert results == [results[0]] * 3
    assert results[0][1] == "nothing"


def test_pool_grows_and_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "IDLE_SECONDS", 0.05)
    crew, together = ThreadPool("all at once"), threading.Barrier(6)
    for _ in range(5):
        crew.start(lambda: together.wait(20))
    together.wait(20)  # Wait until all five tasks are running.
    wait_until(lambda: alive("all at once") == 0)
    assert crew._idle_inboxes == []
    done = threading.Event()
    crew.start(done.set)
    assert done.wait(20)


def test_call_returns_the_result_or_raises() -> None:
    crew = ThreadPool("awaited")
    assert crew.call(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        crew.call(lambda: 1 // 0)
    assert crew.call(lambda: "goes on") == "goes on"


def test_work_for_an_expiring_thread_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "IDLE_SECONDS", 0.0)
    crew, done = ThreadPool("just then"), threading.Semaphore(0)
    for _ in range(300):
        crew.start(done.release)  # type: ignore[arg-type]
    assert all(done.acquire(timeout=20) for _ in range(300))
    wait_until(lambda: alive("just then") == 0)
