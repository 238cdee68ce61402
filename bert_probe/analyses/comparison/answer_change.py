"""Changes in predictions: comparison of what two models predict for the same text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.comparison.model_change import check_same_tokens
from bert_probe.analyses.outputs.fill_mask import FillMask, position_blocks
from bert_probe.analyses.outputs.find_answer import FindAnswer
from bert_probe.analyses.outputs.prediction import FOLLOWS, ClassifyText, LabelTokens, NextSentence, softmax
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity
from bert_probe.analyses.vectors.pooling import resolve_pooling
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Number, Optional, WordSelector
from bert_probe.core.inputs import TwoModelTraces
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, TextError, UnavailableError
from bert_probe.model.checkpoint import (
    FILL_MASK,
    NEXT_SENTENCE_PREDICTION,
    QUESTION_ANSWERING,
    SENTENCE_SIMILARITY,
    TASKS,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Checkpoint,
)
from bert_probe.model.encoding import token_strings
from bert_probe.model.outputs import missing_head_message, output_head
from bert_probe.model.trace import Array, Trace, read_only

Key = tuple[Any, ...]
"""Type of a prediction's identifying values, such as position and token; see `KEY_COLUMNS`."""

KEY_COLUMNS: Mapping[str, tuple[str, ...]] = {
    FILL_MASK: ("position", "token"),
    TEXT_CLASSIFICATION: ("label",),
    TOKEN_CLASSIFICATION: ("position", "token", "label"),
    QUESTION_ANSWERING: ("start", "end", "text"),
    NEXT_SENTENCE_PREDICTION: ("label",),
    SENTENCE_SIMILARITY: (),
}
"""Mapping from each task to the names of the table columns that identify a prediction."""


@question("answer change", command="diff answers")
class AnswerChange(Question):
    """The predictions of two models with task heads for the same task.

    Attributes:
        task: a task for which both models have a task head. If None, the first common task.
        top: number of most probable words per mask, or of best answer spans, to compare from each model. In
            text classification, all classes are compared; in token classification, the most probable label
            of each token.
        mask: position or name of a word to mask, in addition to the masks in the text.
    """

    inputs = TwoModelTraces()

    task: str | None = param(
        Optional(Choice(TASKS)),
        default=None,
        about="A task for which both models have a trained task head.",
    )
    top: int = param(Number(1), default=5, about="Number of top predictions from each model.  [default: 5]")
    mask: int | str | None = param(
        Optional(WordSelector()), default=None, about="Mask this word of the text."
    )

    def of(self, a: Trace, b: Trace) -> AnswerChangeResult:
        """Compare the predictions of two models for a text or a text pair.

        Sentence similarity needs a text pair.

        Raises:
            SelectionError: the traces come from different texts, or the models have different tokenizers.
            UnavailableError: the models have no common task, or their predictions have different units: a
                regression value and probabilities, or different similarity scores.
            TextError: the task needs a mask or a second text, but the traces have none.
        """
        inputs, trace_a, trace_b = check_same_tokens(a, b)
        task = self.task or common_tasks(a.checkpoint, b.checkpoint)[0]
        for checkpoint in (a.checkpoint, b.checkpoint):
            if task not in checkpoint.tasks:
                raise UnavailableError(missing_head_message(checkpoint, task))
        if task == SENTENCE_SIMILARITY and resolve_pooling(a.checkpoint, "model") != resolve_pooling(
            b.checkpoint, "model"
        ):
            # Predict separately for B, because models with equal weights may have different pooling.
            trace_b = b
        resolved = replace(self, task=task).resolved(a)
        prediction_a = _PREDICT[task](resolved, trace_a)
        prediction_b = prediction_a if trace_b is trace_a else _PREDICT[task](resolved, trace_b)
        if prediction_a.kind != prediction_b.kind:
            raise UnavailableError(
                f"A predicts a {prediction_a.kind} and B a {prediction_b.kind}, so they cannot be compared. "
                "Choose another task or model."
            )
        keys = tuple(dict.fromkeys([*prediction_a.keys, *prediction_b.keys]))
        # Sort by position. The sort is stable, so A's predictions come first at each position.
        if task in (FILL_MASK, TOKEN_CLASSIFICATION):
            keys = tuple(sorted(keys, key=lambda key: int(key[0])))
        numbers = (
            read_only(np.array([checkpoint.number(key) for key in keys]))
            for checkpoint in (prediction_a, prediction_b)
        )
        return AnswerChangeResult(resolved, inputs, prediction_a.kind, keys, *numbers)

    def check_limits(self, *inputs: Any) -> None:
        """Raise UnavailableError if the task needs too much memory or time.

        The limits of `FillMask` and `FindAnswer` apply to each model, for the top predictions of both.
        """
        task = self.task or common_tasks(*(trace.checkpoint for trace in inputs))[0]
        for trace in inputs:
            if task == FILL_MASK:
                FillMask(top=2 * self.top).check_limits(trace)
            elif task == QUESTION_ANSWERING:
                FindAnswer(2 * self.top).check_limits(trace)


@dataclass(frozen=True, eq=False)
class _ModelAnswer:
    """The predictions of one model for a text.

    Attributes:
        kind: unit of the predictions: "probability", "value", or the name of a similarity score.
        keys: the predictions to compare, each identified by its values in the `KEY_COLUMNS`: all classes of
            a text classifier, the most probable label of each token, or the top predictions of other tasks.
        number: function that returns the model's value for a prediction of either model, or NaN for a label
            or vocabulary entry that the model does not have.
    """

    kind: str
    keys: list[Key]
    number: Callable[[Key], float]


@dataclass(frozen=True, eq=False, repr=False)
class AnswerChangeResult(Result):
    """The predictions of both models for a text, with their values.

    Attributes:
        kind: unit of the predictions: "probability", "value", or the name of a similarity score.
        keys: the predictions, each identified by its values in the `KEY_COLUMNS`. At each position, A's top
            predictions come first, followed by the top predictions that only B has.
        a, b: value of each prediction in A and in B, float64 of shape [prediction]; NaN for a label or
            vocabulary entry that the model does not have, and 0 for an answer span that is not a candidate.
    """

    question: AnswerChange
    kind: str
    keys: tuple[Key, ...]
    a: Array
    b: Array

    def __post_init__(self) -> None:
        if not self.a.shape == self.b.shape == (len(self.keys),):
            raise ShapeError(
                f"a and b must have shape [{len(self.keys)} predictions], not {self.a.shape} and "
                f"{self.b.shape}."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the predictions for charts and sentences, such as the label or the word."""
        task = self.question.task
        if task == SENTENCE_SIMILARITY:
            return (self.kind,)
        if task == TOKEN_CLASSIFICATION:
            return tuple(f"{token} ({position}): {label}" for position, token, label in self.keys)
        if task == FILL_MASK and len({key[0] for key in self.keys}) > 1:
            return tuple(f"{token} at {position}" for position, token in self.keys)
        return tuple(str(key[-1]) for key in self.keys)

    @property
    def difference(self) -> Array:
        """Value in B minus value in A for each prediction, shape [prediction]."""
        change: Array = self.b - self.a
        return change

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Unit of the predictions, such as "probability"."""
        return {"numbers": self.kind}

    @property
    def finding(self) -> str:
        """A sentence that names the prediction that changed most, with its values in both models."""
        change = np.nan_to_num(np.abs(self.difference))
        if not change.any():
            if not np.isnan(self.difference).any():
                return "No prediction changed."
            if self.question.task == FILL_MASK:
                return "The word matrices have different numbers of rows; no other prediction changed."
            return "The models have different labels."
        index = int(change.argmax())
        if self.question.task == SENTENCE_SIMILARITY:
            return f"The {self.kind} of the two texts changed from {self.a[0]:.3g} to {self.b[0]:.3g}."
        return f"“{self.names[index]}” changed most: {self.kind} {self.a[index]:.3g} → {self.b[index]:.3g}."

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per prediction: the `KEY_COLUMNS` of the task, a, b, difference."""
        columns: dict[str, Any] = {}
        for index, name in enumerate(KEY_COLUMNS[str(self.question.task)]):
            cells = [key[index] for key in self.keys]
            columns[name] = (
                cells if isinstance(cells[0], int) else pd.Series(frames.plain_strings(cells), dtype=object)
            )
        return pd.DataFrame(columns | {"a": self.a, "b": self.b, "difference": self.difference})


def common_tasks(a: Checkpoint, b: Checkpoint) -> tuple[str, ...]:
    """Return the tasks for which both models have task heads, in the order of `TASKS`.

    Raises:
        UnavailableError: there is no common task.
    """
    both = tuple(task for task in a.tasks if task in b.tasks)
    if not both:
        heads = (" and ".join(checkpoint.tasks) or "no trained head" for checkpoint in (a, b))
        raise UnavailableError(
            "The models have no common task: A has {}, B has {}. Choose other models.".format(*heads)
        )
    return both


def _fill_mask(change: AnswerChange, trace: Trace) -> _ModelAnswer:
    result = FillMask(change.top, mask=change.mask).of(trace)
    output, checkpoint = output_head(trace.checkpoint, FILL_MASK), trace.checkpoint
    positions = [mask.position for mask in result.masks]
    parts = {
        position: part for part in map(tuple, position_blocks(checkpoint, positions)) for position in part
    }
    # `AnswerChange.of` sorts the keys by position, so that these caches of one value suffice.
    logits = lru_cache(1)(lambda part: output.logits(result.read, part))
    probabilities = lru_cache(1)(lambda at: softmax(logits(parts[at])[parts[at].index(at)]))
    names = token_strings(checkpoint.tokenizer, range(len(probabilities(positions[0]))))
    ids = {name: id_ for id_, name in enumerate(names)}

    def number(key: Key) -> float:
        # Word matrices of models with the same tokenizer may be padded to different sizes.
        position, token = key
        return float(probabilities(position)[ids[token]]) if token in ids else math.nan

    keys = [
        (position, str(token))
        for position, row in zip(positions, result.tokens, strict=True)
        for token in row
    ]
    return _ModelAnswer("probability", keys, number)


def _classify_text(_change: AnswerChange, trace: Trace) -> _ModelAnswer:
    result = ClassifyText().of(trace)
    is_value = result.problem == "regression"
    numbers = dict(
        zip(result.labels, (result.logits if is_value else result.probabilities).tolist(), strict=True)
    )
    return _ModelAnswer(
        "value" if is_value else "probability",
        [(label,) for label in numbers],
        lambda key: numbers.get(key[0], math.nan),
    )


def _label_tokens(_change: AnswerChange, trace: Trace) -> _ModelAnswer:
    result = LabelTokens().of(trace)
    indices = {label: index for index, label in enumerate(result.labels)}
    tokens = [token for token in trace.tokens if not token.special]
    best = result.probabilities.argmax(axis=1)

    def number(key: Key) -> float:
        position, _, label = key
        return float(result.probabilities[position, indices[label]]) if label in indices else math.nan

    keys = [(token.position, str(token), result.labels[best[token.position]]) for token in tokens]
    return _ModelAnswer("probability", keys, number)


def _find_answer(change: AnswerChange, trace: Trace) -> _ModelAnswer:
    question_ = FindAnswer(change.top)
    result = question_.of(trace)
    candidates, _ = question_.candidates(trace)

    # The last of equal spans has the highest probability.
    order = np.lexsort((candidates["probability"], candidates["end"], candidates["start"]))
    starts, ends = candidates["start"][order], candidates["end"][order]

    def number(key: Key) -> float:
        first, last = np.searchsorted(starts, key[0]), np.searchsorted(starts, key[0], side="right")
        index = first + np.searchsorted(ends[first:last], key[1], side="right") - 1
        is_span = index >= first and ends[index] == key[1]
        return float(candidates["probability"][order[index]]) if is_span else 0.0

    keys = [(answer.start, answer.end, result.text(answer)) for answer in result.answers]
    return _ModelAnswer("probability", keys, number)


def _next_sentence(_change: AnswerChange, trace: Trace) -> _ModelAnswer:
    numbers = dict(zip(FOLLOWS, NextSentence().of(trace).probabilities.tolist(), strict=True))
    return _ModelAnswer("probability", [(label,) for label in FOLLOWS], lambda key: numbers[key[0]])


def _similarity(_change: AnswerChange, trace: Trace) -> _ModelAnswer:
    encoding = trace.encoding
    if encoding.pair is None:
        raise TextError("Similarity needs two texts. Pass the second text as the pair.")
    traces = (
        trace.checkpoint.trace(text, truncate=bool(encoding.dropped))
        for text in (encoding.text, encoding.pair)
    )
    result = SentenceSimilarity().of(*traces)
    return _ModelAnswer(result.recipe.score_name, [()], lambda _: result.score)


_PREDICT: Mapping[str, Callable[[AnswerChange, Trace], _ModelAnswer]] = {
    FILL_MASK: _fill_mask,
    TEXT_CLASSIFICATION: _classify_text,
    TOKEN_CLASSIFICATION: _label_tokens,
    QUESTION_ANSWERING: _find_answer,
    NEXT_SENTENCE_PREDICTION: _next_sentence,
    SENTENCE_SIMILARITY: _similarity,
}
