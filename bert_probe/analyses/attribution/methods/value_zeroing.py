"""Value zeroing as an attribution method: the changes in each layer, propagated through all layers."""

from __future__ import annotations

from functools import partial

from bert_probe.analyses.attention.measures import get_measure
from bert_probe.analyses.attention.measures.rollout import rollout
from bert_probe.analyses.attribution.methods import AttributionMethod, AttributionScores, AttributionTarget
from bert_probe.model.progress import Progress


def _scores(target: AttributionTarget, progress: Progress) -> AttributionScores:
    trace, zeroing = target.trace, get_measure("value-zeroing")
    layers = []
    for layer in range(trace.layers):
        on_step = partial(_report_layer, progress, layer, trace.layers)
        changes = zeroing.of_layer(trace, layer, 0.0, on_step).clip(min=0)
        totals = changes.sum(axis=-1, keepdims=True)
        # If zeroing values never changes a token's vector, the total is 0, and the shares are 0 as well.
        changes[totals[:, 0] == 0] = 0
        layers.append(changes / totals.clip(min=1e-300))
    reached = rollout((layer[None] for layer in layers), residual=0.0)
    progress(trace.layers, trace.layers)
    return AttributionScores(target.summed(target.read_at @ reached))


def _report_layer(progress: Progress, layer: int, layers: int, *_within: int) -> None:
    progress(layer, layers)


METHOD = AttributionMethod(
    name="value-zeroing",
    label="Value zeroing",
    meaning="How much each token's output vector of a layer changes when the value vector of another token "
    "is zeroed. The changes are normalized to sum to 1 per token and propagated through all layers to the "
    "tokens from which the prediction is computed (Mohebbi et al. 2023). The scores do not depend on the "
    "explained class or word.",
    order=5,
    of=_scores,
)
