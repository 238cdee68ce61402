"""A head with a clear job: most of its attention goes to one kind of place."""

from __future__ import annotations

from functools import partial

import numpy as np

from bert_probe.analyses.attention import Attention
from bert_probe.analyses.findings import Found, Kind, Seen
from bert_probe.analyses.head_measures import SHARES
from bert_probe.analyses.heads import LABEL_SHARE
from bert_probe.analyses.pictured import Grid

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


def _of(share: str, seen: Seen) -> Found | None:
    if not seen.attends:
        return None
    values = seen.heads[share]
    layer, head = map(int, np.unravel_index(values.argmax(), values.shape))
    value = float(values[layer, head])
    largest = max(SHARES, key=lambda name: seen.heads[name][layer, head])
    return Found(
        value,
        f"Layer {layer + 1}, head {head + 1} gives {value:.2f} of its attention to {PLACES[share]}.",
        "attention",
        Attention(layer, head).address(),
        lambda: Grid.of(seen.trace.attention(layer, head)),
        value >= LABEL_SHARE and largest == share,
    )


KINDS = tuple(
    Kind(
        "head with a job",
        f"share of a head's attention that goes to {place}, largest of all heads",
        10 + order,
        partial(_of, share),
    )
    for order, (share, place) in enumerate(PLACES.items())
)
