"""Value zeroing, followed through all layers."""

from __future__ import annotations

from functools import partial

from bert_probe.analyses.attention.measures import measure
from bert_probe.analyses.attention.measures.rollout import rollout
from bert_probe.analyses.attribution.methods import AttributionMethod, AttributionScores, AttributionTarget
from bert_probe.model.progress import Progress


def _of(asked: AttributionTarget, report: Progress) -> AttributionScores:
    trace, zeroing = asked.trace, measure("value-zeroing")
    layers = []
    for layer in range(trace.layers):
        told = partial(_told, report, layer, trace.layers)
        changes = zeroing.of_layer(trace, layer, 0.0, told).clip(min=0)
        totals = changes.sum(axis=-1, keepdims=True)
        # A token that nothing changes keeps to itself.
        changes[totals[:, 0] == 0] = 0
        layers.append(changes / totals.clip(min=1e-300))
    reached = rollout((layer[None] for layer in layers), residual=0.0)
    report(trace.layers, trace.layers)
    return AttributionScores(asked.summed(asked.read_at @ reached))


def _told(report: Progress, layer: int, layers: int, *_within: int) -> None:
    report(layer, layers)


METHOD = AttributionMethod(
    name="value-zeroing",
    label="Value zeroing",
    meaning="How much each token's next vector changes when another's value is zeroed, as shares, followed "
    "through all layers to where the answer is read (Mohebbi et al. 2023). It knows of no class or word.",
    order=5,
    of=_of,
)
