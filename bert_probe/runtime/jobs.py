"""Background jobs: long-running work in its own thread, with progress, cancellation and a result.

If a job is cancelled, or its owner (for example a session) is gone, it ends at its next progress report.
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
from bert_probe.runtime.thread_pool import Semaphore, ThreadPool

T = TypeVar("T")

AT_ONCE = 2
"""Maximum number of jobs that compute concurrently. Further jobs wait, which limits the use of memory."""
GRACE = 20.0
"""Seconds after which a disconnected owner is considered gone. Within this time, it can reconnect."""

EXIT_SECONDS = 3.0
"""Time limit for jobs to reach their next progress report when the process exits, in seconds."""

SLOTS: Final = Semaphore(AT_ONCE)
"""Semaphore that limits concurrent jobs to `AT_ONCE`."""

_threads: Final = ThreadPool("bert-probe job")
_working: Final[dict[Job[Any], threading.Event]] = {}
"""Job → event that is set when its thread ends. Includes cancelled jobs whose thread is still running."""


@atexit.register
def _end_all() -> None:
    """Cancel all jobs at exit, and wait for their threads.

    Python kills daemon threads at exit, and killing a thread inside torch crashes the process.
    """
    deadline = time.monotonic() + EXIT_SECONDS
    jobs = dict(_working)
    for job in jobs:
        job.cancel()
    for ended in jobs.values():
        ended.wait(max(0.0, deadline - time.monotonic()))


class Job(Generic[T]):
    """Long-running work in its own thread.

    Attributes:
        cause: key that identifies the work by its inputs.
        state: "waiting" for a slot, "running", "done", "failed" or "cancelled"; the last three are final.
        progress: (done, total) of the last progress report; None before the first.
        error: the exception that the work raised, if the state is "failed".
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
        """Create a job and start its work.

        Args:
            cause: key that identifies the work by its inputs.
            work: function that receives a `Progress` and returns the result.
            alive: function that returns whether the owner is still connected. After `GRACE` seconds without
                an owner, the work is cancelled.
            queued: whether to wait for a slot. If False, the work starts immediately and must limit its own
                memory.
            silence: seconds without a progress report after which the job fails.
            ended: called once at the end, by the thread that ends the job.
        """
        self.cause = cause
        self.state: Literal["waiting", "running", "done", "failed", "cancelled"] = "waiting"
        self.progress: tuple[int, int] | None = None
        self.error: BaseException | None = None
        self._result: T | None = None
        self._alive, self._queued, self._silence, self._ended = alive, queued, silence, ended
        self._last_alive = self._last_report = time.monotonic()
        self._lock, self._over = threading.Lock(), threading.Event()
        _working[self] = threading.Event()
        _threads.start(partial(self._run, work))

    @property
    def over(self) -> bool:
        """Return whether the job is over: done, failed or cancelled."""
        return self._over.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until the job is over, for at most the given time, and return whether it is over."""
        if not self._over.wait(seconds):
            silent = time.monotonic() - self._last_report
            if self._silence is not None and silent > self._silence:
                # The thread cannot be stopped from outside; its result will be ignored.
                self._end("failed", error=StalledError(f"The job made no progress for {silent:.0f} seconds."))
        return self.over

    def value(self, timeout: float | None = None) -> T:
        """Return the result of the work. Wait for it, but for at most ``timeout`` seconds if given.

        Raises:
            Cancelled: the job was cancelled.
            TimeoutError: the job is not over yet; it continues.
            BaseException: any exception that the work raised.
        """
        if not self._over.wait(timeout):
            raise TimeoutError(f"Not done within {timeout} seconds.")
        if self.error is not None:
            raise self.error
        if self.state == "cancelled":
            raise Cancelled
        return cast(T, self._result)

    def cancel(self) -> None:
        """Cancel the job. Its state changes at once; its thread ends at the next progress report."""
        self._end("cancelled")

    def _run(self, work: Callable[[Progress], T]) -> None:
        try:
            with self._slot():
                self._begin()
                self._end("done", result=work(self._report))
        except Cancelled:
            self._end("cancelled")
        except BaseException as error:  # `value` raises it again
            self._end("failed", error=error)
        finally:
            _working.pop(self).set()

    def _slot(self) -> AbstractContextManager[None]:
        return SLOTS.turn(self._check) if self._queued else nullcontext()

    def _begin(self) -> None:
        self._check()
        self._last_report = time.monotonic()
        with self._lock:
            if not self.over:
                self.state = "running"

    def _report(self, done: int, total: int) -> None:
        self._check()
        if (done, total) != self.progress:
            self._last_report = time.monotonic()
        self.progress = done, total

    def _check(self) -> None:
        now = time.monotonic()
        if self._alive():
            self._last_alive = now
        if self.over or now - self._last_alive > GRACE:
            raise Cancelled

    def _end(
        self,
        state: Literal["done", "failed", "cancelled"],
        result: T | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Set the final state. Only the first call has an effect, so a cancelled job discards its result."""
        with self._lock:
            if self.over:
                return
            self.state, self._result, self.error = state, result, error
            self._over.set()
        self._ended()
