"""Attribution: how much one output value of the model depends on each token or word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from bert_probe.analyses.attribution.methods import (
    BASELINES,
    AttributionScores,
    AttributionTarget,
    attribution_target,
    methods,
)
from bert_probe.analyses.outputs.target import REMOVALS, TargetOutput, select_output
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, FieldType, Flag, Optional, WordSelector
from bert_probe.core.inputs import OneOrTwoTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError
from bert_probe.model.checkpoint import TASKS
from bert_probe.model.encoding import Token
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.words import Unit

METHOD_HELP = "Attribution method; see docs/methods.md."
REMOVAL_HELP = "Whether words are removed or masked."
BASELINE_HELP = "Baseline token of integrated gradients."


@dataclass(frozen=True, repr=False)
class TargetQuestion(Question):
    """Base class of questions about one output value of a prediction.

    Attributes:
        task: task of the output head; None for the checkpoint's first head.
        target: the class, label, word, or rank of an answer span whose value is explained; None for the most
            probable.
        at: the word to mask, or the token whose label is explained.
    """

    second: ClassVar[str] = "--pair"

    task: str | None = param(Optional(Choice(TASKS)), default=None, about="The task of the output head.")
    target: str | None = param(
        Optional(FieldType()),
        default=None,
        about="The class, label or word to explain; for answer spans, the rank.",
    )
    at: int | str | None = param(
        Optional(WordSelector()),
        default=None,
        about="The word to mask or whose label is explained.",
    )

    def number(self, trace: Trace, other: Trace | None) -> TargetOutput:
        """Select the target output to explain.

        Raises:
            UnavailableError, SelectionError, TextError: see `select_output`.
        """
        at = self.resolved(trace).at
        return select_output(trace, other, self.task, self.target, None if at is None else int(at))

    def about(self, number: TargetOutput, trace: Trace) -> Self:
        """Return the question with its default task and target filled in."""
        return replace(self.resolved(trace), task=number.task, target=number.target or None)


@question("attribution", command="why")
class Attribution(TargetQuestion):
    """How much one output value of the model depends on each token or word.

    Attributes:
        method: one of `methods()`.
        words: score whole words.
        removal: how a word is ablated; None for "masked" if the prediction is at a token, else "removed".
        baseline: baseline token of integrated gradients; None for the first of `BASELINES` that the
            tokenizer has.
    """

    inputs = OneOrTwoTraces("--pair")

    method: str = param(Choice(methods), default="leave-one-out", about=METHOD_HELP)
    words: bool = param(Flag(), default=False, about="Score whole words instead of tokens.")
    removal: str | None = param(Optional(Choice(REMOVALS)), default=None, about=REMOVAL_HELP)
    baseline: str | None = param(Optional(Choice(BASELINES)), default=None, about=BASELINE_HELP)

    def of(
        self, trace: Trace, other: Trace | None = None, progress: Progress = no_progress
    ) -> AttributionResult:
        """Score the tokens or words of a text. For sentence similarity, the second text is held constant.

        Args:
            progress: called with the work done and the total.

        Raises:
            UnavailableError: the checkpoint has no head for the task, or its architecture does not support
                the method.
            SelectionError: the class, label, word or answer does not exist.
            TextError: the second text is missing.
            OutOfMemoryError: there is not enough memory.
        """
        number = self.number(trace, other)
        target = attribution_target(number, self.words, self.removal, self.baseline)
        value = float(number.of([number.untouched])[0])
        scores = methods()[self.method].of(target, progress)
        return attribution_result(
            self.about(number, trace), input_record(trace, other), target, value, scores
        )

    def options(self) -> list[str]:
        """Return the command-line options, always with --method.

        Without it, the command shows the similarity scores of two texts.
        """
        method = [] if self.method != "leave-one-out" else ["--method", self.method]
        return [*method, *super().options()]


def input_record(trace: Trace, other: Trace | None) -> InputRecord:
    """Return the provenance of one or two texts."""
    return InputRecord.of(trace) if other is None else InputRecord.of(trace, other)


def attribution_result(
    resolved: Attribution,
    inputs: InputRecord,
    target: AttributionTarget,
    value: float,
    scores: AttributionScores,
) -> AttributionResult:
    """Return an `AttributionResult` with the scores of a method."""
    return AttributionResult(
        resolved,
        inputs,
        target.number.name,
        value,
        target.units,
        read_only(scores.units.astype(np.float64)),
        scores.metadata,
    )


@dataclass(frozen=True, eq=False, repr=False)
class AttributionResult(Result):
    """How much the target output depends on each unit of a text.

    Attributes:
        number: description of the target output.
        value: target value for the unchanged text.
        units: tokens or words of the text as the model reads it.
        scores: score of each unit, float64 [unit]; NaN where the method has no score.
        said: details of the method, such as baseline, steps, error, contribution of biases.
    """

    question: Attribution
    number: str
    value: float
    units: tuple[Token | Unit, ...]
    scores: Array
    said: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.scores.shape != (len(self.units),):
            raise ShapeError(f"{len(self.units)} units do not fit scores of shape {self.scores.shape}.")

    @property
    def shares(self) -> Array:
        """Scores divided by the sum of absolute scores, which makes methods comparable.

        float64 [unit], -1 to 1; NaN for special tokens, which the sum excludes, and for missing scores.
        """
        own = np.where([unit.special for unit in self.units], np.nan, self.scores)
        total = np.nansum(np.abs(own))
        shares: Array = own / total if total else own
        return shares

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Description and value of the target output, and details of the method."""
        return {"number": self.number, "value": self.value, **self.said}

    def frame(self) -> pd.DataFrame:
        """Return one row per token or word: position, token, score."""
        return pd.DataFrame(
            {
                "position": [unit.position for unit in self.units],
                frames.TOKEN: frames.plain_strings(self.units),
                "score": self.scores,
            }
        )
