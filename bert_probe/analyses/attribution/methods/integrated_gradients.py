"""Integrated gradients: the gradient along the straight way from a text without information to this one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bert_probe.analyses.attribution.methods import AttributionMethod, AttributionScores, AttributionTarget
from bert_probe.errors import UnavailableError
from bert_probe.model.forward import BATCH_TOKENS, as_array, batch
from bert_probe.model.gradients import InputEmbeddings, from_vectors
from bert_probe.model.progress import Progress

FIRST_STEPS, MOST_STEPS = 32, 1024
GAP = 0.01
"""Of the way from the baseline's number to the text's, the share that the sum of the scores may miss."""


def _of(asked: AttributionTarget, report: Progress) -> AttributionScores:
    # It brings a library for drawing along, which nobody should wait for who does not use it.
    from captum.attr import LayerIntegratedGradients

    number, checkpoint = asked.number, asked.trace.checkpoint
    with checkpoint.running() as model:
        words = InputEmbeddings(model)
        inputs = batch(checkpoint, [asked.trace.encoding])

        def forward(ids: torch.Tensor) -> torch.Tensor:
            report(steps, 2 * steps)  # where a reader can stop it
            states, pooled = from_vectors(asked.trace, model, words(ids), inputs)
            return number.on(inputs | {"input_ids": ids}, states, pooled)

        ids, without, steps = inputs["input_ids"], asked.ids_without(), FIRST_STEPS
        with torch.no_grad():
            ends = [float(forward(one)[0]) for one in (ids, without)]
        _check(asked, ends[0])
        way = ends[0] - ends[1]
        method: Any = LayerIntegratedGradients(forward, words)
        while True:
            with torch.enable_grad():
                found = method.attribute(
                    ids,
                    baselines=without,
                    n_steps=steps,
                    internal_batch_size=max(1, BATCH_TOKENS // ids.shape[1]),
                )
            scores = as_array(found[0].detach()).astype(np.float64).sum(axis=-1)
            gap = abs(float(scores.sum()) - way)
            if gap <= GAP * abs(way) or steps >= MOST_STEPS:
                break
            steps *= 2
    report(steps, steps)
    facts = {"baseline": asked.baseline, "baseline_value": ends[1], "steps": steps, "gap": gap}
    return AttributionScores(asked.summed(scores), facts | {"gap_share": gap / abs(way) if way else None})


def _check(asked: AttributionTarget, found: float) -> None:
    """Vectors in place of words must make the same answer."""
    expected = float(asked.number.of([asked.number.untouched])[0])
    precision = max(1e-3, 64 * torch.finfo(next(asked.trace.checkpoint.model.parameters()).dtype).eps)
    if not abs(found - expected) <= precision * max(1.0, abs(expected)):
        raise UnavailableError(
            f"{asked.trace.architecture} answers {found:.4g} for the vectors of words that it answers "
            f"{expected:.4g} for, so no gradient of them would be of this answer."
        )


METHOD = AttributionMethod(
    name="integrated-gradients",
    label="Integrated gradients",
    meaning="The gradient, summed along the straight way from a text without information to this one. The "
    "scores add up to the difference between the two, but for a gap that is stated "
    "(Sundararajan et al. 2017).",
    order=2,
    of=_of,
)
