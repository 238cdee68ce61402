"""Integrated gradients: gradients integrated along the linear path from an uninformative baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bert_probe.analyses.attribution.methods import AttributionMethod, AttributionScores, AttributionTarget
from bert_probe.errors import UnavailableError
from bert_probe.model.forward import GRADIENT_TOKENS, UNFUSED_SCORES, as_array, batch
from bert_probe.model.gradients import InputEmbeddings, run_on_vectors
from bert_probe.model.progress import Progress

INITIAL_STEPS, MAX_STEPS = 32, 1024
MAX_GAP = 0.01
"""Maximum relative error of the sum of the scores; if it is exceeded, the number of steps is doubled.

The exact sum is the difference between the target values for the text and for the baseline.
"""


def _scores(target: AttributionTarget, progress: Progress) -> AttributionScores:
    # captum is imported here because it imports matplotlib, which is slow.
    from captum.attr import LayerIntegratedGradients

    number, checkpoint = target.number, target.trace.checkpoint
    with checkpoint.running() as model:
        embeddings = InputEmbeddings(model)
        inputs = batch(checkpoint, [target.trace.encoding])

        def forward(ids: torch.Tensor) -> torch.Tensor:
            progress(steps, 2 * steps)  # raises an error if the work was cancelled
            states, pooled = run_on_vectors(target.trace, model, embeddings(ids), inputs)
            # Decoders' heads read the last token whose id is not padding, so they need the ids of the text.
            return number.on(inputs, states, pooled)

        ids, baseline_ids, steps = inputs["input_ids"], target.ids_without(), INITIAL_STEPS
        texts = GRADIENT_TOKENS // ids.shape[1]
        if checkpoint.description.is_eager:  # the backward pass needs the attention of all layers
            texts = min(texts, UNFUSED_SCORES // ids.shape[1] ** 2)
        with torch.no_grad():
            ends = [float(forward(text)[0]) for text in (ids, baseline_ids)]
        _check_forward(target, ends[0])
        change = ends[0] - ends[1]
        method: Any = LayerIntegratedGradients(forward, embeddings)
        while True:
            with torch.enable_grad():
                attributions = method.attribute(
                    ids,
                    baselines=baseline_ids,
                    n_steps=steps,
                    internal_batch_size=max(1, texts),
                )
            scores = as_array(attributions[0].detach()).astype(np.float64).sum(axis=-1)
            gap = abs(float(scores.sum()) - change)
            if gap <= MAX_GAP * abs(change) or steps >= MAX_STEPS:
                break
            steps *= 2
    progress(steps, steps)
    facts = {"baseline": target.baseline, "baseline_value": ends[1], "steps": steps, "gap": gap}
    return AttributionScores(
        target.summed(scores), facts | {"gap_share": gap / abs(change) if change else None}
    )


def _check_forward(target: AttributionTarget, value: float) -> None:
    """Check that the model returns the same target value for input embeddings as for token ids."""
    expected = float(target.number.of([target.number.untouched])[0])
    precision = max(1e-3, 16 * torch.finfo(next(target.trace.checkpoint.model.parameters()).dtype).eps)
    if not abs(value - expected) <= precision * max(1.0, abs(expected)):
        raise UnavailableError(
            f"Integrated gradients do not support {target.trace.architecture} for this text: it predicts "
            f"{value:.4g} from input embeddings, but {expected:.4g} from tokens. Choose another method "
            "or another text."
        )


METHOD = AttributionMethod(
    name="integrated-gradients",
    label="Integrated gradients",
    meaning="The gradient, integrated along the linear path from an uninformative baseline to this text. The "
    "scores add up to the output for the text minus the output for the baseline, up to the reported gap "
    "(Sundararajan et al. 2017).",
    order=2,
    of=_scores,
)
