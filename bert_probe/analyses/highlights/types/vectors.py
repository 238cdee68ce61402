"""Highlights of vectors: changes over the layers, pairs of tokens, and two separate texts."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.highlights.types import (
    Bars,
    Curves,
    Grid,
    HighlightCandidate,
    HighlightContext,
    HighlightType,
    Picture,
    quote,
)
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity, SentenceSimilarityResult
from bert_probe.analyses.vectors.embedding import HiddenStates
from bert_probe.analyses.vectors.similarity import Similarity, cosine, cosine_of_rows, cosines_of_pairs
from bert_probe.errors import CheckpointError, UnavailableError
from bert_probe.model.checkpoint import SENTENCE_SIMILARITY

# ---------------------------------------------------------------- vector changes


def _find_vector_change(context: HighlightContext) -> HighlightCandidate | None:
    tokens = context.content_tokens
    if not tokens or not context.trace.states:
        return None
    last = context.trace.layers
    start, *others = (context.vectors(layer) for layer in range(last + 1))
    if any(vectors.shape != start.shape for vectors in others):
        return None  # OPT may project its input vectors to another size
    curves = np.stack([cosine_of_rows(start, vectors) for vectors in (start, *others)])
    if np.isnan(curves).any():
        return None  # the cosine with a zero vector is undefined
    index = int(curves[-1].argmin())
    curve, means = curves[:, index], curves.mean(axis=1)
    before = int((curve[:-1] - curve[1:]).argmax())
    layer = before + 1
    return HighlightCandidate(
        float(1 - curve[-1]),
        f"The vector of {quote(tokens[index], tokens)} changes most: its cosine similarity to the input "
        f"vector is {curve[-1]:.2f} after layer {last} (mean over the tokens of this text: {means[-1]:.2f}). "
        f"The largest change is in layer {layer}, from {curve[before]:.2f} to {curve[layer]:.2f}.",
        "embeddings",
        {"part": "vectors"} | HiddenStates(-1 if layer == last else layer).address(),
        lambda: Curves(curve.tolist(), means.tolist(), layer),
    )


_VECTOR_CHANGES = (
    HighlightType(
        "vector change",
        "cosine distance between a token's input vector and its vector after the last layer (maximum over "
        "tokens)",
        2,
        _find_vector_change,
    ),
)


# ---------------------------------------------------------------- token pairs


def _find_similar(context: HighlightContext) -> HighlightCandidate | None:
    """Return a candidate for the two most similar tokens with different ids, from different words.

    In a sentence pair, the two tokens are from different segments, because the linked page compares segments.
    """
    tokens, trace = context.content_tokens, context.trace
    if not tokens or not trace.states or not context.is_short:
        return None
    ids = np.array([token.id for token in tokens])
    words = np.array([(token.segment, -1 if token.word is None else token.word) for token in tokens])
    allowed = np.triu(ids[:, None] != ids, k=1) & (words[:, None] != words).any(axis=-1)
    if trace.encoding.pair is not None:
        allowed &= words[:, None, 0] != words[:, 0]
    vectors = context.vectors(-1)
    cosines = cosine(vectors, vectors).astype(np.float64)
    allowed &= ~np.isnan(cosines)
    if not allowed.any():
        return None
    a, b = map(int, np.unravel_index(np.where(allowed, cosines, -2.0).argmax(), cosines.shape))
    value = float(cosines[a, b])
    return HighlightCandidate(
        value,
        f"{quote(tokens[a], tokens)} and {quote(tokens[b], tokens)} are the most similar tokens: cosine "
        f"similarity {value:.2f} after layer {trace.layers} (mean over all pairs of different tokens: "
        f"{cosines[allowed].mean():.2f}).",
        "similarity",
        Similarity().address(),
        lambda: Grid.of(cosines, mark=(a, b)),
    )


def _find_repeated(context: HighlightContext) -> HighlightCandidate | None:
    """Return a candidate for the two least similar occurrences of the same token.

    In a sentence pair, the two occurrences are in different segments.
    """
    tokens, trace = context.content_tokens, context.trace
    if not trace.states or not context.is_short:
        return None
    ids, segments = (np.array([getattr(token, name) for token in tokens]) for name in ("id", "segment"))
    is_same = np.triu(ids[:, None] == ids, k=1)
    if trace.encoding.pair is not None:
        is_same &= segments[:, None] != segments
    pairs = np.argwhere(is_same)
    if not len(pairs):
        return None
    vectors = context.vectors(-1)
    cosines = cosines_of_pairs(vectors, vectors, pairs)
    if np.isnan(cosines).any():
        return None
    index = int(cosines.argmin())
    a, b = map(int, pairs[index])
    value = float(cosines[index])
    names = f"{quote(tokens[a], tokens)} and {quote(tokens[b], tokens)}"
    return HighlightCandidate(
        1 - value,
        repeated_token_sentence(names, value, trace.layers, float(cosines.mean()), len(pairs)),
        "similarity",
        Similarity().address(),
        lambda: Grid.of(cosine(vectors, vectors), mark=(a, b)),
    )


def repeated_token_sentence(names: str, value: float, layer: int, mean: float, pairs: int) -> str:
    """Return the sentence about the least similar occurrences of a token.

    Args:
        names: text that names the two least similar occurrences.
        value: cosine similarity of the two least similar occurrences after the layer.
        layer: number of the layer, from 1.
        mean: mean cosine similarity over all pairs of occurrences.
        pairs: number of pairs of occurrences.
    """
    if pairs == 1:
        return f"{names} are the same token, with a cosine similarity of {value:.2f} after layer {layer}."
    return (
        f"Of all repeated tokens, {names} differ most: cosine similarity {value:.2f} after layer {layer} "
        f"(mean over all pairs: {mean:.2f})."
    )


_TOKEN_PAIRS = (
    HighlightType(
        "repeated token",
        "cosine distance between two occurrences of a token after the last layer (maximum)",
        7,
        _find_repeated,
        single_text_only=True,
    ),
    HighlightType(
        "similar tokens",
        "cosine similarity of two different tokens after the last layer (maximum)",
        4,
        _find_similar,
        single_text_only=True,
    ),
)


# ---------------------------------------------------------------- two texts


_NAMES = {"cosine": "cosine similarity"}


def _find_similarity(a: HighlightContext, b: HighlightContext) -> HighlightCandidate | None:
    if a.trace.made_by is None or not a.trace.made_by.has_pooling:
        return None
    try:
        result = SentenceSimilarity("contributions").of(a.trace, b.trace)
    except (CheckpointError, UnavailableError):
        return None
    if np.isnan(result.score):
        return None
    contribution, picture = _largest_contribution(result)
    return HighlightCandidate(
        result.score,
        f"The {_NAMES.get(result.recipe.similarity, result.recipe.score_name)} of A and B is "
        f"{result.score:.2f}.{contribution}",
        "answer",
        {} if a.trace.made_by.tasks[0] == SENTENCE_SIMILARITY else {"task": SENTENCE_SIMILARITY},
        lambda: picture,
    )


def _largest_contribution(result: SentenceSimilarityResult) -> tuple[str, Picture]:
    """Return a sentence and a thumbnail for the token pair that contributes most to the score.

    If the score is not a sum over pairs, the sentence is "" and the thumbnail shows the score.
    """
    if result.not_a_sum:
        return "", Bars([result.score], 0)
    rows, columns = ([token for token in text.tokens if not token.special] for text in (result.a, result.b))
    positions = [[token.position for token in tokens] for tokens in (rows, columns)]
    cells = result.contributions[np.ix_(*positions)]
    row, column = map(int, np.unravel_index(cells.argmax(), cells.shape))
    largest = float(cells[row, column])
    return (
        f" {quote(rows[row], rows)} of A and {quote(columns[column], columns)} of B contribute most to it: "
        f"{largest:.3f} (special tokens excluded).",
        Grid.of(cells, max(largest, np.finfo(np.float64).tiny), (row, column)),
    )


def _find_shared(a: HighlightContext, b: HighlightContext) -> HighlightCandidate | None:
    """Return a candidate for the shared token whose vectors in the two texts are least similar.

    The vectors are those after the last layer.
    """
    if not a.trace.states or not (a.is_short and b.is_short):
        return None
    last = a.trace.layers
    ids_a, ids_b = (np.array([token.id for token in side.content_tokens]) for side in (a, b))
    pairs = np.argwhere(ids_a[:, None] == ids_b)
    if not len(pairs):
        return None
    cosines = cosines_of_pairs(a.vectors(last), b.vectors(last), pairs)
    if np.isnan(cosines).any():
        return None
    index = int(cosines.argmin())
    row, column = map(int, pairs[index])
    value = float(cosines[index])
    first = quote(a.content_tokens[row], a.content_tokens)
    second = quote(b.content_tokens[column], b.content_tokens)

    def picture() -> Picture:
        layers = range(last + 1)
        curves = [cosines_of_pairs(a.vectors(layer), b.vectors(layer), pairs) for layer in layers]
        return Curves(
            [float(curve[index]) for curve in curves], [float(curve.mean()) for curve in curves], last
        )

    return HighlightCandidate(
        1 - value,
        repeated_token_sentence(
            f"{first} of A and {second} of B", value, last, float(cosines.mean()), len(pairs)
        ),
        "similarity",
        Similarity().address(),
        picture,
    )


_TWO_TEXTS = (
    HighlightType("text similarity", "similarity score of the two texts", 0, _find_similarity, texts=2),
    HighlightType(
        "shared token",
        "cosine distance between a token's vectors in the two texts after the last layer (maximum over "
        "shared tokens)",
        1,
        _find_shared,
        texts=2,
    ),
)


HIGHLIGHT_TYPES = (*_VECTOR_CHANGES, *_TOKEN_PAIRS, *_TWO_TEXTS)
