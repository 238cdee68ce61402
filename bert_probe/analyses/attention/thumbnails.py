"""Thumbnails of all attention matrices of a text, downsampled if the text is long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bert_probe.analyses.attention.attention import select_units
from bert_probe.analyses.attention.measures import get_measure as measure_named
from bert_probe.errors import SelectionError, ShapeError, memory_errors
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.words import Unit

SIZE = 96
"""Maximum number of cells per side; most screens have too few pixels to show more."""


@dataclass(frozen=True, eq=False)
class Thumbnails:
    """Downsampled attention matrices of all heads.

    Attributes:
        weights: largest weight of each block, float32 of shape [layer, head, query block, key block]; 0 to 1
            if the rows of the measure sum to 1.
        units: the tokens or words that are the queries and keys.
        block: number of queries, and also of keys, per cell; the last block may be smaller. A cell shows the
            **largest** weight of its block, so rows do not sum to 1 unless ``block`` is 1.
        specials: whether special tokens are included.
        words: whether subword tokens are merged into words.
        measure: name of the attention measure.
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
                f"weights has shape {self.weights.shape}, but must be [layer, head, {side}, {side}] for "
                f"{len(self.units)} tokens in blocks of {self.block}."
            )

    @property
    def layers(self) -> int:
        """Number of layers of the model."""
        return int(self.weights.shape[0])

    @property
    def heads(self) -> int:
        """Number of heads in a layer."""
        return int(self.weights.shape[1])

    @property
    def side(self) -> int:
        """Number of cells per side of a matrix."""
        return int(self.weights.shape[2])


def make_thumbnails(
    trace: Trace,
    size: int = SIZE,
    specials: bool = True,
    words: bool = False,
    measure: str = "weights",
) -> Thumbnails:
    """Return the attention matrix of every head, downsampled to at most ``size`` cells per side.

    A text with more tokens is split into blocks of equal length. A cell shows the largest weight of its
    block, because a mean would hide the single strong weights that distinguish heads. Only one layer is in
    memory at a time.

    Args:
        trace: the model's forward pass over the text.
        size: maximum number of cells per side, at least 1.
        specials: keep special tokens.
        words: merge subword tokens into words: sum over keys, mean over queries.
        measure: name of a measure that is defined for individual heads.

    Raises:
        SelectionError: size is below 1, or the measure is unknown or not defined for individual heads.
        UnavailableError: the architecture does not expose what the measure needs.
        EmptyTextError: the text has only special tokens, and these are left out.
    """
    if size < 1:
        raise SelectionError(f"size is {size}, but thumbnails need at least 1 cell per side.")
    of_heads = measure_named(measure).require_heads()
    selection = select_units(trace, words, specials)
    block = _blocks(len(selection.units), size)
    side = _blocks(len(selection.units), block)
    with memory_errors("The thumbnails of all heads need more memory than is free. Use a smaller size."):
        small = np.empty((trace.layers, trace.heads, side, side), dtype=np.float32)
    for layer in range(trace.layers):
        small[layer] = largest_in_blocks(selection.reduce(of_heads(trace, layer, slice(None))), block)
    return Thumbnails(read_only(small), selection.units, block, specials, words, measure)


def largest_in_blocks(weights: Array, block: int) -> Array:
    """Return the largest weight of each square of ``block`` × ``block`` attention weights.

    The weights have shape [head, query, key], and the result has shape [head, query block, key block]. The
    last block of a row or column may be smaller.
    """
    if block == 1:
        return weights
    by_query = _largest_of_rows(weights, block)
    return _largest_of_rows(by_query.swapaxes(1, 2), block).swapaxes(1, 2)


def _largest_of_rows(weights: Array, block: int) -> Array:
    # Comparing the first rows of all blocks, then the second rows, … is much faster than block by block.
    largest: Array = weights[:, ::block].copy()
    for start in range(1, min(block, weights.shape[1])):
        rows = weights[:, start::block]
        target = largest[:, : rows.shape[1]]
        np.maximum(target, rows, out=target)
    return largest


def _blocks(count: int, block: int) -> int:
    """Return the number of blocks into which ``count`` tokens or words are split."""
    return -(-count // block)
