"""A head with a clear job: most of its attention goes to one kind of place."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np

from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.attention.head_measures import is_punctuation
from bert_probe.analyses.attention.heads import LABEL_SHARE
from bert_probe.analyses.highlights.thumbnails import Grid
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType
from bert_probe.model.trace import Array

PLACES = {
    "previous": "the token before",
    "next": "the next token",
    "same_token": "the same token elsewhere",
    "same_word": "the rest of the same word",
    "punctuation": "punctuation",
    "self": "the token itself",
    "other_segment": "the other segment",
}
"""Resting on [CLS] or [SEP] is no such thing."""


def _askers(seen: HighlightContext, share: str) -> int:
    """How many tokens have such a place at all."""
    tokens = seen.trace.tokens
    count = len(tokens)
    if share in ("previous", "next"):
        return count - 1
    if share == "same_token":
        return sum(times for times in Counter(map(str, tokens)).values() if times > 1)
    if share == "same_word":
        return sum(len(unit.positions) for unit in seen.lens.units if len(unit.positions) > 1)
    if share == "punctuation":
        return count if any(map(is_punctuation, tokens)) else 0
    return count if share == "self" or seen.trace.encoding.pair is not None else 0


def _shares(seen: HighlightContext, share: str) -> Array:
    """Mean over the tokens that have such a place, [layer, head]; 0 where none has."""
    shares: Array = seen.heads[share] * (len(seen.trace.tokens) / max(_askers(seen, share), 1))
    return shares


def _of(share: str, seen: HighlightContext) -> HighlightCandidate | None:
    askers = _askers(seen, share)
    if not seen.attends or not askers:
        return None
    values = _shares(seen, share)
    layer, head = map(int, np.unravel_index(values.argmax(), values.shape))
    value = float(values[layer, head])
    # A head that looks one token back looks into the same word, too: that is no other job.
    largest = max(_shares(seen, name)[layer, head] for name in PLACES)
    whose = "" if askers == len(seen.trace.tokens) else f", the mean over the {askers} tokens that have one"
    return HighlightCandidate(
        value,
        f"Layer {layer + 1}, head {head + 1} gives {value:.2f} of its attention to {PLACES[share]}{whose}.",
        "attention",
        Attention(layer, head).address(),
        lambda: Grid.of(seen.trace.attention(layer, head)),
        LABEL_SHARE <= value == largest,
    )


KINDS = tuple(
    HighlightType(
        "head with a job",
        f"share of a head's attention that goes to {place}, mean over the tokens that have one, largest of "
        "all heads",
        10 + order,
        partial(_of, share),
    )
    for order, (share, place) in enumerate(PLACES.items())
)
