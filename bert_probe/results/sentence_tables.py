"""Tables of several sentences: words in context, similarity, nearest pairs, maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.context import WordsInContext, corrected
from bert_probe.analyses.projection import Map
from bert_probe.analyses.sentences import NearPair, SentenceVectors
from bert_probe.analyses.similarity import Baseline
from bert_probe.model.trace import resolve
from bert_probe.results.tables import columns_table, matrix_table, vectors_table


def context_table(found: WordsInContext, baseline: Baseline) -> pd.DataFrame:
    """One row a layer and pair: layer, a, b, cosine, baseline_mean, baseline_p95, corrected.

    ``a`` and ``b`` count the occurrences from 1, in the order given; layer 0 is the embeddings' output.
    """
    layers, pairs = found.curves.shape
    a, b = (np.array(side) + 1 for side in zip(*found.pairs, strict=True))
    columns = {
        "layer": np.repeat(np.arange(layers), pairs),
        "a": np.tile(a, layers),
        "b": np.tile(b, layers),
        "cosine": found.curves.reshape(-1),
        "baseline_mean": np.repeat(baseline.mean, pairs),
        "baseline_p95": np.repeat(baseline.p95, pairs),
        "corrected": corrected(found.curves, baseline).reshape(-1),
    }
    return columns_table(columns, _model_of(found), table="words in context", words=_words_of(found))


def context_matrix_table(found: WordsInContext, layer: int = -1) -> pd.DataFrame:
    """Cosines of all occurrences at a layer as a matrix, each named by its number and word.

    Raises:
        SelectionError: no such layer.
    """
    names = [f"{number} {one.unit}" for number, one in enumerate(found.occurrences, start=1)]
    layer = resolve(layer, found.layers + 1, "layer")
    view = {"table": "words in context", "layer": layer, "words": _words_of(found)}
    return matrix_table(found.cosine(layer), names, names, _model_of(found), "word", **view)


def _model_of(found: WordsInContext) -> dict[str, Any]:
    """Where the numbers come from, without the one text of a single trace."""
    own = {"text", "pair", "tokens", "tokens_dropped"}
    provenance = found.occurrences[0].trace.provenance
    return {name: value for name, value in provenance.items() if name not in own}


def _words_of(found: WordsInContext) -> list[dict[str, Any]]:
    return [
        {
            "word": str(one.unit),
            "position": one.unit.position,
            "pieces": len(one.unit.positions),
            **{name: one.trace.provenance[name] for name in ("text", "pair", "tokens_dropped")},
        }
        for one in found.occurrences
    ]


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
