"""Which head of one model attends as which head of another, on a text that both read in their own tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.comparison.model_change import read_in_two_ways
from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import TwoModelTraces
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, memory_errors
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.common_spans import CommonSpans

SHOWS = ("best", "all")
HELD_BYTES = 128_000_000
"""Of attention of A: for each share of its layers all of B's are computed once."""


@question("matches of heads", command="diff matches")
class HeadMatches(Question):
    """1 − total variation between each head of A and each head of B, mean over the queries.

    The tokenizers may differ: attention is first merged to the smallest spans of the text at whose ends both
    cut it, as the pieces of a word are merged.

    Attributes:
        show: "best" gives the head of B that is most like each head of A, "all" every pair.
    """

    inputs = TwoModelTraces()

    show: str = param(
        Choice(SHOWS), default="best", about="For each head the best, or all pairs.", display_only=True
    )

    def of(self, a: Trace, b: Trace, report: Progress = no_progress) -> HeadMatchesResult:
        """The similarity of all pairs; memory holds a layer's attention of B at a time, and of A as many as
        `HELD_BYTES` take, but one at least.

        Args:
            report: told how many pairs of layers are done, and of how many.

        Raises:
            SelectionError: not the same text, or one that was cut short.
            UnavailableError: numbers that no model made which is open here.
        """
        from scipy.spatial.distance import cdist  # which takes long to import

        subject, one, two, spans = read_in_two_ways(a, b)
        found = np.empty((one.layers, one.heads, two.layers, two.heads))
        with memory_errors("The attention of a layer of both models needs more memory than is free."):
            held = max(HELD_BYTES // (8 * one.heads * len(spans.rows) * len(spans.spans)), 1)
            for first in range(0, one.layers, held):
                mine = range(first, min(first + held, one.layers))
                p = [_flat(spans.merged(one.attention(layer), 0)) for layer in mine]
                for yours in range(two.layers):
                    is_held = one is two and yours in mine
                    q = p[yours - first] if is_held else _flat(spans.merged(two.attention(yours), 1))
                    for layer, weights in zip(mine, p, strict=True):
                        # Half of all differences is moved from one key to another; the mean is over queries.
                        found[layer, :, yours] = 1 - cdist(weights, q, "cityblock") / (2 * len(spans.rows))
                    report(first * two.layers + (yours + 1) * len(mine), one.layers * two.layers)
        # Rows sum to 1 but for rounding, which may go below nothing in common.
        return HeadMatchesResult(self, subject, spans, read_only(np.maximum(found, 0.0)))


@dataclass(frozen=True, eq=False, repr=False)
class HeadMatchesResult(Result):
    """How alike the heads of two models are.

    Attributes:
        spans: how the tokens of the one fit those of the other.
        similarity: float64 [layer of A, head of A, layer of B, head of B], 0 to 1; 1 for the same attention.
    """

    question: HeadMatches
    spans: CommonSpans
    similarity: Array

    def __post_init__(self) -> None:
        if self.similarity.ndim != 4:
            raise ShapeError(
                f"similarity has shape {self.similarity.shape}; [layer, head, layer, head] is needed."
            )

    @property
    def metadata(self) -> dict[str, Any]:
        """How many spans both models have."""
        return {"spans": len(self.spans.rows)}

    @property
    def matrix(self) -> Array:
        """The same as [head of A, head of B], layer after layer."""
        layers, heads = self.similarity.shape[:2]
        return self.similarity.reshape(layers * heads, -1)

    @property
    def best(self) -> Array:
        """For each row of `matrix` the column of the head that is most like it; the first of several."""
        found: Array = self.matrix.argmax(axis=1)
        return found

    @property
    def mutual(self) -> Array:
        """Whether each head of A is in turn the one that is most like its best."""
        back: Array = self.matrix.argmax(axis=0)[self.best] == np.arange(len(self.matrix))
        return back

    def place(self, head: int, side: int) -> tuple[int, int]:
        """Layer and head, from 0, of a row (side 0) or a column (side 1) of `matrix`."""
        layer, within = divmod(int(head), self.similarity.shape[1 + 2 * side])
        return layer, within

    def maps(self, a: Trace, b: Trace, row: int, column: int) -> tuple[Array, Array]:
        """What the heads of a row and a column of `matrix` do over the spans, each [query, key].

        Args:
            a, b: the traces that were asked.
        """
        one, other = self.place(row, 0), self.place(column, 1)
        return self.spans.merged(a.attention(*one), 0), self.spans.merged(b.attention(*other), 1)

    def maps_frame(self, a: Trace, b: Trace, row: int, column: int) -> pd.DataFrame:
        """The same in long form: number and text of the query's span and of the key's, and both weights."""
        texts = np.array([span.text for span in self.spans.spans], dtype=object)
        keys = np.tile(np.arange(len(texts)), len(self.spans.rows))
        queries = np.repeat(self.spans.rows, len(texts))
        one, other = self.maps(a, b, row, column)
        return pd.DataFrame(
            {
                "query": queries,
                "query_text": texts[queries],
                "key": keys,
                "key_text": texts[keys],
                f"weight_a_{self.name(row, 0)}": one.ravel(),
                f"weight_b_{self.name(column, 1)}": other.ravel(),
            }
        )

    @property
    def strongest(self) -> tuple[int, int]:
        """Row and column of the two heads that are most alike; the first of several."""
        row = int(self.matrix.max(axis=1).argmax())
        return row, int(self.best[row])

    @property
    def finding(self) -> str:
        """What is most alike, as a sentence; layers and heads count from 1 in it."""
        row, column = self.strongest
        best = self.matrix.max(axis=1)
        return (
            f"Most alike are head {self.name(row, 0)} of A and head {self.name(column, 1)} of B: similarity "
            f"{self.matrix[row, column]:.3g}. The best match of a head of A has {float(np.median(best)):.3g} "
            f"in the middle, and any two heads have {float(np.median(self.matrix)):.3g}."
        )

    def name(self, head: int, side: int) -> str:
        """A row or column of `matrix` as people call it, 3.5."""
        return ".".join(str(one + 1) for one in self.place(head, side))

    def frame(self) -> pd.DataFrame:
        """layer_a, head_a, layer_b, head_b, similarity: of the best for each head of A, and whether that is
        mutual; or of all pairs."""
        rows, columns = self.matrix.shape
        if self.question.show == "all":
            a, b = (place.ravel() for place in np.indices((rows, columns)))
        else:
            a, b = np.arange(rows), self.best
        heads = [self.similarity.shape[1], self.similarity.shape[3]]
        named = {
            f"{what}_{side}": 1 + (place // count if what == "layer" else place % count)
            for side, place, count in zip("ab", (a, b), heads, strict=True)
            for what in ("layer", "head")
        }
        more = {"mutual": self.mutual} if self.question.show == "best" else {}
        return pd.DataFrame({**named, "similarity": self.matrix[a, b], **more})


def _flat(weights: Array) -> Array:
    """[head, query × key], float64."""
    return weights.reshape(len(weights), -1).astype(np.float64)
