"""Find the contexts in a store that are nearest to a word in context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.vectors.similarity import VECTOR_LAYER, VECTOR_LAYER_HELP
from bert_probe.core.field_types import FieldType, Flag, Number, Optional
from bert_probe.core.inputs import StoreAndTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.corpus.ingest import VECTORS
from bert_probe.corpus.search.method import LayerSearch, cache_of
from bert_probe.corpus.search.neighbors import Hits
from bert_probe.corpus.search.word_matches import WordLookup, WordMatch
from bert_probe.corpus.store import Store
from bert_probe.errors import CheckpointError, SelectionError, TextError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace
from bert_probe.text.words import Unit, find_word, word_name

MAX_CONTEXTS = 1000

_UNITS = {False: "tokens, which may be parts of words", True: "words, by the mean of their tokens"}
"""What the store's vectors represent, by `IngestConfig.words`."""


@question("corpus near", is_analysis=False)
class NearestContexts(Question):
    """The contexts in a store whose vectors are nearest to that of a word in a text, by cosine similarity.

    The word's vector is the mean of its tokens' vectors. It is compared with the store's vectors of tokens,
    or of words, which are means as well. Special tokens are left out.

    Attributes:
        word: a word of the text as `find_word` takes it: WORD:2 is its second occurrence.
        layer: the layer of the vectors; 0 is the output of the embeddings, None the last layer of the store.
        top: number of contexts.
        every: list all near words of a row; by default, a row is listed once, by its nearest word.
        others: leave out rows with the same text.
        exact: compare with every vector even if the store is so large that an index is used.
    """

    inputs = StoreAndTrace()

    word: str = param(FieldType(), about="A word of the text; WORD:2 is its second occurrence.")
    layer: int | None = param(
        Optional(VECTOR_LAYER),
        default=None,
        key="vector_layer",
        about=f"{VECTOR_LAYER_HELP} Default: the store's last.",
    )
    top: int = param(Number(1, MAX_CONTEXTS), default=10, about="Number of contexts.  [default: 10]")
    every: bool = param(Flag(), default=False, about="List all near words of a row, not only the nearest.")
    others: bool = param(Flag(), default=False, about="Leave out rows with the same text.")
    exact: bool = param(Flag(), default=False, about="Compare with every vector, however many there are.")

    def of(self, store: Store, trace: Trace, progress: Progress = no_progress) -> NearestContextsResult:
        """Return the nearest contexts.

        Args:
            store: a store with vectors.
            trace: the text with the word, traced with the store's model.
            progress: called with the number of prepared vectors and their total, the first time that a layer
                is searched.

        Raises:
            SelectionError: the word is not in the text, or occurs several times; or the store does not have
                the layer.
            TextError: the text is a pair, while the store has single texts.
            CheckpointError: the trace comes from another model, or has another dtype.
            UnavailableError: the store has no vectors, or the word's vector is all zeros.
            StoreError: files of the store cannot be read.
        """
        if trace.encoding.pair is not None:
            raise TextError("A store holds single texts. Trace the text alone, not as a pair.")
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
        """Return the layer from 0, and check that the store has its vectors."""
        store.files(VECTORS)  # raises an error if the store has no vectors
        if self.layer is None:
            return store.layers[-1]
        layer = self.layer + (store.sizes.layers + 1 if self.layer < 0 else 0)
        if layer not in store.layers:
            layers = ", ".join(map(str, store.layers))
            raise SelectionError(
                f"{store.folder.name} has no vectors of layer {layer}, only of {layers}. Choose one of "
                "these, or run the corpus with --layers."
            )
        return layer

    def _contexts(
        self, words: WordLookup, search: LayerSearch, vector: Array, text: str
    ) -> tuple[ContextMatch, ...]:
        """Return the nearest contexts that pass the filters; search for more hits until there are enough."""
        find_nearest, count = search.search(vector), 2 * self.top + 32
        while True:
            hits = find_nearest(count)
            contexts = tuple(islice(self._filter(hits, words, text), self.top))
            if len(contexts) == self.top or len(hits) < count:
                return contexts
            # Start over: with a larger count, an index may also find nearer vectors.
            count *= 4

    def _filter(self, hits: Hits, words: WordLookup, text: str) -> Iterator[ContextMatch]:
        """Yield hits with their words, without special tokens and the rows that the question leaves out."""
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
    """Check that a trace comes from the store's model in the same dtype."""
    store.check(trace.checkpoint)
    actual, expected = trace.provenance["dtype"], store.manifest["model"]["dtype"]
    if actual != expected:
        raise CheckpointError(
            f"{store.folder.name} was made in {expected}, but the text was traced in {actual}. Trace it with "
            "store.checkpoint()."
        )


@dataclass(frozen=True)
class ContextMatch:
    """A context of the store and its similarity.

    Attributes:
        row: row number, from 1.
        position: position in the row, from 1.
        cosine: cosine similarity with the query word's vector.
        at: the word and its sentence.
    """

    row: int
    position: int
    cosine: float
    at: WordMatch


@dataclass(frozen=True, eq=False, repr=False)
class NearestContextsResult(Result):
    """The contexts in a store that are nearest to a word in context.

    Attributes:
        contexts: nearest first; fewer than requested if the store has no more.
        unit: the query word.
        searched: search method, number of vectors, and what they represent.
    """

    question: NearestContexts
    contexts: tuple[ContextMatch, ...]
    unit: Unit
    searched: Mapping[str, Any]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Number of tokens of the query word, and the search method."""
        return {"pieces": len(self.unit.positions), **self.searched}

    def frame(self) -> pd.DataFrame:
        """Return one row per context: rank, cosine, row, text, word; ranks and rows count from 1."""
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
