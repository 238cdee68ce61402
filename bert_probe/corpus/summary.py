"""The statistics of all shards, added up: written once when the last of them is there, so that a large store
opens as soon as a small one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.special import stdtrit

from bert_probe.analyses.attention.head_measures import MEASURES
from bert_probe.corpus.ingest import PROFILES
from bert_probe.corpus.statistics import BINS
from bert_probe.corpus.store import Store, beside
from bert_probe.corpus.table_files import reading
from bert_probe.corpus.tables import STATISTICS
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.trace import Array, read_only

SUMMARY = "statistics.parquet"
"""The file, within the folder of a store; a store without it is none the worse."""
CONFIDENCE = 0.95
"""Of the interval of a mean."""
_OF = b"store_sha256"
"""In the file's metadata: digest of the store that it belongs to."""


def write_summary(store: Store) -> None:
    """Add up the statistics of a store that is finished, if it has any."""
    if not store.finished or not store.has(STATISTICS):
        return
    table = added_up(store).replace_schema_metadata({_OF: store.digest.encode()})
    with beside(store.folder / SUMMARY) as part:
        pq.write_table(table, part)


def _summary(store: Store) -> pa.Table:
    """What was added up of these very shards, or is now."""
    file = store.folder / SUMMARY
    if not file.is_file():
        return added_up(store)
    try:
        table = pq.read_table(file, partitioning=None)
    except (OSError, pa.ArrowException):
        return added_up(store)
    return table if belongs_to(table, store) else added_up(store)


def belongs_to(table: pa.Table, store: Store) -> bool:
    """Return whether a summary is of these very shards."""
    digest = (table.schema.metadata or {}).get(_OF)
    return digest == store.digest.encode() and table.schema.equals(store.layouts[STATISTICS].schema)


def added_up(store: Store) -> pa.Table:
    """The table of statistics with a line a head and measure, in the order of each shard's."""
    parts = [pq.read_table(file, partitioning=None) for file in store.files(STATISTICS)]
    first = parts[0]

    def stacked(name: str) -> Array:
        return np.stack([part[name].to_numpy() for part in parts])

    bins = sum(part["bins"].combine_chunks().flatten().to_numpy() for part in parts)
    columns = {
        **{name: first[name] for name in ("layer", "head", "measure")},
        **{name: stacked(name).sum(axis=0) for name in ("count", "sum", "squares")},
        "least": np.fmin.reduce(stacked("least")),  # a shard of refusals has none
        "most": np.fmax.reduce(stacked("most")),
        "bins": pa.FixedSizeListArray.from_arrays(pa.array(bins), BINS),
    }
    return pa.table(columns, store.layouts[STATISTICS].schema)


@dataclass(frozen=True, eq=False)
class MeasureStatistics:
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
        ends: Array = self.means - self.half_widths
        return ends

    @property
    def highs(self) -> Array:
        """Where it ends."""
        ends: Array = self.means + self.half_widths
        return ends


def head_statistics(store: Store) -> dict[str, MeasureStatistics]:
    """Name of a measure → what is known of it over all rows.

    Raises:
        UnavailableError: a store without profiles, or without sentences.
    """
    check_profiles(store)
    with reading(store.folder.name):
        return _statistics(store, _summary(store))


def _statistics(store: Store, table: pa.Table) -> dict[str, MeasureStatistics]:
    shape = (len(MEASURES), store.sizes.layers, store.sizes.heads)
    names = ("sum", "squares", "least", "most")
    sums, squares, least, most = (table[name].to_numpy().reshape(shape) for name in names)
    bins = table["bins"].combine_chunks().flatten().to_numpy().reshape(*shape, BINS)
    count = int(table["count"][0].as_py())
    means = sums / count
    # What is left of rounding may be less than nothing where all rows have the same value.
    spread = np.maximum(squares - count * means**2, 0)
    deviations = np.sqrt(spread / (count - 1)) if count > 1 else np.full(shape, np.nan)
    every = zip(means, deviations, least, most, bins, strict=True)
    return {name: MeasureStatistics(count, *one) for name, one in zip(MEASURES, every, strict=True)}


def check_profiles(store: Store) -> None:
    """Refuse a store without measures of heads.

    Raises:
        UnavailableError: it has none, or no sentence at all.
    """
    store.files(PROFILES)
    if not store.rows:
        raise UnavailableError(
            f"{store.folder.name} holds no sentence yet; {store.refusals:,} were refused. "
            "See its table of refusals, or run the corpus on."
        )
