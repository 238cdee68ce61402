"""Attention over all layers at once: rollout."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bert_probe.errors import SelectionError, ShapeError
from bert_probe.trace import Array, Trace


def rollout(layers: Iterable[Array], residual: float = 0.5) -> Array:
    """How much of each input token reaches each token through all layers, [query, key].

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
    if not 0 <= residual <= 1:
        raise SelectionError(f"The residual share is {residual}; it must be between 0 and 1.")
    reach: Array | None = None
    for weights in layers:
        if weights.ndim != 3 or weights.shape[1] != weights.shape[2]:
            raise ShapeError(f"A layer has shape {weights.shape}; [head, token, token] is needed.")
        if reach is not None and len(reach) != weights.shape[1]:
            raise ShapeError(f"A layer is over {weights.shape[1]} tokens, the one before over {len(reach)}.")
        # Double precision: the products of many layers would add up float32's rounding.
        mean = weights.mean(axis=0, dtype=np.float64)
        step = (1 - residual) * mean + residual * np.eye(len(mean))
        reach = step if reach is None else step @ reach
    if reach is None:
        raise ShapeError("There is no layer to roll out.")
    return reach.astype(np.float32)


def trace_rollout(trace: Trace, residual: float = 0.5) -> Array:
    """`rollout` of all layers of a trace, one layer in memory at a time."""
    return rollout((trace.attention(layer) for layer in range(trace.layers)), residual)
