"""A pool of reusable threads, and background jobs with progress, cancellation and a result.

New threads are expensive, because torch creates helper threads and buffers on the first forward pass of each
thread. A cancelled job, or a job whose owner (for example a session) has disconnected, ends at its next
progress report.
"""

from __future__ import annotations

import atexit
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from contextvars import Context
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Generic, Literal, TypeVar, cast
from weakref import WeakValueDictionary

from bert_probe.errors import StalledError
from bert_probe.model.progress import Cancelled, Progress
from bert_probe.runtime import permissions

IDLE_SECONDS: Final = 2.0
"""Seconds after which an idle thread ends, because the helper threads of torch slow down other threads."""

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
        """Run work in a thread, with an empty `contextvars` context. The work must not raise exceptions."""
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
        self.start(partial(_settle, future, work))
        try:
            return future.result()
        finally:
            del future  # the traceback of an error refers to this frame, and the future to the error

    def _run_loop(self, inbox: SimpleQueue[Work]) -> None:
        while (work := self._next(inbox)) is not None:
            Context().run(work)
            del work  # release the objects that the work refers to
            with self._lock:
                self._idle_inboxes.append(inbox)

    def _next(self, inbox: SimpleQueue[Work]) -> Work | None:
        """Return the next work for a thread, or None if no work arrives within `IDLE_SECONDS`."""
        try:
            return inbox.get(timeout=IDLE_SECONDS)
        except Empty:
            with self._lock:
                if inbox in self._idle_inboxes:
                    self._idle_inboxes.remove(inbox)
                    return None
            return inbox.get()  # wait, because `start` has taken this inbox and is about to fill it


def _settle(future: Future[V], work: Callable[[], V]) -> None:
    """Run work, and set its result or its error in a future."""
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
        del future  # the traceback of the error refers to this frame, and the future to the error


CHECK_INTERVAL: Final = 0.3
"""Seconds between two calls of the function ``check`` while a thread waits."""


def await_done(future: Future[Any], check: Callable[[], None]) -> None:
    """Wait until a future is done; call ``check`` periodically, whose exceptions end the wait."""
    while not future.done():
        wait([future], CHECK_INTERVAL)
        check()


class Semaphore:
    """A semaphore that limits concurrent computations, and records waiting times.

    Attributes:
        limit: maximum number of concurrent computations.
        acquisitions: number of acquisitions so far.
        waiting: number of threads that are waiting.
        waited: total waiting time of all threads, in seconds.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.acquisitions = self.waiting = 0
        self.waited = 0.0
        self._semaphore = threading.BoundedSemaphore(limit)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._acquire(lambda: None)

    def __exit__(self, *_: object) -> None:
        self._semaphore.release()

    @contextmanager
    def turn(self, check: Callable[[], None]) -> Iterator[None]:
        """Hold a slot of the semaphore within the context.

        ``check`` is called periodically while waiting; an exception from this callback ends the wait.
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
            self.acquisitions += 1

    def _wait(self, check: Callable[[], None]) -> None:
        with self.counted():
            while not self._semaphore.acquire(timeout=CHECK_INTERVAL):
                check()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time within the context as time spent waiting for a slot or for another thread."""
        start = time.monotonic()
        with self._lock:
            self.waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self.waiting -= 1
                self.waited += time.monotonic() - start


T = TypeVar("T")

AT_ONCE = 2
"""Maximum number of jobs that run concurrently; further jobs wait, which limits the use of memory."""
CLIENT_AT_ONCE = AT_ONCE - 1
"""Maximum number of concurrent jobs of a client of a public server, so that other clients need not wait."""
GRACE = 20.0
"""Seconds after which the job of a disconnected owner is cancelled, unless the owner reconnects."""

EXIT_SECONDS = 3.0
"""Time limit for jobs to reach their next progress report when the process exits, in seconds."""

SLOTS: Final = Semaphore(AT_ONCE)
"""Semaphore that limits concurrent jobs to `AT_ONCE`."""

_client_slots: Final[WeakValueDictionary[str, Semaphore]] = WeakValueDictionary()
"""Limits the concurrent jobs of each client of a public server to `CLIENT_AT_ONCE`."""
_client_slots_lock: Final = threading.Lock()

_threads: Final = ThreadPool("bert-probe job")
_working: Final[dict[Job[Any], threading.Event]] = {}
"""Maps each job, including cancelled jobs whose thread still runs, to an event set when its thread ends."""


stopping: Final = threading.Event()
"""Set when the app stops."""


def cancel_all() -> None:
    """Cancel all jobs, because the app stops."""
    stopping.set()
    for job in dict(_working):
        job.cancel()


@atexit.register
def _end_all() -> None:
    """Cancel all jobs at exit, and wait for their threads.

    Python kills daemon threads at exit, and killing a thread inside torch crashes the process.
    """
    deadline = time.monotonic() + EXIT_SECONDS
    jobs = dict(_working)
    cancel_all()
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
        client: str = "",
        queued: bool = True,
        silence: float | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """Create a job and start its work.

        Args:
            cause: key that identifies the work by its inputs.
            work: function that receives a `Progress` and returns the result.
            alive: function that returns whether the owner is still connected. The work is cancelled after
                `GRACE` seconds without an owner.
            client: name of the client that the job belongs to; see `permissions.client_name`.
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
        self._traceback: TracebackType | None = None  # the traceback of `error` when the work ended
        self._alive, self._queued, self._silence, self._ended = alive, queued, silence, ended
        self._client = client
        self._last_alive = self._last_report = time.monotonic()
        self._begun: float | None = None  # time at which a queued job got its slot
        self._lock, self._over = threading.Lock(), threading.Event()
        _working[self] = threading.Event()
        _threads.start(partial(self._run, work))

    @property
    def over(self) -> bool:
        """Return whether the job is over: done, failed or cancelled."""
        return self._over.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` until the job is over, and return whether it is over.

        If the job has not reported progress for longer than `silence`, it fails with a StalledError.
        """
        if not self._over.wait(seconds):
            silent = time.monotonic() - self._last_report
            if self._silence is not None and silent > self._silence:
                # The thread cannot be stopped from outside; its result will be ignored.
                self._end("failed", error=StalledError(f"The job made no progress for {silent:.0f} seconds."))
        return self.over

    def value(self, timeout: float | None = None) -> T:
        """Wait for the job, at most ``timeout`` seconds, and return its result.

        Raises:
            Cancelled: the job was cancelled.
            TimeoutError: the job is not over yet; it continues.
            BaseException: any exception that the work raised.
        """
        if not self._over.wait(timeout):
            raise TimeoutError(f"The job was not done within {timeout} seconds.")
        if self.error is not None:
            # Each caller would otherwise add its frames, and thus its local variables, to the traceback.
            raise self.error.with_traceback(self._traceback)
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
        except Cancelled as error:
            clear_frames(error)
            self._end("cancelled")
        except BaseException as error:  # `value` raises this exception again
            clear_frames(error)
            self._end("failed", error=error)
        finally:
            _working.pop(self).set()

    @contextmanager
    def _slot(self) -> Iterator[None]:
        with ExitStack() as slots:
            if self._queued and permissions.current().is_public:
                with _client_slots_lock:
                    of_client = _client_slots.setdefault(self._client, Semaphore(CLIENT_AT_ONCE))
                slots.enter_context(of_client.turn(self._check))
            if self._queued:
                slots.enter_context(SLOTS.turn(self._check))
            yield

    def _begin(self) -> None:
        self._check()
        self._begun = self._last_report = time.monotonic()
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
        maximum = permissions.current().max_job_seconds
        if self._queued and maximum and self._begun is not None and now - self._begun > maximum:
            raise StalledError(
                f"The job took more than {maximum:.0f} seconds, the limit of this server. Use fewer or "
                "shorter texts, or install BERT Probe on your machine."
            )

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
            self._traceback = None if error is None else error.__traceback__
            self._over.set()
        self._ended()


def clear_frames(error: BaseException) -> None:
    """Release the local variables of the functions that raised an error.

    The error refers to these functions, one of which refers to the job. Until the garbage collector finds
    this cycle, traces and tables would stay in memory.
    """
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__
