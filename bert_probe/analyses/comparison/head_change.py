"""Change of heads: how much the attention of each head differs between two models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch.utils.dlpack import from_dlpack

from bert_probe.analyses.attention.attention import WORDS_HELP
from bert_probe.analyses.comparison.model_change import check_same_tokens
from bert_probe.core import frames
from bert_probe.core.field_types import Flag
from bert_probe.core.inputs import TwoModelTraces
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.words import word_lens


@question("head change", command="diff heads")
class HeadChange(Question):
    """Total variation between the attention of each head in two models, averaged over the queries.

    Attributes:
        words: merge tokens into words first, as in `WordLens.merge`.
    """

    inputs = TwoModelTraces()

    words: bool = param(Flag(), default=False, about=WORDS_HELP)

    def of(self, a: Trace, b: Trace) -> HeadChangeResult:
        """Compare the heads of two models. Only one attention matrix per model is in memory at a time.

        Raises:
            SelectionError: the traces come from different texts, or the models have different tokenizers.
            UnavailableError: the models have different numbers of layers or heads.
        """
        inputs, trace_a, trace_b = check_same_tokens(a, b)
        if (trace_a.layers, trace_a.heads) != (trace_b.layers, trace_b.heads):
            raise UnavailableError(
                f"A has {_grid(trace_a)}, B has {_grid(trace_b)}, so heads cannot be compared one to one. "
                "Compare head matches, layer similarity or predictions instead."
            )
        lens = word_lens(trace_a) if self.words else None

        def weights(trace: Trace, layer: int, head: int) -> torch.Tensor:
            attention = trace.attention(layer, head)
            return from_dlpack(attention if lens is None else lens.merge(attention))

        variation = np.zeros((trace_a.layers, trace_a.heads))
        for index in np.ndindex(variation.shape):
            layer, head = int(index[0]), int(index[1])
            queries = total_variation(weights(trace_a, layer, head), weights(trace_b, layer, head))
            variation[index] = queries.mean()
        return HeadChangeResult(self, inputs, read_only(variation))


@dataclass(frozen=True, eq=False, repr=False)
class HeadChangeResult(Result):
    """How much each head changed from A to B.

    Attributes:
        total_variation: change of each head, float64 [layer, head], 0 to 1: ½ Σ |p − q| between a query's
            attention in A and in B, averaged over all queries, including special tokens.
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
        """Layer and head index, from 0, of the head that changed most; in a tie, the first."""
        layer, head = np.unravel_index(int(self.total_variation.argmax()), self.total_variation.shape)
        return int(layer), int(head)

    @property
    def finding(self) -> str:
        """The largest change, as a sentence in which layers and heads count from 1."""
        if not self.total_variation.any():
            return "No head changed."
        layer, head = self.strongest
        largest, median = float(self.total_variation.max()), float(np.median(self.total_variation))
        return (
            f"Head {layer + 1}.{head + 1} changed most: total variation {largest:.3g} (median of all "
            f"{self.total_variation.size:,} heads: {median:.3g})."
        )

    def frame(self) -> pd.DataFrame:
        """Return one row per head, largest change first: layer, head, total_variation."""
        heads = frames.by_head({"total_variation": self.total_variation})
        return heads.sort_values("total_variation", ascending=False, kind="stable", ignore_index=True)


def total_variation(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return ½ Σ |p − q| over the keys for each query, float64 [query], 0 to 1; p and q are [query, key]."""
    return (q - p).abs().sum(dim=1, dtype=torch.float64) / 2


def _grid(trace: Trace) -> str:
    return f"{trace.layers} layers of {trace.heads} heads"
