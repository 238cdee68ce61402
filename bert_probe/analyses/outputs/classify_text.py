"""Which class a text is of: the answer of a head that was trained on whole texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from bert_probe.analyses.outputs.prediction import Prediction, PredictionResult, sigmoid, softmax
from bert_probe.core.field_types import Number, Optional
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.errors import ShapeError
from bert_probe.model.checkpoint import CLASSIFYING
from bert_probe.model.outputs import OutputHead, output_of
from bert_probe.model.trace import Array, Trace, read_only


@question(CLASSIFYING, command="predict")
class ClassifyText(Prediction):
    """The classes of a text, or of a text and its pair, likeliest first.

    Attributes:
        top: how many; None for all.
    """

    inputs = OneTrace()

    task: ClassVar[str] = CLASSIFYING

    top: int | None = param(Optional(Number(1)), default=None)

    def of(self, trace: Trace) -> ClassifyTextResult:
        """The answer for a text.

        Raises:
            UnavailableError: the checkpoint has no such head.
        """
        output = output_of(trace.checkpoint, CLASSIFYING)
        logits = output.logits(trace)
        problem = problem_of(output)
        order = np.argsort(-logits, kind="stable")[: self.top]
        return ClassifyTextResult(
            self.resolved(trace),
            InputRecord.of(trace),
            problem,
            tuple(output.labels[index] for index in order),
            read_only(logits[order]),
            read_only(PROBABILITIES[problem](logits)[order]),
        )


def problem_of(output: OutputHead) -> str:
    """What kind of answer a head for texts gives; a single label that says nothing else is a yes or no."""
    single = "multi_label_classification" if len(output.labels) == 1 else "single_label_classification"
    return output.problem or single


def _none(logits: Array) -> Array:
    return np.full(logits.shape, np.nan)


PROBABILITIES = {
    "single_label_classification": softmax,
    "multi_label_classification": sigmoid,
    "regression": _none,
}


@dataclass(frozen=True, eq=False, repr=False)
class ClassifyTextResult(PredictionResult):
    """Classes of a text, likeliest first. Arrays are [label].

    Attributes:
        problem: "single_label_classification": one of the classes; "multi_label_classification": any of them,
            each by itself; "regression": what the head gives is the answer, and nothing is a probability.
        labels: as the checkpoint names them.
        logits: what the head gives.
        probabilities: softmax of these over all classes, or sigmoid of each, float64; NaN for numbers.
    """

    question: ClassifyText
    problem: str
    labels: tuple[str, ...]
    logits: Array
    probabilities: Array

    def __post_init__(self) -> None:
        if not self.logits.shape == self.probabilities.shape == (len(self.labels),):
            raise ShapeError(f"{len(self.labels)} labels do not fit {self.logits.shape} logits.")

    def frame(self) -> pd.DataFrame:
        """A row for each class: label, probability, logit."""
        return pd.DataFrame(
            {
                "label": pd.Series(self.labels, dtype=object),
                "probability": self.probabilities,
                "logit": self.logits,
            }
        )
