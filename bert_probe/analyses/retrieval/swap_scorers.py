"""Scores of two documents after a change of the query or of one document, for each scorer of a search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from bert_probe.analyses.retrieval.late_interaction import (
    TokenMatches,
    TokenVectors,
    document_config,
    encode_documents,
    encode_tokens,
    maxsim,
    query_config,
)
from bert_probe.analyses.retrieval.scorers import K1, B, pair_scores, words_of
from bert_probe.analyses.retrieval.search import BI_ENCODER, CROSS_ENCODER, LATE_INTERACTION, Search
from bert_probe.analyses.retrieval.search_explanation import TokenContributions
from bert_probe.analyses.vectors.pooling import PoolingConfig, trace_pooled
from bert_probe.analyses.vectors.sentences import encode_texts
from bert_probe.analyses.vectors.similarity import scores
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array
from bert_probe.text.documents import Document, DocumentList

ScoreTexts = Callable[[Sequence[str], Callable[[int], None]], Array]
"""A function that returns the scores of documents A and B for each text, [text, 2].

Its second argument is a callback, which it calls with the number of texts done.
"""
WordContributions = Callable[[tuple[int, int]], float]
"""A function from the character span of a word in a document to the word's contribution to the score."""


class SwapScorer(Protocol):
    """Scores two documents, A and B, after a change of A or of the query.

    Attributes:
        recipe: the pooling configuration of the query; None for scorers other than the bi-encoder.
        dropped: number of tokens truncated from the two documents.
    """

    recipe: PoolingConfig | None
    dropped: int

    def of_documents(self, texts: Sequence[str], report: Callable[[int], None]) -> Array:
        """Return the scores of A and B, [text, 2], where each text replaces A.

        Args:
            report: called with the number of texts done.
        """
        ...

    def of_queries(self, queries: Sequence[str], report: Callable[[int], None]) -> Array:
        """Return the scores of A and B for each query, [query, 2].

        Args:
            report: called with the number of queries done.
        """
        ...

    def contributions(self, side: int) -> WordContributions | None:
        """Return a function that computes the contribution of a word to the score of A or B.

        Returns None if the score is not a sum of contributions.

        Args:
            side: 0 for the words of A, 1 for the words of B.
        """
        ...


class VectorScorer:
    """Scores documents by the similarity of their vectors to the vector of the query."""

    def __init__(
        self, search: Search, checkpoint: Checkpoint, a: Document, b: Document, truncate: bool
    ) -> None:
        self._checkpoint, self._query, self._pair, self._truncate = checkpoint, search.query, (a, b), truncate
        self._query_recipe = search.query_pooling(checkpoint)
        self._recipe = search.document_pooling(checkpoint)
        self.recipe: PoolingConfig | None = self._query_recipe
        encoded = encode_texts(checkpoint, self._recipe, (a, b), truncate, "Document {:,}".format)
        self._vectors, self.dropped = encoded.vectors, sum(encoded.dropped)
        self._query_vectors = self._encode([search.query], self._query_recipe, lambda _: None)

    def _encode(self, texts: Sequence[str], recipe: PoolingConfig, report: Callable[[int], None]) -> Array:
        name = "Text {:,}".format
        return encode_texts(
            self._checkpoint, recipe, texts, self._truncate, name, lambda done, _: report(done)
        ).vectors

    def of_documents(self, texts: Sequence[str], report: Callable[[int], None]) -> Array:
        """Return the scores of A and B after each text has replaced A, [text, 2]; see `SwapScorer`."""
        vectors = np.concatenate([self._encode(texts, self._recipe, report), self._vectors[1:]])
        values = scores(self._query_vectors, vectors, self._query_recipe.similarity)[0].astype(np.float64)
        return np.stack([values[:-1], np.full(len(texts), values[-1])], axis=1)

    def of_queries(self, queries: Sequence[str], report: Callable[[int], None]) -> Array:
        """Return the scores of A and B for each query, [query, 2]; see `SwapScorer`."""
        vectors = self._encode(queries, self._query_recipe, report)
        return scores(vectors, self._vectors, self._query_recipe.similarity).astype(np.float64)

    def contributions(self, side: int) -> WordContributions | None:
        """Return a function that adds up the contributions of the tokens of a word; see `SwapScorer`.

        Returns None if the score is not a sum of contributions.
        """
        query = trace_pooled(self._checkpoint, self._query, self._query_recipe, self._truncate)
        document = trace_pooled(self._checkpoint, self._pair[side], self._recipe, self._truncate)
        try:
            values = TokenContributions.of(query, self._query_recipe, document, self._recipe).of_document
        except UnavailableError:
            return None
        offset = len(replace(self._recipe, prefix="").text(self._recipe.prefix))
        return _contributions_of_words(document.tokens, values, offset)


class MatchScorer:
    """Scores documents by MaxSim, see `late_interaction`."""

    recipe: PoolingConfig | None = None

    def __init__(
        self, search: Search, checkpoint: Checkpoint, a: Document, b: Document, truncate: bool
    ) -> None:
        self._checkpoint, self._query, self._pair, self._truncate = checkpoint, search.query, (a, b), truncate
        self._query_config = query_config(checkpoint, search.prompt)
        self._config = document_config(checkpoint, search.document_prompt)
        self._documents = self._encode((a, b), lambda _: None)
        self._query_vectors = encode_tokens(checkpoint, self._query_config, search.query, truncate).vectors
        self.dropped = sum(self._documents.dropped)

    def _encode(self, texts: Sequence[str], report: Callable[[int], None]) -> TokenVectors:
        name = "Text {:,}".format
        return encode_documents(
            self._checkpoint, self._config, texts, self._truncate, name, lambda done, _: report(done)
        )

    def _score(self, query: Array, documents: TokenVectors) -> Array:
        return maxsim(query, documents, self._query_config.similarity).astype(np.float64)

    def of_documents(self, texts: Sequence[str], report: Callable[[int], None]) -> Array:
        """Return the scores of A and B, [text, 2], where each text replaces A; see `SwapScorer`."""
        values = self._score(self._query_vectors, self._encode(texts, report))
        b = self._score(self._query_vectors, self._documents)[1]
        return np.stack([values, np.full(len(texts), b)], axis=1)

    def of_queries(self, queries: Sequence[str], report: Callable[[int], None]) -> Array:
        """Return the scores of A and B for each query, [query, 2]; see `SwapScorer`."""
        rows = []
        for number, query in enumerate(queries, 1):
            tokens = encode_tokens(self._checkpoint, self._query_config, query, self._truncate)
            rows.append(self._score(tokens.vectors, self._documents))
            report(number)
        return np.array(rows)

    def contributions(self, side: int) -> WordContributions | None:
        """Return a function that adds up the contributions of query tokens whose best match is in a word."""
        query = encode_tokens(self._checkpoint, self._query_config, self._query, self._truncate)
        document = encode_tokens(self._checkpoint, self._config, self._pair[side], self._truncate)
        matches = TokenMatches.of(query, document, self._query_config.similarity)
        offset = len(self._config.text(""))
        return _contributions_of_words(matches.document.tokens, matches.of_document, offset)


class PairScorer:
    """Scores documents by a cross-encoder, which reads the query and a document together."""

    recipe: PoolingConfig | None = None

    def __init__(
        self, search: Search, checkpoint: Checkpoint, a: Document, b: Document, truncate: bool
    ) -> None:
        del truncate  # not needed: a cross-encoder always truncates long pairs
        self._checkpoint, self._query, self._pair = checkpoint, search.query, (a, b)
        (_, self._b), dropped = pair_scores(checkpoint, search.query, self._pair, ("A", "B"))
        self.dropped = sum(dropped)

    def of_documents(self, texts: Sequence[str], report: Callable[[int], None]) -> Array:
        """Return the scores of A and B, [text, 2], where each text replaces A; see `SwapScorer`."""
        names = [f"Text {number:,}" for number in range(1, len(texts) + 1)]
        values, _ = pair_scores(self._checkpoint, self._query, texts, names, lambda done, _: report(done))
        return np.stack([values, np.full(len(texts), self._b)], axis=1).astype(np.float64)

    def of_queries(self, queries: Sequence[str], report: Callable[[int], None]) -> Array:
        """Return the scores of A and B for each query, [query, 2]; see `SwapScorer`."""
        rows = []
        for number, query in enumerate(queries, 1):
            rows.append(pair_scores(self._checkpoint, query, self._pair, ("A", "B"))[0])
            report(number)
        return np.array(rows, np.float64)

    def contributions(self, side: int) -> WordContributions | None:  # noqa: ARG002
        """Return None, because the score is not a sum of contributions."""
        return None


MODEL_SCORERS: Mapping[str, Callable[[Search, Checkpoint, Document, Document, bool], SwapScorer]] = {
    BI_ENCODER: VectorScorer,
    LATE_INTERACTION: MatchScorer,
    CROSS_ENCODER: PairScorer,
}
"""Name of a scorer that runs a model → the class that computes its scores."""


def _contributions_of_words(tokens: Sequence[Token], values: Array, offset: int) -> WordContributions:
    """Return a function that adds up the contributions of the tokens of a word.

    Args:
        offset: length of the prompt before the document, in characters.
    """
    spans = [
        (token.start - offset, token.end - offset, float(value))
        for token, value in zip(tokens, values, strict=True)
        if token.start is not None and token.end is not None
    ]
    return lambda span: sum(value for start, end, value in spans if start < span[1] and end > span[0])


class WordScorer:
    """Scores documents by BM25, as `Search` does. A change of A also changes the document frequencies."""

    recipe: PoolingConfig | None = None
    dropped = 0

    def __init__(self, documents: DocumentList, a: int, b: int, query: str) -> None:
        bags = [Counter(words_of(document)) for document in documents]
        self._query, self._pair = query, (documents[a], documents[b])
        self._a, self._b = bags[a], bags[b]
        self._others = len(bags) - 1
        self._length = sum(bag.total() for bag in bags) - self._a.total()  # words outside of A
        self._frequencies = Counter(word for index, bag in enumerate(bags) if index != a for word in bag)

    def of_documents(self, texts: Sequence[str], report: Callable[[int], None]) -> Array:
        """Return the scores of A and B, [text, 2], where each text replaces A; see `SwapScorer`."""
        words = words_of(self._query)
        rows = []
        for number, text in enumerate(texts, 1):
            rows.append(self._score(words, Counter(words_of(text))))
            report(number)
        return np.array(rows)

    def of_queries(self, queries: Sequence[str], report: Callable[[int], None]) -> Array:
        """Return the scores of A and B for each query, [query, 2]; see `SwapScorer`."""
        rows = []
        for number, query in enumerate(queries, 1):
            rows.append(self._score(words_of(query), self._a))
            report(number)
        return np.array(rows)

    def contributions(self, side: int) -> WordContributions | None:
        """Return a function that counts the terms that a word of the document shares with the query."""
        words, text = set(words_of(self._query)), self._pair[side]
        return lambda span: float(len(words & {*words_of(text[slice(*span)])}))

    def _score(self, query: Sequence[str], a: Counter[str]) -> tuple[float, float]:
        """Return the BM25 scores of A and B.

        Args:
            query: the words of the query.
            a: number of occurrences of each word in A, which may be a changed text. B is never changed.
        """
        count, mean_length = self._others + 1, (self._length + a.total()) / (self._others + 1)
        values = []
        for bag in (a, self._b):
            norm = K1 * (1 - B + B * bag.total() / mean_length) if bag else 0.0
            total = 0.0
            for word in query:
                frequency = self._frequencies[word] + (word in a)
                if bag[word]:
                    idf = np.log1p((count - frequency + 0.5) / (frequency + 0.5))
                    total += idf * bag[word] / (bag[word] + norm)
            values.append(float(total))
        return values[0], values[1]
