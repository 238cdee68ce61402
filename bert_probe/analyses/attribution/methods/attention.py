"""The last layer's attention alone, for comparison."""

from __future__ import annotations

from bert_probe.analyses.attribution.methods import AttributionMethod, AttributionScores, AttributionTarget
from bert_probe.model.progress import Progress


def _of(asked: AttributionTarget, report: Progress) -> AttributionScores:
    weights = asked.trace.attention(-1).mean(axis=0, dtype="float64")
    report(1, 1)
    return AttributionScores(asked.summed(asked.read_at @ weights))


METHOD = AttributionMethod(
    name="attention",
    label="Attention alone",
    meaning="The last layer's attention, mean over its heads, from where the answer is read. It is shown for "
    "comparison: it knows of no values, of no other layer, and of no answer.",
    order=6,
    of=_of,
)
