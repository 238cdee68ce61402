"""What each head does over all rows of a store: means with intervals, quantiles, extremes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.head_measures import MEASURES
from bert_probe.core.field_types import Choice, Optional
from bert_probe.core.field_types_of_lists import HeadSet
from bert_probe.core.inputs import OneStore
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.corpus.columns import profile
from bert_probe.corpus.store import Store
from bert_probe.corpus.summary import CONFIDENCE, head_statistics
from bert_probe.errors import ShapeError
from bert_probe.model.progress import Progress, no_progress, part_of
from bert_probe.model.trace import Array, read_only, resolve

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
AT_ONCE = 2**27
"""Numbers of a measure that are held at a time, half a gigabyte: more heads are read in several turns."""


@question("corpus heads", is_analysis=False)
class HeadStatistics(Question):
    """Measures of heads over all rows.

    Attributes:
        measure: one of the measures of `Heads`; None for all of them.
        heads: (layer, head) from 0; None for all of them.
    """

    inputs = OneStore()

    measure: str | None = param(
        Optional(Choice(MEASURES)), default=None, about="One measure; else all of them."
    )
    heads: tuple[tuple[int, int], ...] | None = param(
        Optional(HeadSet(whole_layers=True)),
        default=None,
        option="--head",
        about="Heads such as 3.1, or a layer; else all of them.",
    )

    def of(self, store: Store, report: Progress = no_progress) -> HeadStatisticsResult:
        """Means, intervals, quantiles, least and most.

        Args:
            report: told how many shards are read, over all measures, and of how many.

        Raises:
            SelectionError: a head that is not there.
            UnavailableError: a store without profiles, or without sentences.
        """
        found = head_statistics(store)
        heads = resolved(self.heads, store)
        numbers = [layer * store.sizes.heads + head for layer, head in heads]
        measures = MEASURES if self.measure is None else (self.measure,)
        quantiles = [
            _quantiles(store, measure, numbers, part_of(report, place, len(measures)))
            for place, measure in enumerate(measures)
        ]

        def of_heads(name: str) -> Array:
            return np.stack([getattr(found[measure], name).ravel()[numbers] for measure in measures])

        return HeadStatisticsResult(
            replace(self, heads=None if self.heads is None else heads),
            store.inputs,
            heads,
            measures,
            store.rows,
            of_heads("means"),
            of_heads("lows"),
            of_heads("highs"),
            of_heads("least"),
            of_heads("most"),
            np.stack(quantiles),
        )


def resolved(heads: Sequence[tuple[int, int]] | None, store: Store) -> tuple[tuple[int, int], ...]:
    """Heads of a store's model, each from 0; all of them for None.

    Raises:
        SelectionError: one that is not there.
    """
    sizes = store.sizes
    if heads is None:
        return tuple((layer, head) for layer in range(sizes.layers) for head in range(sizes.heads))
    found = [
        (resolve(layer, sizes.layers, "layer"), resolve(head, sizes.heads, "head")) for layer, head in heads
    ]
    return tuple(dict.fromkeys(found))


def _quantiles(store: Store, measure: str, heads: Sequence[int], report: Progress) -> Array:
    """Exact ones of every row, [head, quantile], between two rows in proportion."""
    few = max(1, AT_ONCE // store.rows)
    turns = [heads[first : first + few] for first in range(0, len(heads), few)]
    found = []
    for number, turn in enumerate(turns):
        values = profile(store, measure, turn, part_of(report, number, len(turns)))
        found += [np.quantile(value.astype(np.float64), QUANTILES) for value in values]
    return np.stack(found)


@dataclass(frozen=True, eq=False, repr=False)
class HeadStatisticsResult(Result):
    """Measures of heads over all rows.

    Attributes:
        heads: (layer, head) from 0.
        measures: their names.
        count: rows.
        means, least, most: [measure, head].
        lows, highs: ends of the 95 % interval of each mean, [measure, head]; NaN of a single row.
        quantiles: [measure, head, one of `QUANTILES`].
    """

    question: HeadStatistics
    heads: tuple[tuple[int, int], ...]
    measures: tuple[str, ...]
    count: int
    means: Array
    lows: Array
    highs: Array
    least: Array
    most: Array
    quantiles: Array

    def __post_init__(self) -> None:
        shape = (len(self.measures), len(self.heads))
        for one in (self.means, self.lows, self.highs, self.least, self.most, self.quantiles):
            read_only(one)
            if one.shape[:2] != shape:
                raise ShapeError(f"{one.shape} is not of {shape} measures and heads.")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the interval is."""
        return {"confidence": CONFIDENCE, "interval": "Student's t, as if rows were independent"}

    def frame(self) -> pd.DataFrame:
        """A line a measure of a head: layer, head, measure, count, mean, low, high, quantiles, extremes."""
        named = {
            f"quantile_{round(100 * share):02}": self.quantiles[:, :, place].ravel()
            for place, share in enumerate(QUANTILES)
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
                **named,
                "least": self.least.ravel(),
                "most": self.most.ravel(),
            }
        )
