"""Trees over words: how far apart two words are, and the tree that distances imply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.spatial.distance import pdist, squareform
from scipy.stats import rankdata

from bert_probe.model.trace import Array
from bert_probe.text.tagged_sentences import ROOT

Edges = set[tuple[int, int]]
"""Pairs of words that a tree joins, the one with the smaller index first."""


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree over words, or over those of them that have vectors.

    Attributes:
        rows: of the words' vectors.
        distances: steps from word to word, uint8 [word, word].
        counted: of each word, whether it is more than punctuation.
    """

    rows: Array
    distances: Array
    counted: Array

    @property
    def edges(self) -> Edges:
        """Between words that count."""
        joined = np.triu(self.distances == 1) & self.counted & self.counted[:, None]
        return {(int(first), int(second)) for first, second in np.argwhere(joined)}

    @property
    def in_a_row(self) -> Edges:
        """Each word that counts and the next one."""
        return {*pairwise(np.flatnonzero(self.counted).tolist())}


def distances(heads: Sequence[int]) -> Array:
    """Steps from word to word along the heads, [word, word]; infinite between words of different trees.

    Args:
        heads: of each word the index of its head, from 0; `ROOT` where it has none. A word that reaches no
            root is infinitely far from all others.
    """
    count = len(heads)
    found = np.full((count, count), np.inf)
    np.fill_diagonal(found, 0)
    dependents: list[list[int]] = [[] for _ in heads]
    for word, head in enumerate(heads):
        if head != ROOT:
            dependents[head].append(word)
    reached = [word for word, head in enumerate(heads) if head == ROOT]
    for word in reached:  # which grows meanwhile
        for dependent in dependents[word]:
            found[dependent, reached] = found[reached, dependent] = found[word, reached] + 1
            reached.append(dependent)
    return found


def squared_distances(points: Array) -> Array:
    """‖p_i − p_j‖² of points [word, rank], [word, word]."""
    squares: Array = squareform(pdist(points, "sqeuclidean"))
    return squares


def spanning_tree(apart: Array, counted: Array) -> Edges:
    """The tree over the words that count whose distances have the least sum.

    Prim 1957: the word that is nearest to the tree joins it, until none is left; of equally near ones the
    first.

    Args:
        apart: [word, word].
        counted: bool [word].
    """
    left = np.flatnonzero(counted)
    if not len(left):
        return set()
    first, left = left[0], left[1:]
    nearest, by = apart[first].astype(np.float64), np.full(len(apart), first)
    edges: Edges = set()
    while len(left):
        word = left[nearest[left].argmin()]
        edges.add((int(min(word, by[word])), int(max(word, by[word]))))
        left = left[left != word]
        closer = apart[word] < nearest
        nearest[closer], by[closer] = apart[word, closer], word
    return edges


def rank_correlations(found: Array, true: Array) -> Array:
    """Spearman's of each row of two matrices, [row]; NaN where a row is constant."""
    one, other = (rankdata(rows, axis=1) - (rows.shape[1] + 1) / 2 for rows in (found, true))
    with np.errstate(invalid="ignore"):
        of_rows: Array = (one * other).sum(axis=1) / np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    return of_rows
