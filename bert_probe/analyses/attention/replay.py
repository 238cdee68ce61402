"""Helpers for comparing recomputed outputs with those of the model."""

from __future__ import annotations

import numpy as np
import torch

from bert_probe.model.forward import as_array
from bert_probe.model.trace import Array, read_only


def to_array(tensor: torch.Tensor) -> Array:
    """Return a tensor as a read-only array."""
    return read_only(as_array(tensor))


def largest_difference(replay: Array, expected: Array) -> float:
    """Return the largest absolute difference of two arrays."""
    return float(np.abs(replay - expected).max())


def rounding_tolerance(weight: torch.Tensor, expected: Array) -> float:
    """Return the largest difference that rounding can explain, given the expected values and the dtype.

    A larger difference means that the recomputed output does not reproduce the model's computation.
    """
    precision = max(1e-5, 16 * torch.finfo(weight.dtype).eps)
    return precision * max(1.0, float(np.abs(expected).max()))
