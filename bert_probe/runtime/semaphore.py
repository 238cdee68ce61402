"""So many at once: what computes takes a slot, and the others wait in one queue, which is counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Final

EVERY: Final = 0.3
"""Seconds between two looks of one who waits at whether that is still wanted."""


def await_done(future: Future[Any], check: Callable[[], None]) -> None:
    """Wait for what another makes; ``check`` is called now and then, and what it raises ends the waiting."""
    while not future.done():
        wait([future], EVERY)
        check()


class Semaphore:
    """A bound on how many compute at once.

    Attributes:
        most: the bound.
        taken: how often a slot was taken so far.
        waiting: who waits for one now.
        waited: seconds that all have waited together.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = self.waiting = 0
        self.waited = 0.0
        self._free = threading.BoundedSemaphore(most)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._take(lambda: None)

    def __exit__(self, *_: object) -> None:
        self._free.release()

    @contextmanager
    def turn(self, check: Callable[[], None]) -> Iterator[None]:
        """A slot; ``check`` is called now and then by one who waits, and what it raises ends the waiting."""
        self._take(check)
        try:
            yield
        finally:
            self._free.release()

    def _take(self, check: Callable[[], None]) -> None:
        if not self._free.acquire(blocking=False):
            self._wait(check)
        with self._lock:
            self.taken += 1

    def _wait(self, check: Callable[[], None]) -> None:
        with self.counted():
            while not self._free.acquire(timeout=EVERY):
                check()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Who is within waits for a slot, or for what another makes in one."""
        began = time.monotonic()
        with self._lock:
            self.waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self.waiting -= 1
                self.waited += time.monotonic() - began
