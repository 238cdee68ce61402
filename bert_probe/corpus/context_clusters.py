"""Compare contexts of a store with each other: project them to a plane, cluster them, and estimate the cosine
similarity of unrelated words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq

from bert_probe.analyses.vectors.cosine import cosine_of_rows, unit_rows
from bert_probe.analyses.vectors.layouts import SEED, pca
from bert_probe.corpus.inputs import VECTORS
from bert_probe.corpus.search.vector_index import LayerVectors
from bert_probe.corpus.store import Store
from bert_probe.corpus.table_files import store_errors
from bert_probe.corpus.tables import TOKENS
from bert_probe.errors import UnavailableError
from bert_probe.model.trace import Array, read_only

CLUSTER_COUNTS = range(2, 6)
"""Candidate numbers of clusters; the number with the best silhouette is used."""
MIN_CONTEXTS = 8
"""Minimum number of distinct vectors for clustering; fewer vectors form a single cluster."""

PAIRS = 2_000
"""Number of random word pairs from which `unrelated_cosines` estimates its statistics."""
_MAX_SHARDS = 8
"""Maximum number of shards from which pairs are sampled, so that a large store is not read completely."""


@dataclass(frozen=True, eq=False)
class ContextClusters:
    """Contexts projected to a plane, and grouped into clusters.

    Attributes:
        points: first two principal components of each context, float32 of shape [context, 2]; all 0 if all
            vectors are equal.
        explained: share of variance explained by each component, 0 to 1.
        groups: cluster index of each context; cluster 0 is the largest.
        silhouette: mean silhouette coefficient, -1 to 1 (Rousseeuw 1987); NaN for a single cluster.
    """

    points: Array
    explained: tuple[float, float]
    groups: Array
    silhouette: float

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return int(self.points.nbytes + self.groups.nbytes)


def around(store: Store, layer: int, places: tuple[tuple[int, int], ...]) -> ContextClusters:
    """Project the vectors of some contexts to a plane, and cluster them.

    Args:
        store: a store with vectors.
        layer: layer of the vectors; 0 is the output of the embeddings.
        places: (row, position) of each context, both from 1.

    Raises:
        UnavailableError: the store has no vectors.
    """
    vectors = LayerVectors(store.files(VECTORS), layer)
    with store_errors(store.folder.name):
        units = unit_rows(vectors.take(_indices(vectors, places))[2])
    clusters, silhouette = _cluster(units)
    try:
        plane = pca(units)
    except UnavailableError:  # one context or equal vectors have no principal components
        points = read_only(np.zeros((len(units), 2), np.float32))
        return ContextClusters(points, (0.0, 0.0), clusters, silhouette)
    return ContextClusters(plane.points, plane.explained or (0.0, 0.0), clusters, silhouette)


def _indices(vectors: LayerVectors, contexts: Sequence[tuple[int, int]] | Array) -> Array:
    """Return the index of each context's vector; contexts are (row, position) pairs, both from 1."""
    pairs = np.array(contexts, np.int64).reshape(-1, 2)
    indices = np.empty(len(pairs), np.int64)
    first = 0
    for batch in vectors.batches:
        inside = np.flatnonzero((pairs[:, 0] >= batch.rows[0]) & (pairs[:, 0] <= batch.rows[-1]))
        indices[inside] = first + np.searchsorted(batch.rows, pairs[inside, 0]) + pairs[inside, 1] - 1
        first += len(batch.rows)
    return indices


def _cluster(units: Array) -> tuple[Array, float]:
    """Cluster unit vectors by k-means, with the number of clusters that has the best silhouette.

    Returns:
        The cluster index of each vector, and the mean silhouette coefficient; NaN for a single cluster.
    """
    if len(np.unique(units, axis=0)) < MIN_CONTEXTS:
        return read_only(np.zeros(len(units), np.int64)), float("nan")
    from sklearn.cluster import KMeans  # imported here because it takes a second
    from sklearn.metrics import silhouette_score

    best_labels, best_silhouette = np.zeros(len(units), np.int64), -1.0
    for count in CLUSTER_COUNTS:
        labels = KMeans(count, n_init=10, random_state=SEED).fit_predict(units)
        silhouette = float(silhouette_score(units, labels))
        if silhouette > best_silhouette:
            best_labels, best_silhouette = labels, silhouette
    by_size = np.argsort(-np.bincount(best_labels), kind="stable")
    return read_only(np.argsort(by_size)[best_labels]), best_silhouette


@dataclass(frozen=True)
class UnrelatedCosines:
    """Cosine similarities of random pairs of words from different rows.

    Attributes:
        mean: mean over all pairs.
        high: 95th percentile over all pairs.
        pairs: number of pairs.
    """

    mean: float
    high: float
    pairs: int
    nbytes: int = 64


def unrelated_cosines(store: Store, layer: int) -> UnrelatedCosines | None:
    """Estimate the cosine similarity of unrelated words from random pairs of words in different rows.

    The random seed is fixed. Special tokens are left out.

    Args:
        store: a store with vectors.
        layer: layer of the vectors; 0 is the output of the embeddings.

    Returns:
        The estimate, or None if the store has too few words.

    Raises:
        UnavailableError: the store has no vectors.
    """
    vectors = LayerVectors(store.files(VECTORS), layer)
    generator = np.random.default_rng(SEED)
    files = store.files(TOKENS)
    shards = np.unique(np.linspace(0, len(files) - 1, min(_MAX_SHARDS, len(files))).round().astype(int))
    with store_errors(store.folder.name):
        words = np.concatenate([np.empty((0, 2), np.int64), *(_words(store, shard) for shard in shards)])
    if not len(words):
        return None
    pairs = generator.integers(0, len(words), (PAIRS, 2))
    pairs = pairs[words[pairs[:, 0], 0] != words[pairs[:, 1], 0]]
    if not len(pairs):
        return None
    with store_errors(store.folder.name):
        first, second = (vectors.take(_indices(vectors, words[side]))[2] for side in pairs.T)
    cosines = cosine_of_rows(first, second)
    cosines = cosines[np.isfinite(cosines)]
    return UnrelatedCosines(float(cosines.mean()), float(np.quantile(cosines, 0.95)), len(cosines))


def _words(store: Store, shard: int) -> Array:
    """Return the row and position of each token of a shard, without special tokens; shape [token, 2]."""
    table = pq.read_table(
        store.files(TOKENS)[shard], columns=["row", "position", "special"], partitioning=None
    )
    is_word = ~table["special"].to_numpy()
    words: Array = np.stack([table[name].to_numpy()[is_word] for name in ("row", "position")], axis=1)
    return words.astype(np.int64, casting="safe")
