"""Attention over all layers up to one: rollout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from bert_probe.analyses.attention.measures import AttentionMeasure
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array, Trace, resolve


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
    """How much of each input token reaches each token through all layers, float64 [query, key].

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
    return last


def _up_to(trace: Trace, layer: int, residual: float, _report: Progress) -> Array:
    """One layer in memory at a time."""
    last = resolve(layer, trace.layers, "layer")
    reached = rollout((trace.attention(below) for below in range(last + 1)), residual)
    return reached.astype(trace.dtype, copy=False)


MEASURE = AttentionMeasure(
    name="rollout",
    label="Rollout",
    title="Rollout up to",
    value="share that reaches",
    total="attention",
    meaning="How much of each input token reaches a token through the attention of all layers up to this "
    "one (Abnar and Zuidema 2020). It follows the weights alone and is no measure of influence.",
    order=3,
    of_layer=_up_to,
    rolled=True,
)
