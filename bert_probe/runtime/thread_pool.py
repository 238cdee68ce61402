"""A pool of reusable threads.

A new thread is expensive for torch, which creates helper threads and buffers for it on its first forward
pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

IDLE_SECONDS: Final = 2.0
"""Seconds that an idle thread waits for work before it ends; its helper threads slow down other threads."""

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
        """Run the work in a thread now, in an empty context. The work must not raise."""
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
        """Run the work in a thread and return its result.

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
            del work  # release its references
            with self._lock:
                self._idle_inboxes.append(inbox)

    def _next(self, inbox: SimpleQueue[Work]) -> Work | None:
        """Return the next work; None if none arrived within `IDLE_SECONDS`."""
        try:
            return inbox.get(timeout=IDLE_SECONDS)
        except Empty:
            with self._lock:
                if inbox in self._idle_inboxes:
                    self._idle_inboxes.remove(inbox)
                    return None
            return inbox.get()  # `start` has just taken this inbox and is about to fill it
