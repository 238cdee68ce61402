"""Attention × gradient: relevance that is propagated through all layers (Chefer et al. 2021)."""

from __future__ import annotations

import numpy as np
import torch

from bert_probe.analyses.attribution.methods import AttributionMethod, AttributionScores, AttributionTarget
from bert_probe.errors import UnavailableError
from bert_probe.model.capture import changed_outputs
from bert_probe.model.forward import as_array
from bert_probe.model.gradients import AttentionWithWeights, forward_from_embeddings
from bert_probe.model.lengths import check_attention_bytes
from bert_probe.model.progress import Progress


def _scores(target: AttributionTarget, progress: Progress) -> AttributionScores:
    trace = target.trace
    if trace.queries is None:
        raise UnavailableError(
            f"{trace.architecture} does not expose its attention, which this method needs. "
            "Choose another method."
        )
    check_attention_bytes(len(trace.tokens), trace.layers * trace.heads)
    attention = AttentionWithWeights()
    with forward_from_embeddings(trace) as forward_pass:
        with changed_outputs(attention):
            states, pooled = forward_pass.to_end(forward_pass.start())
        number = target.number.on(forward_pass.inputs, states, pooled)
        gradients = torch.autograd.grad(number.sum(), attention.weights)
    relevance = np.eye(len(trace.tokens))
    for weights, gradient in zip(attention.weights, gradients, strict=True):
        step = (weights * gradient)[0].clamp(min=0).mean(dim=0).detach()
        relevance = relevance + as_array(step).astype(np.float64) @ relevance
    progress(1, 1)
    return AttributionScores(target.summed(target.read_at @ relevance - target.read_at))


METHOD = AttributionMethod(
    name="attention-gradient",
    label="Attention × gradient",
    meaning="The positive part of attention weights times their gradient, propagated through all layers to "
    "the tokens from which the prediction is computed (Chefer et al. 2021).",
    order=3,
    of=_scores,
)
