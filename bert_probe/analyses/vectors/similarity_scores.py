"""Similarity scores of pairs of vectors, as defined by sentence-transformers."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial.distance import cdist

from bert_probe.analyses.vectors.similarity import cosine, cosine_of_rows
from bert_probe.model.trace import Array

_BLOCK_NUMBERS = 1_000_000
"""Maximum number of values of a matrix that are converted to float64 at once."""


def score(a: Array, b: Array, similarity: str) -> float:
    """Return the score of two vectors, see `scores`; NaN if it is the cosine and a vector is zero."""
    if similarity == "cosine":
        return float(cosine_of_rows(a[None], b[None])[0])  # this function returns exactly 1 for equal vectors
    return float(scores(a[None], b[None], similarity)[0, 0])


def differentiable_scores(a: torch.Tensor, b: torch.Tensor, similarity: str) -> torch.Tensor:
    """Return the score of each row of ``a`` and the corresponding row of ``b``, see `scores`."""
    if similarity == "cosine":
        return torch.nn.functional.cosine_similarity(a, b, dim=-1)
    if similarity == "dot":
        return (a * b).sum(dim=-1)
    distances: torch.Tensor = torch.linalg.vector_norm(
        a - b, ord=2 if similarity == "euclidean" else 1, dim=-1
    )
    return -distances


def scores(a: Array, b: Array, similarity: str) -> Array:
    """Return the score of each row of ``a`` [m, size] and each row of ``b`` [n, size].

    The scores equal those of sentence-transformers. Distances are negated, so that a larger score always
    means more similar.

    Args:
        similarity: a name in `SIMILARITIES`.

    Returns:
        Scores of shape [m, n], float32, or float64 for float64 rows.
    """
    if similarity == "cosine":
        return cosine(a, b)
    first, second = a.astype(np.float64), b.astype(np.float64)
    if similarity == "dot":
        values = first @ second.T
    else:
        values = -cdist(first, second, {"euclidean": "euclidean", "manhattan": "cityblock"}[similarity])
    compared: Array = values.astype(np.result_type(a, b, np.float32))
    return compared


def scores_of_rows(a: Array, b: Array, similarity: str) -> Array:
    """Return the score of each row of ``a`` [m, size] and the same row of ``b``, of shape [m], float64.

    The score of a vector of zeros is NaN if the similarity is the cosine.

    Args:
        similarity: a name in `SIMILARITIES`.
    """
    values = np.empty(len(a), np.float64)
    size = max(1, _BLOCK_NUMBERS // max(1, a.shape[-1]))
    for start in range(0, len(a), size):
        rows = slice(start, start + size)
        values[rows] = _scores_of_block(a[rows].astype(np.float64), b[rows].astype(np.float64), similarity)
    return values


def _scores_of_block(first: Array, second: Array, similarity: str) -> Array:
    if similarity == "cosine":
        return cosine_of_rows(first, second)
    values: Array
    if similarity == "dot":
        values = (first * second).sum(axis=1)
    else:
        values = -np.linalg.norm(first - second, ord={"euclidean": 2, "manhattan": 1}[similarity], axis=1)
    return values
