"""A counting semaphore with statistics of its queue, and cancellable waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Final

CHECK_INTERVAL: Final = 0.3
"""Seconds between two calls of ``check`` while waiting."""


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
        most: the limit.
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
        """Hold a slot. ``check`` is called periodically while waiting; an exception that it raises ends the
        waiting.
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
        """Count the time in the block as waiting time, for a slot or for a thread that holds a slot."""
        start = time.monotonic()
        with self._lock:
            self.waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self.waiting -= 1
                self.waited += time.monotonic() - start
