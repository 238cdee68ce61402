"""A linear probe: multinomial logistic regression, fitted quickly to many vectors.

The loss is that of scikit-learn's LogisticRegression, with the constant penalised as well, so that no class
is ever impossible: Σ −log p(class) + ½ · penalty · |weights|².
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
"""On standardised vectors; what scikit-learn calls C is one over it."""
TOLERANCE = 2e-5
"""The fit ends when a step lowers the mean loss by less, in nats."""
MOST_STEPS = 200
ALIGNED = 16
"""Numbers of four bytes in a line of the processor's cache."""
FAINT = 1e-7
"""A dimension that varies by no more, as a share of the one that varies most, is taken to be constant."""

BLOCKS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Shares of the data after which the online code learns anew; Voita and Titov 2020, section 2.2."""

Told = Callable[[], None]


@dataclass(frozen=True, eq=False)
class ProbeSpace:
    """Coordinates in which a fit is short, for any classes of the same vectors.

    Standardised vectors are turned to the directions in which they vary, and these divided by how far: then
    the loss is about as steep in each. The penalty stays that of the standardised vectors.

    Attributes:
        mean: of the vectors, [hidden].
        turn: [hidden, hidden]; a vector is (vector − mean) @ turn, and a 1 for the constant.
        penalties: of a squared weight in each coordinate, [hidden + 1].
    """

    mean: torch.Tensor
    turn: torch.Tensor
    penalties: torch.Tensor

    @classmethod
    def of(cls, vectors: torch.Tensor, classes: int, penalty: float = PENALTY) -> ProbeSpace:
        """Made for vectors [row, hidden]."""
        mean, spread = standard(vectors)
        centred = vectors - mean
        covariance = (centred.T @ centred).double() / len(vectors) / torch.outer(spread, spread)
        variances, directions = torch.linalg.eigh(covariance)
        # The curvature of the loss where all classes are equally likely, and of the penalty.
        steep = variances.clamp(min=0) / classes + penalty / len(vectors)
        turn = directions / steep.sqrt() / spread[:, None]
        penalties = penalty * torch.cat([1 / steep, torch.ones(1, dtype=steep.dtype)])
        return cls(mean, turn.to(vectors.dtype), penalties)

    def within(self, vectors: torch.Tensor) -> torch.Tensor:
        """Vectors in these coordinates, [row, hidden + 1]."""
        width = vectors.shape[1] + 1
        # Where rows begin on a line of the cache, products with them take three quarters of the time.
        found = vectors.new_ones(len(vectors), -(-width // ALIGNED) * ALIGNED)[:, :width]
        torch.matmul(vectors - self.mean, self.turn, out=found[:, :-1])
        return found


def standard(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and spread of each dimension; of one that is constant the spread is infinite."""
    mean = vectors.mean(dim=0)
    spread = (vectors - mean).std(dim=0, correction=0)
    # A dimension that is dead but for rounding is none to be stretched.
    return mean, torch.where(spread > FAINT * spread.max(), spread, torch.inf)


def fit(
    rows: torch.Tensor,
    classes: torch.Tensor,
    start: Array,
    penalties: torch.Tensor,
    told: Told = lambda: None,
    tolerance: float = TOLERANCE,
) -> Array:
    """The weights of least loss, float64 [coordinate, class].

    Args:
        rows: vectors in a `ProbeSpace`, [row, coordinate].
        classes: of each row, from 0.
        start: weights to begin with, such as those for fewer rows.
        told: called at each step; what it raises ends the fit.
    """
    places = (torch.arange(len(rows)), classes)

    def loss(flat: Array) -> tuple[float, Array]:
        weights = torch.from_numpy(flat.reshape(start.shape))
        logs = torch.log_softmax(rows @ weights.to(rows.dtype), dim=1)
        wrong = -logs[places].double().mean()
        slopes = logs.exp_()
        slopes[places] -= 1
        slope = (rows.T @ slopes).double() / len(rows)
        held = penalties[:, None] * weights / len(rows)
        value = float(wrong + 0.5 * (held * weights).sum())
        return value, (slope + held).numpy().ravel()

    options = {"maxiter": MOST_STEPS, "maxfun": 2 * MOST_STEPS, "ftol": tolerance, "gtol": tolerance / 10}
    # SciPy's own threads keep the processors busy while they wait, and torch's from their work.
    with threadpool_limits(1, user_api="blas"):
        done: Any = minimize(
            loss,
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            callback=lambda _: told(),
            options=options,
        )
    weights: Array = done.x.reshape(start.shape)
    return weights


def log_probabilities(rows: torch.Tensor, weights: Array) -> torch.Tensor:
    """Of each class, in nats, [row, class]."""
    return torch.log_softmax(rows @ torch.from_numpy(weights).to(rows.dtype), dim=1)


@dataclass(frozen=True, eq=False)
class LinearFit:
    """What was learned of all rows, and how many bits it took to tell their classes one block after another.

    Attributes:
        weights: [coordinate, class].
        bits: the online code's length; each block by the probe of those before it, the first one uniformly.
    """

    weights: Array
    bits: float


def learn(rows: torch.Tensor, classes: torch.Tensor, count: int, space: ProbeSpace, told: Told) -> LinearFit:
    """Fit a probe to more and more of the rows, in their order, and at last to all."""
    ends = sorted({max(1, round(share * len(rows))) for share in BLOCKS})
    bits = ends[0] * np.log2(count)
    weights = np.zeros((rows.shape[1], count))
    for end, after in zip(ends, [*ends[1:], None], strict=True):
        weights = fit(rows[:end], classes[:end], weights, space.penalties, told)
        if after is not None:
            logs = log_probabilities(rows[end:after], weights)
            bits -= float(logs.gather(1, classes[end:after, None]).double().sum()) / np.log(2)
    return LinearFit(weights, bits)
