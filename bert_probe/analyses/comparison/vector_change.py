"""Change of vectors: how much each token's vector differs in direction between two models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.attention import WORDS_HELP
from bert_probe.analyses.comparison.model_change import check_same_tokens
from bert_probe.analyses.vectors.cosine import cosine_of_rows
from bert_probe.core import frames
from bert_probe.core.field_types import Flag
from bert_probe.core.inputs import TwoModelTraces
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.words import Unit, truncate_text, word_lens


@question("vector change", command="diff vectors")
class VectorChange(Question):
    """1 − cosine of each token's vectors in two models, after each layer.

    This is meaningful if one model was derived from the other, so that their dimensions correspond;
    `LayerSimilarity` compares any two models.

    Attributes:
        words: compare words instead of tokens; a word's vector is the mean of its tokens' vectors.
    """

    inputs = TwoModelTraces()

    words: bool = param(Flag(), default=False, about=WORDS_HELP)

    def of(self, a: Trace, b: Trace) -> VectorChangeResult:
        """Compare the vectors of two models.

        Raises:
            SelectionError: the traces come from different texts, or the models have different tokenizers.
            UnavailableError: the models have different hidden sizes or numbers of layers.
        """
        inputs, trace_a, trace_b = check_same_tokens(a, b)
        if _sizes(trace_a) != _sizes(trace_b):
            raise UnavailableError(
                f"A has {trace_a.layers} layers of size {_width(trace_a)}, B has {trace_b.layers} of size "
                f"{_width(trace_b)}, so vectors cannot be compared one to one. Compare the layer similarity "
                "instead."
            )
        lens = word_lens(trace_a) if self.words else None

        def vectors(trace: Trace, layer: int) -> Array:
            states = trace.vectors(layer)
            return states if lens is None else lens.average(states)

        moved = [
            1 - cosine_of_rows(vectors(trace_a, n), vectors(trace_b, n)) for n in range(trace_a.layers + 1)
        ]
        units = trace_a.tokens if lens is None else lens.units
        return VectorChangeResult(self, inputs, units, read_only(np.array(moved)))


@dataclass(frozen=True, eq=False, repr=False)
class VectorChangeResult(Result):
    """How much vectors changed direction from A to B.

    Attributes:
        units: the tokens or words of the text.
        moved: 1 − cosine of each unit's vectors, float64 [layer + 1, unit], 0 to 2; row 0 is the embeddings.
            NaN if a vector is zero.
    """

    question: VectorChange
    units: tuple[Token | Unit, ...]
    moved: Array

    def __post_init__(self) -> None:
        if self.moved.ndim != 2 or self.moved.shape[1] != len(self.units):
            raise ShapeError(f"moved has shape {self.moved.shape}; [layer + 1, {len(self.units)}] is needed.")

    @property
    def mean(self) -> Array:
        """Mean over the units, ignoring NaN, [layer + 1]; NaN if all values of a layer are NaN."""
        is_defined = ~np.isnan(self.moved)
        sums, counts = np.where(is_defined, self.moved, 0.0).sum(axis=1), is_defined.sum(axis=1)
        mean: Array = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
        return mean

    @property
    def largest(self) -> Array:
        """Maximum over the units, ignoring NaN, [layer + 1]."""
        maxima: Array = np.nan_to_num(self.moved).max(axis=1)
        return maxima

    @property
    def finding(self) -> str:
        """The vector that changed most, as a sentence."""
        peaks = np.nan_to_num(self.moved)
        if not peaks.any():
            return "No vector changed direction."
        layer, index = np.unravel_index(int(peaks.argmax()), peaks.shape)
        layer_name = "in the embeddings" if layer == 0 else f"after layer {layer}"
        unit = self.units[int(index)]
        return (
            f"The vector of ‘{truncate_text(unit.display)}’ ({unit.position}) changed direction most, "
            f"{layer_name}: cosine distance {peaks.max():.3g} (mean of that layer: {self.mean[layer]:.3g})."
        )

    def frame(self) -> pd.DataFrame:
        """Return one row per token or word and one column per layer from 0."""
        return frames.vectors(self.moved.T, self.units)


def _width(trace: Trace) -> int:
    return int(trace.vectors(0).shape[1])


def _sizes(trace: Trace) -> tuple[int, ...]:
    return tuple(int(trace.vectors(layer).shape[1]) for layer in range(trace.layers + 1))
