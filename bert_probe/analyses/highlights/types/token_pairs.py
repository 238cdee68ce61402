"""The most similar pair of different tokens, and the least similar occurrences of the same token."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from bert_probe.analyses.highlights.thumbnails import Grid
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType, quote
from bert_probe.analyses.vectors.similarity import Similarity, cosine, cosine_of_rows


def _find_similar(context: HighlightContext) -> HighlightCandidate | None:
    """Find the most similar pair of tokens with different ids, from different words.

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
    """Find the two least similar occurrences of the same token; in a sentence pair, one per segment."""
    tokens, trace = context.content_tokens, context.trace
    if not trace.states or not context.is_short:
        return None
    is_pair = trace.encoding.pair is not None
    pairs = [
        (a, b)
        for a, b in combinations(range(len(tokens)), 2)
        if tokens[a].id == tokens[b].id and not (is_pair and tokens[a].segment == tokens[b].segment)
    ]
    if not pairs:
        return None
    vectors = context.vectors(-1)
    cosines = cosine_of_rows(*(vectors[[pair[side] for pair in pairs]] for side in (0, 1)))
    if np.isnan(cosines).any():
        return None
    index = int(cosines.argmin())
    a, b = pairs[index]
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
    """Return the sentence about the least similar occurrences of a token, among ``pairs`` pairs."""
    if pairs == 1:
        return f"{names} are the same token, with a cosine similarity of {value:.2f} after layer {layer}."
    return (
        f"Of all repeated tokens, {names} differ most: cosine similarity {value:.2f} after layer {layer} "
        f"(mean over all pairs: {mean:.2f})."
    )


HIGHLIGHT_TYPES = (
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
