"""Head measures over all rows of a store: statistics, histograms and example rows.

The statistics are written to a summary file when the last shard is complete, so that a large store opens as
fast as a small one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.special import stdtrit

from bert_probe.analyses.attention.heads import MEASURES
from bert_probe.core.field_types import Choice, Number, Optional
from bert_probe.core.field_types_of_lists import HeadSet, OneHead
from bert_probe.core.inputs import OneStore
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.corpus.inputs import PROFILES
from bert_probe.corpus.schema import (
    BINS,
    STATISTICS,
    bin_edges,
    bin_indices,
    content_problem,
    store_errors,
)
from bert_probe.corpus.store import (
    SentenceRow,
    Store,
    atomic_path,
    links,
    rank_columns,
    read_measure,
    row_numbers,
    sentences,
)
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.progress import Progress, no_progress, step_progress
from bert_probe.model.trace import Array, read_only, resolve_index

SUMMARY = "statistics.parquet"
"""Name of the summary file of a store. If the file is missing, the statistics of the shards are summed."""
CONFIDENCE = 0.95
"""Confidence level of the confidence intervals of means."""
_STORE_DIGEST = b"store_sha256"
"""Metadata key, in the summary file, of the digest of the store whose statistics the file contains."""


def write_summary(store: Store) -> None:
    """Write the summary file of a store, if the store is finished and has statistics."""
    if not store.finished or not store.has(STATISTICS):
        return
    table = sum_statistics(store).replace_schema_metadata({_STORE_DIGEST: store.digest.encode()})
    with atomic_path(store.folder / SUMMARY) as path:
        pq.write_table(table, path)


def _summary(store: Store) -> pa.Table:
    """Return the statistics from the summary file, or from all shards if that file is missing or outdated."""
    table = read_summary(store) if (store.folder / SUMMARY).is_file() else None
    return table if table is not None and belongs_to(table, store) else sum_statistics(store)


def read_summary(store: Store) -> pa.Table | None:
    """Return the content of the summary file of a store, or None if the file cannot be read."""
    rows = store.sizes.layers * store.sizes.heads * len(MEASURES)
    file = store.folder / SUMMARY
    if content_problem(file, store.layouts[STATISTICS], rows):
        return None
    try:
        return pq.read_table(file, partitioning=None)
    except (OSError, pa.ArrowException):
        return None


def belongs_to(table: pa.Table, store: Store) -> bool:
    """Return whether a summary was computed from the current shards of a store."""
    digest = (table.schema.metadata or {}).get(_STORE_DIGEST)
    return digest == store.digest.encode() and table.schema.equals(store.layouts[STATISTICS].schema)


def sum_statistics(store: Store) -> pa.Table:
    """Return the statistics over all shards as a table with one row per measure and head."""
    shards = [pq.read_table(file, partitioning=None) for file in store.files(STATISTICS)]

    def stack(name: str) -> Array:
        return np.stack([shard[name].to_numpy() for shard in shards])

    bins = sum(shard["bins"].combine_chunks().flatten().to_numpy() for shard in shards)
    columns = {
        **{name: shards[0][name] for name in ("layer", "head", "measure")},
        **{name: stack(name).sum(axis=0) for name in ("count", "sum", "squares")},
        "min": np.fmin.reduce(stack("min")),  # fmin and fmax ignore the NaN of shards without sentences
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
                    f"The shape of values must begin with {self.means.shape} (layers, heads), not "
                    f"{values.shape}."
                )

    @property
    def interval_half_widths(self) -> Array:
        """Half the width of the confidence interval of each head's mean, with shape [layer, head].

        The intervals are Student's t intervals, which assume independent rows. With a single row, the result
        is NaN.
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
    """Return the statistics over all rows of a store as a dict with one item per measure.

    Raises:
        UnavailableError: the store has no head measures, or no sentences.
    """
    check_profiles(store)
    with store_errors(store.folder.name):
        table = _summary(store)
        shape = (len(MEASURES), store.sizes.layers, store.sizes.heads)
        names = ("sum", "squares", "min", "max")
        sums, squares, minima, maxima = (table[name].to_numpy().reshape(shape) for name in names)
        bins = table["bins"].combine_chunks().flatten().to_numpy().reshape(*shape, BINS)
        count = int(table["count"][0].as_py())
        means = sums / count
        # Rounding may make this difference slightly negative if all rows have the same value.
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


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MAX_VALUES = 2**27
"""Maximum number of values that are read at once, about 0.5 GB. More values are read in several passes."""


@question("head statistics", command="corpus heads", is_analysis=False)
class HeadStatistics(Question):
    """Statistics of head measures over all rows of a store.

    Attributes:
        measure: one of the measures of `Heads`. If None, all measures.
        heads: (layer, head) pairs, both from 0. If None, all heads.
    """

    inputs = OneStore()

    measure: str | None = param(
        Optional(Choice(MEASURES)), default=None, about="Name of a measure.  [default: all measures]"
    )
    heads: tuple[tuple[int, int], ...] | None = param(
        Optional(HeadSet(whole_layers=True)),
        default=None,
        option="--head",
        about="Heads, such as 3.1, or a layer.  [default: all heads]",
    )

    def of(self, store: Store, progress: Progress = no_progress) -> HeadStatisticsResult:
        """Return the mean, its confidence interval, quantiles, minimum and maximum of each measure and head.

        Args:
            store: a store with head measures (table "profiles").
            progress: called with the number of shards read, counted once per measure, and the total.

        Raises:
            SelectionError: the model does not have one of the heads.
            UnavailableError: the store has no head measures, or no sentences.
        """
        statistics = head_statistics(store)
        heads = resolved(self.heads, store)
        indices = [layer * store.sizes.heads + head for layer, head in heads]
        measures = MEASURES if self.measure is None else (self.measure,)
        quantiles = [
            _quantiles(store, measure, indices, step_progress(progress, number, len(measures)))
            for number, measure in enumerate(measures)
        ]

        def select(name: str) -> Array:
            return np.stack([getattr(statistics[measure], name).ravel()[indices] for measure in measures])

        return HeadStatisticsResult(
            replace(self, heads=None if self.heads is None else heads),
            store.inputs,
            heads,
            measures,
            store.rows,
            select("means"),
            select("lows"),
            select("highs"),
            select("minima"),
            select("maxima"),
            np.stack(quantiles),
        )


def resolved(heads: Sequence[tuple[int, int]] | None, store: Store) -> tuple[tuple[int, int], ...]:
    """Convert (layer, head) pairs to nonnegative indices, and remove duplicates.

    Args:
        heads: (layer, head) pairs; negative numbers count from the end. If None, all heads.
        store: a store built with the model that has these heads.

    Raises:
        SelectionError: the model does not have one of the heads.
    """
    sizes = store.sizes
    if heads is None:
        return tuple((layer, head) for layer in range(sizes.layers) for head in range(sizes.heads))
    pairs = [
        (resolve_index(layer, sizes.layers, "layer"), resolve_index(head, sizes.heads, "head"))
        for layer, head in heads
    ]
    return tuple(dict.fromkeys(pairs))


def _quantiles(store: Store, measure: str, heads: Sequence[int], progress: Progress) -> Array:
    """Return the `QUANTILES` of a measure over all rows, for heads given by flat indices.

    The quantiles are exact, with linear interpolation. The result has the shape [head, quantile].
    """
    heads_per_pass = max(1, MAX_VALUES // store.rows)
    passes = [heads[first : first + heads_per_pass] for first in range(0, len(heads), heads_per_pass)]
    quantiles = []
    for number, some_heads in enumerate(passes):
        values = read_measure(store, measure, some_heads, step_progress(progress, number, len(passes)))
        quantiles += [np.quantile(row.astype(np.float64), QUANTILES) for row in values]
    return np.stack(quantiles)


@dataclass(frozen=True, eq=False, repr=False)
class HeadStatisticsResult(Result):
    """Statistics of head measures over all rows of a store.

    Attributes:
        heads: (layer, head) pairs, both from 0.
        measures: names of the measures.
        count: number of rows.
        means: mean of each measure and head over all rows; shape [measure, head].
        lows: lower end of each mean's 95% confidence interval; NaN for a single row. Shape [measure, head].
        highs: upper end of each mean's 95% confidence interval; NaN for a single row. Shape [measure, head].
        minima: minimum of each measure and head; shape [measure, head].
        maxima: maximum of each measure and head; shape [measure, head].
        quantiles: the `QUANTILES` of each measure and head; shape [measure, head, quantile].
    """

    question: HeadStatistics
    heads: tuple[tuple[int, int], ...]
    measures: tuple[str, ...]
    count: int
    means: Array
    lows: Array
    highs: Array
    minima: Array
    maxima: Array
    quantiles: Array

    def __post_init__(self) -> None:
        shape = (len(self.measures), len(self.heads))
        for values in (self.means, self.lows, self.highs, self.minima, self.maxima, self.quantiles):
            read_only(values)
            if values.shape[:2] != shape:
                raise ShapeError(f"The shape of all statistics must begin with {shape}, not {values.shape}.")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Confidence level of the intervals, and the method that computes them."""
        return {"confidence": CONFIDENCE, "interval": "Student's t interval, assuming independent rows"}

    def frame(self) -> pd.DataFrame:
        """Return the statistics as a table with one row per measure and head.

        Columns: layer, head, measure, count, mean, low, high, quantile_05 … quantile_95, min, max.
        """
        quantiles = {
            f"quantile_{round(100 * level):02}": self.quantiles[:, :, column].ravel()
            for column, level in enumerate(QUANTILES)
        }
        layers, heads = np.array(self.heads).T + 1
        return pd.DataFrame(
            {
                "layer": np.tile(layers, len(self.measures)),
                "head": np.tile(heads, len(self.measures)),
                "measure": np.repeat(np.array(self.measures, dtype=object), len(self.heads)),
                "count": self.count,
                "mean": self.means.ravel(),
                "low": self.lows.ravel(),
                "high": self.highs.ravel(),
                **quantiles,
                "min": self.minima.ravel(),
                "max": self.maxima.ravel(),
            }
        )


@question("head histograms", command="corpus histograms", is_analysis=False)
class HeadHistograms(Question):
    """The histogram of one measure over all rows of a store, for every head.

    Attributes:
        measure: one of the measures of `Heads`.
    """

    inputs = OneStore()

    measure: str = param(
        Choice(MEASURES), default="entropy_bits", about="Measure whose histogram is computed for each head."
    )

    def of(self, store: Store) -> HeadHistogramsResult:
        """Return the histograms from the stored statistics, without reading any rows.

        Raises:
            UnavailableError: the store has no head measures, or no sentences.
        """
        statistics = head_statistics(store)[self.measure]
        edges = bin_edges(self.measure, store.max_tokens)
        return HeadHistogramsResult(self, store.inputs, statistics, edges)


@dataclass(frozen=True, eq=False, repr=False)
class HeadHistogramsResult(Result):
    """The histogram of one measure over all rows of a store, for every head.

    Attributes:
        statistics: statistics of every head, whose `bins` are the histograms.
        edges: edges of the bins, one more than there are bins. A bin includes its lower edge, and the last
            bin also its upper edge.
    """

    question: HeadHistograms
    statistics: MeasureStatistics
    edges: Array

    def __post_init__(self) -> None:
        read_only(self.edges)
        if self.statistics.bins.shape[2:] != (len(self.edges) - 1,):
            raise ShapeError(
                f"The shape of bins, {self.statistics.bins.shape}, does not match {len(self.edges)} edges."
            )

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return super().nbytes + self.statistics.bins.nbytes

    def frame(self) -> pd.DataFrame:
        """Return the histograms as a table with one row per head and bin.

        Columns: layer, head, bin, low, high, rows.
        """
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


RANKINGS = ("typical", "extreme", "lowest", "highest")
MAX_ROWS = 10_000


@question("head examples", command="corpus heads", is_analysis=False)
class HeadExamples(Question):
    """Rows of a store, ranked by a measure of one head.

    Attributes:
        head: (layer, head), both from 0.
        measure: one of the measures of `Heads`.
        which: order of the rows: "typical" ranks values nearest to the median of all rows first, "extreme"
            values farthest from the median, "lowest" small values, and "highest" large values.
        top: maximum number of rows.
        bin: bin of the head's histogram, from 1, to which the rows are limited; see `HeadHistograms`. If
            None, all rows are ranked.
    """

    inputs = OneStore()

    head: tuple[int, int] = param(OneHead(), about="Layer and head, such as 3.1.")
    measure: str = param(Choice(MEASURES), about="Measure of the head.")
    which: str = param(
        Choice(RANKINGS),
        about="Print the rows whose values are nearest to the median, farthest from the median, lowest or "
        "highest.",
    )
    top: int = param(Number(1, MAX_ROWS), default=10, about="Maximum number of rows.")
    bin: int | None = param(
        Optional(Number(1, BINS)),
        default=None,
        about="Print only rows in this bin of the head's histogram; bins are counted from 1.",
    )

    def of(self, store: Store, progress: Progress = no_progress) -> HeadExamplesResult:
        """Return the top-ranked rows, best first; ties are in the order of the store.

        Args:
            store: a store with head measures (table "profiles").
            progress: called with the number of shards read and their total.

        Raises:
            SelectionError: the model does not have this head.
            UnavailableError: the store has no head measures, or no sentences.
        """
        check_profiles(store)
        ((layer, head),) = resolved([self.head], store)
        (values,) = read_measure(store, self.measure, [layer * store.sizes.heads + head], progress)
        exact = values.astype(np.float64)
        median = float(np.median(exact))
        orders = {
            "typical": np.abs(exact - median),
            "extreme": -np.abs(exact - median),
            "lowest": exact,
            "highest": -exact,
        }
        order = orders[self.which]
        candidates = np.arange(len(values))
        if self.bin is not None:
            bins = bin_indices(exact, bin_edges(self.measure, store.max_tokens))
            candidates = np.flatnonzero(bins == self.bin - 1)
        best = candidates[np.argsort(order[candidates], kind="stable")[: self.top]]
        ranking = sentences(store, row_numbers(store)[best].tolist())
        parameters = {"layer": str(layer + 1), "head": str(head + 1)}
        return HeadExamplesResult(
            replace(self, head=(layer, head)),
            store.inputs,
            ranking,
            values[best],
            median,
            len(candidates),
            tuple(links(store, ranking, [parameters] * len(ranking))),
        )


@dataclass(frozen=True, eq=False, repr=False)
class HeadExamplesResult(Result):
    """Rows of a store, ranked by a measure of one head.

    Attributes:
        sentences: the top-ranked rows, best first.
        values: value of the measure for each row in `sentences`.
        median: median of the measure over all rows of the store.
        among: number of rows that were ranked: all rows of the store, or all rows in the requested bin.
        links: URL of each row's head view within the app; "" if the model is only in memory.
    """

    question: HeadExamples
    sentences: tuple[SentenceRow, ...]
    values: Array
    median: float
    among: int
    links: tuple[str, ...]

    def __post_init__(self) -> None:
        read_only(self.values)
        if not len(self.sentences) == len(self.values) == len(self.links):
            raise ShapeError(
                f"values and links must have {len(self.sentences)} entries, one per row, not "
                f"{len(self.values)} and {len(self.links)}."
            )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The median of the measure, and the number of rows that were ranked."""
        return {"median": self.median, "among": self.among}

    def frame(self) -> pd.DataFrame:
        """Return the ranking as a table with one row per sentence.

        Columns: rank, row, file, line, value, text, link.
        """
        return pd.DataFrame(
            {
                **rank_columns(self.sentences),
                "value": self.values,
                "text": [sentence.text for sentence in self.sentences],
                "link": list(self.links),
            }
        )
