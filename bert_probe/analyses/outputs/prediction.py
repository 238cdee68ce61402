"""Predictions of trained output heads: their base classes, and predictions for a whole text, which are
classification and next sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from bert_probe.core.field_types import Number, Optional
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, TextError
from bert_probe.model.checkpoint import NEXT_SENTENCE_PREDICTION, TEXT_CLASSIFICATION
from bert_probe.model.outputs import OutputHead, output_head
from bert_probe.model.trace import Array, Trace, read_only

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


@question(TEXT_CLASSIFICATION, command="predict")
class ClassifyText(Prediction):
    """The predicted classes of a text or text pair, most probable first.

    Attributes:
        top: maximum number of classes. If None, all classes are returned.
    """

    inputs = OneTrace()

    task: ClassVar[str] = TEXT_CLASSIFICATION

    top: int | None = param(Optional(Number(1)), default=None)

    def of(self, trace: Trace) -> ClassifyTextResult:
        """Classify a traced text.

        Raises:
            UnavailableError: the checkpoint has no sequence-classification head.
        """
        output = output_head(trace.checkpoint, TEXT_CLASSIFICATION)
        logits = output.logits(trace)
        problem = problem_type(output)
        order = np.argsort(-logits, kind="stable")[: self.top]
        return ClassifyTextResult(
            self.resolved(trace),
            InputRecord.of(trace),
            problem,
            tuple(output.labels[index] for index in order),
            read_only(logits[order]),
            read_only(PROBABILITIES[problem](logits)[order]),
        )


def problem_type(output: OutputHead) -> str:
    """Return the problem type of a sequence-classification head, as in the `transformers` configuration.

    If the configuration has no problem type, a head with one label is multi-label, because it makes a
    yes-or-no decision, and other heads are single-label.
    """
    single = "multi_label_classification" if len(output.labels) == 1 else "single_label_classification"
    return output.problem or single


def _no_probabilities(logits: Array) -> Array:
    return np.full(logits.shape, np.nan)


PROBABILITIES = {
    "single_label_classification": softmax,
    "multi_label_classification": sigmoid,
    "regression": _no_probabilities,
}


@dataclass(frozen=True, eq=False, repr=False)
class ClassifyTextResult(PredictionResult):
    """The predicted classes of a text, most probable first. All arrays have shape [label].

    Attributes:
        problem: "single_label_classification": exactly one class applies; "multi_label_classification": each
            class applies or not, independently; "regression": the logit is the prediction and has no
            probability.
        labels: class names from the checkpoint's configuration.
        logits: outputs of the head.
        probabilities: softmax over all classes, or sigmoid of each, float64; NaN for regression.
    """

    question: ClassifyText
    problem: str
    labels: tuple[str, ...]
    logits: Array
    probabilities: Array

    def __post_init__(self) -> None:
        if not self.logits.shape == self.probabilities.shape == (len(self.labels),):
            raise ShapeError(
                f"logits have shape {self.logits.shape} and probabilities {self.probabilities.shape}; "
                f"[{len(self.labels)} labels] is needed."
            )

    def frame(self) -> pd.DataFrame:
        """Return one row per class: label, probability, logit."""
        return pd.DataFrame(
            {
                "label": pd.Series(self.labels, dtype=object),
                "probability": self.probabilities,
                "logit": self.logits,
            }
        )


FOLLOWS = ("next", "not next")
"""Names of the two logits of the next-sentence head, in order; Devlin et al. 2019, section 3.1."""


@question(NEXT_SENTENCE_PREDICTION, command="predict")
class NextSentence(Prediction):
    """Next-sentence prediction: whether the second text of a pair follows the first."""

    inputs = OneTrace()

    task: ClassVar[str] = NEXT_SENTENCE_PREDICTION

    def of(self, trace: Trace) -> NextSentenceResult:
        """Predict whether the second text of a traced pair follows the first.

        Raises:
            UnavailableError: the checkpoint has no next-sentence head.
            TextError: the trace has no second text.
        """
        output = output_head(trace.checkpoint, NEXT_SENTENCE_PREDICTION)
        if trace.encoding.pair is None:
            raise TextError("Next-sentence prediction needs two texts. Give the second one as the pair.")
        logits = output.logits(trace)
        return NextSentenceResult(
            self.resolved(trace), InputRecord.of(trace), logits, read_only(softmax(logits))
        )


@dataclass(frozen=True, eq=False, repr=False)
class NextSentenceResult(PredictionResult):
    """The probability that the second text follows the first. Arrays are in the order of `FOLLOWS`.

    Attributes:
        logits: outputs of the head.
        probabilities: softmax of the logits, float64.
    """

    question: NextSentence
    logits: Array
    probabilities: Array

    def __post_init__(self) -> None:
        if not self.logits.shape == self.probabilities.shape == (len(FOLLOWS),):
            raise ShapeError(f"logits have shape {self.logits.shape}; [next, not next] is needed.")

    def frame(self) -> pd.DataFrame:
        """Return one row per label: label, probability, logit."""
        return pd.DataFrame({"label": list(FOLLOWS), "probability": self.probabilities, "logit": self.logits})
