"""The contexts of a store that are nearest to a word in context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.vectors.similarity import FROM_0, VECTOR_LAYER
from bert_probe.core.field_types import FieldType, Flag, Number, Optional
from bert_probe.core.inputs import StoreAndTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.corpus.ingest import VECTORS
from bert_probe.corpus.search.method import LayerSearch, opened
from bert_probe.corpus.search.neighbors import Hits
from bert_probe.corpus.search.word_matches import WordLookup, WordMatch
from bert_probe.corpus.store import Store
from bert_probe.errors import CheckpointError, SelectionError, TextError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace
from bert_probe.text.words import Unit, find_word, word_name

MOST = 1000
"""Contexts that are shown of a word."""

_UNITS = {False: "tokens, which may be pieces of words", True: "words, by the mean of their pieces"}
"""What a store holds vectors of, by whether pieces were merged in it."""


@question("corpus near", is_analysis=False)
class NearestContexts(Question):
    """The contexts of a store whose vectors are nearest to that of a word in a text, by their cosine.

    The word's vector is the mean of its pieces'. What it is compared with are the store's units: tokens,
    which may be pieces of words, or words, whose vectors are means as well. Special tokens are left out.

    Attributes:
        word: as `find_word` knows it: WORD:2 is its second occurrence.
        layer: of the vectors, 0 being the output of the embeddings; None for the last that the store holds.
        top: how many contexts.
        every: a row as often as it has a word that is near; else once, by the nearest.
        others: leave out rows whose text is the given one.
        exact: look at every vector even where there are so many that an index is used.
    """

    inputs = StoreAndTrace()

    word: str = param(FieldType(), about="A word of the text; WORD:2 is its second occurrence.")
    layer: int | None = param(
        Optional(VECTOR_LAYER), default=None, key="vector_layer", about=f"{FROM_0} Else the store's last."
    )
    top: int = param(Number(1, MOST), default=10, about="How many contexts.  [default: 10]")
    every: bool = param(Flag(), default=False, about="A row as often as a word of it is near, not once.")
    others: bool = param(Flag(), default=False, about="Leave out rows whose text is the given one.")
    exact: bool = param(Flag(), default=False, about="Look at every vector, however many there are.")

    def of(self, store: Store, trace: Trace, report: Progress = no_progress) -> NearestContextsResult:
        """Find them.

        Args:
            trace: the text, read by the model of the store.
            report: told how many vectors are prepared, and of how many, when a layer is searched first.

        Raises:
            SelectionError: the word is not in the text, or more than once; a layer that the store lacks.
            TextError: a text that was read as a pair, which none of the store was.
            CheckpointError: another model than that of the store, or another dtype.
            UnavailableError: a store without vectors; a vector of zeros.
            StoreError: files that cannot be read.
        """
        if trace.encoding.pair is not None:
            raise TextError("A store holds single texts. Trace the text alone, not as a pair.")
        _check(store, trace)
        layer = self._layer(store)
        unit = find_word(trace, self.word)
        asked_for = replace(self, word=word_name(trace, unit), layer=layer)
        kept = opened(store)
        searching = kept.layer(layer, self.exact, report)
        vector = trace.vectors(layer)[list(unit.positions)].mean(axis=0, dtype="float64")
        contexts = asked_for._found(kept.words, searching, vector, trace.encoding.text)
        subject = replace(store.inputs, texts=InputRecord.of(trace).texts)
        return NearestContextsResult(
            asked_for,
            subject,
            contexts,
            unit,
            {"compared_with": _UNITS[store.question.words], **searching.metadata},
        )

    def _layer(self, store: Store) -> int:
        """The layer that is asked for, from 0.

        Raises:
            SelectionError: the store does not hold it.
            UnavailableError: it holds none.
        """
        store.files(VECTORS)  # which says so where there are none
        if self.layer is None:
            return store.layers[-1]
        layer = self.layer + (store.sizes.layers + 1 if self.layer < 0 else 0)
        if layer not in store.layers:
            kept = ", ".join(map(str, store.layers))
            raise SelectionError(
                f"{store.folder.name} holds no vectors of layer {layer}; it has those of {kept}. Give one of "
                "them, or run the corpus with --layers."
            )
        return layer

    def _found(
        self, words: WordLookup, searching: LayerSearch, vector: Array, text: str
    ) -> tuple[ContextMatch, ...]:
        """The first of the nearest that are asked for, without special tokens and what else is left out."""
        search, count = searching.search(vector), 2 * self.top + 32
        while True:
            hits = search(count)
            found = tuple(islice(self._kept(hits, words, text), self.top))
            if len(found) == self.top or len(hits) < count:
                return found
            # From the beginning: an index that is asked for more may find nearer ones as well.
            count *= 4

    def _kept(self, hits: Hits, words: WordLookup, text: str) -> Iterator[ContextMatch]:
        """Hits with their words, without what is left out."""
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


def _check(store: Store, trace: Trace) -> None:
    """Refuse a text that another model read, or the same one in other numbers.

    Raises:
        CheckpointError: it did.
    """
    store.check(trace.checkpoint)
    theirs, ours = trace.provenance["dtype"], store.manifest["model"]["dtype"]
    if theirs != ours:
        raise CheckpointError(
            f"{store.folder.name} was made in {ours}, and the text was read in {theirs}. Trace it with "
            "store.checkpoint()."
        )


@dataclass(frozen=True)
class ContextMatch:
    """A word where it stands, and how near it is.

    Attributes:
        row, position: of the store, from 1.
        cosine: of its vector with that of the word that was asked about, in float64.
        at: the word, and its sentence.
    """

    row: int
    position: int
    cosine: float
    at: WordMatch


@dataclass(frozen=True, eq=False, repr=False)
class NearestContextsResult(Result):
    """Words where they stand, nearest first.

    Attributes:
        contexts: as many as were asked for, or as there are.
        unit: the word that was asked about.
        searched: how, among how many vectors, and what they are of.
    """

    question: NearestContexts
    contexts: tuple[ContextMatch, ...]
    unit: Unit
    searched: Mapping[str, Any]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What was compared, and how it was searched."""
        return {"pieces": len(self.unit.positions), **self.searched}

    def frame(self) -> pd.DataFrame:
        """rank, cosine, row, text, word; ranks and rows count from 1."""
        found = self.contexts
        return pd.DataFrame(
            {
                "rank": np.arange(1, len(found) + 1),
                "cosine": np.array([one.cosine for one in found], np.float64),
                "row": np.array([one.row for one in found], np.int64),
                "text": [one.at.text for one in found],
                "word": [one.at.word for one in found],
            }
        )
