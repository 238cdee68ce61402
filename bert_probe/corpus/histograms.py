"""How a measure is spread over all rows, for every head: from what was counted as they were read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.head_measures import MEASURES
from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import OneStore
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.corpus.statistics import edges
from bert_probe.corpus.store import Store
from bert_probe.corpus.summary import MeasureStatistics, head_statistics
from bert_probe.errors import ShapeError
from bert_probe.model.trace import Array, read_only


@question("corpus histograms", is_analysis=False)
class HeadHistograms(Question):
    """The histogram of one measure over all rows, of every head.

    Attributes:
        measure: one of the measures of `Heads`.
    """

    inputs = OneStore()

    measure: str = param(Choice(MEASURES), default="entropy_bits", about="What is measured of each head.")

    def of(self, store: Store) -> HeadHistogramsResult:
        """The histograms; no row is read again.

        Raises:
            UnavailableError: a store without profiles, or without sentences.
        """
        found = head_statistics(store)[self.measure]
        return HeadHistogramsResult(self, store.inputs, found, edges(self.measure, store.max_tokens))


@dataclass(frozen=True, eq=False, repr=False)
class HeadHistogramsResult(Result):
    """The histogram of a measure over all rows, of every head.

    Attributes:
        statistics: of every head; its bins are the histograms.
        edges: where the bins begin and end, [bin + 1]; a bin has its low end, the last one both.
    """

    question: HeadHistograms
    statistics: MeasureStatistics
    edges: Array

    def __post_init__(self) -> None:
        read_only(self.edges)
        if self.statistics.bins.shape[2:] != (len(self.edges) - 1,):
            raise ShapeError(f"{self.statistics.bins.shape} are no bins between {len(self.edges)} edges.")

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return super().nbytes + self.statistics.bins.nbytes

    def frame(self) -> pd.DataFrame:
        """A line a bin of a head: layer, head, bin, low, high, rows."""
        layers, heads, bins = np.indices(self.statistics.bins.shape)
        return pd.DataFrame(
            {
                "layer": layers.ravel() + 1,
                "head": heads.ravel() + 1,
                "bin": bins.ravel() + 1,
                "low": self.edges[:-1][bins.ravel()],
                "high": self.edges[1:][bins.ravel()],
                "rows": self.statistics.bins.ravel(),
            }
        )
