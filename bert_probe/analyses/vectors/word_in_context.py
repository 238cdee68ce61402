"""Cosine similarity of a word's vectors in different texts, after every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.vectors.similarity import (
    VECTOR_LAYER,
    VECTOR_LAYER_HELP,
    SimilarityBaseline,
    SimilarityBaselineResult,
    cosine,
)
from bert_probe.core import frames
from bert_probe.core.field_types import FieldType, Optional
from bert_probe.core.field_types_of_lists import ListOf
from bert_probe.core.inputs import ManyTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.trace import Array, Trace, read_only, resolve_index
from bert_probe.text.words import Unit, find_word, truncate_text, word_name


@question("word in context", command="context")
class WordInContext(Question):
    """Cosine similarity of the vectors of a word in several texts, or of a different word in each text.

    A word's vector is the mean of its tokens' vectors. All pairs of texts are compared after every layer; the
    cosine similarity of unrelated tokens is the baseline.

    Attributes:
        words: one word for all texts, or one for each text, written as in `find_word`: WORD:2 is the second
            occurrence.
        layer: layer of the matrix to return, where 0 is the output of the embeddings. If None, a table of all
            pairs after all layers is returned.
    """

    inputs = ManyTraces("--in")

    words: Sequence[str] = param(
        ListOf(FieldType()),
        option="--word",
        key="context_words",
        about="One word for all texts, or one word for each text.",
    )
    layer: int | None = param(
        Optional(VECTOR_LAYER),
        default=None,
        key="vector_layer",
        display_only=True,
        about=f"Show the matrix of all words after one layer. {VECTOR_LAYER_HELP}",
    )

    def of(
        self, traces: Sequence[Trace], baseline: SimilarityBaselineResult | None = None
    ) -> WordInContextResult:
        """Compare the vectors of the words in all pairs of texts.

        Args:
            traces: traces of two or more texts from the same model; a text may occur twice.
            baseline: the result of `SimilarityBaseline` for the same model. If None, it is computed.

        Raises:
            SelectionError: there are fewer than two texts, the traces are from different models, a text
                does not contain its word or contains it several times, or the number of words is neither one
                nor the number of texts.
            UnavailableError: see `SimilarityBaseline.of`.
        """
        units = self._find(traces)
        inputs = InputRecord.of(*traces)
        names = [word_name(trace, unit) for trace, unit in zip(traces, units, strict=True)]
        resolved = replace(self, words=names[:1] if len(set(names)) == 1 else names).resolved(traces[0])
        if baseline is None:
            baseline = SimilarityBaseline().of(traces[0].checkpoint)
        layers = range(traces[0].layers + 1)
        vectors = (
            np.stack(
                [
                    trace.vectors(layer)[list(unit.positions)].mean(axis=0, dtype=np.float64)
                    for trace, unit in zip(traces, units, strict=True)
                ]
            )
            for layer in layers
        )
        cosines = np.stack([cosine(rows, rows) for rows in vectors]).astype(traces[0].dtype)
        return WordInContextResult(resolved, inputs, units, read_only(cosines), baseline)

    def _find(self, traces: Sequence[Trace]) -> tuple[Unit, ...]:
        """Find the question's word in each text."""
        if isinstance(traces, Trace):
            raise SelectionError("texts must be a list of two or more traces, not a single trace.")
        if len(traces) < 2:
            raise SelectionError("A comparison needs at least two texts. Pass two or more texts.")
        words = self.words if len(self.words) > 1 else [*self.words] * len(traces)
        if len(words) != len(traces):
            raise SelectionError(
                f"{len(words)} words do not match {len(traces)} texts. Pass one word for all texts, or one "
                "word for each text."
            )
        units = []
        for number, (trace, word) in enumerate(zip(traces, words, strict=True), start=1):
            try:
                units.append(find_word(trace, word))
            except SelectionError as error:
                text = truncate_text(trace.encoding.text, 60)
                raise SelectionError(f"Text {number}, “{text}”: {error}") from None
        return tuple(units)


@dataclass(frozen=True, eq=False, repr=False)
class WordInContextResult(Result):
    """The word of each text, and the cosine similarity of each pair of words.

    Attributes:
        units: the word of each text.
        cosines: cosine of each pair of words, [layer + 1, word, word], -1 to 1; layer 0 is the output of the
            embeddings.
        baseline: cosine similarities of unrelated tokens of the same model.
    """

    question: WordInContext
    units: tuple[Unit, ...]
    cosines: Array
    baseline: SimilarityBaselineResult

    def __post_init__(self) -> None:
        if self.baseline.inputs.model != self.inputs.model:
            raise SelectionError(
                "The baseline was not computed with the model of the texts. Compute the baseline "
                "with that model."
            )
        shape = (self.baseline.layers + 1, len(self.units), len(self.units))
        if self.cosines.shape != shape:
            raise ShapeError(f"cosines must have shape {shape}, not {self.cosines.shape}.")

    @property
    def layers(self) -> int:
        """Number of layers, without the embeddings."""
        return len(self.cosines) - 1

    @property
    def shown_layer(self) -> int:
        """The layer of the question, or the last layer if the question has none."""
        return self.layers if self.question.layer is None else self.question.layer

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """All pairs of words, as indices from 0."""
        return tuple(combinations(range(len(self.units)), 2))

    @property
    def curves(self) -> Array:
        """Cosine of each pair of words after every layer, of shape [layer + 1, pair]."""
        first, second = np.triu_indices(len(self.units), k=1)
        curves: Array = self.cosines[:, first, second]
        return curves

    @property
    def names(self) -> list[str]:
        """The words, each preceded by the number of its text, from 1."""
        return [f"{number} {unit}" for number, unit in enumerate(self.units, start=1)]

    def cosine(self, layer: int) -> Array:
        """Return the cosines of all pairs of words after a layer, of shape [word, word].

        Raises:
            SelectionError: the layer does not exist.
        """
        matrix: Array = self.cosines[resolve_index(layer, len(self.cosines), "layer")]
        return matrix

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Position and number of tokens of each word, and the metadata of the baseline."""
        words = [
            {"word": str(unit), "position": unit.position, "pieces": len(unit.positions)}
            for unit in self.units
        ]
        return {"words": words, "baseline": dict(self.baseline.metadata)}

    def frame(self) -> pd.DataFrame:
        """Return a matrix of the cosines if the question has a layer, otherwise one row per pair and layer.

        Columns for pairs: layer, a, b, cosine, baseline_mean, baseline_p95, corrected. ``a`` and ``b`` are
        text numbers, from 1.
        """
        if self.question.layer is not None:
            return frames.matrix(self.cosine(self.question.layer), self.names, self.names, "word")
        layers, pairs = self.curves.shape
        a, b = (np.array(side) + 1 for side in zip(*self.pairs, strict=True))
        unrelated = self.baseline.unrelated
        return pd.DataFrame(
            {
                "layer": np.repeat(np.arange(layers), pairs),
                "a": np.tile(a, layers),
                "b": np.tile(b, layers),
                "cosine": self.curves.reshape(-1),
                "baseline_mean": np.repeat(unrelated.mean, pairs),
                "baseline_p95": np.repeat(unrelated.p95, pairs),
                "corrected": self.baseline.corrected(self.curves).reshape(-1),
            }
        )
