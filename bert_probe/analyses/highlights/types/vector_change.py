"""The token whose vector changes most between the embeddings and the last layer."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.highlights.thumbnails import Curves
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType, quote
from bert_probe.analyses.vectors.embedding import HiddenStates
from bert_probe.analyses.vectors.similarity import cosine_of_rows


def _find(context: HighlightContext) -> HighlightCandidate | None:
    tokens = context.content_tokens
    if not tokens or not context.trace.states:
        return None
    start, last = context.vectors(0), context.trace.layers
    curves = np.stack([cosine_of_rows(start, context.vectors(layer)) for layer in range(last + 1)])
    if np.isnan(curves).any():
        return None  # The cosine of a zero vector is undefined.
    index = int(curves[-1].argmin())
    curve, means = curves[:, index], curves.mean(axis=1)
    before = int((curve[:-1] - curve[1:]).argmax())
    layer = before + 1
    return HighlightCandidate(
        float(1 - curve[-1]),
        f"The vector of {quote(tokens[index], tokens)} changes most: its cosine similarity to the input "
        f"vector is {curve[-1]:.2f} after layer {last} (mean over the tokens of this text: {means[-1]:.2f}). "
        f"The largest change is in layer {layer}, from {curve[before]:.2f} to {curve[layer]:.2f}.",
        "embeddings",
        {"part": "vectors"} | HiddenStates(-1 if layer == last else layer).address(),
        lambda: Curves(curve.tolist(), means.tolist(), layer),
    )


HIGHLIGHT_TYPES = (
    HighlightType(
        "vector change",
        "cosine distance between a token's input vector and its vector after the last layer (maximum over "
        "tokens)",
        2,
        _find,
    ),
)
