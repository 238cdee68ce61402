"""Attention of the last layer as an attribution method, for comparison with the other methods."""

from __future__ import annotations

from bert_probe.analyses.attribution.methods import AttributionMethod, AttributionScores, AttributionTarget
from bert_probe.model.progress import Progress


def _scores(target: AttributionTarget, progress: Progress) -> AttributionScores:
    weights = target.trace.attention(-1).mean(axis=0, dtype="float64")
    progress(1, 1)
    return AttributionScores(target.summed(target.read_at @ weights))


METHOD = AttributionMethod(
    name="attention",
    label="Attention only",
    meaning="The attention of the last layer, averaged over heads, from the tokens at which the prediction "
    "is computed. For comparison only: attention ignores value vectors, earlier layers, and the prediction.",
    order=6,
    of=_scores,
)
