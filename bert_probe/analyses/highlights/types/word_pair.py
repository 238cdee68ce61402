"""Attention from one word to another that exceeds what distance or the key word alone would explain."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.attention.heads import is_punctuation
from bert_probe.analyses.highlights.thumbnails import Grid
from bert_probe.analyses.highlights.types import (
    HighlightCandidate,
    HighlightContext,
    HighlightType,
    percent,
    quote,
)


def _find(context: HighlightContext) -> HighlightCandidate | None:
    """Find the attention weight between two words that exceeds its expected value most.

    The expected value is the larger of two means: the mean over the other pairs of words at the same distance
    and direction, and the mean over the other queries of the same key. Special tokens are excluded from both
    means. Punctuation is neither query nor key, and a word's attention to itself is excluded.
    """
    if not context.has_attention_shares:
        return None
    units = context.lens.units
    count = len(units)
    is_word = np.array([not unit.special for unit in units])
    is_content = np.array([not unit.special and not is_punctuation(unit) for unit in units])
    distance = np.arange(count) - np.arange(count)[:, None] + count - 1  # shape [query, key]
    pairs = is_word & is_word[:, None] & (distance != count - 1)
    pairs_at_distance = np.bincount(distance[pairs], minlength=2 * count - 1)[distance]
    queries_of_key = np.broadcast_to(pairs.sum(axis=0), pairs.shape)
    allowed = pairs & is_content & is_content[:, None] & (pairs_at_distance > 1) & (queries_of_key > 1)
    if not allowed.any():
        return None
    best: tuple[tuple[float, ...], tuple[int, ...]] = ((-np.inf,), ())
    for layer in range(context.trace.layers):
        weights = np.where(
            pairs, context.lens.merge(context.trace.attention(layer)), 0.0
        )  # shape [head, query, key]
        sums = np.stack([np.bincount(distance.ravel(), weight.ravel(), 2 * count - 1) for weight in weights])
        distance_means = (sums[:, distance] - weights) / np.maximum(pairs_at_distance - 1, 1)
        key_means = (weights.sum(axis=1, keepdims=True) - weights) / np.maximum(queries_of_key - 1, 1)
        excess = np.where(allowed, weights - np.maximum(distance_means, key_means), -np.inf)
        index = tuple(map(int, np.unravel_index(excess.argmax(), excess.shape)))
        numbers = tuple(float(array[index]) for array in (excess, weights, distance_means, key_means))
        best = max(best, (numbers, (layer, *index)))
    value, weight, distance_mean, key_mean = best[0]
    layer, head, query, key = best[1]
    query_word, key_word = quote(units[query], units), quote(units[key], units)
    return HighlightCandidate(
        value,
        f"In head {layer + 1}.{head + 1}, {query_word} puts {percent(weight)} of its attention on "
        f"{key_word}. Words at the same distance receive {percent(distance_mean)} on average, and other "
        f"words put {percent(key_mean)} on {key_word}.",
        "attention",
        Attention(layer, head, words=True).address() | {"pins": f"query.{query}"},
        lambda: Grid.of(context.lens.merge(context.trace.attention(layer, head)), mark=(query, key)),
    )


HIGHLIGHT_TYPES = (
    HighlightType(
        "word-to-word attention",
        "attention from word to word beyond what their distance or the key word alone explains (maximum)",
        1,
        _find,
    ),
)
