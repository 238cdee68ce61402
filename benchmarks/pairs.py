"""Timing two things side by side, so that a busy machine is equally unkind to both."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True)
class Line:
    """One measured line of the report.

    Attributes:
        what: what is measured.
        rival: what it is measured against, or in what circumstances.
        measured: the number with its unit, and what it was made of.
        target: the limit in words.
        met: whether the number keeps to it; None where there is no limit.
    """

    what: str
    rival: str
    measured: str
    target: str
    met: bool | None


@dataclass(frozen=True)
class Paired:
    """Seconds that each side took, in the order measured; entry i of both was measured back to back."""

    ours: tuple[float, ...]
    rival: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median of ours ÷ median of the rival's."""
        return statistics.median(self.ours) / statistics.median(self.rival)

    @property
    def spread(self) -> tuple[float, float]:
        """First and third quartile of the ratio within a pair."""
        ratios = [ours / rival for ours, rival in zip(self.ours, self.rival, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        return low, high


def paired(ours: Work, rival: Work, seconds: float = 8.0, least: int = 15, most: int = 400) -> Paired:
    """Run both in turn, who begins alternating, for about ``seconds``; three rounds before do not count."""
    for _ in range(3):
        ours()
        rival()
    ours_took: list[float] = []
    rival_took: list[float] = []
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        while len(ours_took) < least or (time.perf_counter() < end and len(ours_took) < most):
            if len(ours_took) % 2:
                ours_took.append(_timed(ours))
                rival_took.append(_timed(rival))
            else:
                rival_took.append(_timed(rival))
                ours_took.append(_timed(ours))
    finally:
        if collects:
            gc.enable()
    return Paired(tuple(ours_took), tuple(rival_took))


def _timed(work: Work) -> float:
    start = time.perf_counter()
    result = work()
    took = time.perf_counter() - start
    del result  # freed outside of the time measured
    return took
