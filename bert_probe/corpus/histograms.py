"""Histograms of a head measure over all rows of a store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.head_measures import MEASURES
from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import OneStore
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.corpus.statistics import bin_edges
from bert_probe.corpus.store import Store
from bert_probe.corpus.summary import MeasureStatistics, head_statistics
from bert_probe.errors import ShapeError
from bert_probe.model.trace import Array, read_only


@question("corpus histograms", is_analysis=False)
class HeadHistograms(Question):
    """The histogram of one measure over all rows of a store, for every head.

    Attributes:
        measure: one of the measures of `Heads`.
    """

    inputs = OneStore()

    measure: str = param(Choice(MEASURES), default="entropy_bits", about="Measure of each head.")

    def of(self, store: Store) -> HeadHistogramsResult:
        """Return the histograms from the stored statistics, without reading any rows.

        Raises:
            UnavailableError: the store has no profiles, or no sentences.
        """
        statistics = head_statistics(store)[self.measure]
        edges = bin_edges(self.measure, store.max_tokens)
        return HeadHistogramsResult(self, store.inputs, statistics, edges)


@dataclass(frozen=True, eq=False, repr=False)
class HeadHistogramsResult(Result):
    """The histogram of one measure over all rows of a store, for every head.

    Attributes:
        statistics: of every head; its bins are the histograms.
        edges: bin edges, [bin + 1]; a bin includes its lower edge, the last bin both edges.
    """

    question: HeadHistograms
    statistics: MeasureStatistics
    edges: Array

    def __post_init__(self) -> None:
        read_only(self.edges)
        if self.statistics.bins.shape[2:] != (len(self.edges) - 1,):
            raise ShapeError(
                f"Bins of shape {self.statistics.bins.shape} do not fit {len(self.edges)} edges."
            )

    @property
    def nbytes(self) -> int:
        """Memory of the arrays in bytes."""
        return super().nbytes + self.statistics.bins.nbytes

    def frame(self) -> pd.DataFrame:
        """Return one row per head and bin: layer, head, bin, low, high, rows."""
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
