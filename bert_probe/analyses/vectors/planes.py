"""Layers of vectors on planes of principal components, so that one layer can be held against the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.trace import Array, read_only

BASES: Mapping[str, str] = {
    "shared": "One plane for all layers, their mean over all layers together taken away.",
    "centred": "One plane for all layers, each layer's own mean taken away.",
    "own": "For each layer a plane of its own; places of two layers cannot be compared.",
}

_BLOCK = 4096
"""Vectors that are held in float64 at once."""


@dataclass(frozen=True, eq=False)
class Planes:
    """Points of every layer.

    Attributes:
        points: float32 [layer, vector, 2].
        explained: share of the variance of all layers together along each axis, 0 to 1; None where each layer
            has axes of its own.
        by_layer: the same of each layer's own variance, about its own mean, [layer, 2]; NaN where its vectors
            are all equal.
    """

    points: Array
    explained: tuple[float, float] | None
    by_layer: Array

    def __post_init__(self) -> None:
        layers = len(self.points)
        if self.points.ndim != 3 or self.points.shape[2] != 2 or self.by_layer.shape != (layers, 2):
            raise ShapeError(
                f"points has shape {self.points.shape}, by_layer {self.by_layer.shape}; [layer, vector, 2] "
                "and [layer, 2] are needed."
            )


def planes(states: Sequence[Array], basis: str, told: Callable[[], None] = lambda: None) -> Planes:
    """The first two principal components (Pearson 1901; Hotelling 1933) of layers of vectors.

    Sums are in float64. The sign of a component, which is arbitrary, makes its largest loading positive; a
    component without any variance is all zeros.

    Args:
        states: of each layer [vector, hidden], all of one shape.
        basis: one of `BASES`.
        told: called before each layer is gone through, twice.

    Raises:
        UnavailableError: layers that are not equally wide; vectors that are all equal, or no numbers.
    """
    if len({state.shape for state in states}) != 1 or states[0].ndim != 2:
        raise UnavailableError("This model's layers are not equally wide, so no plane holds them all.")
    means = np.stack([state.mean(axis=0, dtype=np.float64) for state in states])
    origins = np.broadcast_to(means.mean(axis=0), means.shape) if basis == "shared" else means
    total = np.zeros((states[0].shape[1],) * 2)
    axes: list[Array] = []
    spread = 0.0
    for state, origin in zip(states, origins, strict=True):
        told()
        scatter = _scatter(state, origin)
        spread += float(np.trace(scatter))
        if basis == "own":
            axes.append(_axes(scatter))
        else:
            total += scatter
    if not np.isfinite(spread):
        raise UnavailableError("A token's vector holds what is no number. Open the model in float32.")
    if not spread > 0:
        raise UnavailableError("All vectors are equal, so there is nothing to lay out. Give another text.")
    axes = axes or [_axes(total)] * len(states)
    laid = []
    by_layer = np.full((len(states), 2), np.nan)
    for layer, state in enumerate(states):
        told()
        points, own = _projected(state, means[layer], axes[layer])
        if own > 0:
            by_layer[layer] = (points**2).sum(axis=0) / own
        laid.append(points + (means[layer] - origins[layer]) @ axes[layer])
    whole = np.stack(laid)
    shares = (whole**2).sum(axis=(0, 1)) / spread
    explained = None if basis == "own" else (float(shares[0]), float(shares[1]))
    return Planes(read_only(whole.astype(np.float32)), explained, read_only(by_layer))


def _scatter(vectors: Array, origin: Array) -> Array:
    """Sum over the vectors of (v − origin)(v − origin)ᵀ, float64 [hidden, hidden]."""
    found = np.zeros((vectors.shape[1],) * 2)
    for start in range(0, len(vectors), _BLOCK):
        less = vectors[start : start + _BLOCK] - origin
        found += less.T @ less
    return found


def _axes(scatter: Array) -> Array:
    """The two directions of most variance, most first, [hidden, 2]."""
    hidden = len(scatter)
    if not np.isfinite(scatter).all():
        return np.zeros((hidden, 2))  # which `planes` refuses
    values, vectors = eigh(scatter, subset_by_index=[hidden - 2, hidden - 1])
    found: Array = vectors[:, ::-1]
    found = found * np.sign(found[np.abs(found).argmax(axis=0), [0, 1]])
    # What rounding leaves is no variance.
    found[:, values[::-1] <= hidden * np.finfo(np.float64).eps * np.trace(scatter)] = 0
    return found


def _projected(vectors: Array, mean: Array, axes: Array) -> tuple[Array, float]:
    """Places about the mean, float64 [vector, 2], and the sum of squares of all that lies about it."""
    points = np.empty((len(vectors), 2))
    squares = 0.0
    for start in range(0, len(vectors), _BLOCK):
        less = vectors[start : start + _BLOCK] - mean
        points[start : start + _BLOCK] = less @ axes
        squares += float(np.vdot(less, less))
    # Of equal vectors rounding may leave what is no difference.
    least = len(vectors) * np.finfo(np.float64).eps * float(np.vdot(mean, mean))
    return points, squares if squares > least else 0.0
