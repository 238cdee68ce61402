"""The context of a stress test, which records failures."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

SHOWN = 500
"""Maximum length of a failure in the report."""


@dataclass
class Run:
    """A run of a theme of stress tests.

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
        """Scale a count; return at least 1."""
        return max(1, round(count * self.scale))

    def lots(self, name: str) -> random.Random:
        """Return a random generator seeded by a name, which gives the same numbers in every run."""
        return random.Random(f"{self.seed} {name}")

    def failed(self, failure: str) -> None:
        """Record a failure."""
        text = ascii(failure)[1:-1]
        self.failures.append(text if len(text) <= SHOWN else f"{text[:SHOWN]} …")
