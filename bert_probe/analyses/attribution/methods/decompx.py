"""DecompX: the target value as an exact sum over the input tokens, with nonlinearities linearized."""

from __future__ import annotations

import numpy as np
import torch

from bert_probe.analyses.attribution.methods import AttributionMethod, AttributionScores, AttributionTarget
from bert_probe.errors import UnavailableError
from bert_probe.model.forward import as_array
from bert_probe.model.gradients import forward_from_embeddings, linearized
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array

_FULL, _HALF = 1e-4, 0.02
"""Largest difference between the number and the sum of its contributions in full and in half precision,
relative to the sum of their absolute values. In models of three layers, rounding to bfloat16 causes up to
0.013, and an unsupported operation 0.03 or more.
"""


def _scores(target: AttributionTarget, progress: Progress) -> AttributionScores:
    trace = target.trace
    output = trace.checkpoint.outputs.get(target.number.task)
    models = [trace.checkpoint.model, *([] if output is None else [output.model])]
    with forward_from_embeddings(trace) as forward_pass:
        start = forward_pass.start()
        with linearized(*models) as linear:
            states, pooled = forward_pass.to_end(start)
            number = target.number.on(forward_pass.inputs, states, pooled)[0]
        start_gradient, *other_gradients = torch.autograd.grad(
            number, [start, *linear.added], allow_unused=True
        )
    tokens = _product(start_gradient, start).sum(axis=-1)[0]
    bias_sum = sum(
        float(_product(gradient, values).sum())
        for gradient, values in zip(other_gradients, linear.added, strict=True)
        if gradient is not None
    )
    progress(1, 1)
    value = float(number.detach())
    error = abs(float(tokens.sum()) + bias_sum - value)
    scale = float(np.abs(tokens).sum()) + abs(bias_sum) + abs(value)
    is_half = start.dtype in (torch.float16, torch.bfloat16)
    if not error <= (_HALF if is_half else _FULL) * scale:
        raise UnavailableError(
            f"DecompX does not support {trace.architecture}{' in half precision' if is_half else ''}: the "
            f"sum of the contributions differs by {error:.2g} from the {target.number.name}, {value:.4g}. "
            f"Choose another method{' or float32' if is_half else ''}."
        )
    return AttributionScores(target.summed(tokens), {"biases": bias_sum, "off": error})


def _product(gradient: torch.Tensor, values: torch.Tensor) -> Array:
    product: Array = as_array(gradient.detach()).astype(np.float64) * as_array(values.detach())
    return product


METHOD = AttributionMethod(
    name="decompx",
    label="DecompX",
    meaning="Decomposes the explained output into one contribution per input token. Attention weights, "
    "statistics of layer normalization, and activation functions are fixed at their values for this text "
    "(Modarressi et al. 2023). The contributions of the tokens and of the model's biases sum exactly to the "
    "output; the biases are reported separately.",
    order=4,
    of=_scores,
)
