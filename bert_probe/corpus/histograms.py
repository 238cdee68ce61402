"""How a measure is spread over all rows, for every head: from what was counted as they were read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import stdtrit

from bert_probe.analyses.head_measures import MEASURES
from bert_probe.corpus.columns import check_profiles
from bert_probe.corpus.statistics import BINS, edges
from bert_probe.corpus.store import Store
from bert_probe.corpus.tables import STATISTICS
from bert_probe.errors import ShapeError
from bert_probe.model.trace import Array, read_only
from bert_probe.results.kinds import Choice
from bert_probe.results.question import Question, asked, question
from bert_probe.results.result import Result

CONFIDENCE = 0.95
"""Of the interval of a mean."""


@question("corpus histograms", is_analysis=False)
class CorpusHistograms(Question):
    """The histogram of one measure over all rows, of every head.

    Attributes:
        measure: one of the measures of `Heads`.
    """

    measure: str = asked(Choice(MEASURES), default="entropy_bits", about="What is measured of each head.")

    def of(self, store: Store) -> HeadHistograms:
        """The histograms; no row is read again.

        Raises:
            UnavailableError: a store without profiles, or without sentences.
        """
        found = head_statistics(store, self.measure)
        return HeadHistograms(self, store.subject, found, edges(self.measure, store.max_tokens))


@dataclass(frozen=True, eq=False)
class HeadStatistics:
    """What is known of a measure over all rows, for every head.

    Attributes:
        count: rows.
        means, deviations: [layer, head]; the deviation is that of a sample, NaN of a single row.
        least, most: [layer, head].
        bins: rows in each bin, int64 [layer, head, bin].
    """

    count: int
    means: Array
    deviations: Array
    least: Array
    most: Array
    bins: Array

    def __post_init__(self) -> None:
        for one in (self.means, self.deviations, self.least, self.most, self.bins):
            read_only(one)
            if one.shape[:2] != self.means.shape:
                raise ShapeError(f"{one.shape} is not of {self.means.shape} layers and heads.")

    @property
    def half_widths(self) -> Array:
        """Half of the interval of each mean, [layer, head]: Student's t, as if rows were independent."""
        if self.count < 2:
            return np.full(self.means.shape, np.nan)
        times = float(stdtrit(self.count - 1, (1 + CONFIDENCE) / 2))
        widths: Array = times * self.deviations / np.sqrt(self.count)
        return widths

    @property
    def lows(self) -> Array:
        """Where the interval of each mean begins, [layer, head]."""
        return self.means - self.half_widths

    @property
    def highs(self) -> Array:
        """Where it ends."""
        return self.means + self.half_widths


def head_statistics(store: Store, measure: str) -> HeadStatistics:
    """Those of all shards, added up.

    Raises:
        UnavailableError: a store without profiles, or without sentences.
    """
    check_profiles(store)
    table = store.table(STATISTICS).to_table(filter=pc.field("measure") == measure)
    shape = (-1, store.sizes.layers, store.sizes.heads)
    read = {
        name: _column(table, name).reshape(shape) for name in ("count", "sum", "squares", "least", "most")
    }
    count = int(read["count"][:, 0, 0].sum())
    means = read["sum"].sum(axis=0) / count
    # What is left of rounding may be less than nothing where all rows have the same value.
    squares = np.maximum(read["squares"].sum(axis=0) - count * means**2, 0)
    bins = table["bins"].combine_chunks().flatten().to_numpy().reshape(*shape, BINS)
    return HeadStatistics(
        count,
        means,
        np.sqrt(squares / (count - 1)) if count > 1 else np.full(means.shape, np.nan),
        np.fmin.reduce(read["least"], axis=0),  # a shard of refusals has none
        np.fmax.reduce(read["most"], axis=0),
        bins.sum(axis=0),
    )


def _column(table: pa.Table, name: str) -> Array:
    values: Array = table[name].to_numpy()
    return values


@dataclass(frozen=True, eq=False, repr=False)
class HeadHistograms(Result):
    """The histogram of a measure over all rows, of every head.

    Attributes:
        statistics: of every head; its bins are the histograms.
        edges: where the bins begin and end, [bin + 1]; a bin has its low end, the last one both.
    """

    question: CorpusHistograms
    statistics: HeadStatistics
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
