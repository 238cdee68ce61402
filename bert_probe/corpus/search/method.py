"""How the vectors of a store are searched: exactly, or, where they are too many, with an index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from bert_probe.corpus.ingest import VECTORS
from bert_probe.corpus.search.neighbors import ExactSearch, Hits, LayerVectors
from bert_probe.corpus.search.vector_index import RECALLED, VectorIndex
from bert_probe.corpus.search.word_matches import WordLookup
from bert_probe.corpus.store import Store
from bert_probe.errors import UnavailableError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array

EXACT_UP_TO = 1_000_000
"""Vectors of a layer that are all looked at, which takes a tenth of a second on two cores."""

FOLDER = "index"
"""Of a store, where its indexes lie; they can be taken away, and are made again."""


class LayerSearch:
    """The vectors of a layer, and the way to the nearest of them.

    Attributes:
        facts: whether a search is exact, among how many vectors, and what an index was measured to find.
    """

    def __init__(self, vectors: LayerVectors, index: VectorIndex | None) -> None:
        self._vectors, self._index = vectors, index
        self.metadata: Mapping[str, Any] = {"search": "exact", "vectors": len(vectors)}
        if index is not None:
            about = index.about
            self.metadata = {
                "search": f"index, {about.probes} of {about.lists} lists, ordered anew by exact cosines",
                "vectors": len(vectors),
                f"recall_at_{RECALLED}": about.recall,
                "recall_measured_of": about.recall_of,
            }

    def search(self, query: Array) -> Callable[[int], Hits]:
        """Called with a number, it gives as many of the nearest to the vector [hidden]."""
        return ExactSearch(self._vectors, query).best if self._index is None else self._index.search(query)


class SearchCache:
    """What is kept of a store while somebody asks it: lengths of vectors, an index, a few sentences."""

    def __init__(self, store: Store) -> None:
        # Not the store itself, by which this is kept.
        self._files, self._digest, self._index = store.files(VECTORS), store.digest, store.folder / FOLDER
        self._name = store.folder.name
        self.words = WordLookup(store)
        self._vectors: dict[int, LayerVectors] = {}
        self._searching: dict[tuple[int, bool], LayerSearch] = {}
        self._lock = Lock()

    def layer(self, layer: int, exact: bool, report: Progress = no_progress) -> LayerSearch:
        """A layer that the store holds, ready to be searched.

        Args:
            exact: without an index, however many vectors there are.
            report: told how many vectors were read to get ready, and of how many.

        Raises:
            UnavailableError: there is no vector.
            StoreError: see `VectorIndex.of`.
        """
        with self._lock:
            vectors = self._vectors.get(layer) or LayerVectors(self._files, layer)
            self._vectors[layer] = vectors
            if not len(vectors):
                raise UnavailableError(f"{self._name} holds no sentence yet. Run the corpus on.")
            key = layer, exact or len(vectors) <= EXACT_UP_TO
            if key not in self._searching:
                self._searching[key] = self._ready(vectors, *key, report)
            return self._searching[key]

    def _ready(self, vectors: LayerVectors, layer: int, exact: bool, report: Progress) -> LayerSearch:
        if not exact:
            return LayerSearch(vectors, VectorIndex.of(self._index, self._digest, layer, vectors, report))
        vectors.prepare(report)
        return LayerSearch(vectors, None)


_OPENED: WeakKeyDictionary[Store, SearchCache] = WeakKeyDictionary()
_LOCK = Lock()


def opened(store: Store) -> SearchCache:
    """What is kept of it, as long as somebody holds the store."""
    with _LOCK:
        if store not in _OPENED:
            _OPENED[store] = SearchCache(store)
        return _OPENED[store]
