"""What the replays of a model's own modules share: arrays of tensors, and how far a replay may be off."""

from __future__ import annotations

import numpy as np
import torch

from bert_probe.model.forward import as_array
from bert_probe.model.trace import Array, read_only


def vectors(tensor: torch.Tensor) -> Array:
    """A tensor as a read-only array."""
    return read_only(as_array(tensor))


def off_by(replay: Array, expected: Array) -> float:
    """The largest absolute difference of two arrays."""
    return float(np.abs(replay - expected).max())


def allowed(weight: torch.Tensor, expected: Array) -> float:
    """What rounding in the model's own element type explains, for values of this size.

    A replay that is further off does something else than the model.
    """
    precision = max(1e-5, 16 * torch.finfo(weight.dtype).eps)
    return precision * max(1.0, float(np.abs(expected).max()))
