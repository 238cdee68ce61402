"""One attention matrix as people look at it: labelled, with or without special tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bert_probe.encoding import Token
from bert_probe.errors import EmptyTextError, ShapeError
from bert_probe.trace import Array, Trace, resolve

Head = int | Literal["mean"]


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """Attention of one head, or the mean over a layer's heads.

    Attributes:
        queries, keys: tokens of the rows and of the columns.
        weights: float32 [query, key], 0 to 1.
        layer, head: indices from 0; "mean" for the mean over the heads.
        specials: whether [CLS], [SEP] and the like are among the tokens.
        renormalised: whether rows were divided by their sum after leaving tokens out.
    """

    queries: tuple[Token, ...]
    keys: tuple[Token, ...]
    weights: Array
    layer: int
    head: Head
    specials: bool
    renormalised: bool

    def __post_init__(self) -> None:
        if self.weights.shape != (len(self.queries), len(self.keys)):
            raise ShapeError(
                f"weights has shape {self.weights.shape}; "
                f"[{len(self.queries)} queries, {len(self.keys)} keys] is needed."
            )

    @property
    def row_sums(self) -> Array:
        """What each query gives to the keys shown, [query]: 1 unless tokens are left out."""
        sums: Array = self.weights.sum(axis=1)
        return sums


def attention_map(
    trace: Trace,
    layer: int = -1,
    head: Head = "mean",
    specials: bool = True,
    renormalise: bool = False,
) -> AttentionMap:
    """Attention of one head, or the mean over a layer's heads.

    Args:
        specials: keep special tokens; without them rows no longer sum to 1, because [CLS] and [SEP]
            often draw most of the attention (Clark et al. 2019).
        renormalise: divide each row by its sum. A row that gives nothing to the keys shown
            becomes NaN.

    Raises:
        SelectionError: no such layer or head.
        EmptyTextError: nothing is left without the special tokens.
    """
    layer = resolve(layer, trace.layers, "layer")
    if head == "mean":
        weights = trace.mean_attention(layer)
    else:
        head = resolve(head, trace.heads, "head")
        weights = trace.attention(layer, head)
    kept = [token.position for token in trace.tokens if specials or not token.special]
    if not kept:
        raise EmptyTextError("Only special tokens are left of this text. Show them, or write a word.")
    if len(kept) < len(trace.tokens):
        weights = weights[np.ix_(kept, kept)]
    if renormalise:
        sums = weights.sum(axis=1, keepdims=True)
        weights = np.divide(weights, sums, out=np.full_like(weights, np.nan), where=sums > 0)
    tokens = tuple(trace.tokens[position] for position in kept)
    return AttentionMap(tokens, tokens, weights, layer, head, specials, renormalise)
