"""The context that each stress test runs in: scale, time limit, folder, seed and failures."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

SHOWN = 500
"""Maximum length of a failure in the report."""


@dataclass
class Run:
    """One run of a group of stress tests (a theme).

    Attributes:
        scale: 1 for a complete run, smaller values for shorter runs.
        seconds: Time limit in seconds, after which a theme starts no further tests.
        folder: Empty folder for files, which is deleted at the end.
        seed: Seed for all random choices.
        failures: Descriptions of failures, with the data to reproduce them.
    """

    scale: float
    seconds: float
    folder: Path
    seed: int = 9
    failures: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """The remaining seconds; negative after the time limit."""
        return self.began + self.seconds - time.monotonic()

    def times(self, count: int) -> int:
        """Return a count multiplied by the scale and rounded, at least 1."""
        return max(1, round(count * self.scale))

    def lots(self, name: str) -> random.Random:
        """Return a random generator seeded with a name, so that its numbers are the same in every run."""
        return random.Random(f"{self.seed} {name}")

    def failed(self, failure: str) -> None:
        """Record a failure, escaped to ASCII and shortened to `SHOWN` characters."""
        text = ascii(failure)[1:-1]
        self.failures.append(text if len(text) <= SHOWN else f"{text[:SHOWN]} …")
