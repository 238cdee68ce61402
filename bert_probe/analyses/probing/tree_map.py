"""Trees over words, and the training of a structural probe's linear map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy.spatial.distance import pdist, squareform
from scipy.stats import rankdata

from bert_probe.analyses.probing.linear import standardization
from bert_probe.model.forward import group_by_length
from bert_probe.model.trace import Array
from bert_probe.text.tagged_sentences import ROOT

LEARNING_RATE = 0.1
"""Learning rate of Adam (Kingma and Ba 2015), relative to the standard deviation of the initial map."""
DECAY = 0.1
"""Factor of the learning rate after an epoch without improvement."""
MAX_DECAYS = 3
"""Training ends after this many decays."""
MAX_EPOCHS = 40
STEP_WORDS = 400
"""Maximum number of words per step with padding, about 20 sentences."""
VALIDATION_SHARE = 0.1
"""Share of the training trees used only for early stopping."""

OnEpoch = Callable[[int], None]
"""Called with the number of epochs of `MAX_EPOCHS` that were done or are not needed; an exception ends
the training.
"""


@dataclass(frozen=True, eq=False)
class TreeBatch:
    """A batch of trees, padded.

    Attributes:
        rows: vector indices, [tree, word]; 0 for padding.
        distances: [tree, word, word].
        shares: weight of each pair in the loss, [tree, word, word]: 1 / words²; 0 for padding.
    """

    rows: torch.Tensor
    distances: torch.Tensor
    shares: torch.Tensor


def batch_trees(trees: Sequence[Tree]) -> list[TreeBatch]:
    """Return batches of trees of similar size."""
    return [_batch([trees[index] for index in group]) for group in group_by_length(_sizes(trees), STEP_WORDS)]


def _sizes(trees: Sequence[Tree]) -> list[int]:
    return [len(tree.rows) for tree in trees]


def _batch(trees: Sequence[Tree]) -> TreeBatch:
    longest = max(_sizes(trees))
    rows = torch.zeros(len(trees), longest, dtype=torch.long)
    distances = torch.zeros(len(trees), longest, longest, dtype=torch.uint8)
    shares = torch.zeros(len(trees), longest, longest)
    for index, tree in enumerate(trees):
        size = len(tree.rows)
        rows[index, :size] = torch.from_numpy(tree.rows)
        distances[index, :size, :size] = torch.from_numpy(tree.distances)
        shares[index, :size, :size] = 1 / size**2
    return TreeBatch(rows, distances, shares)


class _StandardizedSpace:
    """Standardized vectors, for which one learning rate suits every layer and model."""

    def __init__(self, vectors: torch.Tensor) -> None:
        self.vectors = vectors
        self.mean, self.spread = standardization(vectors)

    def loss(self, weights: torch.Tensor, batch: TreeBatch) -> torch.Tensor:
        """Return Σ |predicted squared distance − tree distance| / words², summed over the trees."""
        points = (self.vectors[batch.rows] - self.mean) / self.spread @ weights.T
        squares = points.square().sum(dim=-1)
        products = points @ points.transpose(1, 2)
        predicted = squares[:, :, None] + squares[:, None] - 2 * products
        return ((predicted - batch.distances).abs() * batch.shares).sum()


def train_map(
    vectors: torch.Tensor,
    training: Sequence[TreeBatch],
    validation: Sequence[TreeBatch],
    rank: int,
    rng: np.random.Generator,
    on_epoch: OnEpoch = lambda _: None,
) -> Array:
    """Train a map B, [rank, hidden], so that ‖B (h_i − h_j)‖² approximates distances in trees.

    Args:
        vectors: [row, hidden].
        training: trees to train on.
        validation: trees for early stopping.
        on_epoch: called after each epoch.
    """
    space, hidden = _StandardizedSpace(vectors), vectors.shape[1]
    # With this width, two words with standardized vectors have an expected squared distance of 4.
    width = np.sqrt(2 / (rank * hidden))
    initial = torch.from_numpy(rng.normal(scale=width, size=(rank, hidden))).to(vectors.dtype)
    weights = initial.requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=float(LEARNING_RATE * width))
    best, lowest_loss, decays = weights.detach().clone(), np.inf, 0
    for epoch in range(1, MAX_EPOCHS + 1):
        for index in rng.permutation(len(training)):
            batch = training[index]
            with torch.enable_grad():
                loss = space.loss(weights, batch) / len(batch.rows)
            (weights.grad,) = torch.autograd.grad(loss, weights)
            optimizer.step()
        with torch.no_grad():
            validation_loss = sum(float(space.loss(weights, batch)) for batch in validation)
        if validation_loss < lowest_loss:
            best, lowest_loss = weights.detach().clone(), validation_loss
        else:
            decays += 1
            optimizer.param_groups[0]["lr"] *= DECAY
        on_epoch(1)
        if decays == MAX_DECAYS:
            on_epoch(MAX_EPOCHS - epoch)
            break
    trained: Array = (best / space.spread).numpy()
    return trained


Edges = set[tuple[int, int]]
"""Pairs of joined words, the smaller index first."""


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree over words, or over those with vectors.

    Attributes:
        rows: vector index of each word.
        distances: number of steps between words, uint8 [word, word].
        counted: whether each word is not punctuation, bool [word].
    """

    rows: Array
    distances: Array
    counted: Array

    @property
    def edges(self) -> Edges:
        """Edges between words other than punctuation."""
        joined = np.triu(self.distances == 1) & self.counted & self.counted[:, None]
        return {(int(first), int(second)) for first, second in np.argwhere(joined)}

    @property
    def in_a_row(self) -> Edges:
        """Pairs of consecutive words other than punctuation."""
        return {*pairwise(np.flatnonzero(self.counted).tolist())}


def distances(heads: Sequence[int]) -> Array:
    """Return the number of steps between words along the heads, [word, word]; infinite between different
    trees.

    Args:
        heads: head index of each word, from 0; `ROOT` for roots. Words that reach no root are infinitely far
            from all others.
    """
    count = len(heads)
    steps = np.full((count, count), np.inf)
    np.fill_diagonal(steps, 0)
    dependents: list[list[int]] = [[] for _ in heads]
    for word, head in enumerate(heads):
        if head != ROOT:
            dependents[head].append(word)
    reached = [word for word, head in enumerate(heads) if head == ROOT]
    for word in reached:  # grows during the loop
        for dependent in dependents[word]:
            steps[dependent, reached] = steps[reached, dependent] = steps[word, reached] + 1
            reached.append(dependent)
    return steps


def squared_distances(points: Array) -> Array:
    """Return ‖p_i − p_j‖², [word, word], of points [word, rank]."""
    squares: Array = squareform(pdist(points, "sqeuclidean"))
    return squares


def spanning_tree(distance_matrix: Array, counted: Array) -> Edges:
    """Return the minimum spanning tree over words other than punctuation.

    Prim 1957: the nearest word joins the tree until none is left; of equally near words the first.

    Args:
        distance_matrix: distances, [word, word].
        counted: bool [word].
    """
    remaining = np.flatnonzero(counted)
    if not len(remaining):
        return set()
    first, remaining = remaining[0], remaining[1:]
    nearest, neighbor = distance_matrix[first].astype(np.float64), np.full(len(distance_matrix), first)
    edges: Edges = set()
    while len(remaining):
        word = remaining[nearest[remaining].argmin()]
        edges.add((int(min(word, neighbor[word])), int(max(word, neighbor[word]))))
        remaining = remaining[remaining != word]
        closer = distance_matrix[word] < nearest
        nearest[closer], neighbor[closer] = distance_matrix[word, closer], word
    return edges


def rank_correlations(predicted: Array, true: Array) -> Array:
    """Return Spearman's correlation of each row of two matrices, [row]; NaN if a row is constant."""
    ranks_a, ranks_b = (rankdata(rows, axis=1) - (rows.shape[1] + 1) / 2 for rows in (predicted, true))
    with np.errstate(invalid="ignore"):
        correlations: Array = (ranks_a * ranks_b).sum(axis=1) / np.sqrt(
            (ranks_a**2).sum(axis=1) * (ranks_b**2).sum(axis=1)
        )
    return correlations
