"""Compute the statistics of head measures over all shards of a store.

They are written to a summary file when the last shard is complete, so that a large store opens as fast as a
small one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.special import stdtrit

from bert_probe.analyses.attention.heads import MEASURES
from bert_probe.corpus.inputs import PROFILES
from bert_probe.corpus.store import Store, atomic_path
from bert_probe.corpus.table_files import store_errors
from bert_probe.corpus.tables import BINS, STATISTICS
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.trace import Array, read_only

SUMMARY = "statistics.parquet"
"""Name of the summary file of a store. If the file is missing, the statistics of the shards are summed."""
CONFIDENCE = 0.95
"""Confidence level of the confidence intervals of means."""
_STORE_DIGEST = b"store_sha256"
"""Metadata key of the summary file for the digest of the store from which it was computed."""


def write_summary(store: Store) -> None:
    """Write the summary file of a store, if the store is finished and has statistics."""
    if not store.finished or not store.has(STATISTICS):
        return
    table = sum_statistics(store).replace_schema_metadata({_STORE_DIGEST: store.digest.encode()})
    with atomic_path(store.folder / SUMMARY) as path:
        pq.write_table(table, path)


def _read_summary(store: Store) -> pa.Table:
    """Read the statistics of a store from its summary file, or sum them if it is missing or outdated."""
    file = store.folder / SUMMARY
    if not file.is_file():
        return sum_statistics(store)
    try:
        table = pq.read_table(file, partitioning=None)
    except (OSError, pa.ArrowException):
        return sum_statistics(store)
    return table if belongs_to(table, store) else sum_statistics(store)


def belongs_to(table: pa.Table, store: Store) -> bool:
    """Return whether a summary was computed from the current shards of a store."""
    digest = (table.schema.metadata or {}).get(_STORE_DIGEST)
    return digest == store.digest.encode() and table.schema.equals(store.layouts[STATISTICS].schema)


def sum_statistics(store: Store) -> pa.Table:
    """Return the statistics of all shards together, with one row per measure and head."""
    shards = [pq.read_table(file, partitioning=None) for file in store.files(STATISTICS)]

    def stack(name: str) -> Array:
        return np.stack([shard[name].to_numpy() for shard in shards])

    bins = sum(shard["bins"].combine_chunks().flatten().to_numpy() for shard in shards)
    columns = {
        **{name: shards[0][name] for name in ("layer", "head", "measure")},
        **{name: stack(name).sum(axis=0) for name in ("count", "sum", "squares")},
        "min": np.fmin.reduce(stack("min")),  # ignores NaN, which shards without sentences have
        "max": np.fmax.reduce(stack("max")),
        "bins": pa.FixedSizeListArray.from_arrays(pa.array(bins), BINS),
    }
    return pa.table(columns, store.layouts[STATISTICS].schema)


@dataclass(frozen=True, eq=False)
class MeasureStatistics:
    """Statistics of one measure over all rows of a store, for every head.

    Attributes:
        count: number of rows.
        means: mean for each head; shape [layer, head].
        deviations: sample standard deviation for each head, or NaN for a single row; shape [layer, head].
        minima: minimum for each head; shape [layer, head].
        maxima: maximum for each head; shape [layer, head].
        bins: number of rows in each bin of each head's histogram, int64 of shape [layer, head, bin].
    """

    count: int
    means: Array
    deviations: Array
    minima: Array
    maxima: Array
    bins: Array

    def __post_init__(self) -> None:
        for values in (self.means, self.deviations, self.minima, self.maxima, self.bins):
            read_only(values)
            if values.shape[:2] != self.means.shape:
                raise ShapeError(
                    f"The shape {values.shape} does not begin with {self.means.shape} (layers, heads)."
                )

    @property
    def interval_half_widths(self) -> Array:
        """Half the width of the confidence interval of each head's mean, with shape [layer, head].

        The intervals are Student's t intervals, which assume independent rows. For a single row they are NaN.
        """
        if self.count < 2:
            return np.full(self.means.shape, np.nan)
        quantile = float(stdtrit(self.count - 1, (1 + CONFIDENCE) / 2))
        widths: Array = quantile * self.deviations / np.sqrt(self.count)
        return widths

    @property
    def lows(self) -> Array:
        """Lower end of the confidence interval of each head's mean, with shape [layer, head]."""
        ends: Array = self.means - self.interval_half_widths
        return ends

    @property
    def highs(self) -> Array:
        """Upper end of the confidence interval of each head's mean, with shape [layer, head]."""
        ends: Array = self.means + self.interval_half_widths
        return ends


def head_statistics(store: Store) -> dict[str, MeasureStatistics]:
    """Return the statistics of every measure over all rows of a store, by measure.

    Raises:
        UnavailableError: the store has no head measures, or no sentences.
    """
    check_profiles(store)
    with store_errors(store.folder.name):
        table = _read_summary(store)
        shape = (len(MEASURES), store.sizes.layers, store.sizes.heads)
        names = ("sum", "squares", "min", "max")
        sums, squares, minima, maxima = (table[name].to_numpy().reshape(shape) for name in names)
        bins = table["bins"].combine_chunks().flatten().to_numpy().reshape(*shape, BINS)
        count = int(table["count"][0].as_py())
        means = sums / count
        # Rounding may make the difference slightly negative if all rows have the same value.
        squared_deviations = np.maximum(squares - count * means**2, 0)
        deviations = np.sqrt(squared_deviations / (count - 1)) if count > 1 else np.full(shape, np.nan)
        statistics = zip(means, deviations, minima, maxima, bins, strict=True)
        return {
            measure: MeasureStatistics(count, *arrays)
            for measure, arrays in zip(MEASURES, statistics, strict=True)
        }


def check_profiles(store: Store) -> None:
    """Check that a store contains measures of heads for at least one sentence.

    Raises:
        UnavailableError: the store has no head measures, or no sentences.
    """
    store.files(PROFILES)
    if not store.rows:
        raise UnavailableError(
            f"{store.folder.name} has no sentences yet; number of rejected records: {store.refusals:,}. "
            "See the table refusals, or continue the corpus run."
        )
