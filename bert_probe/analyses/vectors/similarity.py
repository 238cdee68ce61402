"""Cosine similarity of token vectors: within a text, between two texts, or between the segments of a pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bert_probe.analyses.vectors.cosine import cosine, cosine_of_rows
from bert_probe.core import frames
from bert_probe.core.field_types import Flag, Index
from bert_probe.core.inputs import OneOrTwoTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, read_only, resolve_index

VECTOR_LAYER = Index("layer", 0)
"""Field type of a layer index of hidden states, where 0 is the output of the embeddings."""

VECTOR_LAYER_HELP = "Layer; 0 is the output of the embeddings."


@question("similarity")
class Similarity(Question):
    """Cosine similarity of each pair of tokens after one layer.

    A cosine is only meaningful in comparison with the cosines of unrelated tokens; see `SimilarityBaseline`.

    Attributes:
        layer: layer index, where 0 is the output of the embeddings; negative values count from the end.
        specials: keep special tokens such as [CLS] and [SEP].
    """

    inputs = OneOrTwoTraces()

    layer: int = param(VECTOR_LAYER, default=-1, key="vector_layer", about=VECTOR_LAYER_HELP)
    specials: bool = param(
        Flag(),
        default=False,
        key="similarity_specials",
        about="Include special tokens such as [CLS] and [SEP].",
    )

    def of(self, a: Trace, b: Trace | None = None) -> SimilarityResult:
        """Return the cosine similarity of the tokens of two texts.

        Args:
            a: a text, or a sentence pair.
            b: another text. None compares a text with itself, or the first text of a sentence pair with the
                second.

        Raises:
            SelectionError: the layer does not exist, or the traces are from different models.
        """
        resolved = self.resolved(a)
        inputs = InputRecord.of(a) if b is None else InputRecord.of(a, b)
        second = a if b is None else b
        segments = (0, 1) if b is None and a.encoding.pair is not None else (None, None)
        rows, columns = (
            self._tokens(trace, segment) for trace, segment in zip((a, second), segments, strict=True)
        )
        vectors = (
            trace.vectors(resolved.layer)[[token.position for token in tokens]]
            for trace, tokens in ((a, rows), (second, columns))
        )
        return SimilarityResult(resolved, inputs, a, second, rows, columns, read_only(cosine(*vectors)))

    def _tokens(self, trace: Trace, segment: int | None) -> tuple[Token, ...]:
        return tuple(
            token
            for token in trace.tokens
            if (self.specials or not token.special) and segment in (None, token.segment)
        )


@dataclass(frozen=True, eq=False, repr=False)
class SimilarityResult(Result):
    """Cosine similarities of the tokens of one or two texts.

    Attributes:
        a, b: traces of the rows and of the columns; the same trace twice for one text.
        rows, columns: tokens of the rows and of the columns.
        cosines: cosine similarities, [row, column], -1 to 1; NaN for vectors of zeros.
    """

    question: Similarity
    a: Trace
    b: Trace
    rows: tuple[Token, ...]
    columns: tuple[Token, ...]
    cosines: Array

    def __post_init__(self) -> None:
        if self.cosines.shape != (len(self.rows), len(self.columns)):
            raise ShapeError(
                f"cosines has shape {self.cosines.shape}, but must be "
                f"[{len(self.rows)} rows, {len(self.columns)} columns]."
            )

    def curve(self, row: int, column: int) -> Array:
        """Return the cosine similarity of two tokens after every layer, float64 [layer + 1], -1 to 1.

        Raises:
            SelectionError: the row or column does not exist.
        """
        first = self.rows[resolve_index(row, len(self.rows), "row")].position
        second = self.columns[resolve_index(column, len(self.columns), "column")].position
        vectors = (
            np.stack([trace.vectors(layer)[position] for layer in range(trace.layers + 1)])
            for trace, position in ((self.a, first), (self.b, second))
        )
        return cosine_of_rows(*vectors)

    def frame(self) -> pd.DataFrame:
        """Return a row for each token of A and a column for each token of B."""
        return frames.matrix(self.cosines, self.rows, self.columns)
