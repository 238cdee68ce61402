"""A job function that a test advances step by step."""

from __future__ import annotations

import threading

from bert_probe.model.progress import Progress
from bert_probe.runtime import jobs


class Steps:
    """Work that reports progress and then waits for the test, step by step.

    Attributes:
        begun: number of times that the work was started.
        done: the last reported progress.
        ended: set when the work has ended, whether it succeeded or not.
    """

    def __init__(self, total: int = 3) -> None:
        self.total, self.done, self.begun = total, 0, 0
        self.ended = threading.Event()
        self._go = threading.Semaphore(0)

    def __call__(self, progress: Progress) -> str:
        self.begun += 1
        try:
            for done in range(self.total + 1):
                self.done = done
                progress(done, self.total)
                self._go.acquire(timeout=20)
            return "result"
        finally:
            self.ended.set()

    def step(self, count: int = 1) -> None:
        self._go.release(count)


def all_jobs_ended() -> bool:
    """Return whether no job thread is running."""
    return not jobs._working
