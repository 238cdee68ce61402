"""The head that attends most unlike the others of its layer."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.highlights.thumbnails import Grid
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType


def _of(seen: HighlightContext) -> HighlightCandidate | None:
    if not seen.attends or seen.trace.heads < 2:
        return None
    values = seen.heads["difference_from_mean"]
    layer, head = map(int, np.unravel_index(values.argmax(), values.shape))
    value = float(values[layer, head])
    return HighlightCandidate(
        value,
        f"Layer {layer + 1}, head {head + 1} attends most unlike its layer: {value:.2f} of its attention "
        f"lies elsewhere than in the mean of the {seen.trace.heads} heads.",
        "attention",
        Attention(layer, head).address(),
        lambda: Grid.of(seen.trace.attention(layer, head)),
    )


KINDS = (
    HighlightType(
        "a head apart",
        "total variation between a head's attention and its layer's mean, largest of all heads",
        6,
        _of,
    ),
)
