"""How far each token's vector turned from one model to another that read the same text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.attention import WORDS
from bert_probe.analyses.comparison.model_change import read_by_both
from bert_probe.analyses.vectors.cosine import cosine_of_rows
from bert_probe.core import frames
from bert_probe.core.field_types import Flag
from bert_probe.core.inputs import TwoModelTraces
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.truncation import truncate_text
from bert_probe.text.words import Unit, word_lens


@question("change of vectors", command="diff vectors")
class VectorChange(Question):
    """1 − cosine of each token's vectors in two models, after each layer.

    It says something where the one model was made of the other, so that their dimensions are the same ones;
    for any two models there is `LayerSimilarity`.

    Attributes:
        words: of words, whose vectors are the means of their pieces'.
    """

    inputs = TwoModelTraces()

    words: bool = param(Flag(), default=False, about=WORDS)

    def of(self, a: Trace, b: Trace) -> VectorChangeResult:
        """The change from one model to the other.

        Raises:
            SelectionError: not the same text, or not the same tokenizer.
            UnavailableError: vectors of other lengths, or other numbers of layers.
        """
        subject, one, two = read_by_both(a, b)
        if _sizes(one) != _sizes(two):
            raise UnavailableError(
                f"A has {one.layers} layers with vectors of {_width(one)} numbers and B {two.layers} of "
                f"{_width(two)}: no vector of the one has a counterpart in the other. The alikeness of "
                "layers can be compared all the same."
            )
        lens = word_lens(one) if self.words else None

        def vectors(trace: Trace, layer: int) -> Array:
            own = trace.vectors(layer)
            return own if lens is None else lens.average(own)

        moved = [1 - cosine_of_rows(vectors(one, n), vectors(two, n)) for n in range(one.layers + 1)]
        units = one.tokens if lens is None else lens.units
        return VectorChangeResult(self, subject, units, read_only(np.array(moved)))


@dataclass(frozen=True, eq=False, repr=False)
class VectorChangeResult(Result):
    """How far the vectors turned from A to B.

    Attributes:
        units: the tokens, or words.
        moved: float64 [layer + 1, unit], 0 to 2: 1 − cosine; row 0 is the output of the embeddings. NaN where
            a vector is all zeros.
    """

    question: VectorChange
    units: tuple[Token | Unit, ...]
    moved: Array

    def __post_init__(self) -> None:
        if self.moved.ndim != 2 or self.moved.shape[1] != len(self.units):
            raise ShapeError(f"moved has shape {self.moved.shape} for {len(self.units)} tokens.")

    @property
    def mean(self) -> Array:
        """Over the units that have a direction, [layer + 1]; NaN where none has."""
        there = ~np.isnan(self.moved)
        sums, counts = np.where(there, self.moved, 0.0).sum(axis=1), there.sum(axis=1)
        mean: Array = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
        return mean

    @property
    def most(self) -> Array:
        """The largest of a layer, [layer + 1]; 0 where no unit has a direction."""
        largest: Array = np.nan_to_num(self.moved).max(axis=1)
        return largest

    @property
    def finding(self) -> str:
        """Which vector turned most, and where, as a sentence."""
        peaks = np.nan_to_num(self.moved)
        if not peaks.any():
            return "No vector turned."
        layer, place = np.unravel_index(int(peaks.argmax()), peaks.shape)
        where = "in the output of the embeddings" if layer == 0 else f"after layer {layer}"
        unit = self.units[int(place)]
        return (
            f"The vector of ‘{truncate_text(unit.display)}’ ({unit.position}) turned most, {where}: "
            f"1 − cosine {peaks.max():.3g}, where the mean of that layer is {self.mean[layer]:.3g}."
        )

    def frame(self) -> pd.DataFrame:
        """A row for each token, or word; a column for each layer from 0."""
        return frames.vectors(self.moved.T, self.units)


def _width(trace: Trace) -> int:
    return int(trace.vectors(0).shape[1])


def _sizes(trace: Trace) -> tuple[int, ...]:
    return tuple(int(trace.vectors(layer).shape[1]) for layer in range(trace.layers + 1))
