"""Head matches: pairs of heads, one from each of two models, with similar attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.comparison.model_change import align_spans
from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import TwoModelTraces
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, memory_errors
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.alignment import CommonSpans

TABLES = ("best", "all")
CHUNK_BYTES = 128_000_000
"""Size limit of the part of A's attention that is in memory, in bytes.

B's attention is computed once for each such part.
"""


@question("head matches", command="diff matches")
class HeadMatches(Question):
    """Similarity of each head of A to each head of B: 1 − total variation of their attention.

    The similarity is averaged over the queries. The tokenizers may differ: tokens are first merged into the
    text spans that both tokenizers share, in the same way as subword tokens are merged into words.

    Attributes:
        show: "best" for each head of A with the most similar head of B, or "all" for every pair of heads.
    """

    inputs = TwoModelTraces()

    show: str = param(
        Choice(TABLES), default="best", about="The best match of each head, or all pairs.", display_only=True
    )

    def of(self, a: Trace, b: Trace, progress: Progress = no_progress) -> HeadMatchesResult:
        """Compare all pairs of heads of two models.

        Only one layer of B's attention is in memory at a time, and as many layers of A's attention as fit in
        `CHUNK_BYTES`.

        Args:
            progress: called with the number of layer pairs done and the total.

        Raises:
            SelectionError: the traces come from different texts, or the text was truncated.
            UnavailableError: a trace has no model.
        """
        from scipy.spatial.distance import cdist  # imported here because the import is slow

        inputs, trace_a, trace_b, spans = align_spans(a, b)
        similarity = np.empty((trace_a.layers, trace_a.heads, trace_b.layers, trace_b.heads))
        with memory_errors(
            "The attention of one layer of both models does not fit in memory. Shorten the text."
        ):
            chunk = max(CHUNK_BYTES // (8 * trace_a.heads * len(spans.rows) * len(spans.spans)), 1)
            for first in range(0, trace_a.layers, chunk):
                layers_a = range(first, min(first + chunk, trace_a.layers))
                p = [_flat(spans.merged(trace_a.attention(layer), 0)) for layer in layers_a]
                for layer_b in range(trace_b.layers):
                    is_shared = trace_a is trace_b and layer_b in layers_a
                    q = (
                        p[layer_b - first]
                        if is_shared
                        else _flat(spans.merged(trace_b.attention(layer_b), 1))
                    )
                    for layer, weights in zip(layers_a, p, strict=True):
                        # Total variation is half the sum of absolute differences, here averaged over queries.
                        similarity[layer, :, layer_b] = 1 - cdist(weights, q, "cityblock") / (
                            2 * len(spans.rows)
                        )
                    progress(
                        first * trace_b.layers + (layer_b + 1) * len(layers_a),
                        trace_a.layers * trace_b.layers,
                    )
        # Rounding may make the similarity slightly negative.
        return HeadMatchesResult(self, inputs, spans, read_only(np.maximum(similarity, 0.0)))


@dataclass(frozen=True, eq=False, repr=False)
class HeadMatchesResult(Result):
    """The similarity between the heads of two models.

    Attributes:
        spans: text spans that the tokenizers of both models share.
        similarity: similarity of each pair of heads, 0 to 1, where 1 is equal attention; float64 of shape
            [layer of A, head of A, layer of B, head of B].
    """

    question: HeadMatches
    spans: CommonSpans
    similarity: Array

    def __post_init__(self) -> None:
        if self.similarity.ndim != 4:
            raise ShapeError(
                f"similarity must have shape [layer, head, layer, head], not {self.similarity.shape}."
            )

    @property
    def metadata(self) -> dict[str, Any]:
        """The number of text spans that both tokenizers share."""
        return {"spans": len(self.spans.rows)}

    @property
    def matrix(self) -> Array:
        """Similarity of each pair of heads, shape [head of A, head of B], with heads ordered by layer."""
        layers, heads = self.similarity.shape[:2]
        return self.similarity.reshape(layers * heads, -1)

    @property
    def best(self) -> Array:
        """Column of the most similar head for each row of `matrix`; in a tie, the first one."""
        columns: Array = self.matrix.argmax(axis=1)
        return columns

    @property
    def mutual(self) -> Array:
        """Whether each head of A and its best match in B match mutually, bool of shape [head of A]."""
        is_mutual: Array = self.matrix.argmax(axis=0)[self.best] == np.arange(len(self.matrix))
        return is_mutual

    def place(self, head: int, side: int) -> tuple[int, int]:
        """Return the layer index and head index, from 0, of a row (side 0) or column (side 1) of `matrix`."""
        layer, index = divmod(int(head), self.similarity.shape[1 + 2 * side])
        return layer, index

    def maps(self, a: Trace, b: Trace, row: int, column: int) -> tuple[Array, Array]:
        """Return the attention matrices of two heads, merged into text spans, each of shape [query, key].

        Args:
            a, b: the compared traces.
            row, column: indices of the two heads in `matrix`.
        """
        head_a, head_b = self.place(row, 0), self.place(column, 1)
        return self.spans.merged(a.attention(*head_a), 0), self.spans.merged(b.attention(*head_b), 1)

    def maps_frame(self, a: Trace, b: Trace, row: int, column: int) -> pd.DataFrame:
        """Return a table of the matrices of `maps` in long format.

        Each row has the index and text of the query span and of the key span, and the weights of both heads.
        """
        texts = np.array([span.text for span in self.spans.spans], dtype=object)
        keys = np.tile(np.arange(len(texts)), len(self.spans.rows))
        queries = np.repeat(self.spans.rows, len(texts))
        weights_a, weights_b = self.maps(a, b, row, column)
        return pd.DataFrame(
            {
                "query": queries,
                "query_text": texts[queries],
                "key": keys,
                "key_text": texts[keys],
                f"weight_a_{self.name(row, 0)}": weights_a.ravel(),
                f"weight_b_{self.name(column, 1)}": weights_b.ravel(),
            }
        )

    @property
    def strongest(self) -> tuple[int, int]:
        """Row and column of the largest similarity in `matrix`; in a tie, the first ones."""
        row = int(self.matrix.max(axis=1).argmax())
        return row, int(self.best[row])

    @property
    def finding(self) -> str:
        """A sentence about the best match, in which layers and heads are counted from 1."""
        row, column = self.strongest
        best = self.matrix.max(axis=1)
        return (
            f"The best match is head {self.name(row, 0)} of A and head {self.name(column, 1)} of B: "
            "similarity "
            f"{self.matrix[row, column]:.3g}. The median over the best matches of all heads of A is "
            f"{float(np.median(best)):.3g}; over all pairs of heads it is "
            f"{float(np.median(self.matrix)):.3g}."
        )

    def name(self, head: int, side: int) -> str:
        """Return the name of a row's or column's head in `matrix`, such as "3.5" for layer 3, head 5."""
        return ".".join(str(index + 1) for index in self.place(head, side))

    def frame(self) -> pd.DataFrame:
        """Return a table with a row per head of A and its best match, or with a row per pair of heads.

        Columns: layer_a, head_a, layer_b, head_b, similarity, and, for best matches, mutual.
        """
        rows, columns = self.matrix.shape
        if self.question.show == "all":
            a, b = (indices.ravel() for indices in np.indices((rows, columns)))
        else:
            a, b = np.arange(rows), self.best
        heads = [self.similarity.shape[1], self.similarity.shape[3]]
        columns_ = {
            f"{unit}_{side}": 1 + (indices // count if unit == "layer" else indices % count)
            for side, indices, count in zip("ab", (a, b), heads, strict=True)
            for unit in ("layer", "head")
        }
        more = {"mutual": self.mutual} if self.question.show == "best" else {}
        return pd.DataFrame({**columns_, "similarity": self.matrix[a, b], **more})


def _flat(weights: Array) -> Array:
    """Return attention weights with one row per head, float64 of shape [head, query × key]."""
    return weights.reshape(len(weights), -1).astype(np.float64)
