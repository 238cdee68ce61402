"""Why: which tokens or words one number of an answer depends on, by one of several methods."""

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
    explained,
    methods,
)
from bert_probe.analyses.outputs.target import WITHOUT, TargetOutput, number_of
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, FieldType, Flag, Optional
from bert_probe.core.field_types_of_words import WordSelector
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

METHOD = "What says how much each token matters; docs/methods.md has them."
REMOVAL = "What becomes of a word that is taken away."
BASELINE = "Integrated gradients: the token that stands for no information."


@dataclass(frozen=True, repr=False)
class TargetQuestion(Question):
    """Base of the questions on one number of an answer.

    Attributes:
        task: of those the checkpoint was trained for; None for the first.
        target: which number: a class, a label, a word; of answers in a text the rank. None for the likeliest.
        at: the token that it is of: for a word the one that is masked, for a label the one that has it.
    """

    second: ClassVar[str] = "--pair"

    task: str | None = param(Optional(Choice(TASKS)), default=None, about="What the model is asked.")
    target: str | None = param(
        Optional(FieldType()),
        default=None,
        about="Which class, label or word; of answers in a text the rank.",
    )
    at: int | str | None = param(
        Optional(WordSelector()), default=None, about="The word that is masked, or has the label."
    )

    def number(self, trace: Trace, other: Trace | None) -> TargetOutput:
        """The number that is asked about.

        Raises:
            UnavailableError, SelectionError, TextError: see `number_of`.
        """
        at = self.resolved(trace).at
        return number_of(trace, other, self.task, self.target, None if at is None else int(at))

    def about(self, number: TargetOutput, trace: Trace) -> Self:
        """The question as it was answered: with the task, and the number, by name."""
        return replace(self.resolved(trace), task=number.task, target=number.target or None)


@question("why")
class Attribution(TargetQuestion):
    """How much one number of the model's answer depends on each token, or word.

    Attributes:
        method: see `attributions.methods`.
        words: score words as a whole.
        removal: what takes the place of a word that is taken away; "removed" where nothing is said, "masked"
            for an answer that stands at some of the tokens.
        baseline: the token that stands for no information; None for the first that the tokenizer has.
    """

    inputs = OneOrTwoTraces("--pair")

    method: str = param(Choice(methods), default="leave-one-out", about=METHOD)
    words: bool = param(Flag(), default=False, about="Score whole words instead of pieces.")
    removal: str | None = param(Optional(Choice(WITHOUT)), default=None, about=REMOVAL)
    baseline: str | None = param(Optional(Choice(BASELINES)), default=None, about=BASELINE)

    def of(
        self, trace: Trace, other: Trace | None = None, report: Progress = no_progress
    ) -> AttributionResult:
        """The scores for a text; of how alike two are, those of the first, while the second stays as it is.

        Args:
            report: told how much is done, and of how much.

        Raises:
            UnavailableError: the checkpoint was not trained for it, or its architecture does not let itself
                be explained so.
            SelectionError: no such class, label, word or answer.
            TextError: a second text that is missing.
            OutOfMemoryError: the machine is too small for this text.
        """
        number = self.number(trace, other)
        what = explained(number, self.words, self.removal, self.baseline)
        value = float(number.of([number.untouched])[0])
        scores = methods()[self.method].of(what, report)
        return explanation(self.about(number, trace), subject_of(trace, other), what, value, scores)

    def options(self) -> list[str]:
        """The method always: without one the command shows other things of how alike two texts are."""
        named = [] if self.method != "leave-one-out" else ["--method", self.method]
        return [*named, *super().options()]


def subject_of(trace: Trace, other: Trace | None) -> InputRecord:
    """The text, or both."""
    return InputRecord.of(trace) if other is None else InputRecord.of(trace, other)


def explanation(
    asked_for: Attribution,
    subject: InputRecord,
    what: AttributionTarget,
    value: float,
    scores: AttributionScores,
) -> AttributionResult:
    """What a method said, as a result."""
    return AttributionResult(
        asked_for,
        subject,
        what.number.name,
        value,
        what.units,
        read_only(scores.units.astype(np.float64)),
        scores.metadata,
    )


@dataclass(frozen=True, eq=False, repr=False)
class AttributionResult(Result):
    """How much a number depends on each part of a text.

    Attributes:
        number: what it is.
        value: of the number, for the text as it is.
        units: tokens or words of the text as the model reads it.
        scores: float64 [unit]; NaN where the method has no say.
        said: what the method tells beside them: baseline, steps, gap; what biases add.
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
        """The scores of the text's own units on one scale for all methods: their sizes add up to 1.

        float64 [unit], -1 to 1; NaN for special tokens, and where there is no score.
        """
        own = np.where([unit.special for unit in self.units], np.nan, self.scores)
        total = np.nansum(np.abs(own))
        shares: Array = own / total if total else own
        return shares

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The number by name, its value, and what the method tells."""
        return {"number": self.number, "value": self.value, **self.said}

    def frame(self) -> pd.DataFrame:
        """A row for each token or word: position, token, score."""
        return pd.DataFrame(
            {
                "position": [unit.position for unit in self.units],
                frames.TOKEN: frames.names(self.units),
                "score": self.scores,
            }
        )
