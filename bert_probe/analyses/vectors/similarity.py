"""How alike the vectors of tokens are: those of one text, of two texts, or of the two segments of a pair."""

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
from bert_probe.model.trace import Array, Trace, read_only, resolve

VECTOR_LAYER = Index("layer", 0)
"""A layer of vectors: 0 is the output of the embeddings."""

FROM_0 = "Layer; 0 is the output of the embeddings."


@question("similarity")
class Similarity(Question):
    """The cosine of every token with every token, after one layer.

    A high cosine says little by itself: put it beside what unrelated tokens reach, see `SimilarityBaseline`.

    Attributes:
        layer: of the vectors; 0 is the output of the embeddings, negative ones count from the end.
        specials: keep [CLS], [SEP] and the like.
    """

    inputs = OneOrTwoTraces()

    layer: int = param(VECTOR_LAYER, default=-1, key="vector_layer", about=FROM_0)
    specials: bool = param(
        Flag(), default=False, key="similarity_specials", about="Compare [CLS], [SEP] and the like as well."
    )

    def of(self, a: Trace, b: Trace | None = None) -> SimilarityResult:
        """Tokens of one text with those of another that was read by itself.

        Args:
            b: None compares a text with itself, and of a pair, whose texts were read together, the first
                with the second.

        Raises:
            SelectionError: no such layer, or texts that different models read.
        """
        asked_for = self.resolved(a)
        subject = InputRecord.of(a) if b is None else InputRecord.of(a, b)
        other = a if b is None else b
        segments = (0, 1) if b is None and a.encoding.pair is not None else (None, None)
        rows, columns = (
            self._tokens(trace, segment) for trace, segment in zip((a, other), segments, strict=True)
        )
        vectors = (
            trace.vectors(asked_for.layer)[[token.position for token in tokens]]
            for trace, tokens in ((a, rows), (other, columns))
        )
        return SimilarityResult(asked_for, subject, a, other, rows, columns, read_only(cosine(*vectors)))

    def _tokens(self, trace: Trace, segment: int | None) -> tuple[Token, ...]:
        return tuple(
            token
            for token in trace.tokens
            if (self.specials or not token.special) and segment in (None, token.segment)
        )


@dataclass(frozen=True, eq=False, repr=False)
class SimilarityResult(Result):
    """Tokens of one text against tokens of another, or of the same one.

    Attributes:
        a, b: the traces of rows and columns; the same one twice where one text was asked about.
        rows, columns: the tokens compared.
        cosines: [row, column], -1 to 1; NaN where a vector is all zeros.
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
                f"cosines has shape {self.cosines.shape}; "
                f"[{len(self.rows)} rows, {len(self.columns)} columns] is needed."
            )

    def curve(self, row: int, column: int) -> Array:
        """The cosine of one row's token with one column's at every layer, float64 [layer + 1], -1 to 1.

        Raises:
            SelectionError: no such row or column.
        """
        first = self.rows[resolve(row, len(self.rows), "row")].position
        second = self.columns[resolve(column, len(self.columns), "column")].position
        one, other = (
            np.stack([trace.vectors(layer)[place] for layer in range(trace.layers + 1)])
            for trace, place in ((self.a, first), (self.b, second))
        )
        return cosine_of_rows(one, other)

    def frame(self) -> pd.DataFrame:
        """A row for each token of A, a column for each of B."""
        return frames.matrix(self.cosines, self.rows, self.columns)
