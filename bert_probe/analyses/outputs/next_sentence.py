"""Next-sentence prediction: whether one text follows another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from bert_probe.analyses.outputs.prediction import Prediction, PredictionResult, softmax
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import question
from bert_probe.errors import ShapeError, TextError
from bert_probe.model.checkpoint import NEXT_SENTENCE_PREDICTION
from bert_probe.model.outputs import output_head
from bert_probe.model.trace import Array, Trace, read_only

FOLLOWS = ("next", "not next")
"""Names of the head's two logits, in order; Devlin et al. 2019, section 3.1."""


@question(NEXT_SENTENCE_PREDICTION, command="predict")
class NextSentence(Prediction):
    """Whether the second text of a pair continues the first."""

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
