"""The token whose vector ends farthest from the one that it began with, before it met the others."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.highlights.thumbnails import Curves
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType, quoted
from bert_probe.analyses.vectors.cosine import cosine_of_rows
from bert_probe.analyses.vectors.hidden_states import HiddenStates


def _of(seen: HighlightContext) -> HighlightCandidate | None:
    if not seen.own or not seen.trace.states:
        return None
    start, last = seen.vectors(0), seen.trace.layers
    curves = np.stack([cosine_of_rows(start, seen.vectors(layer)) for layer in range(last + 1)])
    if np.isnan(curves).any():
        return None  # a vector of zeros has no direction
    place = int(curves[-1].argmin())
    curve, means = curves[:, place], curves.mean(axis=1)
    step = int((curve[:-1] - curve[1:]).argmax())
    return HighlightCandidate(
        float(1 - curve[-1]),
        f"{quoted(seen.own[place], seen.own)} ends farthest from its own input vector: cosine "
        f"{curve[-1]:.2f} after layer {last}, where the tokens of this text have {means[-1]:.2f} on average. "
        f"Layer {step + 1} takes it farthest, from {curve[step]:.2f} to {curve[step + 1]:.2f}.",
        "embeddings",
        {"part": "vectors"} | HiddenStates(-1 if step + 1 == last else step + 1).address(),
        lambda: Curves(curve.tolist(), means.tolist(), step + 1),
    )


KINDS = (
    HighlightType(
        "a vector that moved",
        "1 − cosine of a token's vector after the last layer with its input vector, largest of all tokens",
        2,
        _of,
    ),
)
