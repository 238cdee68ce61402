"""One attention matrix as people look at it: labelled, by tokens or words, by one of three measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bert_probe.analyses.flow import rollout
from bert_probe.analyses.norms import projects, value_weighted
from bert_probe.errors import EmptyTextError, SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, resolve
from bert_probe.text.words import Unit, word_lens

Head = int | Literal["mean"]
Measure = Literal["weights", "value-norm", "rollout"]
"""Attention weights; ‖α v W_O‖, see `norms`; or rollout over the layers up to this one, see `flow`."""

MEASURE_MEANINGS: Mapping[Measure, str] = {
    "weights": "How a token divides its attention over all tokens: where a head reads from, but neither "
    "what it reads there nor whether the output depends on it.",
    "value-norm": "The weight times the length of what the head carries from there (Kobayashi et al. 2020): "
    "a large weight on a short vector moves little. How much is carried, but not in which direction.",
    "rollout": "How much of each input token reaches a token through the attention of all layers up to this "
    "one (Abnar and Zuidema 2020). It follows the weights alone and is no measure of influence.",
}
"""What each measure says and does not say, for people."""


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """A measure of attention in one head, or its mean over a layer's heads.

    Attributes:
        queries, keys: tokens, or words, of the rows and of the columns.
        weights: float32 [query, key]; 0 to 1, but for the measure "value-norm".
        layer, head: indices from 0; "mean" for the mean over the heads.
        specials: whether [CLS], [SEP] and the like are among the tokens.
        renormalised: whether rows were divided by their sum after leaving tokens out.
        measure: what the numbers are.
        residual: the share of the residual connection in a rollout, else None.
        projected: whether value norms go through the output projection (see `projects`), else None.
    """

    queries: tuple[Token | Unit, ...]
    keys: tuple[Token | Unit, ...]
    weights: Array
    layer: int
    head: Head
    specials: bool
    renormalised: bool
    measure: Measure = "weights"
    residual: float | None = None
    projected: bool | None = None

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
    words: bool = False,
    measure: Measure = "weights",
    checkpoint: Checkpoint | None = None,
    residual: float = 0.5,
) -> AttentionMap:
    """Attention of one head, or the mean over a layer's heads.

    Pieces are merged first, then special tokens left out, then rows divided.

    Args:
        specials: keep special tokens; without them rows no longer sum to 1, because [CLS] and [SEP]
            often draw most of the attention (Clark et al. 2019).
        renormalise: divide each row by its sum. A row that gives nothing to the keys shown
            becomes NaN.
        words: merge pieces into words: summed over keys, averaged over queries.
        measure: what to show; "rollout" has no single heads.
        checkpoint: the trace's own, needed for the measure "value-norm".
        residual: for the measure "rollout", see `flow.rollout`.

    Raises:
        SelectionError: no such layer, head or measure, or a measure without what it needs.
        UnavailableError: the architecture hides what the measure needs.
        EmptyTextError: nothing is left without the special tokens.
    """
    layer = resolve(layer, trace.layers, "layer")
    if head != "mean":
        head = resolve(head, trace.heads, "head")
    weights = _measured(trace, layer, head, measure, checkpoint, residual)
    units: tuple[Token | Unit, ...] = trace.tokens
    if words:
        lens = word_lens(trace)
        units, weights = lens.units, lens.merge(weights)
    kept = [index for index, unit in enumerate(units) if specials or not unit.special]
    if not kept:
        raise EmptyTextError("Only special tokens are left of this text. Show them, or write a word.")
    if len(kept) < len(units):
        weights = weights[np.ix_(kept, kept)]
    if renormalise:
        sums = weights.sum(axis=1, keepdims=True)
        weights = np.divide(weights, sums, out=np.full_like(weights, np.nan), where=sums > 0)
    shown = tuple(units[index] for index in kept)
    share = residual if measure == "rollout" else None
    projected = projects(checkpoint) if measure == "value-norm" and checkpoint is not None else None
    return AttentionMap(shown, shown, weights, layer, head, specials, renormalise, measure, share, projected)


def _measured(
    trace: Trace, layer: int, head: Head, measure: Measure, checkpoint: Checkpoint | None, residual: float
) -> Array:
    if measure == "weights":
        return trace.mean_attention(layer) if head == "mean" else trace.attention(layer, head)
    if measure == "rollout":
        if head != "mean":
            raise SelectionError("Rollout follows the mean over the heads; it has no single heads.")
        return rollout((trace.attention(below) for below in range(layer + 1)), residual)
    if measure != "value-norm":
        raise SelectionError(f"There is no measure {measure}; use weights, value-norm or rollout.")
    if checkpoint is None:
        raise SelectionError("The measure value-norm needs the checkpoint as well. Give checkpoint=….")
    if head != "mean":
        return value_weighted(checkpoint, trace, layer, head)
    mean: Array = value_weighted(checkpoint, trace, layer).mean(axis=0)
    return mean
