"""The rows of a store that are the most typical of a head, or the least, by one measure."""

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
from bert_probe.corpus.columns import SentenceRow, links, profile, ranked, row_numbers, sentences
from bert_probe.corpus.head_summary import resolved
from bert_probe.corpus.statistics import BINS, bins_of, edges
from bert_probe.corpus.store import Store
from bert_probe.corpus.summary import check_profiles
from bert_probe.errors import ShapeError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only

WHICH = ("typical", "extreme", "lowest", "highest")
MOST_ROWS = 10_000


@question("corpus rows", command="corpus heads", is_analysis=False)
class HeadExamples(Question):
    """Rows by a measure of one head.

    Attributes:
        head: (layer, head) from 0.
        measure: one of the measures of `Heads`.
        which: "typical", nearest to the median of all rows; "extreme", farthest from it; "lowest"; "highest".
        top: so many rows at most.
        bin: only rows in this bin of the head's histogram, from 1; see `HeadHistograms`.
    """

    inputs = OneStore()

    head: tuple[int, int] = param(OneHead(), about="The head, such as 3.1.")
    measure: str = param(Choice(MEASURES), about="What is measured of it.")
    which: str = param(
        Choice(WHICH), about="Rows of a head: nearest to its median, farthest from it, lowest or highest."
    )
    top: int = param(Number(1, MOST_ROWS), default=10, about="So many rows at most.")
    bin: int | None = param(
        Optional(Number(1, BINS)), default=None, about="Rows in one bin of the head's histogram, from 1."
    )

    def of(self, store: Store, report: Progress = no_progress) -> HeadExamplesResult:
        """The rows; of those with the same value the first.

        Args:
            report: told how many shards are read, and of how many.

        Raises:
            SelectionError: a head that is not there.
            UnavailableError: a store without profiles, or without sentences.
        """
        check_profiles(store)
        ((layer, head),) = resolved([self.head], store)
        (values,) = profile(store, self.measure, [layer * store.sizes.heads + head], report)
        exact = values.astype(np.float64)
        median = float(np.median(exact))
        orders = {
            "typical": np.abs(exact - median),
            "extreme": -np.abs(exact - median),
            "lowest": exact,
            "highest": -exact,
        }
        order = orders[self.which]
        chosen = np.arange(len(values))
        if self.bin is not None:
            bins = bins_of(exact, edges(self.measure, store.max_tokens))
            chosen = np.flatnonzero(bins == self.bin - 1)
        best = chosen[np.argsort(order[chosen], kind="stable")[: self.top]]
        found = sentences(store, row_numbers(store)[best].tolist())
        shown = {"layer": str(layer + 1), "head": str(head + 1)}
        return HeadExamplesResult(
            replace(self, head=(layer, head)),
            store.inputs,
            found,
            values[best],
            median,
            len(chosen),
            tuple(links(store, found, [shown] * len(found))),
        )


@dataclass(frozen=True, eq=False, repr=False)
class HeadExamplesResult(Result):
    """Rows by a measure of one head.

    Attributes:
        sentences: the rows, the first one first.
        values: of the measure, [row].
        median: of all rows of the store.
        among: so many rows there were to choose from: those of the bin, where one was asked for.
        links: of each the address, within the app, of the head on it; "" for a model in memory.
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
            raise ShapeError(f"{len(self.values)} values are not of {len(self.sentences)} rows.")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The median, and how many rows there were to choose from."""
        return {"median": self.median, "among": self.among}

    def frame(self) -> pd.DataFrame:
        """A line a row: rank, row, file, line, value, text, link."""
        return pd.DataFrame(
            {
                **ranked(self.sentences),
                "value": self.values,
                "text": [sentence.text for sentence in self.sentences],
                "link": list(self.links),
            }
        )
