"""Tables of several sentences: similarity, nearest pairs, maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.projection import Map
from bert_probe.analyses.sentences import NearPair, SentenceVectors
from bert_probe.model.trace import resolve
from bert_probe.results.tables import columns_table, matrix_table, vectors_table


def sentences_table(found: SentenceVectors, order: Sequence[int] | None = None) -> pd.DataFrame:
    """Cosines of all sentences as a matrix, in the order given or in `SentenceVectors.order`.

    Raises:
        SelectionError: no such sentence in the order.
    """
    count = len(found.sentences)
    chosen = list(range(count)) if order is None else [resolve(i, count, "sentence") for i in order]
    values = found.cosines if order is None else found.cosines[np.ix_(chosen, chosen)]
    names = [found.sentences[i] for i in chosen]
    about = {"table": "sentences", **_pooled(found)}
    return matrix_table(values, names, names, found.provenance, "sentence", **about)


def sentence_vectors_table(found: SentenceVectors) -> pd.DataFrame:
    """A row a sentence, a column for each dimension of its vector."""
    about = {"label": "sentence", "table": "sentence vectors", **_pooled(found)}
    return vectors_table(found.vectors, found.sentences, found.provenance, **about)


def nearest_table(found: SentenceVectors, pairs: Sequence[NearPair]) -> pd.DataFrame:
    """One row a pair: cosine, a, b, sentence_a, sentence_b; sentences count from 1."""
    columns = {
        "cosine": np.array([pair.cosine for pair in pairs], dtype=np.float32),
        "a": [pair.first + 1 for pair in pairs],
        "b": [pair.second + 1 for pair in pairs],
        "sentence_a": [found.sentences[pair.first] for pair in pairs],
        "sentence_b": [found.sentences[pair.second] for pair in pairs],
    }
    return columns_table(columns, found.provenance, table="nearest sentences", **_pooled(found))


def map_table(found: SentenceVectors, plane: Map) -> pd.DataFrame:
    """One row a sentence: number from 1, x, y, sentence."""
    columns = {
        "number": range(1, len(found.sentences) + 1),
        "x": plane.points[:, 0],
        "y": plane.points[:, 1],
        "sentence": list(found.sentences),
    }
    about = {"method": plane.method, "explained_variance": plane.explained, **_pooled(found)}
    return columns_table(columns, found.provenance, table="sentence map", **about)


def _pooled(found: SentenceVectors) -> dict[str, Any]:
    cut = {str(number): dropped for number, dropped in enumerate(found.dropped, start=1) if dropped}
    return {"pooling": found.pooling, "recipe": found.recipe.about, "tokens_dropped_of_sentence": cut}
