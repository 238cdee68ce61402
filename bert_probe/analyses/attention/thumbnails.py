"""Every head of a model at a glance: all attention matrices of a text, made small where it is long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bert_probe.analyses.attention.attention import shown_units
from bert_probe.analyses.attention.measures import measure as measure_named
from bert_probe.errors import SelectionError, ShapeError, memory_errors
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.words import Unit

SIZE = 96
"""The most cells a side; finer than this a thumbnail has more cells than pixels on most screens."""


@dataclass(frozen=True, eq=False)
class Thumbnails:
    """The attention of all heads, each head a small matrix.

    Attributes:
        weights: float32 [layer, head, query block, key block]; 0 to 1 where the measure is a share.
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
    measure: str

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
    measure: str = "weights",
) -> Thumbnails:
    """Attention of every head in at most ``size`` cells a side; one layer in memory at a time.

    A text of more tokens is cut into blocks of equal length, and a cell is the largest weight of its block:
    a mean would wash out the single strong weights that tell heads apart.

    Args:
        size: the most cells a side, at least 1.
        specials: keep special tokens.
        words: merge pieces into words: summed over keys, averaged over queries.
        measure: one that has single heads.

    Raises:
        SelectionError: no such size or measure, or one of whole layers only.
        UnavailableError: the architecture hides what the measure needs.
        EmptyTextError: nothing is left without the special tokens.
    """
    if size < 1:
        raise SelectionError(f"size is {size}; thumbnails need at least 1 cell a side.")
    of_heads = measure_named(measure).single_heads()
    seen = shown_units(trace, words, specials)
    block = _blocks(len(seen.units), size)
    side = _blocks(len(seen.units), block)
    with memory_errors("All heads together need more memory than this machine has free. Use a smaller size."):
        small = np.empty((trace.layers, trace.heads, side, side), dtype=np.float32)
    for layer in range(trace.layers):
        small[layer] = largest_in_blocks(seen.cut(of_heads(trace, layer, slice(None))), block)
    return Thumbnails(read_only(small), seen.units, block, specials, words, measure)


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
