"""Attention over all layers at once: rollout, and how far one token reaches in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, resolve
from bert_probe.text.words import Unit, word_lens

Direction = Literal["from", "into"]


def rollouts(layers: Iterable[Array], residual: float = 0.5) -> Iterator[Array]:
    """`rollout` up to each layer in turn, float64 [query, key].

    Raises:
        ShapeError, SelectionError: see `rollout`.
    """
    if not 0 <= residual <= 1:
        raise SelectionError(f"The residual share is {residual}; it must be between 0 and 1.")
    reached: Array | None = None
    for weights in layers:
        if weights.ndim != 3 or weights.shape[1] != weights.shape[2]:
            raise ShapeError(f"A layer has shape {weights.shape}; [head, token, token] is needed.")
        if reached is not None and len(reached) != weights.shape[1]:
            raise ShapeError(
                f"A layer is over {weights.shape[1]} tokens, the one before over {len(reached)}."
            )
        # Double precision: the products of many layers would add up float32's rounding.
        mean = weights.mean(axis=0, dtype=np.float64)
        step: Array = (1 - residual) * mean + residual * np.eye(len(mean))
        reached = step if reached is None else step @ reached
        yield reached
    if reached is None:
        raise ShapeError("There is no layer to roll out.")


def rollout(layers: Iterable[Array], residual: float = 0.5) -> Array:
    """How much of each input token reaches each token through all layers, float32 [query, key].

    R_l = ((1 − r) · mean over heads of A_l + r · I) R_{l−1}, with R_0 = I: later layers multiply from
    the left; Abnar and Zuidema 2020, section 3. Rows sum to 1. It follows attention alone, so it is no
    measure of causal importance.

    Args:
        layers: attention of each layer from the first on, [head, query, key].
        residual: r, the share that the residual connection is taken to carry, 0 to 1.

    Raises:
        ShapeError: a layer is not [head, query, key] over the same tokens as the one before.
        SelectionError: a residual share outside 0 to 1.
    """
    *_, last = rollouts(layers, residual)
    return last.astype(np.float32)


def trace_rollout(trace: Trace, residual: float = 0.5) -> Array:
    """`rollout` of all layers of a trace, one layer in memory at a time."""
    return rollout((trace.attention(layer) for layer in range(trace.layers)), residual)


@dataclass(frozen=True, eq=False)
class Reach:
    """One token, or word, in the rollouts up to each layer.

    Attributes:
        units: the tokens or words of the text.
        chosen: which of them, from 0.
        direction: "from": how much of the chosen one is in each of the others; "into": how much of each
            other one is in it.
        residual: see `rollout`.
        values: float32 [layer, unit], 0 to 1; with "into" each layer sums to 1.
    """

    units: tuple[Token | Unit, ...]
    chosen: int
    direction: Direction
    residual: float
    values: Array

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != len(self.units):
            raise ShapeError(f"values has shape {self.values.shape}; [layer, {len(self.units)}] is needed.")


def reach(
    trace: Trace,
    chosen: int,
    direction: Direction = "from",
    words: bool = False,
    residual: float = 0.5,
) -> Reach:
    """How far a token reaches, layer by layer: its column, or its row, of the rollout up to each of them.

    Args:
        chosen: index of the token, or of the word in `word_lens` with ``words``.
        words: merge pieces into words, see `WordLens.merge`.

    Raises:
        SelectionError: no such token, direction or residual share.
    """
    lens = word_lens(trace) if words else None
    units: tuple[Token | Unit, ...] = trace.tokens if lens is None else lens.units
    chosen = resolve(chosen, len(units), "word" if words else "token")
    if direction not in ("from", "into"):
        raise SelectionError(f"There is no direction {direction}; use from or into.")
    layers = (trace.attention(layer) for layer in range(trace.layers))
    rows = []
    for reached in rollouts(layers, residual):
        merged = reached if lens is None else lens.merge(reached)
        rows.append(merged[:, chosen] if direction == "from" else merged[chosen])
    return Reach(units, chosen, direction, residual, np.array(rows, dtype=np.float32))
