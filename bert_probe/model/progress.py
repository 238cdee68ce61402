"""Types of progress callbacks, and the exception that cancels work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from queue import Empty, Queue
from threading import Thread
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
_CHECK_SECONDS = 0.1
"""Seconds between two checks of whether a computation in another thread has been cancelled."""

Progress: TypeAlias = Callable[[int, int], None]
"""A callback that receives the amount done and the total amount. If it raises an exception, the work is
cancelled.

The total is 0 while it is unknown, and may grow. Calls may come from several threads.
"""

StageProgress: TypeAlias = Callable[[str, str], AbstractContextManager[Progress]]
"""A callback for work in several stages. It is called at the start of each stage with a label and the unit of
the stage's amounts ("B" for bytes), and returns a context manager that yields the stage's `Progress`.
"""


class Cancelled(Exception):  # noqa: N818 - not an error
    """Raised by a `Progress` callback to cancel the work; it propagates to the caller."""


def step_progress(progress: Progress, step: int, count: int) -> Progress:
    """Return a `Progress` callback for one of several steps of equal size.

    Args:
        progress: the callback for all steps.
        step: index of the step, from 0.
        count: number of steps.
    """
    return lambda done, total: progress(step * total + done, count * total)


def final_progress(progress: Progress, total: int) -> Progress:
    """Return a `Progress` for the work after the last step, so that this work can also be cancelled.

    Args:
        progress: the callback for all steps; it is called with (`total`, `total`) at each report.
        total: the total over all steps.
    """
    return lambda _done, _total: progress(total, total)


def run_cancellable(compute: Callable[[], T], progress: Progress, total: int = 1) -> T:
    """Run a function that does not report progress, such as a matrix decomposition, and return its result.

    The function runs in another thread while `progress` is called regularly with (`total`, `total`). If
    `progress` cancels the work, the function runs to its end, but its result is dropped.
    """
    outcome: Queue[tuple[bool, Any]] = Queue()

    def run() -> None:
        try:
            outcome.put((True, compute()))
        except BaseException as error:  # the caller's thread raises this error
            outcome.put((False, error))

    Thread(target=run, daemon=True).start()
    while True:
        progress(total, total)
        try:
            is_done, value = outcome.get(timeout=_CHECK_SECONDS)
        except Empty:
            continue
        if not is_done:
            raise value
        result: T = value
        return result


def no_progress(done: int, total: int) -> None:
    """A `Progress` that does nothing."""


def no_stage_progress(label: str, unit: str) -> AbstractContextManager[Progress]:  # noqa: ARG001 - a StageProgress
    """A `StageProgress` that does nothing."""
    return nullcontext(no_progress)
