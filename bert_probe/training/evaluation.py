"""What a model in training says of the held-out texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from bert_probe.training.objectives import Objective

Answers = Callable[[], tuple[torch.Tensor, torch.Tensor]]
"""What the model says of a group of texts, and what is right, a row each."""


def asked_of(
    lesson: Objective, whole: Any, groups: Sequence[Answers]
) -> Callable[[Callable[[], None]], tuple[float, float]]:
    """A function that asks the model, without dropout, for its mean loss and the lesson's measure.

    Both are NaN where nothing is held out. It calls its argument before each group.
    """

    def asked(between: Callable[[], None]) -> tuple[float, float]:
        whole.eval()
        losses, counts, verdicts, rights = [], [], [], []
        with torch.no_grad():
            for answers in groups:
                between()
                said, right = answers()
                losses.append(float(lesson.loss(said, right)) if len(right) else 0.0)
                counts.append(len(right))
                verdicts.append(lesson.verdict(said).cpu().numpy())
                rights.append(right.cpu().numpy())
        whole.train()
        if not sum(counts):
            return float("nan"), float("nan")
        measure = lesson.score(np.concatenate(verdicts), np.concatenate(rights))
        return float(np.average(losses, weights=counts)), measure

    return asked
