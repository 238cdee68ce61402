"""Contexts of a store among each other: where they lie on a plane, which of them go together, and how alike
words are that have nothing to do with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_probe.analyses.vectors.cosine import cosine_of_rows, unit_rows
from bert_probe.analyses.vectors.layouts import SEED, pca
from bert_probe.corpus.ingest import VECTORS
from bert_probe.corpus.search.neighbors import LayerVectors
from bert_probe.corpus.store import Store
from bert_probe.corpus.table_files import reading
from bert_probe.corpus.tables import TOKENS
from bert_probe.errors import UnavailableError
from bert_probe.model.trace import Array, read_only

GROUPS = range(2, 6)
"""Numbers of groups that are tried."""
LEAST = 8
"""Contexts that may fall into groups."""

PAIRS = 2_000
"""Of words drawn at random."""
_SHARDS = 8
"""That these are drawn from, so that a large store is not read for it."""


@dataclass(frozen=True, eq=False)
class ContextClusters:
    """Contexts among each other.

    Attributes:
        points: on the first two principal components, float32 [context, 2]; all at 0 where vectors are equal.
        explained: share of the variance along each.
        groups: of each context the number of its group, from 0, the largest one first; [context].
        silhouette: how well the groups are parted, -1 to 1 (Rousseeuw 1987); NaN of a single group.
    """

    points: Array
    explained: tuple[float, float]
    groups: Array
    silhouette: float

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return int(self.points.nbytes + self.groups.nbytes)


def around(store: Store, layer: int, places: tuple[tuple[int, int], ...]) -> ContextClusters:
    """Lay contexts out and group them.

    Args:
        layer: of the vectors, from 0, which is the output of the embeddings.
        places: row and position of each context, from 1.

    Raises:
        UnavailableError: a store without vectors.
    """
    vectors = LayerVectors(store.files(VECTORS), layer)
    with reading(store.folder.name):
        found = unit_rows(vectors.take(_found(vectors, places))[2])
    groups, silhouette = _grouped(found)
    try:
        plane = pca(found)
    except UnavailableError:  # one context, or one vector in all of them
        return ContextClusters(
            read_only(np.zeros((len(found), 2), np.float32)), (0.0, 0.0), groups, silhouette
        )
    return ContextClusters(plane.points, plane.explained or (0.0, 0.0), groups, silhouette)


def _found(vectors: LayerVectors, places: Sequence[tuple[int, int]]) -> Array:
    """Where the vectors of rows and positions lie, from 0: those of a row stand together, in their order."""
    wanted = np.array(places, np.int64).reshape(-1, 2)
    found = np.empty(len(wanted), np.int64)
    first = 0
    for part in vectors.parts:
        here = np.flatnonzero((wanted[:, 0] >= part.rows[0]) & (wanted[:, 0] <= part.rows[-1]))
        found[here] = first + np.searchsorted(part.rows, wanted[here, 0]) + wanted[here, 1] - 1
        first += len(part.rows)
    return found


def _grouped(units: Array) -> tuple[Array, float]:
    """The number of groups that are parted best, by k-means of directions with a fixed seed."""
    different = len(np.unique(units, axis=0))
    if different < LEAST:
        return read_only(np.zeros(len(units), np.int64)), float("nan")
    from sklearn.cluster import KMeans  # a second, which only this function should cost
    from sklearn.metrics import silhouette_score

    best, parted = np.zeros(len(units), np.int64), -1.0
    for count in GROUPS:
        labels = KMeans(count, n_init=10, random_state=SEED).fit_predict(units)
        score = float(silhouette_score(units, labels))
        if score > parted:
            best, parted = labels, score
    order = np.argsort(-np.bincount(best), kind="stable")
    return read_only(np.argsort(order)[best]), parted


@dataclass(frozen=True)
class UnrelatedCosines:
    """Cosines of words drawn at random from rows of a store.

    Attributes:
        mean: of all pairs.
        high: what one pair in twenty reaches.
        pairs: how many.
    """

    mean: float
    high: float
    pairs: int
    nbytes: int = 64


def unrelated(store: Store, layer: int) -> UnrelatedCosines | None:
    """What two words reach that have nothing to do with each other; None of a store with too few words.

    Drawn with a fixed seed, without special tokens; the two of a pair come from different rows.
    """
    vectors = LayerVectors(store.files(VECTORS), layer)
    drawn = np.random.default_rng(SEED)
    files = store.files(TOKENS)
    chosen = np.unique(np.linspace(0, len(files) - 1, min(_SHARDS, len(files))).round().astype(int))
    with reading(store.folder.name):
        words = [_words(store, number) for number in chosen]
        every = np.concatenate(words) if words else np.empty((0, 2), np.int64)
    if not len(every):
        return None
    pairs = drawn.integers(0, len(every), (PAIRS, 2))
    pairs = pairs[every[pairs[:, 0], 0] != every[pairs[:, 1], 0]]
    if not len(pairs):
        return None
    with reading(store.folder.name):
        one, other = (vectors.take(_found(vectors, every[side]))[2] for side in pairs.T)
    cosines = cosine_of_rows(one, other)
    cosines = cosines[np.isfinite(cosines)]
    return UnrelatedCosines(float(cosines.mean()), float(np.quantile(cosines, 0.95)), len(cosines))


def _words(store: Store, shard: int) -> Array:
    """Row and position of all words of a shard, [word, 2]."""
    import pyarrow.parquet as pq

    table = pq.read_table(
        store.files(TOKENS)[shard], columns=["row", "position", "special"], partitioning=None
    )
    ordinary = ~table["special"].to_numpy()
    found: Array = np.stack([table[name].to_numpy()[ordinary] for name in ("row", "position")], axis=1)
    return found.astype(np.int64, casting="safe")
