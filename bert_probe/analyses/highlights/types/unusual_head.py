"""The head whose attention differs most from the mean of its layer."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.attention.heads import LABEL_SHARE, SHARE_TARGETS
from bert_probe.analyses.highlights.thumbnails import Grid
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType, percent


def _find(context: HighlightContext) -> HighlightCandidate | None:
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
    return HighlightCandidate(
        value,
        f"Head {layer + 1}.{head + 1} is the most unusual head of its layer{focus} (total variation from the "
        f"layer mean: {value:.2f}).",
        "attention",
        Attention(layer, head).address(),
        lambda: Grid.of(context.trace.attention(layer, head)),
    )


HIGHLIGHT_TYPES = (
    HighlightType(
        "unusual head",
        "total variation between a head's attention and the mean of its layer (maximum over heads)",
        6,
        _find,
    ),
)
