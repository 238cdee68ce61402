"""Whether a text goes on with another: the answer of a head trained on sentences that do and do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from bert_probe.analyses.outputs.prediction import Prediction, PredictionResult, softmax
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import question
from bert_probe.errors import ShapeError, TextError
from bert_probe.model.checkpoint import FOLLOWING
from bert_probe.model.outputs import output_of
from bert_probe.model.trace import Array, Trace, read_only

FOLLOWS = ("next", "not next")
"""What the head's two numbers are of; Devlin et al. 2019, section 3.1."""


@question(FOLLOWING, command="predict")
class NextSentence(Prediction):
    """Whether the pair goes on where the text ends."""

    inputs = OneTrace()

    task: ClassVar[str] = FOLLOWING

    def of(self, trace: Trace) -> NextSentenceResult:
        """The answer for a text and its pair.

        Raises:
            UnavailableError: the checkpoint has no such head.
            TextError: there is no pair.
        """
        output = output_of(trace.checkpoint, FOLLOWING)
        if trace.encoding.pair is None:
            raise TextError("Whether one text follows another is asked of two. Give the second as the pair.")
        logits = output.logits(trace)
        return NextSentenceResult(
            self.resolved(trace), InputRecord.of(trace), logits, read_only(softmax(logits))
        )


@dataclass(frozen=True, eq=False, repr=False)
class NextSentenceResult(PredictionResult):
    """Whether a text follows. Arrays are in the order of `FOLLOWS`.

    Attributes:
        logits: what the head gives.
        probabilities: softmax of these, float64.
    """

    question: NextSentence
    logits: Array
    probabilities: Array

    def __post_init__(self) -> None:
        if not self.logits.shape == self.probabilities.shape == (len(FOLLOWS),):
            raise ShapeError(f"{self.logits.shape} logits; [next, not next] is needed.")

    def frame(self) -> pd.DataFrame:
        """Two rows: label, probability, logit."""
        return pd.DataFrame({"label": list(FOLLOWS), "probability": self.probabilities, "logit": self.logits})
