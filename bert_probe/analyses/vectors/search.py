"""Search: the documents that are most similar to a query, by one or more scorers."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from bert_probe.analyses.vectors.calibration import MAX_PAIRS, percentile_of, random_pair_scores
from bert_probe.analyses.vectors.pooling import (
    DIMENSIONS_HELP,
    DOCUMENT_PROMPTS,
    NO_PROMPT,
    PoolingConfig,
    resolve_pooling,
    scores,
)
from bert_probe.analyses.vectors.sentences import TextVectors, encode_texts
from bert_probe.core import frames
from bert_probe.core.extras import explain_missing, require
from bert_probe.core.field_types import Choices, Name, Number, Optional, Text
from bert_probe.core.inputs import Documents
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, UnavailableError, memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.documents import Document, as_documents

SCORERS: Mapping[str, str] = {
    "bi-encoder": "Similarity of the vectors of query and document.",
    "bm25": "Words that they share, weighted by frequency; needs no model.",
}
"""Name of a scorer → what it computes."""
K1, B = 1.2, 0.75
"""BM25's saturation of the term frequency, and its normalization by the length of the document."""
OVERLAP = 10
"""Number of documents at the top of two rankings whose overlap is reported."""

QUERY_PROMPTS = ("query",)
_WORD = re.compile(r"\w+")


@question("search")
class Search(Question):
    """The documents that are most similar to a query.

    The vectors are those of sentence-transformers' `encode_query` and `encode_document` for a checkpoint with
    a pooling of its own, and otherwise the mean of the last hidden states.

    Attributes:
        query: the query.
        scorers: names in `SCORERS`. The first one orders the documents.
        count: number of documents in the table.
        prompt: name of the query's prompt, or "none". By default, the prompt named "query" if there is one.
            It also selects the task "query" of a Router.
        document_prompt: name of the documents' prompt, or "none". By default, the prompt named "document",
            "passage" or "corpus" if there is one. It also selects the task "document" of a Router.
        dimensions: number of dimensions to which the vectors are truncated.
    """

    inputs = Documents()

    query: str = param(Text(), positional=True, about="The query.")
    scorers: Sequence[str] = param(
        Choices(SCORERS), default=("bi-encoder",), about="Scorers, the first of which orders the documents."
    )
    count: int = param(
        Number(1),
        default=10,
        display_only=True,
        key="search_count",
        about="Number of documents in the table.",
    )
    prompt: str | None = param(
        Optional(Name()), default=None, about="Prompt of the checkpoint before the query; none for no prompt."
    )
    document_prompt: str | None = param(
        Optional(Name()), default=None, about="Prompt of the checkpoint before each document."
    )
    dimensions: int | None = param(Optional(Number(1)), default=None, about=DIMENSIONS_HELP)

    def of(
        self,
        checkpoint: Checkpoint,
        documents: Sequence[str] | IndexedDocuments,
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> SearchResult:
        """Score every document.

        Args:
            checkpoint: the model.
            documents: the documents, or what `index` returned for them with this model and the same prompt,
                dimensions and truncation of documents.
            truncate: truncate texts that are too long instead of raising an error. A checkpoint with a
                maximum length of its own always truncates.
            progress: called with the number of distinct documents done and the total.

        Raises:
            TextError, EmptyTextError, TooLongError: there are no documents, two documents have the same ID,
                or a text cannot be encoded.
            SelectionError: the indexed documents do not fit the question; see also `resolve_pooling`.
            UnavailableError, CheckpointError: see `resolve_pooling`; also if the package of a scorer is
                missing.
            OutOfMemoryError: a batch or the vectors need more memory than is free.
        """
        checkpoint = checkpoint.snapshot()
        if not isinstance(documents, IndexedDocuments):
            documents = self.index(checkpoint, documents, truncate, progress)
        config = search_pooling(checkpoint, self.prompt, QUERY_PROMPTS, self.dimensions)
        values: dict[str, Array] = {}
        for scorer in self.scorers:
            if scorer == "bm25":
                values[scorer] = documents.bm25.score(self.query)
                continue
            if documents.encoded is None or documents.recipe != self._document_pooling(checkpoint):
                raise SelectionError(
                    "The documents were indexed with other options. Index them with this question."
                )
            query = encode_texts(checkpoint, config, [self.query], truncate, lambda _: "The query")
            with memory_errors("The vectors of these documents need more memory than is free. Use fewer."):
                values[scorer] = scores(query.vectors, documents.encoded.vectors, config.similarity)[0]
        dropped = documents.encoded.dropped if documents.encoded else (0,) * len(documents.documents)
        return SearchResult(
            self,
            InputRecord.of_sentences(checkpoint, documents.lines, sum(dropped)),
            documents.documents,
            {name: read_only(value) for name, value in values.items()},
            documents.pair_scores if "bi-encoder" in values else None,
            config,
            documents.recipe,
            dropped,
        )

    def index(
        self,
        checkpoint: Checkpoint,
        documents: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> IndexedDocuments:
        """Compute what does not depend on the query, so that further queries take milliseconds.

        The arguments and errors are those of `of`.
        """
        if "bm25" in self.scorers:
            require("bm25s")
        checkpoint, texts = checkpoint.snapshot(), as_documents(documents)
        recipe = self._document_pooling(checkpoint)
        encoded = None
        if "bi-encoder" in self.scorers:
            name = "Document {:,}".format
            encoded = encode_texts(checkpoint, recipe, texts, truncate, name, progress)
        return IndexedDocuments(texts, encoded, recipe)

    def _document_pooling(self, checkpoint: Checkpoint) -> PoolingConfig:
        return search_pooling(checkpoint, self.document_prompt, DOCUMENT_PROMPTS, self.dimensions)


def search_pooling(
    checkpoint: Checkpoint, prompt: str | None, defaults: Iterable[str], dimensions: int | None
) -> PoolingConfig:
    """Return the pooling of queries or documents: that of the checkpoint if it has one, otherwise the mean.

    Args:
        prompt: name of a prompt; None for the first of ``defaults`` that the checkpoint has as a prompt,
            otherwise as a task, otherwise for no prompt. Like `encode_query` and `encode_document`, it never
            uses the checkpoint's default prompt.

    Raises:
        UnavailableError, CheckpointError, SelectionError: see `resolve_pooling`.
    """
    model = checkpoint.sentence_model
    if prompt is None and model is not None:
        names = [name for own in (dict(model.prompts), model.tasks) for name in defaults if name in own]
        prompt = names[0] if names else NO_PROMPT
    is_own = model is not None or checkpoint.sentence_model_error is not None
    return resolve_pooling(checkpoint, "model" if is_own else "mean", prompt, dimensions)


@dataclass(frozen=True, eq=False)
class IndexedDocuments:
    """Documents with what their scores need; returned by `Search.index`.

    Attributes:
        documents: the documents.
        encoded: their vectors; None if no scorer needs them.
        recipe: the pooling configuration of the vectors.
    """

    documents: tuple[Document, ...]
    encoded: TextVectors | None
    recipe: PoolingConfig

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The documents as JSON lines."""
        return tuple(document.line for document in self.documents)

    @cached_property
    def pair_scores(self) -> Array | None:
        """Sorted scores of random pairs of documents; None if there is no pair with a score."""
        if self.encoded is None:
            return None
        try:
            return random_pair_scores(self.encoded.vectors, self.recipe.similarity)
        except UnavailableError:
            return None

    @cached_property
    def bm25(self) -> BM25:
        """Frequencies of the words of the documents.

        Raises:
            UnavailableError: the package bm25s is not installed.
        """
        return BM25(self.documents)

    @property
    def nbytes(self) -> int:
        """Estimated size of the documents, their vectors and the frequencies of their words in bytes."""
        vectors = 0 if self.encoded is None else self.encoded.vectors.nbytes
        return vectors + 8 * MAX_PAIRS + 20 * sum(map(len, self.documents))


class BM25:
    """Okapi BM25 in the variant of Lucene, with `K1` and `B` (Robertson and Zaragoza 2009).

    A word is a sequence of letters, digits and underscores in lower case.
    """

    def __init__(self, documents: Sequence[str]) -> None:
        with explain_missing():
            import bm25s
        words = [words_of(document) for document in documents]
        self._count, self._has_words = len(words), any(words)
        self._words = words
        self._index = bm25s.BM25(k1=K1, b=B, method="lucene")
        if self._has_words:
            self._index.index(words, show_progress=False)

    def score(self, query: str) -> Array:
        """Return the score of each document, float32; 0 for a document without a word of the query."""
        words = words_of(query)
        if not words or not self._has_words:
            return np.zeros(self._count, np.float32)
        values: Array = self._index.get_scores(words)
        return values.astype(np.float32)

    def terms(self, query: str, document: int) -> pd.DataFrame:
        """Return the part of each word of the query in the score of a document, float64.

        Columns: term, query_count and count (occurrences in the query and in the document), documents (number
        of documents with the term), idf, contribution. The contributions add up to the score; the largest is
        the first.

        Args:
            document: index of the document, from 0.
        """
        length = len(self._words[document])
        mean_length = sum(map(len, self._words)) / self._count
        rows = []
        for term, query_count in Counter(words_of(query)).items():
            count = self._words[document].count(term)
            frequency = sum(term in words for words in self._words)
            idf = math.log1p((self._count - frequency + 0.5) / (frequency + 0.5))
            saturation = count / (count + K1 * (1 - B + B * length / mean_length)) if count else 0.0
            rows.append((term, query_count, count, frequency, idf, query_count * idf * saturation))
        return (
            pd.DataFrame(rows, columns=["term", "query_count", "count", "documents", "idf", "contribution"])
            .astype({"idf": float, "contribution": float})
            .sort_values("contribution", ascending=False, kind="stable", ignore_index=True)
        )


def words_of(text: str) -> list[str]:
    """Return the words of a text as BM25 counts them."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True, eq=False, repr=False)
class SearchResult(Result):
    """The score of every document.

    Attributes:
        documents: the documents, in their original order.
        scores: scorer → score of each document, of shape [document].
        pair_scores: sorted scores of random pairs of documents by the bi-encoder; None if it is not among
            the scorers, or if there is no pair.
        recipe: the pooling configuration of the query.
        document_recipe: the pooling configuration of the documents.
        dropped: number of tokens truncated from each document.
    """

    question: Search
    documents: tuple[Document, ...]
    scores: Mapping[str, Array]
    pair_scores: Array | None
    recipe: PoolingConfig
    document_recipe: PoolingConfig
    dropped: tuple[int, ...]

    def __post_init__(self) -> None:
        count = len(self.documents)
        if tuple(self.scores) != self.question.scorers or len(self.dropped) != count:
            raise ShapeError(f"{count} documents do not match {len(self.dropped)} numbers of tokens.")
        for name, values in self.scores.items():
            if values.shape != (count,):
                raise ShapeError(f"{count} documents do not match {name} scores of shape {values.shape}.")

    @cached_property
    def ranks(self) -> Mapping[str, Array]:
        """Scorer → rank of each document from 1, of shape [document]. Equal scores keep the order of the
        documents; undefined scores come last.
        """
        ranks = {}
        for name, values in self.scores.items():
            ranks[name] = np.empty(len(values), np.int64)
            ranks[name][np.argsort(-values, kind="stable")] = np.arange(1, len(values) + 1)
        return ranks

    @cached_property
    def order(self) -> Array:
        """Indices of the documents, from 0, in the order of the first scorer."""
        return np.argsort(self.ranks[self.question.scorers[0]])

    @property
    def sentences(self) -> tuple[str, ...]:
        """The documents as JSON lines, which a view file stores."""
        return tuple(document.line for document in self.documents)

    @cached_property
    def agreement(self) -> tuple[Agreement, ...]:
        """How far each two scorers agree."""
        pairs = combinations(self.question.scorers, 2)
        return tuple(Agreement.of(a, b, self.ranks, self.scores) for a, b in pairs)

    @property
    def truncated(self) -> tuple[int, ...]:
        """Indices of the documents that were truncated, from 0."""
        return tuple(index for index, count in enumerate(self.dropped) if count)

    @property
    def without_match(self) -> int:
        """Number of documents that contain no word of the query, to which BM25 gives 0."""
        return int((self.scores["bm25"] == 0).sum()) if "bm25" in self.scores else 0

    def disagreements(self, a: str, b: str) -> Array:
        """Return documents among the first `OVERLAP` of either scorer, by descending difference of ranks.

        Args:
            a, b: names of the scorers.

        Returns:
            Indices of documents whose ranks differ.
        """
        first, second = self.ranks[a], self.ranks[b]
        differences = np.where(np.minimum(first, second) <= OVERLAP, np.abs(first - second), 0)
        order = np.argsort(-differences, kind="stable")
        return order[differences[order] > 0]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The poolings, the settings of BM25, and how far the scorers agree."""
        uses_model = "bi-encoder" in self.scores
        poolings = {"recipe": self.recipe.about, "document_recipe": self.document_recipe.about}
        agreement = {"agreement": [pair.about for pair in self.agreement]}
        return {
            **(poolings if uses_model else {}),
            **({"bm25": {"k1": K1, "b": B}} if "bm25" in self.scores else {}),
            **(agreement if self.agreement else {}),
        }

    def percentile(self, document: int) -> float:
        """Return the percentage of random pairs of documents with a lower score than a document has.

        Args:
            document: index of the document, from 0.
        """
        if self.pair_scores is None:
            return float("nan")
        return percentile_of(float(self.scores["bi-encoder"][document]), self.pair_scores)

    def frame(self) -> pd.DataFrame:
        """Return the best documents of the first scorer.

        Columns: rank, document (ID), score; for each further scorer, its score and rank with the scorer's
        name, such as bm25_score and bm25_rank; after the score of the bi-encoder, percentile: the percentage
        of random pairs of documents with a lower score than the query and the document, NaN for a single
        document; tokens_dropped, title, text.
        """
        best = self.order[: self.question.count]
        first = self.question.scorers[0]
        documents = [self.documents[index] for index in best]
        columns: dict[str, Any] = {}
        for name in self.question.scorers:
            prefix = "" if name == first else name.replace("-", "_") + "_"
            columns[f"{prefix}score"] = self.scores[name][best]
            columns |= {f"{prefix}rank": self.ranks[name][best]} if prefix else {}
            columns |= (
                {"percentile": [self.percentile(index) for index in best]} if name == "bi-encoder" else {}
            )
        return pd.DataFrame(
            {
                "rank": np.arange(1, len(best) + 1),
                "document": frames.plain_strings([document.id for document in documents]),
                **columns,
                "tokens_dropped": [self.dropped[index] for index in best],
                "title": frames.plain_strings([document.title for document in documents]),
                "text": frames.plain_strings([document.text for document in documents]),
            }
        )

    @property
    def nbytes(self) -> int:
        """Size of the scores and the documents in bytes."""
        arrays = [*self.scores.values(), *([] if self.pair_scores is None else [self.pair_scores])]
        return sum(values.nbytes for values in arrays) + sum(map(len, self.documents))


@dataclass(frozen=True)
class Agreement:
    """How far two scorers agree.

    Attributes:
        a, b: names of the scorers.
        spearman: Spearman's rank correlation of their scores, −1 to 1; NaN if it is undefined.
        overlap: number of documents among the first `OVERLAP` of both.
        most: largest possible overlap.
    """

    a: str
    b: str
    spearman: float
    overlap: int
    most: int

    @classmethod
    def of(cls, a: str, b: str, ranks: Mapping[str, Array], scores: Mapping[str, Array]) -> Agreement:
        """Compare two scorers by the ranks and scores of all documents."""
        first, second = scores[a], scores[b]
        is_defined = len(first) > 1 and all(np.ptp(values) > 0 for values in (first, second))
        spearman = float(spearmanr(first, second).statistic) if is_defined else float("nan")
        overlap = int(((ranks[a] <= OVERLAP) & (ranks[b] <= OVERLAP)).sum())
        return cls(a, b, spearman, overlap, min(OVERLAP, len(first)))

    @property
    def about(self) -> dict[str, Any]:
        """The agreement as JSON values; an undefined correlation is None."""
        spearman = None if np.isnan(self.spearman) else self.spearman
        return {"scorers": [self.a, self.b], "spearman": spearman, f"overlap_of_{OVERLAP}": self.overlap}
