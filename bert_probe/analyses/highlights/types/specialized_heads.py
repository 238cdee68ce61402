"""Specialized heads: heads that put at least half of their attention on one kind of target."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np

from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.attention.heads import LABEL_SHARE, SHARE_TARGETS, is_punctuation
from bert_probe.analyses.highlights.thumbnails import Grid
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType, percent
from bert_probe.model.trace import Array

# "first" and "separator" are excluded: attention on special tokens is an attention sink.
_SHARES = ("previous", "next", "same_token", "same_word", "punctuation", "self", "other_segment")


def _count_queries(context: HighlightContext, share: str) -> int:
    """Return the number of query tokens for which a share is defined.

    For example, the share of the previous token is defined for all tokens except the first.
    """
    tokens = context.trace.tokens
    count = len(tokens)
    if share in ("previous", "next"):
        return count - 1
    if share == "same_token":
        return sum(occurrences for occurrences in Counter(map(str, tokens)).values() if occurrences > 1)
    if share == "same_word":
        return sum(len(unit.positions) for unit in context.lens.units if len(unit.positions) > 1)
    if share == "punctuation":
        return count if any(map(is_punctuation, tokens)) else 0
    return count if share == "self" or context.trace.encoding.pair is not None else 0


def _mean_shares(context: HighlightContext, share: str) -> Array:
    """Return a share of each head, averaged over the queries that have a target, shape [layer, head].

    The share is 0 if no query has a target.
    """
    queries = max(_count_queries(context, share), 1)
    shares: Array = context.heads[share] * (len(context.trace.tokens) / queries)
    return shares


def _find(share: str, context: HighlightContext) -> HighlightCandidate | None:
    queries = _count_queries(context, share)
    if not context.has_attention_shares or not queries:
        return None
    values = _mean_shares(context, share)
    layer, head = map(int, np.unravel_index(values.argmax(), values.shape))
    value = float(values[layer, head])
    # Report only the largest share, because shares overlap: the previous token may be in the same word.
    largest = max(_mean_shares(context, other)[layer, head] for other in _SHARES)
    over = "" if queries == len(context.trace.tokens) else f" (mean over the {queries} tokens that have one)"
    return HighlightCandidate(
        value,
        f"Head {layer + 1}.{head + 1} puts {percent(value)} of its attention on {SHARE_TARGETS[share]}"
        f"{over}.",
        "attention",
        Attention(layer, head).address(),
        lambda: Grid.of(context.trace.attention(layer, head)),
        LABEL_SHARE <= value == largest,
    )


HIGHLIGHT_TYPES = tuple(
    HighlightType(
        "specialized head",
        f"share of a head's attention on {SHARE_TARGETS[share]} (mean over the tokens that have one; maximum "
        "over heads)",
        10 + order,
        partial(_find, share),
    )
    for order, share in enumerate(_SHARES)
)
