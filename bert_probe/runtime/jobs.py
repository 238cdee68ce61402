"""Long work in a thread to itself, with its progress; whoever started it can wait for it or give it up.

It ends at its next report when it is given up, or when whoever it is for is gone.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, Generic, Literal, TypeVar, cast

from bert_probe.errors import StalledError
from bert_probe.model.progress import Cancelled, Progress
from bert_probe.runtime.semaphore import Semaphore
from bert_probe.runtime.thread_pool import ThreadPool

T = TypeVar("T")

AT_ONCE = 2
"""Jobs that compute at once, which bounds memory; others wait."""
GRACE = 20.0
"""Seconds in which nobody is there, after which nobody will come: a connection may break and come back."""

LAST_REPORT = 3.0
"""Seconds in which all jobs may come to their next report when the process ends."""

SLOTS: Final = Semaphore(AT_ONCE)
"""Of all jobs, whoever they are for."""

_threads: Final = ThreadPool("bert-probe job")
_working: Final[dict[Job[Any], threading.Event]] = {}
"""Jobs that a thread is at, and what is set when it is so no more: given up is not ended."""


@atexit.register
def _end_all() -> None:
    """Threads that are left when Python ends are killed, and one within torch takes the process with it."""
    last = time.monotonic() + LAST_REPORT
    left = dict(_working)
    for job in left:
        job.cancel()
    for ended in left.values():
        ended.wait(max(0.0, last - time.monotonic()))


class Job(Generic[T]):
    """Work in a thread to itself, and how far it is.

    Attributes:
        cause: all inputs of the work.
        state: "waiting" for a slot, "running", "done", "failed" or "cancelled"; the last three are final.
        progress: done and total of the last report, or None.
        error: what the work raised, in "failed".
    """

    def __init__(
        self,
        cause: Hashable,
        work: Callable[[Progress], T],
        alive: Callable[[], bool] = lambda: True,
        *,
        queued: bool = True,
        silence: float | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the work.

        Args:
            alive: the work goes on while this says that somebody waits for it.
            queued: it waits for one of the slots; else it begins at once, and must bound its memory itself.
            silence: seconds without news after which whoever waits is told that it failed.
            ended: called once when it is over, by the thread that ends it.
        """
        self.cause = cause
        self.state: Literal["waiting", "running", "done", "failed", "cancelled"] = "waiting"
        self.progress: tuple[int, int] | None = None
        self.error: BaseException | None = None
        self._result: T | None = None
        self._alive, self._queued, self._silence, self._ended = alive, queued, silence, ended
        self._seen = self._heard = time.monotonic()
        self._lock, self._over = threading.Lock(), threading.Event()
        _working[self] = threading.Event()
        _threads.start(partial(self._run, work))

    @property
    def over(self) -> bool:
        """Nothing more will come of it."""
        return self._over.is_set()

    def wait(self, seconds: float) -> bool:
        """Until it is over, or so long; whether it is over."""
        if not self._over.wait(seconds):
            silent = time.monotonic() - self._heard
            if self._silence is not None and silent > self._silence:
                # Its thread cannot be stopped from outside; what it still brings is dropped.
                self._end("failed", error=StalledError(f"Nothing was heard of it for {silent:.0f} seconds."))
        return self.over

    def value(self, timeout: float | None = None) -> T:
        """What the work returned, waited for as long as it takes or ``timeout`` seconds.

        Raises:
            Cancelled: it was given up.
            TimeoutError: it is not over yet; it goes on.
            BaseException: what the work raised.
        """
        if not self._over.wait(timeout):
            raise TimeoutError(f"Not done within {timeout} seconds.")
        if self.error is not None:
            raise self.error
        if self.state == "cancelled":
            raise Cancelled
        return cast(T, self._result)

    def cancel(self) -> None:
        """Give it up now; its thread ends at the next report."""
        self._end("cancelled")

    def _run(self, work: Callable[[Progress], T]) -> None:
        try:
            with self._slot():
                self._begin()
                self._end("done", result=work(self._report))
        except Cancelled:
            self._end("cancelled")
        except BaseException as error:  # raised where its value is asked for
            self._end("failed", error=error)
        finally:
            _working.pop(self).set()

    def _slot(self) -> AbstractContextManager[None]:
        return SLOTS.turn(self._check) if self._queued else nullcontext()

    def _begin(self) -> None:
        self._check()
        self._heard = time.monotonic()
        with self._lock:
            if not self.over:
                self.state = "running"

    def _report(self, done: int, total: int) -> None:
        self._check()
        if (done, total) != self.progress:
            self._heard = time.monotonic()
        self.progress = done, total

    def _check(self) -> None:
        now = time.monotonic()
        if self._alive():
            self._seen = now
        if self.over or now - self._seen > GRACE:
            raise Cancelled

    def _end(
        self,
        state: Literal["done", "failed", "cancelled"],
        result: T | None = None,
        error: BaseException | None = None,
    ) -> None:
        """The first end counts: what a cancelled job still brings is dropped."""
        with self._lock:
            if self.over:
                return
            self.state, self._result, self.error = state, result, error
            self._over.set()
        self._ended()
