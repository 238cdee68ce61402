"""BM25: the words that a query and a document share, weighted by their frequencies."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bert_probe.core.extras import explain_missing
from bert_probe.model.trace import Array

K1, B = 1.2, 0.75
"""BM25's saturation of the term frequency, and its normalization by the length of the document."""
_WORD = re.compile(r"\w+")


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
        self._mean_length = sum(map(len, words)) / len(words)
        self._frequencies = Counter(word for document in words for word in set(document))
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
        """Return the contribution of each query word to the score of a document, float64.

        Columns: term, query_count and count (occurrences in the query and in the document), documents (number
        of documents with the term), idf, contribution. The contributions add up to the score and are sorted
        in descending order.

        Args:
            document: index of the document, from 0.
        """
        length, counts = len(self._words[document]), Counter(self._words[document])
        rows = []
        for term, query_count in Counter(words_of(query)).items():
            count, frequency = counts[term], self._frequencies[term]
            idf = math.log1p((self._count - frequency + 0.5) / (frequency + 0.5))
            saturation = count / (count + K1 * (1 - B + B * length / self._mean_length)) if count else 0.0
            rows.append((term, query_count, count, frequency, idf, query_count * idf * saturation))
        return (
            pd.DataFrame(rows, columns=["term", "query_count", "count", "documents", "idf", "contribution"])
            .astype({"idf": float, "contribution": float})
            .sort_values("contribution", ascending=False, kind="stable", ignore_index=True)
        )


def words_of(text: str) -> list[str]:
    """Return the words of a text that BM25 counts."""
    return _WORD.findall(text.lower())
