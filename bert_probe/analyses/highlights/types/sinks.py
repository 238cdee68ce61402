"""Where attention comes to rest: on the first token, or on the separators."""

from __future__ import annotations

from functools import partial

from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.attention.heads import LABEL_SHARE
from bert_probe.analyses.highlights.thumbnails import Bars
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType, quoted


def _of(share: str, seen: HighlightContext) -> HighlightCandidate | None:
    if not seen.attends:
        return None
    tokens = seen.trace.tokens
    resting = [token for token in tokens if token.special and token.position > 0]
    if share == "first":
        resting = [tokens[0]]
    if not resting:
        return None
    by_layer, even = seen.heads[share].mean(axis=1), len(resting) / len(tokens)
    layer = int(by_layer.argmax())
    value = float(by_layer[layer])
    name = str(resting[0]) if resting[0].special else quoted(resting[0])
    what = f"the first token, {name}," if share == "first" else f"the separator {name}"
    return HighlightCandidate(
        value - even,
        f"In layer {layer + 1} {what} gets {value:.2f} of the attention, the mean over all heads and tokens; "
        f"an even share would be {even:.2f}.",
        "attention",
        Attention(layer).address(),
        lambda: Bars(by_layer.tolist(), layer),
        value >= LABEL_SHARE,
    )


KINDS = tuple(
    HighlightType(
        "attention at rest",
        f"attention on {what} beyond an even share, mean over heads and tokens, largest of all layers",
        30 + order,
        partial(_of, share),
    )
    for order, (share, what) in enumerate({"first": "the first token", "separator": "separators"}.items())
)
