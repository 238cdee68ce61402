"""What a theme of the proof is given, and how it tells what it found."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

SHOWN = 500
"""Characters of a failure that are told."""


@dataclass
class Run:
    """One run of a theme.

    Attributes:
        scale: 1 for the whole, less for a shorter run.
        seconds: its budget; a theme begins nothing new when they are over.
        folder: an empty one for its files, which goes when the theme ends.
        seed: of everything that is drawn by lot.
        failures: what did not hold, each with what makes it happen again.
    """

    scale: float
    seconds: float
    folder: Path
    seed: int = 9
    failures: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds of the budget that are left; below 0 when it is spent."""
        return self.began + self.seconds - time.monotonic()

    def times(self, whole: int) -> int:
        """How many of something there are at this scale; at least one."""
        return max(1, round(whole * self.scale))

    def lots(self, of: str) -> random.Random:
        """The same draws in every run, other ones for each name."""
        return random.Random(f"{self.seed} {of}")

    def failed(self, what: str) -> None:
        """Something did not hold; the proof goes on."""
        text = ascii(what)[1:-1]
        self.failures.append(text if len(text) <= SHOWN else f"{text[:SHOWN]} …")
