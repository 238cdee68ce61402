"""The linear map of a structural probe, learned from trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bert_probe.analyses.probing.linear import standard
from bert_probe.analyses.probing.tree_paths import Tree
from bert_probe.model.forward import batches
from bert_probe.model.trace import Array

RATE = 0.1
"""Of Adam (Kingma and Ba 2015), as a share of the spread of the map's first numbers."""
SLOWER = 0.1
"""The rate falls to so much of it after an epoch that is no better."""
FALLS = 3
"""The fit ends at the last of these."""
MOST_EPOCHS = 40
STEP_WORDS = 400
"""Padded words of a step, some 20 sentences."""
STOPPING = 0.1
"""Share of the trees to learn from by which alone an epoch is judged."""

Told = Callable[[int], None]
"""Called with how many more of `MOST_EPOCHS` are done, or not needed; what it raises ends the fit."""


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """Trees side by side.

    Attributes:
        rows: [tree, word]; 0 where a tree has no more words.
        distances: [tree, word, word].
        shares: of each pair in the loss, [tree, word, word]: one over the square of the number of words.
    """

    rows: torch.Tensor
    distances: torch.Tensor
    shares: torch.Tensor


def batched(trees: Sequence[Tree]) -> list[TreeBatch]:
    """Trees of similar size together."""
    return [_batch([trees[index] for index in group]) for group in batches(_sizes(trees), STEP_WORDS)]


def _sizes(trees: Sequence[Tree]) -> list[int]:
    return [len(tree.rows) for tree in trees]


def _batch(trees: Sequence[Tree]) -> TreeBatch:
    longest = max(_sizes(trees))
    rows = torch.zeros(len(trees), longest, dtype=torch.long)
    distances = torch.zeros(len(trees), longest, longest, dtype=torch.uint8)
    shares = torch.zeros(len(trees), longest, longest)
    for place, tree in enumerate(trees):
        size = len(tree.rows)
        rows[place, :size] = torch.from_numpy(tree.rows)
        distances[place, :size, :size] = torch.from_numpy(tree.distances)
        shares[place, :size, :size] = 1 / size**2
    return TreeBatch(rows, distances, shares)


class _StandardizedSpace:
    """Standardised vectors, in which steps of one size suit every layer of every model."""

    def __init__(self, vectors: torch.Tensor) -> None:
        self.vectors = vectors
        self.mean, self.spread = standard(vectors)

    def loss(self, weights: torch.Tensor, batch: TreeBatch) -> torch.Tensor:
        """Σ |squared distance − distance in the tree| / words², summed over the trees."""
        points = (self.vectors[batch.rows] - self.mean) / self.spread @ weights.T
        squares = points.square().sum(dim=-1)
        products = points @ points.transpose(1, 2)
        apart = squares[:, :, None] + squares[:, None] - 2 * products
        return ((apart - batch.distances).abs() * batch.shares).sum()


def learned(
    vectors: torch.Tensor,
    learn: Sequence[TreeBatch],
    stop: Sequence[TreeBatch],
    rank: int,
    rng: np.random.Generator,
    told: Told = lambda _: None,
) -> Array:
    """A map B, [rank, hidden]: ‖B (h_i − h_j)‖² is about the distance of two words in their tree.

    Args:
        vectors: [row, hidden].
        learn, stop: trees to learn from, and those by which an epoch is judged.
    """
    space, hidden = _StandardizedSpace(vectors), vectors.shape[1]
    # Two words of standardised vectors are then some 4 apart.
    width = np.sqrt(2 / (rank * hidden))
    begun = torch.from_numpy(rng.normal(scale=width, size=(rank, hidden))).to(vectors.dtype)
    weights = begun.requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=float(RATE * width))
    best, least, falls = weights.detach().clone(), np.inf, 0
    for epoch in range(1, MOST_EPOCHS + 1):
        for number in rng.permutation(len(learn)):
            batch = learn[number]
            with torch.enable_grad():
                loss = space.loss(weights, batch) / len(batch.rows)
            (weights.grad,) = torch.autograd.grad(loss, weights)
            optimizer.step()
        with torch.no_grad():
            now = sum(float(space.loss(weights, batch)) for batch in stop)
        if now < least:
            best, least = weights.detach().clone(), now
        else:
            falls += 1
            optimizer.param_groups[0]["lr"] *= SLOWER
        told(1)
        if falls == FALLS:
            told(MOST_EPOCHS - epoch)
            break
    found: Array = (best / space.spread).numpy()
    return found
