"""Threads that take on one piece of work after another.

A new thread costs more than its start: torch makes each one helpers and buffers of its own at its first pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

IDLE: Final = 2.0
"""Seconds that a thread waits for more; its helpers are in the way of others' while it does."""

Work = Callable[[], None]
V = TypeVar("V")


class ThreadPool:
    """As many threads as there is work at once.

    Args:
        name: of each of them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[SimpleQueue[Work]] = []
        self._lock = threading.Lock()

    def start(self, work: Work) -> None:
        """Begin it now, in a context of its own. It must not raise."""
        with self._lock:
            # The last one that came back: under little load the others end.
            inbox = self._idle.pop() if self._idle else None
        if inbox is not None:
            inbox.put(work)
            return
        inbox = SimpleQueue()
        inbox.put(work)
        threading.Thread(target=self._work, args=(inbox,), name=self._name, daemon=True).start()

    def made(self, work: Callable[[], V]) -> V:
        """What the work returns, for which the caller waits.

        Raises:
            BaseException: what the work raises.
        """
        future: Future[V] = Future()

        def settle() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self.start(settle)
        return future.result()

    def _work(self, inbox: SimpleQueue[Work]) -> None:
        while (work := self._next(inbox)) is not None:
            Context().run(work)
            del work  # and what it holds
            with self._lock:
                self._idle.append(inbox)

    def _next(self, inbox: SimpleQueue[Work]) -> Work | None:
        """What is to be done next; None if nothing came for a while, and so nothing will."""
        try:
            return inbox.get(timeout=IDLE)
        except Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
            return inbox.get()  # it comes just now
