"""What two models answer for the same text, side by side: the same answers, with the number of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.comparison.model_change import read_by_both
from bert_probe.analyses.outputs.classify_text import ClassifyText
from bert_probe.analyses.outputs.fill_mask import FillMask
from bert_probe.analyses.outputs.find_answer import FindAnswer
from bert_probe.analyses.outputs.label_tokens import LabelTokens
from bert_probe.analyses.outputs.next_sentence import FOLLOWS, NextSentence
from bert_probe.analyses.outputs.prediction import softmax
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity
from bert_probe.analyses.vectors.pooling import recipe
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Number, Optional
from bert_probe.core.field_types_of_words import WordSelector
from bert_probe.core.inputs import TwoModelTraces
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, TextError, UnavailableError
from bert_probe.model.checkpoint import (
    ANSWERING,
    CLASSIFYING,
    COMPARING,
    FILLING,
    FOLLOWING,
    LABELLING,
    TASKS,
    Checkpoint,
)
from bert_probe.model.outputs import missing, output_of
from bert_probe.model.trace import Array, Trace, read_only

Key = tuple[Any, ...]
"""What an answer is: a token at a position, a label, a part of the text; its cells in the table."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    FILLING: ("position", "token"),
    CLASSIFYING: ("label",),
    LABELLING: ("position", "token", "label"),
    ANSWERING: ("start", "end", "text"),
    FOLLOWING: ("label",),
    COMPARING: (),
}
"""By the task, the columns that say what an answer is."""


@question("change of answers", command="diff answers")
class AnswerChange(Question):
    """The answers of two models that were trained for the same task.

    Attributes:
        task: one that both have; None for the first of these.
        top: how many words at each mask, or parts of the text, of each model; there are all classes, and the
            likeliest label of each token.
        mask: a token; its word is masked, beside the masks that the text has.
    """

    inputs = TwoModelTraces()

    task: str | None = param(Optional(Choice(TASKS)), default=None, about="A task that both models have.")
    top: int = param(Number(1), default=5, about="Words, or parts of the text, of each model.  [default: 5]")
    mask: int | str | None = param(
        Optional(WordSelector()), default=None, about="Mask this word of the text."
    )

    def of(self, a: Trace, b: Trace) -> AnswerChangeResult:
        """The answers for a text, or a pair; two texts to be compared are a pair here too.

        Raises:
            SelectionError: not the same text, or not the same tokenizer.
            UnavailableError: no task that both have, or one that answers with a number where the other gives
                probabilities.
            TextError: the text lacks what the task needs: a mask, or a second text.
        """
        subject, one, two = read_by_both(a, b)
        task = self.task or in_both(a.checkpoint, b.checkpoint)[0]
        for side in (a.checkpoint, b.checkpoint):
            if task not in side.tasks:
                raise UnavailableError(missing(side, task))
        if task == COMPARING and recipe(a.checkpoint, "model") != recipe(b.checkpoint, "model"):
            two = b  # one model, but two ways to a sentence's vector
        asked_for = replace(self, task=task).resolved(a)
        mine = _READ[task](asked_for, one)
        theirs = mine if two is one else _READ[task](asked_for, two)
        if mine.kind != theirs.kind:
            raise UnavailableError(
                f"The answer of A is a {mine.kind} and that of B a {theirs.kind}, so they cannot be compared."
            )
        keys = tuple(dict.fromkeys([*mine.keys, *theirs.keys]))
        if task in (FILLING, LABELLING):  # in the order of the text, A's first
            keys = tuple(sorted(keys, key=lambda key: int(key[0])))
        numbers = (read_only(np.array([side.number(key) for key in keys])) for side in (mine, theirs))
        return AnswerChangeResult(asked_for, subject, mine.kind, keys, *numbers)


@dataclass(frozen=True, eq=False)
class _ModelAnswer:
    """What one model answers.

    Attributes:
        kind: what its numbers are.
        keys: its own answers, likeliest first.
        number: that of any answer; NaN for one that it cannot give.
    """

    kind: str
    keys: list[Key]
    number: Callable[[Key], float]


@dataclass(frozen=True, eq=False, repr=False)
class AnswerChangeResult(Result):
    """Answers of both models.

    Attributes:
        kind: what the numbers are: "probability", "value", "cosine".
        keys: the answers, by what `COLUMNS` has for the task; at each place A's likeliest first, then those
            that only B has among its likeliest.
        a, b: float64 [answer]: the number that either model gives; NaN for an answer that it does not know.
    """

    question: AnswerChange
    kind: str
    keys: tuple[Key, ...]
    a: Array
    b: Array

    def __post_init__(self) -> None:
        if not self.a.shape == self.b.shape == (len(self.keys),):
            raise ShapeError(f"{self.a.shape} and {self.b.shape} numbers for {len(self.keys)} answers.")

    @property
    def names(self) -> tuple[str, ...]:
        """The answers in a word or two, for pictures."""
        task = self.question.task
        if task == COMPARING:
            return ("cosine",)
        if task == LABELLING:
            return tuple(f"{token} ({position}): {label}" for position, token, label in self.keys)
        if task == FILLING and len({key[0] for key in self.keys}) > 1:
            return tuple(f"{token} at {position}" for position, token in self.keys)
        return tuple(str(key[-1]) for key in self.keys)

    @property
    def difference(self) -> Array:
        """B minus A, [answer]."""
        change: Array = self.b - self.a
        return change

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the numbers are."""
        return {"numbers": self.kind}

    @property
    def finding(self) -> str:
        """What changed most, as a sentence."""
        change = np.nan_to_num(np.abs(self.difference))
        if not change.any():
            return (
                "No answer changed."
                if not np.isnan(self.difference).any()
                else "The answers are not the same ones."
            )
        most = int(change.argmax())
        if self.question.task == COMPARING:
            return f"The cosine of the two texts went from {self.a[0]:.3g} to {self.b[0]:.3g}."
        return f"‘{self.names[most]}’ changed most: {self.kind} {self.a[most]:.3g} → {self.b[most]:.3g}."

    def frame(self) -> pd.DataFrame:
        """A row for each answer: what it is, by `COLUMNS`, then a, b and difference."""
        columns: dict[str, Any] = {}
        for place, name in enumerate(COLUMNS[str(self.question.task)]):
            cells = [key[place] for key in self.keys]
            columns[name] = (
                cells if isinstance(cells[0], int) else pd.Series(frames.names(cells), dtype=object)
            )
        return pd.DataFrame(columns | {"a": self.a, "b": self.b, "difference": self.difference})


def in_both(a: Checkpoint, b: Checkpoint) -> tuple[str, ...]:
    """Tasks that both models have, in the order of `TASKS`; at least one.

    Raises:
        UnavailableError: there is none.
    """
    both = tuple(task for task in a.tasks if task in b.tasks)
    if not both:
        has = (" and ".join(one.tasks) or "no trained head" for one in (a, b))
        raise UnavailableError("A has {} and B {}: no task that both answer.".format(*has))
    return both


def _words(asked_for: AnswerChange, trace: Trace) -> _ModelAnswer:
    found = FillMask(asked_for.top, mask=asked_for.mask).of(trace)
    places = [mask.position for mask in found.masks]
    shares = softmax(output_of(trace.checkpoint, FILLING).logits(found.read, places))
    vocabulary = trace.checkpoint.tokenizer.get_vocab()

    def number(key: Key) -> float:
        return float(shares[places.index(key[0]), vocabulary[key[1]]])

    keys = [(place, str(token)) for place, row in zip(places, found.tokens, strict=True) for token in row]
    return _ModelAnswer("probability", keys, number)


def _classes(_asked: AnswerChange, trace: Trace) -> _ModelAnswer:
    found = ClassifyText().of(trace)
    value = found.problem == "regression"
    numbers = dict(zip(found.labels, (found.logits if value else found.probabilities).tolist(), strict=True))
    return _ModelAnswer(
        "value" if value else "probability",
        [(label,) for label in numbers],
        lambda key: numbers.get(key[0], math.nan),
    )


def _labels(_asked: AnswerChange, trace: Trace) -> _ModelAnswer:
    found = LabelTokens().of(trace)
    place = {label: index for index, label in enumerate(found.labels)}
    own = [token for token in trace.tokens if not token.special]
    best = found.probabilities.argmax(axis=1)

    def number(key: Key) -> float:
        position, _, label = key
        return float(found.probabilities[position, place[label]]) if label in place else math.nan

    keys = [(one.position, str(one), found.labels[best[one.position]]) for one in own]
    return _ModelAnswer("probability", keys, number)


def _spans(asked_for: AnswerChange, trace: Trace) -> _ModelAnswer:
    asking = FindAnswer(asked_for.top)
    found = asking.of(trace)
    every, _ = asking.candidates(trace)

    def number(key: Key) -> float:
        here = (every["start"] == key[0]) & (every["end"] == key[1])
        return float(every["probability"][here].max(initial=0.0))

    keys = [(answer.start, answer.end, found.text(answer)) for answer in found.answers]
    return _ModelAnswer("probability", keys, number)


def _following(_asked: AnswerChange, trace: Trace) -> _ModelAnswer:
    numbers = dict(zip(FOLLOWS, NextSentence().of(trace).probabilities.tolist(), strict=True))
    return _ModelAnswer("probability", [(label,) for label in FOLLOWS], lambda key: numbers[key[0]])


def _alike(_asked: AnswerChange, trace: Trace) -> _ModelAnswer:
    encoding = trace.encoding
    if encoding.pair is None:
        raise TextError("How alike two texts are is asked of two. Give the second as the pair.")
    read = (
        trace.checkpoint.trace(text, truncate=bool(encoding.dropped))
        for text in (encoding.text, encoding.pair)
    )
    cosine = SentenceSimilarity().of(*read).cosine
    return _ModelAnswer("cosine", [()], lambda _: cosine)


_READ: Mapping[str, Callable[[AnswerChange, Trace], _ModelAnswer]] = {
    FILLING: _words,
    CLASSIFYING: _classes,
    LABELLING: _labels,
    ANSWERING: _spans,
    FOLLOWING: _following,
    COMPARING: _alike,
}
