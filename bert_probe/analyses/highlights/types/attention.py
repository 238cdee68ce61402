"""Highlights of attention: word pairs, unusual and specialized heads, and attention sinks."""

from __future__ import annotations

from functools import partial

import numpy as np

from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.attention.heads import LABEL_SHARE, SHARE_TARGETS, is_punctuation
from bert_probe.analyses.highlights.types import (
    Bars,
    Grid,
    HighlightCandidate,
    HighlightContext,
    HighlightType,
    percent,
    quote,
)
from bert_probe.model.trace import Array

# ---------------------------------------------------------------- word pairs


def _find_word_pair(context: HighlightContext) -> HighlightCandidate | None:
    """Return a candidate for the attention between two words that exceeds its expected value most.

    The expected value is the larger of two means: the mean over the other pairs of words at the same distance
    and direction, and the mean over the other queries of the same key. Special tokens are excluded from both
    means, and so are words that may not attend to each other. Punctuation is neither query nor key, and a
    word's attention to itself is excluded.
    """
    if not context.has_attention_shares:
        return None
    units = context.lens.units
    count = len(units)
    is_word = np.array([not unit.special for unit in units])
    is_content = np.array([not unit.special and not is_punctuation(unit) for unit in units])
    distance = np.arange(count) - np.arange(count)[:, None] + count - 1  # shape [query, key]
    best: tuple[tuple[float, ...], tuple[int, ...]] = ((-np.inf,), ())
    for layer, reachable in enumerate(context.reachable):
        pairs = is_word & is_word[:, None] & (distance != count - 1)
        pairs &= context.lens.merge(reachable.astype(float)) > 0
        pairs_at_distance = np.bincount(distance[pairs], minlength=2 * count - 1)[distance]
        queries_of_key = np.broadcast_to(pairs.sum(axis=0), pairs.shape)
        allowed = pairs & is_content & is_content[:, None] & (pairs_at_distance > 1) & (queries_of_key > 1)
        if not allowed.any():
            continue
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
    if not best[1]:
        return None
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


_WORD_PAIRS = (
    HighlightType(
        "word-to-word attention",
        "attention from word to word beyond what their distance or the key word alone explains (maximum)",
        1,
        _find_word_pair,
    ),
)


# ---------------------------------------------------------------- unusual heads


def _find_unusual_head(context: HighlightContext) -> HighlightCandidate | None:
    if not context.has_attention_shares or context.trace.heads < 2:
        return None
    values = context.heads["difference_from_mean"]
    layer, head = map(int, np.unravel_index(values.argmax(), values.shape))
    value = float(values[layer, head])
    name = max(SHARE_TARGETS, key=lambda share: context.heads[share][layer, head])
    share = float(context.heads[name][layer, head])
    focus = ""
    if share >= LABEL_SHARE:
        focus = f": it puts {percent(share)} of its attention on {SHARE_TARGETS[name]}"
    description = (
        f"is the most unusual head of its layer{focus} (total variation from the layer mean: {value:.2f})."
    )
    return _head_candidate(context, layer, head, value, description)


def _head_candidate(
    context: HighlightContext, layer: int, head: int, value: float, description: str, clear: bool = True
) -> HighlightCandidate:
    """Return a candidate for a head.

    Args:
        context: the text.
        layer, head: indices from 0.
        value: the measured value.
        description: the rest of the sentence, after the name of the head.
        clear: whether the value is worth reporting.
    """
    return HighlightCandidate(
        value,
        f"Head {layer + 1}.{head + 1} {description}",
        "attention",
        Attention(layer, head).address(),
        lambda: Grid.of(context.trace.attention(layer, head)),
        clear,
    )


_UNUSUAL_HEADS = (
    HighlightType(
        "unusual head",
        "total variation between a head's attention and the mean of its layer (maximum over heads)",
        6,
        _find_unusual_head,
    ),
)


# ---------------------------------------------------------------- specialized heads


# "first" and "separator" are excluded, because these shares have a separate type, the attention sinks.
_SHARES = ("previous", "next", "same_token", "same_word", "punctuation", "self", "other_segment")


def _mean_shares(context: HighlightContext, share: str) -> Array:
    """Return an attention share of each head, averaged over the queries for which it is defined.

    The shape is [layer, head]. The share is 0 if it is not defined for any query.
    """
    queries = np.maximum(context.queries_with_target[share], 1)
    shares: Array = context.heads[share] * (len(context.trace.tokens) / queries)[:, None]
    return shares


def _find_specialized_head(share: str, context: HighlightContext) -> HighlightCandidate | None:
    if not context.has_attention_shares or not context.queries_with_target[share].any():
        return None
    values = _mean_shares(context, share)
    layer, head = map(int, np.unravel_index(values.argmax(), values.shape))
    value = float(values[layer, head])
    # Shares overlap: the previous token may be in the same word. Report only the head's largest share.
    largest = max(_mean_shares(context, other)[layer, head] for other in _SHARES)
    queries = context.queries_with_target[share][layer]
    has_all = queries == len(context.trace.tokens)
    over = "" if has_all else f" (mean over the {queries} tokens that have such a target)"
    description = f"puts {percent(value)} of its attention on {SHARE_TARGETS[share]}{over}."
    return _head_candidate(context, layer, head, value, description, LABEL_SHARE <= value == largest)


_SPECIALIZED_HEADS = tuple(
    HighlightType(
        "specialized head",
        f"share of a head's attention on {SHARE_TARGETS[share]} (mean over the tokens that have such a "
        "target; maximum over heads)",
        10 + order,
        partial(_find_specialized_head, share),
    )
    for order, share in enumerate(_SHARES)
)


# ---------------------------------------------------------------- attention sinks


def _find_sink(share: str, context: HighlightContext) -> HighlightCandidate | None:
    if not context.has_attention_shares:
        return None
    tokens = context.trace.tokens
    sinks = [token for token in tokens if token.special and token.position > 0]
    if share == "first":
        sinks = [tokens[0]]
    if not sinks:
        return None
    by_layer = context.heads[share].mean(axis=1)
    layer = int(by_layer.argmax())
    value, reachable = float(by_layer[layer]), context.reachable[layer]
    is_sink = np.isin(np.arange(len(tokens)), [sink.position for sink in sinks])
    equal_share = float(((reachable & is_sink).sum(axis=1) / np.maximum(reachable.sum(axis=1), 1)).mean())
    name = str(sinks[0]) if sinks[0].special else quote(sinks[0])
    target = f"the first token, {name}" if share == "first" else f"the separator {name}"
    return HighlightCandidate(
        value - equal_share,
        f"Layer {layer + 1} puts {percent(value)} of its attention on {target} (mean over heads and tokens; "
        f"an equal share would be {percent(equal_share)}).",
        "attention",
        Attention(layer).address(),
        lambda: Bars(by_layer.tolist(), layer),
        value >= LABEL_SHARE,
    )


_ATTENTION_SINKS = tuple(
    HighlightType(
        "attention sink",
        f"attention on {SHARE_TARGETS[share]} beyond an equal share (mean over heads and tokens; maximum "
        "over layers)",
        30 + order,
        partial(_find_sink, share),
    )
    for order, share in enumerate(("first", "separator"))
)


HIGHLIGHT_TYPES = (*_WORD_PAIRS, *_UNUSUAL_HEADS, *_SPECIALIZED_HEADS, *_ATTENTION_SINKS)
