"""The answer as an exact sum over the input: everything that is not linear held as it was."""

from __future__ import annotations

import numpy as np
import torch

from bert_probe.analyses.attribution.methods import AttributionMethod, AttributionScores, AttributionTarget
from bert_probe.errors import UnavailableError
from bert_probe.model.forward import as_array
from bert_probe.model.gradients import frozen, onward
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array


def _of(asked: AttributionTarget, report: Progress) -> AttributionScores:
    trace = asked.trace
    output = trace.checkpoint.outputs.get(asked.number.task)
    models = [trace.checkpoint.model, *([] if output is None else [output.whole])]
    with onward(trace) as way:
        start = way.start()
        with frozen(*models) as linear:
            states, pooled = way.to_end(start)
            number = asked.number.on(way.inputs, states, pooled)[0]
        own, *added = torch.autograd.grad(number, [start, *linear.added], allow_unused=True)
    tokens = _times(own, start).sum(axis=-1)[0]
    rest = sum(
        float(_times(gradient, part).sum())
        for gradient, part in zip(added, linear.added, strict=True)
        if gradient is not None
    )
    report(1, 1)
    value = float(number.detach())
    off = abs(float(tokens.sum()) + rest - value)
    scale = float(np.abs(tokens).sum()) + abs(rest) + abs(value)
    if not off <= max(1e-4, 64 * torch.finfo(start.dtype).eps) * scale:
        raise UnavailableError(
            f"{trace.architecture} has more between input and answer than DecompX knows of: the parts are "
            f"{off:.2g} off the {asked.number.name}, {value:.4g}."
        )
    return AttributionScores(asked.summed(tokens), {"biases": rest, "off": off})


def _times(gradient: torch.Tensor, values: torch.Tensor) -> Array:
    product: Array = as_array(gradient.detach()).astype(np.float64) * as_array(values.detach())
    return product


METHOD = AttributionMethod(
    name="decompx",
    label="DecompX",
    meaning="The number as an exact sum: what the input vector of each token carries to it, with attention, "
    "norms and activations held as they are on this text (Modarressi et al. 2023). What the model's biases "
    "add belongs to no token and is stated beside it.",
    order=4,
    of=_of,
)
