"""Choose the search method of a store: exact, or with an index if there are too many vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from bert_probe.corpus.ingest import VECTORS
from bert_probe.corpus.search.neighbors import ExactSearch, Hits, LayerVectors
from bert_probe.corpus.search.vector_index import RECALL_COUNT, VectorIndex
from bert_probe.corpus.search.word_matches import WordLookup
from bert_probe.corpus.store import Store
from bert_probe.errors import UnavailableError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array

EXACT_UP_TO = 1_000_000
"""Maximum number of vectors for an exact search, which takes a tenth of a second on two cores."""

FOLDER = "index"
"""Folder of the indexes within a store. It can be deleted; indexes are rebuilt when needed."""


class LayerSearch:
    """A prepared search over the vectors of a layer.

    Attributes:
        metadata: method, number of vectors, and the measured recall of an index.
    """

    def __init__(self, vectors: LayerVectors, index: VectorIndex | None) -> None:
        self._vectors, self._index = vectors, index
        self.metadata: Mapping[str, Any] = {"search": "exact", "vectors": len(vectors)}
        if index is not None:
            built = index.metadata
            self.metadata = {
                "search": f"index, {built.probes} of {built.lists} lists, reranked by exact cosines",
                "vectors": len(vectors),
                f"recall_at_{RECALL_COUNT}": built.recall,
                "recall_measured_of": built.recall_of,
            }

    def search(self, query: Array) -> Callable[[int], Hits]:
        """Return a function that returns the `count` nearest neighbors of a vector [hidden]."""
        return ExactSearch(self._vectors, query).best if self._index is None else self._index.search(query)


class SearchCache:
    """Caches what searches in a store need: lengths of vectors, indexes, words of a few shards."""

    def __init__(self, store: Store) -> None:
        # No reference to the store, which is the weak key of this cache.
        self._files, self._digest, self._index = store.files(VECTORS), store.digest, store.folder / FOLDER
        self._name = store.folder.name
        self.words = WordLookup(store)
        self._vectors: dict[int, LayerVectors] = {}
        self._searches: dict[tuple[int, bool], LayerSearch] = {}
        self._lock = Lock()

    def layer(self, layer: int, exact: bool, progress: Progress = no_progress) -> LayerSearch:
        """Return the prepared search of a layer.

        Args:
            layer: that the store has vectors of.
            exact: use no index, however many vectors there are.
            progress: called with the number of vectors read for preparation and their total.

        Raises:
            UnavailableError: the store has no vectors.
            StoreError: see `VectorIndex.of`.
        """
        with self._lock:
            vectors = self._vectors.get(layer) or LayerVectors(self._files, layer)
            self._vectors[layer] = vectors
            if not len(vectors):
                raise UnavailableError(f"{self._name} has no sentences yet. Continue the corpus run.")
            key = layer, exact or len(vectors) <= EXACT_UP_TO
            if key not in self._searches:
                self._searches[key] = self._prepare(vectors, *key, progress)
            return self._searches[key]

    def _prepare(self, vectors: LayerVectors, layer: int, exact: bool, progress: Progress) -> LayerSearch:
        if not exact:
            return LayerSearch(vectors, VectorIndex.of(self._index, self._digest, layer, vectors, progress))
        vectors.prepare(progress)
        return LayerSearch(vectors, None)


_CACHES: WeakKeyDictionary[Store, SearchCache] = WeakKeyDictionary()
_LOCK = Lock()


def cache_of(store: Store) -> SearchCache:
    """Return the cache of a store, which lives as long as the store."""
    with _LOCK:
        if store not in _CACHES:
            _CACHES[store] = SearchCache(store)
        return _CACHES[store]
