"""Attention sinks: layers that put much of their attention on the first token or the separators."""

from __future__ import annotations

from functools import partial

from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.attention.heads import LABEL_SHARE, SHARE_TARGETS
from bert_probe.analyses.highlights.thumbnails import Bars
from bert_probe.analyses.highlights.types import (
    HighlightCandidate,
    HighlightContext,
    HighlightType,
    percent,
    quote,
)


def _find(share: str, context: HighlightContext) -> HighlightCandidate | None:
    if not context.has_attention_shares:
        return None
    tokens = context.trace.tokens
    sinks = [token for token in tokens if token.special and token.position > 0]
    if share == "first":
        sinks = [tokens[0]]
    if not sinks:
        return None
    by_layer, equal_share = context.heads[share].mean(axis=1), len(sinks) / len(tokens)
    layer = int(by_layer.argmax())
    value = float(by_layer[layer])
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


HIGHLIGHT_TYPES = tuple(
    HighlightType(
        "attention sink",
        f"attention on {SHARE_TARGETS[share]} beyond an equal share (mean over heads and tokens; maximum "
        "over layers)",
        30 + order,
        partial(_find, share),
    )
    for order, share in enumerate(("first", "separator"))
)
