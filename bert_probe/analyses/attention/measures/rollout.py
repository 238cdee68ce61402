"""Attention rollout: attention combined over all layers up to a layer (Abnar and Zuidema 2020)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from bert_probe.analyses.attention.measures import AttentionMeasure
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array, Trace, resolve_index


def rollouts(layers: Iterable[Array], residual: float = 0.5) -> Iterator[Array]:
    """Yield the attention rollout up to each layer, float64 of shape [query, key]; see `rollout`.

    Raises:
        ShapeError, SelectionError: see `rollout`.
    """
    if not 0 <= residual <= 1:
        raise SelectionError(f"The residual weight must be between 0 and 1, not {residual}.")
    result: Array | None = None
    for weights in layers:
        if weights.ndim != 3 or weights.shape[1] != weights.shape[2]:
            raise ShapeError(f"Each layer must have shape [head, token, token], not {weights.shape}.")
        if result is not None and len(result) != weights.shape[1]:
            raise ShapeError(
                f"All layers must have the same number of tokens, but adjacent layers have {len(result)} and "
                f"{weights.shape[1]}."
            )
        # Use double precision, because products over many layers accumulate rounding errors.
        mean = weights.mean(axis=0, dtype=np.float64)
        del weights  # otherwise, the attention of two layers would be in memory at once
        step: Array = (1 - residual) * mean + residual * np.eye(len(mean))
        result = step if result is None else step @ result
        yield result
    if result is None:
        raise ShapeError("Rollout needs the attention of at least one layer.")


def rollout(layers: Iterable[Array], residual: float = 0.5) -> Array:
    """Return the attention rollout: how much of each input token reaches each token through all layers.

    R_l = ((1 − r) · mean over heads of A_l + r · I) R_{l−1}, with R_0 = I (Abnar and Zuidema 2020,
    section 3). Rows sum to 1. Rollout uses attention weights alone, so it does not measure causal importance.

    Args:
        layers: attention of each layer, beginning with the first; each has shape [head, query, key].
        residual: r, the weight of the residual connection, 0 to 1.

    Returns:
        The rollout, float64 of shape [query, key].

    Raises:
        ShapeError: a layer does not have the shape [head, query, key], or layers have different numbers of
            tokens.
        SelectionError: the residual weight is not between 0 and 1.
    """
    *_, last = rollouts(layers, residual)
    return last


def _up_to(trace: Trace, layer: int, residual: float, _report: Progress) -> Array:
    last = resolve_index(layer, trace.layers, "layer")
    # The generator keeps only one layer in memory at a time.
    result = rollout((trace.attention(below) for below in range(last + 1)), residual)
    return result.astype(trace.dtype, copy=False)


def _caveat(trace: Trace) -> str:
    if not trace.is_causal:
        return ""
    return (
        "In a model with causal attention, the rollout of the first tokens grows with depth, regardless of "
        "their content."
    )


MEASURE = AttentionMeasure(
    name="rollout",
    label="Rollout",
    title="Rollout up to",
    value="attention rollout",
    total="attention",
    meaning="How much of each input token reaches a token through the attention of all layers up to this "
    "layer (Abnar and Zuidema 2020). Rollout uses attention weights alone and does not measure influence.",
    order=3,
    of_layer=_up_to,
    rolled=True,
    caveat=_caveat,
)
