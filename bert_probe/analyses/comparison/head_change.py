"""How much the attention of each head differs between two models that read the same text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.attention import WORDS
from bert_probe.analyses.comparison.model_change import read_by_both
from bert_probe.core import frames
from bert_probe.core.field_types import Flag
from bert_probe.core.inputs import TwoModelTraces
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.words import word_lens


@question("change of heads", command="diff heads")
class HeadChange(Question):
    """Total variation of each head's attention between two models, mean over the queries.

    Attributes:
        words: merge pieces into words first, as in `WordLens.merge`.
    """

    inputs = TwoModelTraces()

    words: bool = param(Flag(), default=False, about=WORDS)

    def of(self, a: Trace, b: Trace) -> HeadChangeResult:
        """The change from one model to the other; memory holds one head's attention of each at a time.

        Raises:
            SelectionError: not the same text, or not the same tokenizer.
            UnavailableError: other numbers of layers or heads, so that no head has a counterpart.
        """
        subject, one, two = read_by_both(a, b)
        if (one.layers, one.heads) != (two.layers, two.heads):
            raise UnavailableError(
                f"A has {_grid(one)} and B {_grid(two)}: no head of the one has a counterpart in the other. "
                "Parameters of one name, answers and the alikeness of layers can be compared."
            )
        lens = word_lens(one) if self.words else None

        def weights(trace: Trace, layer: int, head: int) -> Array:
            own = trace.attention(layer, head)
            return own if lens is None else lens.merge(own)

        variation = np.zeros((one.layers, one.heads))
        for place in np.ndindex(variation.shape):
            layer, head = int(place[0]), int(place[1])
            variation[place] = _total_variation(weights(one, layer, head), weights(two, layer, head))
        return HeadChangeResult(self, subject, read_only(variation))


@dataclass(frozen=True, eq=False, repr=False)
class HeadChangeResult(Result):
    """How much each head changed from A to B.

    Attributes:
        total_variation: float64 [layer, head], 0 to 1: ½ Σ |p − q| between the rows of a query in A and in B,
            averaged over the queries, special tokens among them.
    """

    question: HeadChange
    total_variation: Array

    def __post_init__(self) -> None:
        if self.total_variation.ndim != 2:
            raise ShapeError(
                f"total_variation has shape {self.total_variation.shape}; [layer, head] is needed."
            )

    @property
    def strongest(self) -> tuple[int, int]:
        """Layer and head, from 0, that changed most; the first of several."""
        layer, head = np.unravel_index(int(self.total_variation.argmax()), self.total_variation.shape)
        return int(layer), int(head)

    @property
    def finding(self) -> str:
        """What changed most, as a sentence; layers and heads count from 1 in it."""
        if not self.total_variation.any():
            return "No head attends differently."
        layer, head = self.strongest
        most, middle = float(self.total_variation.max()), float(np.median(self.total_variation))
        return (
            f"Head {layer + 1}.{head + 1} changed most: total variation {most:.3g}, where the middle one of "
            f"all {self.total_variation.size:,} heads has {middle:.3g}."
        )

    def frame(self) -> pd.DataFrame:
        """Heads, most changed first: layer, head, total_variation."""
        heads = frames.by_head({"total_variation": self.total_variation})
        return heads.sort_values("total_variation", ascending=False, kind="stable", ignore_index=True)


def _total_variation(p: Array, q: Array) -> float:
    """½ Σ |p − q| over the keys, mean over the queries; both [query, key]."""
    return float(np.abs(q - p).sum(axis=1, dtype=np.float64).mean() / 2)


def _grid(trace: Trace) -> str:
    return f"{trace.layers} layers of {trace.heads} heads"
