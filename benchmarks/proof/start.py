"""Time to the first useful view, as measured by the benchmark `start_cost`."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import start_cost
from benchmarks.pairs import Line
from benchmarks.proof.theme import Run


def lines(run: Run) -> Iterator[Line]:
    for line in start_cost.lines(run.times(start_cost.ROUNDS)):
        yield line
        if run.left < 0:
            run.failed(f"Nothing was measured after: {line.what}")
            return
