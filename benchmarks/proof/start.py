"""Measure the startup times of the command line and the app with `benchmarks.start_cost`."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import start_cost
from benchmarks.pairs import Line
from benchmarks.proof.theme import Run


def lines(run: Run) -> Iterator[Line]:
    for line in start_cost.lines(run.times(start_cost.ROUNDS)):
        yield line
        if run.left < 0:
            run.failed(f"The time limit was reached after: {line.what}")
            return
