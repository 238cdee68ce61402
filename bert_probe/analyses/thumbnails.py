"""Every head of a model at a glance: all attention matrices of a text, made small where it is long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bert_probe.analyses.attention import Measure
from bert_probe.analyses.norms import value_weighted
from bert_probe.errors import EmptyTextError, SelectionError, ShapeError, memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.words import Unit, word_lens

SIZE = 96
"""The most cells a side; finer than this a thumbnail has more cells than pixels on most screens."""


@dataclass(frozen=True, eq=False)
class Thumbnails:
    """The attention of all heads, each head a small matrix.

    Attributes:
        weights: float32 [layer, head, query block, key block]; 0 to 1, but for the measure "value-norm".
        units: the tokens, or words, that are queries and keys.
        block: how many queries, and how many keys, a cell stands for; its number is the **largest** weight
            among them, so rows do not sum to 1. At 1 it is the weight itself. The last block may be smaller.
        specials: whether special tokens are among them.
        words: whether pieces were merged into words.
        measure: what the numbers are.
    """

    weights: Array
    units: tuple[Token | Unit, ...]
    block: int
    specials: bool
    words: bool
    measure: Measure

    def __post_init__(self) -> None:
        side = _blocks(len(self.units), self.block)
        if self.weights.ndim != 4 or self.weights.shape[2:] != (side, side):
            raise ShapeError(
                f"weights has shape {self.weights.shape}; [layer, head, {side}, {side}] is needed for "
                f"{len(self.units)} tokens in blocks of {self.block}."
            )

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.weights.shape[0])

    @property
    def heads(self) -> int:
        """Heads in a layer."""
        return int(self.weights.shape[1])

    @property
    def side(self) -> int:
        """Cells a side."""
        return int(self.weights.shape[2])


def thumbnails(
    trace: Trace,
    size: int = SIZE,
    specials: bool = True,
    words: bool = False,
    measure: Measure = "weights",
    checkpoint: Checkpoint | None = None,
) -> Thumbnails:
    """Attention of every head in at most ``size`` cells a side; one layer in memory at a time.

    A text of more tokens is cut into blocks of equal length, and a cell is the largest weight of its block:
    a mean would wash out the single strong weights that tell heads apart.

    Args:
        size: the most cells a side, at least 1.
        specials: keep special tokens.
        words: merge pieces into words: summed over keys, averaged over queries.
        measure: "weights" or "value-norm"; rollout has no single heads.
        checkpoint: the trace's own, needed for the measure "value-norm".

    Raises:
        SelectionError: no such size or measure, or a measure without what it needs.
        UnavailableError: the architecture hides what the measure needs.
        EmptyTextError: nothing is left without the special tokens.
    """
    if size < 1:
        raise SelectionError(f"size is {size}; thumbnails need at least 1 cell a side.")
    lens = word_lens(trace) if words else None
    units: tuple[Token | Unit, ...] = trace.tokens if lens is None else lens.units
    kept = [index for index, unit in enumerate(units) if specials or not unit.special]
    if not kept:
        raise EmptyTextError("Only special tokens are left of this text. Show them, or write a word.")
    block = _blocks(len(kept), size)
    side = _blocks(len(kept), block)
    with memory_errors("All heads together need more memory than this machine has free. Use a smaller size."):
        small = np.empty((trace.layers, trace.heads, side, side), dtype=np.float32)
    for layer in range(trace.layers):
        weights = _measured(trace, layer, measure, checkpoint)
        if lens is not None:
            weights = lens.merge(weights)
        if len(kept) < len(units):
            weights = weights[:, kept][:, :, kept]
        small[layer] = largest_in_blocks(weights, block)
    return Thumbnails(
        read_only(small), tuple(units[index] for index in kept), block, specials, words, measure
    )


def largest_in_blocks(weights: Array, block: int) -> Array:
    """The largest number of each ``block`` × ``block`` square, [head, query, key] → [head, block, block].

    Squares at the end of a row or a column hold what is left.
    """
    if block == 1:
        return weights
    by_query = _largest_of_rows(weights, block)
    return _largest_of_rows(by_query.swapaxes(1, 2), block).swapaxes(1, 2)


def _largest_of_rows(weights: Array, block: int) -> Array:
    # Row 0 of every block, then row 1 …: whole rows at a time, many times faster than block by block.
    largest: Array = weights[:, ::block].copy()
    for start in range(1, min(block, weights.shape[1])):
        rows = weights[:, start::block]
        reached = largest[:, : rows.shape[1]]
        np.maximum(reached, rows, out=reached)
    return largest


def _blocks(count: int, block: int) -> int:
    """How many blocks it takes, the last one perhaps not full."""
    return -(-count // block)


def _measured(trace: Trace, layer: int, measure: Measure, checkpoint: Checkpoint | None) -> Array:
    """All heads of a layer, [head, query, key]."""
    if measure == "weights":
        return trace.attention(layer)
    if measure != "value-norm":
        raise SelectionError(
            f"There are no single heads of the measure {measure}; use weights or value-norm."
        )
    if checkpoint is None:
        raise SelectionError("The measure value-norm needs the checkpoint as well. Give checkpoint=….")
    return value_weighted(checkpoint, trace, layer)
