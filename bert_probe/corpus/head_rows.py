"""Rows of a store that are typical or extreme for a head, by one measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.head_measures import MEASURES
from bert_probe.core.field_types import Choice, Number, Optional
from bert_probe.core.field_types_of_lists import OneHead
from bert_probe.core.inputs import OneStore
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.corpus.columns import (
    SentenceRow,
    links,
    rank_columns,
    read_measure,
    row_numbers,
    sentences,
)
from bert_probe.corpus.head_summary import resolved
from bert_probe.corpus.statistics import BINS, bin_edges, bin_indices
from bert_probe.corpus.store import Store
from bert_probe.corpus.summary import check_profiles
from bert_probe.errors import ShapeError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only

RANKINGS = ("typical", "extreme", "lowest", "highest")
MAX_ROWS = 10_000


@question("corpus rows", command="corpus heads", is_analysis=False)
class HeadExamples(Question):
    """Rows of a store, ranked by a measure of one head.

    Attributes:
        head: (layer, head) from 0.
        measure: one of the measures of `Heads`.
        which: "typical", nearest to the median of all rows; "extreme", farthest from it; "lowest"; "highest".
        top: maximum number of rows.
        bin: only rows in this bin of the head's histogram, from 1; see `HeadHistograms`. None for all rows.
    """

    inputs = OneStore()

    head: tuple[int, int] = param(OneHead(), about="The head, such as 3.1.")
    measure: str = param(Choice(MEASURES), about="Measure of the head.")
    which: str = param(
        Choice(RANKINGS), about="Rows of a head: nearest to its median, farthest from it, lowest or highest."
    )
    top: int = param(Number(1, MAX_ROWS), default=10, about="Maximum number of rows.")
    bin: int | None = param(
        Optional(Number(1, BINS)),
        default=None,
        about="Only rows in this bin of the head's histogram, from 1.",
    )

    def of(self, store: Store, progress: Progress = no_progress) -> HeadExamplesResult:
        """Return the rows; rows with equal values are ranked in the order of the store.

        Args:
            store: a store with profiles.
            progress: called with the number of shards read and their total.

        Raises:
            SelectionError: the model does not have this head.
            UnavailableError: the store has no profiles, or no sentences.
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
        sentences: the rows, in rank order.
        values: the values of the measure, [row].
        median: the median of the measure over all rows of the store.
        among: number of rows that were ranked: all, or those in the requested bin.
        links: URL of each row's head view within the app; "" for a model in memory.
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
            raise ShapeError(f"{len(self.values)} values do not fit {len(self.sentences)} rows.")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The median, and the number of rows that were ranked."""
        return {"median": self.median, "among": self.among}

    def frame(self) -> pd.DataFrame:
        """Return one row per sentence: rank, row, file, line, value, text, link."""
        return pd.DataFrame(
            {
                **rank_columns(self.sentences),
                "value": self.values,
                "text": [sentence.text for sentence in self.sentences],
                "link": list(self.links),
            }
        )
