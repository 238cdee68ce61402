"""A linear probe: multinomial logistic regression, fitted quickly to many vectors.

The loss is that of scikit-learn's LogisticRegression, Σ −log p(class) + ½ · penalty · |weights|², but the
intercept is penalized too, so that classes without examples keep a positive probability.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from bert_probe.model.trace import Array

PENALTY = 1.0
"""L2 penalty on standardized vectors, the inverse of C in scikit-learn."""
TOLERANCE = 2e-5
"""The fit ends when an iteration lowers the mean loss by less than this many nats."""
MAX_ITERATIONS = 200
CACHE_LINE_FLOATS = 16
"""Number of float32 values in a cache line."""
MIN_RELATIVE_SPREAD = 1e-7
"""Dimensions with a standard deviation below this fraction of the largest are treated as constant."""

BLOCKS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Shares of the data after which the online code fits a new probe; Voita and Titov 2020, section 2.2."""

OnStep = Callable[[], None]


@dataclass(frozen=True, eq=False)
class ProbeSpace:
    """A coordinate system in which probes of the same vectors converge quickly for any labels.

    Standardized vectors are rotated to their principal axes, and each axis is scaled so that the curvature of
    the loss is about 1. The penalty remains that of the standardized vectors.

    Attributes:
        mean: mean of the vectors, [hidden].
        turn: transformation matrix, [hidden, hidden]; the coordinates of a vector are (vector − mean) @ turn,
            followed by a 1 for the intercept.
        penalties: penalty on the squared weights of each coordinate, [hidden + 1].
    """

    mean: torch.Tensor
    turn: torch.Tensor
    penalties: torch.Tensor

    @classmethod
    def of(cls, vectors: torch.Tensor, classes: int, penalty: float = PENALTY) -> ProbeSpace:
        """Return the coordinate system for vectors of shape [row, hidden]."""
        mean, spread = standardization(vectors)
        centered = vectors - mean
        covariance = (centered.T @ centered).double() / len(vectors) / torch.outer(spread, spread)
        variances, directions = torch.linalg.eigh(covariance)
        # Add the curvature of the loss for equally probable classes and the curvature of the penalty.
        curvature = variances.clamp(min=0) / classes + penalty / len(vectors)
        turn = directions / curvature.sqrt() / spread[:, None]
        penalties = penalty * torch.cat([1 / curvature, torch.ones(1, dtype=curvature.dtype)])
        return cls(mean, turn.to(vectors.dtype), penalties)

    def within(self, vectors: torch.Tensor) -> torch.Tensor:
        """Convert vectors to these coordinates; the result has shape [row, hidden + 1]."""
        width = vectors.shape[1] + 1
        # Matrix products take 25 % less time if rows are aligned to cache lines.
        coordinates = vectors.new_ones(len(vectors), -(-width // CACHE_LINE_FLOATS) * CACHE_LINE_FLOATS)[
            :, :width
        ]
        torch.matmul(vectors - self.mean, self.turn, out=coordinates[:, :-1])
        return coordinates


def standardization(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each dimension's mean and standard deviation, which is infinite for constant dimensions."""
    mean = vectors.mean(dim=0)
    spread = (vectors - mean).std(dim=0, correction=0)
    # Do not scale up the rounding errors of constant dimensions.
    return mean, torch.where(spread > MIN_RELATIVE_SPREAD * spread.max(), spread, torch.inf)


def fit(
    rows: torch.Tensor,
    classes: torch.Tensor,
    start: Array,
    penalties: torch.Tensor,
    on_step: OnStep = lambda: None,
    tolerance: float = TOLERANCE,
) -> Array:
    """Fit a probe and return the weights with the lowest loss, float64 of shape [coordinate, class].

    Args:
        rows: vectors in a `ProbeSpace`, [row, coordinate].
        classes: class index of each row, from 0.
        start: initial weights, such as those of a fit to fewer rows.
        on_step: called after each iteration; an exception that it raises ends the fit.
    """
    targets = (torch.arange(len(rows)), classes)

    def loss(flat: Array) -> tuple[float, Array]:
        weights = torch.from_numpy(flat.reshape(start.shape))
        logs = torch.log_softmax(rows @ weights.to(rows.dtype), dim=1)
        cross_entropy = -logs[targets].double().mean()
        residuals = logs.exp_()
        residuals[targets] -= 1
        gradient = (rows.T @ residuals).double() / len(rows)
        penalty_gradient = penalties[:, None] * weights / len(rows)
        value = float(cross_entropy + 0.5 * (penalty_gradient * weights).sum())
        return value, (gradient + penalty_gradient).numpy().ravel()

    options = {
        "maxiter": MAX_ITERATIONS,
        "maxfun": 2 * MAX_ITERATIONS,
        "ftol": tolerance,
        "gtol": tolerance / 10,
    }
    # SciPy's BLAS threads busy-wait, which would slow down the threads of torch.
    with threadpool_limits(1, user_api="blas"):
        result: Any = minimize(
            loss,
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            callback=lambda _: on_step(),
            options=options,
        )
    weights: Array = result.x.reshape(start.shape)
    return weights


def log_probabilities(rows: torch.Tensor, weights: Array) -> torch.Tensor:
    """Return the log probability of each class in nats, of shape [row, class]."""
    return torch.log_softmax(rows @ torch.from_numpy(weights).to(rows.dtype), dim=1)


@dataclass(frozen=True, eq=False)
class LinearFit:
    """A probe fitted to all rows, and the length of the online code for their classes.

    Attributes:
        weights: weights of the probe, [coordinate, class].
        bits: length of the online code in bits: the first block is coded uniformly, each later block with the
            probe that is fitted to all blocks before it.
    """

    weights: Array
    bits: float


def fit_online(
    rows: torch.Tensor, classes: torch.Tensor, count: int, space: ProbeSpace, on_step: OnStep
) -> LinearFit:
    """Fit probes to the shares of the rows in `BLOCKS`; return the probe of all rows and the code length."""
    ends = sorted({max(1, round(share * len(rows))) for share in BLOCKS})
    bits = ends[0] * np.log2(count)
    weights = np.zeros((rows.shape[1], count))
    for end, next_end in zip(ends, [*ends[1:], None], strict=True):
        weights = fit(rows[:end], classes[:end], weights, space.penalties, on_step)
        if next_end is not None:
            logs = log_probabilities(rows[end:next_end], weights)
            bits -= float(logs.gather(1, classes[end:next_end, None]).double().sum()) / np.log(2)
    return LinearFit(weights, bits)
