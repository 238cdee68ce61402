"""One word, or several, in different sentences: how alike its vectors are at every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.vectors.cosine import cosine
from bert_probe.analyses.vectors.similarity import FROM_0, VECTOR_LAYER
from bert_probe.analyses.vectors.similarity_baseline import SimilarityBaseline, SimilarityBaselineResult
from bert_probe.core import frames
from bert_probe.core.field_types import FieldType, Optional
from bert_probe.core.field_types_of_lists import ListOf
from bert_probe.core.inputs import ManyTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.trace import Array, Trace, read_only, resolve
from bert_probe.text.truncation import truncate_text
from bert_probe.text.words import Unit, find_word, word_name


@question("words in context", command="context")
class WordInContext(Question):
    """How alike the vectors of a word are in several texts, or of another word in each.

    A word's vector is the mean of its pieces' vectors. Every two of the words are compared, at every
    layer, beside what unrelated tokens of the model reach.

    Attributes:
        words: one for all texts, or one for each, as `find_word` knows them: WORD:2 is its second
            occurrence.
        layer: None for a table of all pairs at all layers; else the matrix at this layer, 0 being the
            output of the embeddings.
    """

    inputs = ManyTraces("--in")

    words: Sequence[str] = param(
        ListOf(FieldType()), option="--word", key="context_words", about="One word, or one for each text."
    )
    layer: int | None = param(
        Optional(VECTOR_LAYER),
        default=None,
        key="vector_layer",
        display_only=True,
        about=f"The matrix of all words at one layer. {FROM_0}",
    )

    def of(
        self, traces: Sequence[Trace], baseline: SimilarityBaselineResult | None = None
    ) -> WordInContextResult:
        """Compare them.

        Args:
            traces: two or more of one model; the same one may come twice.
            baseline: the answer to `SimilarityBaseline` where it is at hand already, of the same model.

        Raises:
            SelectionError: fewer than two texts, texts that different models read, one in which its word is
                not, or is more than once, or words that are not as many as the texts.
            UnavailableError: see `SimilarityBaseline.of`.
        """
        found = self._find(traces)
        subject = InputRecord.of(*traces)
        names = [word_name(trace, unit) for trace, unit in zip(traces, found, strict=True)]
        asked_for = replace(self, words=names[:1] if len(set(names)) == 1 else names).resolved(traces[0])
        if baseline is None:
            baseline = SimilarityBaseline().of(traces[0].checkpoint)
        layers = range(traces[0].layers + 1)
        vectors = (
            np.stack([_vector(trace, unit, layer) for trace, unit in zip(traces, found, strict=True)])
            for layer in layers
        )
        cosines = np.stack([cosine(rows, rows) for rows in vectors]).astype(traces[0].dtype)
        return WordInContextResult(asked_for, subject, found, read_only(cosines), baseline)

    def _find(self, traces: Sequence[Trace]) -> tuple[Unit, ...]:
        """The word of each text."""
        if isinstance(traces, Trace):
            raise SelectionError("Give a list of traces: one word has nothing to be compared with.")
        if len(traces) < 2:
            raise SelectionError("One word has nothing to be compared with. Give two or more.")
        words = self.words if len(self.words) > 1 else [*self.words] * len(traces)
        if len(words) != len(traces):
            raise SelectionError(
                f"{len(words)} words and {len(traces)} texts are given. Give one word for all texts, or one "
                "for each."
            )
        found = []
        for number, (trace, word) in enumerate(zip(traces, words, strict=True), start=1):
            try:
                found.append(find_word(trace, word))
            except SelectionError as error:
                text = truncate_text(trace.encoding.text, 60)
                raise SelectionError(f"Text {number}, “{text}”: {error}") from None
        return tuple(found)


@dataclass(frozen=True, eq=False, repr=False)
class WordInContextResult(Result):
    """Words where they stand, in the order given, and the cosine between every two of them.

    Attributes:
        units: a word of each text.
        cosines: [layer + 1, word, word], -1 to 1; layer 0 is the embeddings' output.
        baseline: what unrelated tokens of the same model reach.
    """

    question: WordInContext
    units: tuple[Unit, ...]
    cosines: Array
    baseline: SimilarityBaselineResult

    def __post_init__(self) -> None:
        if self.baseline.inputs.model != self.inputs.model:
            raise SelectionError("The baseline is of another model than the texts. Measure it in theirs.")
        shape = (self.baseline.layers + 1, len(self.units), len(self.units))
        if self.cosines.shape != shape:
            raise ShapeError(f"cosines has shape {self.cosines.shape}; {shape} is needed.")

    @property
    def layers(self) -> int:
        """Number of layers, the embeddings not counted."""
        return len(self.cosines) - 1

    @property
    def shown_layer(self) -> int:
        """The layer of the question, from 0 for the embeddings' output; the last where it names none."""
        return self.layers if self.question.layer is None else self.question.layer

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Every two words, as indices from 0."""
        return tuple(combinations(range(len(self.units)), 2))

    @property
    def curves(self) -> Array:
        """The cosine of each pair at every layer, [layer + 1, pair]."""
        first, second = np.triu_indices(len(self.units), k=1)
        curves: Array = self.cosines[:, first, second]
        return curves

    @property
    def names(self) -> list[str]:
        """Each word with the number of its text, from 1."""
        return [f"{number} {unit}" for number, unit in enumerate(self.units, start=1)]

    def cosine(self, layer: int) -> Array:
        """Cosines after a layer, [word, word].

        Raises:
            SelectionError: no such layer.
        """
        found: Array = self.cosines[resolve(layer, len(self.cosines), "layer")]
        return found

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Where each word stands, and what the baseline rests on."""
        words = [
            {"word": str(unit), "position": unit.position, "pieces": len(unit.positions)}
            for unit in self.units
        ]
        return {"words": words, "baseline": dict(self.baseline.metadata)}

    def frame(self) -> pd.DataFrame:
        """The matrix at a layer; or all pairs: layer, a, b, cosine, baseline_mean, baseline_p95, corrected.

        ``a`` and ``b`` count the texts from 1.
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


def _vector(trace: Trace, unit: Unit, layer: int) -> Array:
    """A word's vector after a layer, float64 [hidden]: the mean of those of its pieces."""
    mean: Array = trace.vectors(layer)[list(unit.positions)].mean(axis=0, dtype=np.float64)
    return mean
