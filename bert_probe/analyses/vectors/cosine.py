"""Cosines between rows of vectors."""

from __future__ import annotations

import numpy as np

from bert_probe.errors import ShapeError
from bert_probe.model.trace import Array


def cosine(a: Array, b: Array) -> Array:
    """Cosine of every row of ``a`` [m, hidden] with every row of ``b`` [n, hidden].

    Returns:
        [m, n], -1 to 1, in float32, or float64 where the rows are; NaN where a row is all zeros, which has
        no direction.

    Raises:
        ShapeError: not two matrices with rows of one length.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ShapeError(f"Rows of one length are needed; the shapes are {a.shape} and {b.shape}.")
    # Double precision, so that a vector's cosine with itself is 1 and not 0.99999994.
    product = unit_rows(a) @ unit_rows(b).T
    bounded: Array = np.clip(product, -1.0, 1.0).astype(np.result_type(a, b, np.float32))
    return bounded


def cosine_of_rows(a: Array, b: Array) -> Array:
    """Cosine of each row of ``a`` with the same row of ``b``, both [n, hidden].

    Returns:
        float64 [n], -1 to 1; exactly 1 for equal rows, NaN where a row is all zeros.

    Raises:
        ShapeError: not two matrices of one shape.
    """
    if a.ndim != 2 or a.shape != b.shape:
        raise ShapeError(f"Two matrices of one shape are needed; the shapes are {a.shape} and {b.shape}.")
    one, other = unit_rows(a), unit_rows(b)
    product = np.clip((one * other).sum(axis=1), -1.0, 1.0)
    same: Array = np.where((one == other).all(axis=1), 1.0, product)
    return same


def unit_rows(rows: Array) -> Array:
    """Rows [n, hidden] divided by their lengths, in float64; NaN where a row is all zeros."""
    rows = rows.astype(np.float64)
    # By the largest value first, so that no square is too large or too small to be held.
    peaks = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    rows = np.divide(rows, peaks, out=np.zeros_like(rows), where=peaks > 0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Array = np.divide(rows, lengths, out=np.full_like(rows, np.nan), where=lengths > 0)
    return unit
