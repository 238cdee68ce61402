"""Attention weighted by what it carries: the norms of the value vectors behind the weights."""

from __future__ import annotations

import numpy as np

from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Array, Trace, resolve


def value_norms(checkpoint: Checkpoint, trace: Trace, layer: int) -> Array:
    """Length of what each head would carry from each token, ‖v W_O‖, float32 [head, token].

    W_O is the head's part of the layer's output projection, without its bias; Kobayashi et al. 2020,
    section 2.2. Where the architecture has no such projection it is ‖v‖, see `projects`.

    Raises:
        SelectionError: no such layer.
        UnavailableError: the architecture hides its values.
    """
    layer = resolve(layer, trace.layers, "layer")
    if trace.values is None:
        raise UnavailableError(
            f"{trace.provenance['architecture']} hides its values, so attention cannot be weighted by them."
        )
    values = trace.values[layer]
    projection = checkpoint.projections[layer]
    if projection is None:
        lengths: Array = np.linalg.norm(values, axis=-1)
        return lengths
    weight: Array = projection.weight.detach().float().cpu().numpy()
    heads, _, size = values.shape
    # [hidden, head × size] → one [size, hidden] for each head.
    parts = np.moveaxis(weight.reshape(len(weight), heads, size), 0, -1)
    carried: Array = np.linalg.norm(values @ parts, axis=-1)
    return carried


def projects(checkpoint: Checkpoint) -> bool:
    """Whether `value_norms` goes through the output projection in every layer."""
    return bool(checkpoint.projections) and None not in checkpoint.projections


def value_weighted(checkpoint: Checkpoint, trace: Trace, layer: int, head: int | None = None) -> Array:
    """‖α v W_O‖, attention times the length of what it carries: float32 [head, query, key], or of one head.

    Not a share: rows do not sum to 1. A large weight on a short vector, as often on [SEP], moves little.

    Raises:
        SelectionError: no such layer or head.
        UnavailableError: the architecture hides its values.
    """
    attention = trace.attention(layer, head)
    norms = value_norms(checkpoint, trace, layer)
    weighted: Array = attention * (norms[:, None] if head is None else norms[head])
    return weighted
