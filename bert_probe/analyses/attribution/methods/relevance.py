"""Attention times its gradient, followed through all layers."""

from __future__ import annotations

import numpy as np
import torch

from bert_probe.analyses.attribution.methods import AttributionMethod, AttributionScores, AttributionTarget
from bert_probe.errors import UnavailableError
from bert_probe.model.capture import changing
from bert_probe.model.forward import as_array
from bert_probe.model.gradients import AttentionWithWeights, onward
from bert_probe.model.progress import Progress


def _of(asked: AttributionTarget, report: Progress) -> AttributionScores:
    trace = asked.trace
    if trace.queries is None:
        raise UnavailableError(f"{trace.architecture} hides its attention, so none of its gradient is seen.")
    weighing = AttentionWithWeights()
    with onward(trace) as way:
        with changing(weighing):
            states, pooled = way.to_end(way.start())
        number = asked.number.on(way.inputs, states, pooled)
        gradients = torch.autograd.grad(number.sum(), weighing.weights)
    relevance = np.eye(len(trace.tokens))
    for weights, gradient in zip(weighing.weights, gradients, strict=True):
        step = (weights * gradient)[0].clamp(min=0).mean(dim=0).detach()
        relevance = relevance + as_array(step).astype(np.float64) @ relevance
    report(1, 1)
    return AttributionScores(asked.summed(asked.read_at @ relevance - asked.read_at))


METHOD = AttributionMethod(
    name="attention-gradient",
    label="Attention × gradient",
    meaning="Attention weights times their gradient, only what is above 0, followed through all layers to "
    "where the answer is read (Chefer et al. 2021).",
    order=3,
    of=_of,
)
