"""What the questions to a trained output head have in common."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from bert_probe.core.question import Question
from bert_probe.core.result import Result
from bert_probe.model.trace import Array

CERTAINTY = (
    "A probability is the model's, not the world's: it says how the head shares out what it gives, and "
    "a model can be sure and wrong."
)


class Prediction(Question):
    """Base of the questions that a trained head answers; all go by one command, which is told the task."""

    task: ClassVar[str]

    def options(self) -> list[str]:
        """The task first."""
        return ["--task", self.task, *super().options()]


class PredictionResult(Result):
    """Base of their answers."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the table should know, a sentence each."""
        return ()


def softmax(logits: Array) -> Array:
    """Shares that sum to 1 along the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    shares: Array = weights / weights.sum(axis=-1, keepdims=True)
    return shares


def sigmoid(logits: Array) -> Array:
    """1 / (1 + exp(-x)) of each, in float64; far from 0 without overflow."""
    share: Array = 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))
    return share
