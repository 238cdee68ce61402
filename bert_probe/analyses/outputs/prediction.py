"""Base classes of the questions that a trained output head answers."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from bert_probe.core.question import Question
from bert_probe.core.result import Result
from bert_probe.model.trace import Array

CERTAINTY = (
    "A probability is the model's confidence, not the chance that it is right. "
    "Models can be confident and wrong."
)


class Prediction(Question):
    """Base class of the questions that a trained head answers.

    All predictions share one command, whose option ``--task`` selects the question.
    """

    task: ClassVar[str]

    def options(self) -> list[str]:
        """Return the command-line options, starting with the task."""
        return ["--task", self.task, *super().options()]


class PredictionResult(Result):
    """Base class of the results of a `Prediction`."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes to display with the table of the result."""
        return ()


def softmax(logits: Array) -> Array:
    """Return the softmax over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    probabilities: Array = weights / weights.sum(axis=-1, keepdims=True)
    return probabilities


def sigmoid(logits: Array) -> Array:
    """Return 1 / (1 + exp(-x)) for each value, in float64, without overflow for large values."""
    probability: Array = 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))
    return probability
