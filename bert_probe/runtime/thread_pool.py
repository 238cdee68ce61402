"""A pool of reusable threads.

A new thread is expensive, because torch creates helper threads and buffers for it on its first forward pass.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

IDLE_SECONDS: Final = 2.0
"""Seconds that an idle thread waits for work. Then it ends, because its helper threads slow down others."""

Work = Callable[[], None]
V = TypeVar("V")


class ThreadPool:
    """A pool that grows to the number of concurrent tasks and shrinks when threads are idle.

    Args:
        name: name of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle_inboxes: list[SimpleQueue[Work]] = []
        self._lock = threading.Lock()

    def start(self, work: Work) -> None:
        """Run work in a thread, in an empty context. The work must not raise exceptions."""
        with self._lock:
            # Use the most recently used thread, so that the other threads time out when there is little work.
            inbox = self._idle_inboxes.pop() if self._idle_inboxes else None
        if inbox is not None:
            inbox.put(work)
            return
        inbox = SimpleQueue()
        inbox.put(work)
        threading.Thread(target=self._run_loop, args=(inbox,), name=self._name, daemon=True).start()

    def call(self, work: Callable[[], V]) -> V:
        """Run work in a thread, and return its result.

        Raises:
            BaseException: any exception that the work raises.
        """
        future: Future[V] = Future()

        def settle() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self.start(settle)
        return future.result()

    def _run_loop(self, inbox: SimpleQueue[Work]) -> None:
        while (work := self._next(inbox)) is not None:
            Context().run(work)
            del work  # releases the references of the work
            with self._lock:
                self._idle_inboxes.append(inbox)

    def _next(self, inbox: SimpleQueue[Work]) -> Work | None:
        """Return the next work of a thread, or None if none arrived within `IDLE_SECONDS`."""
        try:
            return inbox.get(timeout=IDLE_SECONDS)
        except Empty:
            with self._lock:
                if inbox in self._idle_inboxes:
                    self._idle_inboxes.remove(inbox)
                    return None
            return inbox.get()  # `start` has taken this inbox and is about to fill it


CHECK_INTERVAL: Final = 0.3
"""Seconds between two calls of the function ``check`` while a thread waits."""


def await_done(future: Future[Any], check: Callable[[], None]) -> None:
    """Wait until a future is done. ``check`` is called periodically; an exception that it raises ends the
    waiting.
    """
    while not future.done():
        wait([future], CHECK_INTERVAL)
        check()


class Semaphore:
    """A limit on the number of concurrent computations.

    Attributes:
        most: maximum number of concurrent computations.
        taken: total number of acquisitions.
        waiting: number of threads that are waiting.
        waited: total waiting time of all threads, in seconds.
    """

    def __init__(self, limit: int) -> None:
        self.most = limit
        self.taken = self.waiting = 0
        self.waited = 0.0
        self._semaphore = threading.BoundedSemaphore(limit)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._acquire(lambda: None)

    def __exit__(self, *_: object) -> None:
        self._semaphore.release()

    @contextmanager
    def turn(self, check: Callable[[], None]) -> Iterator[None]:
        """Hold a slot of the semaphore during the block.

        ``check`` is called periodically while waiting; an exception that it raises ends the waiting.
        """
        self._acquire(check)
        try:
            yield
        finally:
            self._semaphore.release()

    def _acquire(self, check: Callable[[], None]) -> None:
        if not self._semaphore.acquire(blocking=False):
            self._wait(check)
        with self._lock:
            self.taken += 1

    def _wait(self, check: Callable[[], None]) -> None:
        with self.counted():
            while not self._semaphore.acquire(timeout=CHECK_INTERVAL):
                check()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time in the block as time waited for a slot, or for a thread that holds a slot."""
        start = time.monotonic()
        with self._lock:
            self.waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self.waiting -= 1
                self.waited += time.monotonic() - start
