"""Search a store for the contexts whose vectors are nearest to the vector of a word, and cluster them.

For comparison, this module also estimates the cosine similarity of unrelated words.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from bert_probe.analyses.vectors.layouts import SEED, pca
from bert_probe.analyses.vectors.similarity import VECTOR_LAYER, VECTOR_LAYER_HELP, cosine_of_rows, unit_rows
from bert_probe.core.field_types import FieldType, Flag, Number, Optional
from bert_probe.core.inputs import StoreAndTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.corpus.inputs import VECTORS
from bert_probe.corpus.schema import ROWS, TOKENS, store_errors
from bert_probe.corpus.store import Store
from bert_probe.corpus.vector_index import RECALL_COUNT, ExactSearch, Hits, LayerVectors, VectorIndex
from bert_probe.errors import CheckpointError, SelectionError, TextError, UnavailableError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.words import Unit, find_word, word_name

MAX_CONTEXTS = 1000

_UNITS = {
    False: "tokens, including subword tokens",
    True: "words, represented by the mean of their token vectors",
}
"""Descriptions of what the vectors of a store represent, by the value of `IngestConfig.words`."""


@question("nearest contexts", command="corpus near", is_analysis=False)
class NearestContexts(Question):
    """The contexts in a store whose vectors have the highest cosine similarity to the vector of a word.

    The word's vector is the mean of its tokens' vectors. It is compared with the store's vectors: token
    vectors, or mean vectors of words if the store merges tokens. Special tokens are left out.

    Attributes:
        word: a word of the text, see `find_word`; WORD:2 is its second occurrence.
        layer: layer of the vectors; 0 is the output of the embeddings. If None, the last layer of the store.
        top: number of contexts.
        every: whether to list several words of the same row. By default, each row is listed once, with its
            nearest word.
        others: whether to leave out rows that have the same text as the query.
        exact: whether to compare the query with every vector. By default, large stores are searched with an
            approximate index.
    """

    inputs = StoreAndTrace()

    word: str = param(FieldType(), about="A word of the text; WORD:2 selects the second occurrence of WORD.")
    layer: int | None = param(
        Optional(VECTOR_LAYER),
        default=None,
        key="vector_layer",
        about=f"{VECTOR_LAYER_HELP} Default: the last layer in the store.",
    )
    top: int = param(Number(1, MAX_CONTEXTS), default=10, about="Number of contexts.  [default: 10]")
    every: bool = param(
        Flag(), default=False, about="List all contexts of each row, not only the nearest context."
    )
    others: bool = param(Flag(), default=False, about="Exclude rows that have the same text as the query.")
    exact: bool = param(
        Flag(),
        default=False,
        about="Search exactly: compare the query with every vector, without an approximate index.",
    )

    def of(self, store: Store, trace: Trace, progress: Progress = no_progress) -> NearestContextsResult:
        """Return the contexts in a store that are nearest to the word.

        Args:
            store: a store with vectors.
            trace: the text with the word, traced with the store's model.
            progress: called with the number of prepared vectors and their total when a layer is searched for
                the first time.

        Raises:
            SelectionError: the word is not in the text, or occurs several times and has no number; or the
                store does not have the layer.
            TextError: the text is a pair, but stores contain only single texts.
            CheckpointError: the trace comes from another model, or has another dtype.
            UnavailableError: the store has no vectors, or the word's vector is all zeros.
            StoreError: files of the store cannot be read.
        """
        if trace.encoding.pair is not None:
            raise TextError("A store contains single texts, not text pairs. Trace the text without a pair.")
        _check_model(store, trace)
        layer = self._resolve_layer(store)
        unit = find_word(trace, self.word)
        resolved = replace(self, word=word_name(trace, unit), layer=layer)
        cache = cache_of(store)
        search = cache.layer(layer, self.exact, progress)
        vector = trace.vectors(layer)[list(unit.positions)].mean(axis=0, dtype="float64")
        return NearestContextsResult(
            resolved,
            replace(store.inputs, texts=InputRecord.of(trace).texts),
            resolved._contexts(cache.words, search, vector, trace.encoding.text),
            unit,
            {"compared_with": _UNITS[store.question.words], **search.metadata},
        )

    def _resolve_layer(self, store: Store) -> int:
        """Return the index of the requested layer, and check that the store has vectors of this layer."""
        store.files(VECTORS)  # raises an error if the store has no vectors
        if self.layer is None:
            return store.layers[-1]
        layer = self.layer + (store.sizes.layers + 1 if self.layer < 0 else 0)
        if layer not in store.layers:
            layers = ", ".join(map(str, store.layers))
            raise SelectionError(
                f"{store.folder.name} has no vectors of layer {layer}, only of {layers}. Choose one of "
                "these layers, or build a store with more --layers."
            )
        return layer

    def _contexts(
        self, words: WordLookup, search: LayerSearch, vector: Array, text: str
    ) -> tuple[ContextMatch, ...]:
        """Return the nearest contexts that pass the filters. If too few hits pass, search for more hits."""
        find_nearest, count = search.search(vector), 2 * self.top + 32
        while True:
            hits = find_nearest(count)
            contexts = tuple(islice(self._filter(hits, words, text), self.top))
            if len(contexts) == self.top or len(hits) < count:
                return contexts
            # Repeat the complete search, because an index may find nearer vectors if the count is larger.
            count *= 4

    def _filter(self, hits: Hits, words: WordLookup, text: str) -> Iterator[ContextMatch]:
        """Yield the hits that pass the filters, together with their words. Leave out special tokens."""
        rows = set[int]()
        columns = (column.tolist() for column in (hits.rows, hits.positions, hits.cosines))
        for row, position, cosine in zip(*columns, strict=True):
            if row in rows and not self.every:
                continue
            word = words.word(row, position)
            if word is None or (self.others and word.text == text):
                continue
            rows.add(row)
            yield ContextMatch(row, position, cosine, word)


def _check_model(store: Store, trace: Trace) -> None:
    """Check that a trace was computed with the model of a store, and in the same dtype."""
    store.check(trace.checkpoint)
    actual, expected = trace.provenance["dtype"], store.manifest["model"]["dtype"]
    if actual != expected:
        raise CheckpointError(
            f"{store.folder.name} was built in {expected}, but the text was traced in {actual}. Trace "
            "the text with store.checkpoint()."
        )


@dataclass(frozen=True)
class ContextMatch:
    """A context in the store, and its similarity to the query word.

    Attributes:
        row: number of the row, from 1.
        position: position of the token or word in the row, from 1.
        cosine: cosine similarity with the vector of the query word.
        at: the matching word and its sentence.
    """

    row: int
    position: int
    cosine: float
    at: WordMatch


@dataclass(frozen=True, eq=False, repr=False)
class NearestContextsResult(Result):
    """The contexts in a store that are nearest to a word in context.

    Attributes:
        contexts: the contexts, nearest first. There are fewer than requested if the store has no more.
        unit: the query word.
        searched: the search method, the number of vectors in the layer, and whether they represent tokens or
            words.
    """

    question: NearestContexts
    contexts: tuple[ContextMatch, ...]
    unit: Unit
    searched: Mapping[str, Any]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Number of tokens in the query word ("pieces"), and the search method."""
        return {"pieces": len(self.unit.positions), **self.searched}

    def frame(self) -> pd.DataFrame:
        """Return the contexts as a table with one row per context; ranks and row numbers count from 1.

        Columns: rank, cosine, row, text, word.
        """
        contexts = self.contexts
        return pd.DataFrame(
            {
                "rank": np.arange(1, len(contexts) + 1),
                "cosine": np.array([context.cosine for context in contexts], np.float64),
                "row": np.array([context.row for context in contexts], np.int64),
                "text": [context.at.text for context in contexts],
                "word": [context.at.word for context in contexts],
            }
        )


_CACHED_SHARDS = 16
"""Maximum number of shards whose sentences and words are cached; a shard of 2,000 rows takes about 3 MB."""

_COLUMNS = ("row", "text", "word", "start", "end", "special")


@dataclass(frozen=True)
class WordMatch:
    """A word in its sentence.

    Attributes:
        text: the sentence.
        word: the word as it is written; WORD:2 is its second occurrence in the sentence.
        start: index of the word's first character.
        end: index after the word's last character.
    """

    text: str
    word: str
    start: int
    end: int


class WordLookup:
    """Looks up the words of a store by row and position. The most recently used shards are cached."""

    def __init__(self, store: Store) -> None:
        self._shard_of = store.shard_of  # a function that does not refer to the store; see `SearchCache`
        self._name = store.folder.name
        self._files = [*zip(store.files(ROWS), store.files(TOKENS), strict=True)]
        self._shards: OrderedDict[int, _ShardWords] = OrderedDict()
        self._lock = Lock()

    def word(self, row: int, position: int) -> WordMatch | None:
        """Return the word at a position of a row, both from 1, or None for a special token."""
        with store_errors(self._name):
            return self._shard(self._shard_of(row)).word(row, position)

    def text(self, row: int) -> str:
        """Return the sentence of a row."""
        with store_errors(self._name):
            return self._shard(self._shard_of(row)).text(row)

    def _shard(self, number: int) -> _ShardWords:
        with self._lock:
            shard = self._shards.pop(number, None) or _ShardWords(*map(str, self._files[number]))
            self._shards[number] = shard  # move the most recently used shard to the end
            if len(self._shards) > _CACHED_SHARDS:
                self._shards.popitem(last=False)
            return shard


class _ShardWords:
    """The sentences of a shard, and the words in them."""

    def __init__(self, rows: str, tokens: str) -> None:
        # Without partitioning=None, pyarrow would interpret a folder named a=b as a column.
        texts = pq.read_table(rows, columns=["row", "text"], partitioning=None)
        self._rows, self._texts = texts["row"].to_numpy(), texts["text"]
        words = pq.read_table(tokens, columns=[*_COLUMNS], partitioning=None)
        self._ends = np.searchsorted(words["row"].to_numpy(), self._rows, side="right")
        self._words = words.drop_columns("row")

    def text(self, row: int) -> str:
        """Return the sentence of a row."""
        text = self._texts[self._index(row)].as_py()
        if not isinstance(text, str):
            raise ValueError(f"row {row} has no text")
        return text

    def word(self, row: int, position: int) -> WordMatch | None:
        """Return the word at a position of a row; see `WordLookup.word`."""
        index = self._index(row)
        start = int(self._ends[index - 1]) if index else 0
        tokens = self._words.slice(start, int(self._ends[index]) - start).to_pylist()
        if tokens[position - 1]["special"]:
            return None
        text, words = self.text(row), _group_words(tokens)
        names = [_name(text, word) for word in words]
        (match,) = (number for number, word in enumerate(words) if position - 1 in word)
        occurrences = [number for number, name in enumerate(names) if name == names[match]]
        name = names[match]
        if len(occurrences) > 1:
            name = f"{name}:{occurrences.index(match) + 1}"
        return WordMatch(text, name, *_span(words[match]))

    def _index(self, row: int) -> int:
        return int(np.searchsorted(self._rows, row))


_Word = dict[int, dict[str, Any]]
"""The tokens of a word: a mapping from their positions, from 0, to rows of the table of tokens."""


def _group_words(tokens: list[dict[str, Any]]) -> list[_Word]:
    """Group the tokens of a sentence into words, in order. A token outside of words is its own word."""
    words: dict[object, _Word] = {}
    for position, token in enumerate(tokens):
        key = ("no word", position) if token["word"] is None else token["word"]
        words.setdefault(key, {})[position] = token
    return [*words.values()]


def _name(text: str, word: _Word) -> str:
    """Return a word as it is written in the text, or the name of a special token."""
    (*_, last) = word.values()
    return str(last["text"]) if last["special"] else text[slice(*_span(word))].strip()


def _span(word: _Word) -> tuple[int, int]:
    return min(token["start"] for token in word.values()), max(token["end"] for token in word.values())


EXACT_UP_TO = 1_000_000
"""Maximum number of vectors that are searched exactly by default, which takes 0.1 seconds on two cores."""

FOLDER = "index"
"""Name of the folder of indexes in a store. The folder can be deleted; indexes are rebuilt when needed."""


class LayerSearch:
    """A search among the vectors of one layer, either exact or with an index.

    Attributes:
        metadata: the search method, the number of vectors and, for an index, its measured recall.
    """

    def __init__(self, vectors: LayerVectors, index: VectorIndex | None) -> None:
        self._vectors, self._index = vectors, index
        self.metadata: Mapping[str, Any] = {"search": "exact", "vectors": len(vectors)}
        if index is not None:
            built = index.metadata
            self.metadata = {
                "search": f"IVF index with {built.probes} of {built.lists} lists probed, reranked by exact "
                "cosine similarity",
                "vectors": len(vectors),
                f"recall_at_{RECALL_COUNT}": built.recall,
                "recall_measured_of": built.recall_of,
            }

    def search(self, query: Array) -> Callable[[int], Hits]:
        """Return a function of k that returns the k nearest neighbors of the query vector."""
        return ExactSearch(self._vectors, query).best if self._index is None else self._index.search(query)


class SearchCache:
    """Caches the data of searches in a store: vector norms, indexes, and the words of a few shards."""

    def __init__(self, store: Store) -> None:
        # No attribute refers to the store, because `_CACHES` would then keep the store in memory forever.
        self._files, self._digest, self._index = store.files(VECTORS), store.digest, store.folder / FOLDER
        self._name = store.folder.name
        self.words = WordLookup(store)
        self._vectors: dict[int, LayerVectors] = {}
        self._searches: dict[tuple[int, bool], LayerSearch] = {}
        self._lock = Lock()

    def layer(self, layer: int, exact: bool, progress: Progress = no_progress) -> LayerSearch:
        """Return a search among the vectors of a layer, which is prepared on the first call.

        Args:
            layer: a layer whose vectors the store has.
            exact: whether to compare the query with every vector instead of using an index.
            progress: called with the number of prepared vectors and their total.

        Raises:
            UnavailableError: the store has no vectors.
            StoreError: see `VectorIndex.of`.
        """
        with self._lock:
            vectors = self._vectors.get(layer) or LayerVectors(self._files, layer)
            self._vectors[layer] = vectors
            if not len(vectors):
                raise UnavailableError(f"{self._name} contains no sentences yet. Continue the corpus run.")
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
    """Return the search cache of a store, which is deleted together with the store object."""
    with _LOCK:
        if store not in _CACHES:
            _CACHES[store] = SearchCache(store)
        return _CACHES[store]


CLUSTER_COUNTS = range(2, 6)
"""Candidate numbers of clusters. The number with the best silhouette coefficient is used."""
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
    """Cluster the vectors of contexts, and project them to their first two principal components.

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
    except UnavailableError:  # a single vector and equal vectors have no principal components
        points = read_only(np.zeros((len(units), 2), np.float32))
        return ContextClusters(points, (0.0, 0.0), clusters, silhouette)
    return ContextClusters(plane.points, plane.explained or (0.0, 0.0), clusters, silhouette)


def _indices(vectors: LayerVectors, contexts: Sequence[tuple[int, int]] | Array) -> Array:
    """Return the vector index of each context, which is a (row, position) pair; both count from 1."""
    pairs = np.array(contexts, np.int64).reshape(-1, 2)
    indices = np.empty(len(pairs), np.int64)
    first = 0
    for batch in vectors.batches:
        batch.file.check()
        inside = np.flatnonzero((pairs[:, 0] >= batch.rows[0]) & (pairs[:, 0] <= batch.rows[-1]))
        indices[inside] = first + np.searchsorted(batch.rows, pairs[inside, 0]) + pairs[inside, 1] - 1
        first += len(batch.rows)
    return indices


def _cluster(units: Array) -> tuple[Array, float]:
    """Cluster unit vectors by k-means, with the number of clusters in `CLUSTER_COUNTS` that fits best.

    Returns:
        The cluster index of each vector, and the mean silhouette coefficient; NaN for a single cluster.
    """
    if len(np.unique(units, axis=0)) < MIN_CONTEXTS:
        return read_only(np.zeros(len(units), np.int64)), float("nan")
    from sklearn.cluster import KMeans  # imported here because the import takes a second
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
        The estimate, or None if no sampled pair has words of different rows.

    Raises:
        UnavailableError: the store has no vectors.
    """
    vectors = LayerVectors(store.files(VECTORS), layer)
    generator = np.random.default_rng(SEED)
    files = store.files(TOKENS)
    shards = np.unique(np.linspace(0, len(files) - 1, min(_MAX_SHARDS, len(files))).round().astype(int))
    with store_errors(store.folder.name):
        words = np.concatenate(
            [np.empty((0, 2), np.int64), *(_token_positions(store, shard) for shard in shards)]
        )
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


def _token_positions(store: Store, shard: int) -> Array:
    """Return the row and position of each token of a shard that is not special, int64 [token, 2]."""
    table = pq.read_table(
        store.files(TOKENS)[shard], columns=["row", "position", "special"], partitioning=None
    )
    is_word = ~table["special"].to_numpy()
    words: Array = np.stack([table[name].to_numpy()[is_word] for name in ("row", "position")], axis=1)
    return words.astype(np.int64, casting="safe")
