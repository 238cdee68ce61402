"""Work for jobs that a test leads step by step."""

from __future__ import annotations

import threading

from bert_probe.model.progress import Progress
from bert_probe.runtime import jobs


class Steps:
    """Work that reports and then waits for the test, step by step.

    Attributes:
        begun: how often it was started.
        done: what it reported last.
        ended: set when it is over, in whatever way.
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
    """Whether no thread is at a job any more."""
    return not jobs._working
