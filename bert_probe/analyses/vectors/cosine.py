"""Cosine similarity between the rows of two matrices."""

from __future__ import annotations

import numpy as np

from bert_probe.errors import ShapeError
from bert_probe.model.trace import Array


def cosine(a: Array, b: Array) -> Array:
    """Return the cosine similarity of every row of ``a`` [m, hidden] and every row of ``b`` [n, hidden].

    Returns:
        Cosines from -1 to 1 of shape [m, n], float32, or float64 for float64 rows; NaN for rows of zeros.

    Raises:
        ShapeError: the arguments are not matrices with rows of the same length.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ShapeError(
            f"The shapes are {a.shape} and {b.shape}, but must be two matrices with rows of the same length."
        )
    # Double precision, so that a vector's cosine similarity to itself is 1 and not 0.99999994.
    product = unit_rows(a) @ unit_rows(b).T
    bounded: Array = np.clip(product, -1.0, 1.0).astype(np.result_type(a, b, np.float32))
    return bounded


def cosine_of_rows(a: Array, b: Array) -> Array:
    """Return the cosine similarity of each row of ``a`` and the corresponding row of ``b``, both [n, hidden].

    Returns:
        Cosines from -1 to 1 of shape [n], float64; exactly 1 for equal rows, NaN for rows of zeros.

    Raises:
        ShapeError: the arguments are not two matrices of the same shape.
    """
    if a.ndim != 2 or a.shape != b.shape:
        raise ShapeError(
            f"The shapes are {a.shape} and {b.shape}, but must be two matrices of the same shape."
        )
    a, b = unit_rows(a), unit_rows(b)
    product = np.clip((a * b).sum(axis=1), -1.0, 1.0)
    cosines: Array = np.where((a == b).all(axis=1), 1.0, product)
    return cosines


def unit_rows(rows: Array) -> Array:
    """Divide each row of a matrix by its Euclidean norm, in float64; rows of zeros become NaN."""
    rows = rows.astype(np.float64)
    # Dividing by the largest value first avoids overflow and underflow of the squares.
    peaks = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    rows = np.divide(rows, peaks, out=np.zeros_like(rows), where=peaks > 0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Array = np.divide(rows, lengths, out=np.full_like(rows, np.nan), where=lengths > 0)
    return unit
