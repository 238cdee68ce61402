"""Measure the run times of two functions alternately, so that other load affects both equally."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True)
class Line:
    """One row of a result table."""

    what: str  # the measured quantity
    rival: str  # the baseline of the comparison, or the conditions
    measured: str  # the measured value with its unit
    target: str  # the limit
    met: bool | None  # whether the limit is met; None without a limit


@dataclass(frozen=True)
class Paired:
    """Run times of BERT Probe and its rival in seconds; entry i of both is from the same pair of runs."""

    ours: tuple[float, ...]
    rival: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median time of BERT Probe divided by the median time of its rival."""
        return statistics.median(self.ours) / statistics.median(self.rival)

    @property
    def spread(self) -> tuple[float, float]:
        """The first and third quartiles of the ratios of individual pairs."""
        ratios = [ours / rival for ours, rival in zip(self.ours, self.rival, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        return low, high


def paired(
    ours: Work,
    rival: Work,
    seconds: float = 8.0,
    min_rounds: int = 15,
    max_rounds: int = 400,
    warm_ups: int = 3,
) -> Paired:
    """Run two functions alternately, in alternating order, after warm-up rounds.

    Args:
        ours: Function that uses BERT Probe.
        rival: Function that does the same without BERT Probe.
        seconds: Approximate duration of the measurement.
        min_rounds: Minimum number of pairs, even if they take longer.
        max_rounds: Maximum number of pairs.
        warm_ups: Number of pairs that run before the measurement.
    """
    for _ in range(warm_ups):
        ours()
        rival()
    ours_took: list[float] = []
    rival_took: list[float] = []
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        while len(ours_took) < min_rounds or (time.perf_counter() < end and len(ours_took) < max_rounds):
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
    del result  # free the memory only after the time is measured
    return took
