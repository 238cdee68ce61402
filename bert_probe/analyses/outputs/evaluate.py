"""How well a trained head answers: its answers for labelled texts, held against what is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.outputs import guesses, scores
from bert_probe.analyses.outputs.head_predictions import TAGS, HeadPredictions, head_for, of_texts, of_words
from bert_probe.analyses.outputs.prediction import sigmoid, softmax
from bert_probe.analyses.outputs.target import some_of
from bert_probe.core import frames
from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import FileInput, Files
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import EmptyTextError, InvalidFileError, SelectionError, ShapeError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.labeled_texts import CLASSES, NUMBER, SEVERAL, LabeledTexts
from bert_probe.text.tagged_sentences import TaggedSentence
from bert_probe.text.validation import ValidationErrors

Rows = LabeledTexts | Sequence[TaggedSentence]
"""Labelled texts, or sentences whose words have tags."""

MAIN: Mapping[str, str] = {
    CLASSES: "accuracy",
    SEVERAL: "subset_accuracy",
    NUMBER: "mse",
    TAGS: "accuracy",
}
"""Kind of labels → the measure that baselines are held against."""

SHOWS: Mapping[str, str] = {
    "measures": "The measures, and those of the baselines.",
    "classes": "Precision, recall, F1 and count of each class, and of each type of entity.",
    "confusion": "How many of each class were answered as each: rows are what is right.",
    "texts": "Each text with what is right, what is answered, and how sure the head is.",
    "uncertain": "The same, the least certain first.",
    "wrong": "Those that are answered wrong, the surest first; of numbers all, the furthest off first.",
}
HALF = 0.5
"""The probability from which on a label is answered, where there may be several."""


@question("evaluation", command="evaluate")
class Evaluate(Question):
    """How well the head of a checkpoint answers labelled texts.

    Attributes:
        show: which table; see `SHOWS`.
    """

    inputs = Files({"rows": FileInput(), "training": FileInput("--training", is_required=False)})

    show: str = param(
        Choice(SHOWS), default="measures", option="--what", about="Which table.", display_only=True
    )

    def of(
        self,
        checkpoint: Checkpoint,
        rows: Rows,
        training: Rows | None = None,
        truncate: bool = False,
        report: Progress = no_progress,
    ) -> EvaluateResult:
        """The head's answers, judged.

        Args:
            rows: from `read_labeled_texts` for a head that classifies texts, from `read_tagged_sentences` for
                one that labels tokens.
            training: what baselines may learn from; without it there are none.
            truncate: cut texts that are too long instead of refusing them.
            report: told how many texts are done, and of how many.

        Raises:
            EmptyTextError: no rows. TextError: labels that the head does not have, or a text that cannot be
                read; by their lines.
            UnavailableError: no head for such labels, or one whose numbers are not finite.
        """
        checkpoint = checkpoint.now()
        kind = _kind(rows)
        if training is not None and _kind(training) != kind:
            raise TextError(f"The training rows are {_kind(training)}, the others {kind}. Read both alike.")
        output = head_for(checkpoint, kind)
        if kind != NUMBER:
            _check_labels(rows, output.labels, checkpoint)
        answer: Any = of_texts if isinstance(rows, LabeledTexts) else of_words
        given = rows.rows if isinstance(rows, LabeledTexts) else tuple(rows)
        found: HeadPredictions = answer(checkpoint, output, given, truncate, report)
        true = _true(rows, found, output.labels)
        predicted, certainty = _DECIDED[kind](found.logits)
        files = {"rows": rows} | ({} if training is None else {"training": training})
        subject = InputRecord.of_tagged(checkpoint, files, found.dropped)
        return EvaluateResult(
            self,
            subject,
            kind,
            output.labels,
            *_written(rows, found),
            read_only(found.texts),
            read_only(found.words),
            read_only(true),
            read_only(predicted),
            read_only(certainty),
            {} if training is None else _baselines(rows, training, found, predicted),
        )


def _kind(rows: Rows) -> str:
    count = len(rows.rows) if isinstance(rows, LabeledTexts) else len(rows)
    if not count:
        raise EmptyTextError("There are no labelled texts. Give at least one.")
    return rows.kind if isinstance(rows, LabeledTexts) else TAGS


def _check_labels(rows: Rows, labels: Sequence[str], checkpoint: Checkpoint) -> None:
    """Refuse labels that the head cannot answer.

    Raises:
        TextError: there are some; by their lines.
    """
    faults, known = ValidationErrors("The data"), set(labels)
    for line, given in _given(rows):
        for label in dict.fromkeys(given):
            if label not in known:
                faults.add(line, f"{label[:40]} is no label of {checkpoint.description.name}")
    try:
        faults.check()
    except InvalidFileError as error:
        said = f"{error} Its labels are {some_of(labels)}."
        raise InvalidFileError(said, error.faults, error.count) from None


def _given(rows: Rows) -> list[tuple[int, tuple[str, ...]]]:
    """Line and labels of each row."""
    if not isinstance(rows, LabeledTexts):
        return [(row.line, row.tags) for row in rows]
    return [(row.line, row.label if isinstance(row.label, tuple) else (str(row.label),)) for row in rows.rows]


def _true(rows: Rows, found: HeadPredictions, labels: Sequence[str]) -> Array:
    """What is right for each unit."""
    if not isinstance(rows, LabeledTexts):
        tags = [rows[text].tags[word] for text, word in zip(found.texts, found.words, strict=True)]
        return np.array([labels.index(tag) for tag in tags])
    if rows.kind == NUMBER:
        return np.array([row.label for row in rows.rows], dtype=np.float64)
    if rows.kind == CLASSES:
        return np.array([labels.index(str(row.label)) for row in rows.rows])
    return np.array([[label in given for label in labels] for _, given in _given(rows)])


def _likeliest(logits: Array) -> tuple[Array, Array]:
    return logits.argmax(axis=-1), softmax(logits).max(axis=-1)


def _each(logits: Array) -> tuple[Array, Array]:
    """Labels at least as likely as not; a text is as certain as the label that it is least certain of."""
    shares = sigmoid(logits)
    return shares >= HALF, np.maximum(shares, 1 - shares).min(axis=-1)


def _number(logits: Array) -> tuple[Array, Array]:
    return logits[:, 0], np.full(len(logits), np.nan)


_DECIDED: Mapping[str, Any] = {CLASSES: _likeliest, SEVERAL: _each, NUMBER: _number, TAGS: _likeliest}


def _written(rows: Rows, found: HeadPredictions) -> tuple[tuple[str, ...], tuple[str | None, ...], Array]:
    """Text, pair and line of each unit; of a word these are the word, nothing, and its sentence's line."""
    if isinstance(rows, LabeledTexts):
        texts = tuple(row.text for row in rows.rows)
        return texts, tuple(row.pair for row in rows.rows), np.array([row.line for row in rows.rows])
    words = tuple(rows[text].words[word] for text, word in zip(found.texts, found.words, strict=True))
    return words, (None,) * len(words), np.array([rows[text].line for text in found.texts])


def _baselines(rows: Rows, training: Rows, found: HeadPredictions, predicted: Array) -> dict[str, float]:
    """The main measure of each baseline, on the units that the head answered."""
    if not isinstance(rows, LabeledTexts):
        assert not isinstance(training, LabeledTexts)
        kept = [[rows[text].words[word] for word in found.words[found.texts == text]] for text in _of(found)]
        tags = [[rows[text].tags[word] for word in found.words[found.texts == text]] for text in _of(found)]
        answers = guesses.of_sentences(training, kept)
        return {name: scores.of_tags(tags, given)["accuracy"] for name, given in answers.items()}
    assert isinstance(training, LabeledTexts)
    known = [row.label for row in rows.rows]
    given = guesses.of_rows(training, rows.rows)
    if rows.kind == NUMBER:
        return {
            name: scores.of_numbers(np.array(known, dtype=float), np.array(answers))["mse"]
            for name, answers in given.items()
        }
    return {
        name: sum(one == answer for one, answer in zip(known, answers, strict=True)) / len(predicted)
        for name, answers in given.items()
    }


def _of(found: HeadPredictions) -> list[int]:
    return [int(text) for text in np.unique(found.texts)]


@dataclass(frozen=True, eq=False, repr=False)
class EvaluateResult(Result):
    """Answers of a head, judged. A unit is a text, or where words have tags, a word.

    Attributes:
        kind: "classes", "several", "number" or "tags".
        labels: of the head, in its order.
        texts, pairs: of each unit.
        lines: of its file, where each unit's text begins, [unit].
        rows: index of each unit's text or sentence, [unit].
        words: of a word its place in that sentence, from 0; 0 where units are texts, [unit].
        true, predicted: indices of labels, [unit]; for several bool [unit, label]; for numbers float64.
        certainty: probability of what is answered, float64 [unit]; for several, of the label that it is least
            certain of; NaN for numbers.
        baselines: what can be had without a model, by the measure of `MAIN`; none without training rows.
    """

    question: Evaluate
    kind: str
    labels: tuple[str, ...]
    texts: tuple[str, ...]
    pairs: tuple[str | None, ...]
    lines: Array
    rows: Array
    words: Array
    true: Array
    predicted: Array
    certainty: Array
    baselines: Mapping[str, float]

    def __post_init__(self) -> None:
        units = len(self.texts)
        shape = (units, len(self.labels)) if self.kind == SEVERAL else (units,)
        if not self.true.shape == self.predicted.shape == shape or self.certainty.shape != (units,):
            raise ShapeError(f"{self.true.shape} and {self.predicted.shape} do not fit {units} texts.")

    @property
    def right(self) -> Array:
        """Whether each unit is answered right, bool [unit]; of a number never asked."""
        same = self.true == self.predicted
        return read_only(same.all(axis=1) if self.kind == SEVERAL else same)

    @property
    def measures(self) -> Mapping[str, float]:
        """Name → value."""
        if self.kind == TAGS:
            return scores.of_tags(self._tags(self.true), self._tags(self.predicted))
        of: Any = {CLASSES: scores.of_classes, SEVERAL: scores.of_several, NUMBER: scores.of_numbers}
        found: Mapping[str, float] = of[self.kind](self.true, self.predicted)
        return found

    @property
    def main(self) -> float:
        """The measure that baselines are held against."""
        return self.measures[MAIN[self.kind]]

    @property
    def confusion(self) -> Array:
        """How many of each class were answered as each, int64 [true, predicted].

        Raises:
            SelectionError: there is not one class for each.
        """
        self._check_classes("confusion")
        return read_only(scores.confusion(self.true, self.predicted, len(self.labels)))

    def where(self, true: int, predicted: int) -> Array:
        """Units of one class that were answered as another, or as the same."""
        self._check_classes("confusion")
        return np.flatnonzero((self.true == true) & (self.predicted == predicted))

    @property
    def least_certain(self) -> Array:
        """All units, the least certain first; of numbers as they come."""
        return np.argsort(self.certainty, kind="stable")

    @property
    def surely_wrong(self) -> Array:
        """Units that are answered wrong, the surest first; of numbers all, the furthest off first."""
        if self.kind == NUMBER:
            return np.argsort(-np.abs(self.predicted - self.true), kind="stable")
        wrong = np.flatnonzero(~self.right)
        return wrong[np.argsort(-self.certainty[wrong], kind="stable")]

    def listed(self, units: Array | Sequence[int]) -> pd.DataFrame:
        """A row for each of some units: line, text, pair where there are any, true, predicted, how sure."""
        chosen = [int(unit) for unit in units]
        columns: dict[str, Any] = {
            "line": self.lines[chosen],
            "text": pd.Series([self.texts[unit] for unit in chosen], dtype=object),
        }
        if any(pair is not None for pair in self.pairs):
            columns["pair"] = pd.Series([self.pairs[unit] for unit in chosen], dtype=object)
        for name, values in (("true", self.true), ("predicted", self.predicted)):
            columns[name] = pd.Series([self.named(values[unit]) for unit in chosen], dtype=object)
        if self.kind == NUMBER:
            columns |= {name: values.astype(float) for name, values in columns.items() if name in _ANSWERS}
            return pd.DataFrame(columns)
        columns |= {"probability": self.certainty[chosen], "right": self.right[chosen]}
        return pd.DataFrame(columns)

    def named(self, answer: Any) -> str:
        """An answer, or what is right, as it stands in a file."""
        if self.kind == NUMBER:
            return repr(float(answer))
        if self.kind == SEVERAL:
            return "|".join(label for label, given in zip(self.labels, answer, strict=True) if given)
        return self.labels[int(answer)]

    def by_class(self) -> pd.DataFrame:
        """A row for each class: label, precision, recall, f1, count; for BIO tags those of entities first.

        Raises:
            SelectionError: the labels are numbers.
        """
        if self.kind == NUMBER:
            raise SelectionError("Numbers have no classes. Ask for measures or texts.")
        found = scores.by_class(self.true, self.predicted, self.labels)
        tags = self._tags(self.true) if self.kind == TAGS else []
        if not scores.is_bio(tags):
            return found
        entities = scores.by_entity(tags, self._tags(self.predicted))
        entities["label"] = [f"entity {label}" for label in entities["label"]]
        return pd.concat([entities, found], ignore_index=True)

    def frame(self) -> pd.DataFrame:
        """The table that the question asks for; see `SHOWS`."""
        show = self.question.show
        if show == "classes":
            return self.by_class()
        if show == "confusion":
            return frames.matrix(self.confusion, self.labels, self.labels, "true")
        if show != "measures":
            units = {"uncertain": self.least_certain, "wrong": self.surely_wrong}
            return self.listed(units.get(show, range(len(self.texts))))
        values = {**self.measures}
        values |= {f"{name}_{MAIN[self.kind]}": value for name, value in self.baselines.items()}
        values["words" if self.kind == TAGS else "texts"] = len(self.texts)
        return pd.DataFrame({"measure": pd.Series([*values], dtype=object), "value": [*values.values()]})

    def _tags(self, values: Array) -> list[list[str]]:
        """Labels by sentence."""
        bounds = np.flatnonzero(np.diff(self.rows)) + 1
        return [[self.labels[one] for one in part] for part in np.split(values, bounds)]

    def _check_classes(self, what: str) -> None:
        if self.kind not in (CLASSES, TAGS):
            raise SelectionError(f"A {what} is of one class a text; these have {self.kind}. Ask for texts.")


_ANSWERS = ("true", "predicted")
