"""Evaluation of a task head on labeled texts or tagged sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.outputs import head_predictions
from bert_probe.analyses.outputs.head_predictions import (
    TAGS,
    HeadPredictions,
    head_for,
    predict_texts,
    predict_words,
)
from bert_probe.analyses.outputs.prediction import sigmoid, softmax
from bert_probe.analyses.outputs.target import format_labels
from bert_probe.core import frames
from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import FileInput, Files
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result, SortOrder
from bert_probe.errors import EmptyTextError, InvalidFileError, SelectionError, ShapeError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.preflight import reserved_memory
from bert_probe.model.progress import Progress, final_progress, no_progress, run_cancellable
from bert_probe.model.trace import Array, read_only
from bert_probe.text.formats import ValidationErrors
from bert_probe.text.labeled_texts import CLASSES, MULTI_LABEL, NUMBER, LabeledText, LabeledTexts
from bert_probe.text.tagged_sentences import TaggedSentence

Rows = LabeledTexts | Sequence[TaggedSentence]
"""Type of the examples to evaluate: labeled texts, or sentences of tagged words."""

MAIN_MEASURES: Mapping[str, str] = {
    CLASSES: "accuracy",
    MULTI_LABEL: "subset_accuracy",
    NUMBER: "mse",
    TAGS: "accuracy",
}
"""Mapping from each label type to the measure that is compared with the baselines."""

TABLES: Mapping[str, str] = {
    "measures": "Measures of the task head and of the baselines.",
    "classes": "Precision, recall, F1 and support of each class and entity type.",
    "confusion": "The confusion matrix: rows are true classes, columns are predicted classes.",
    "texts": "Each text with its true and predicted label, and the probability of the prediction.",
    "uncertain": "The rows of the table “texts”, least confident predictions first.",
    "wrong": "Wrong predictions, most confident first; for regression, all texts, largest error first.",
}
THRESHOLD = 0.5
"""The minimum probability of a predicted label in multi-label classification."""


@question("evaluation", command="evaluate")
class Evaluate(Question):
    """Quality of a task head, measured on labeled texts or tagged words.

    Attributes:
        show: the table to return; see `TABLES`.
    """

    inputs = Files({"rows": FileInput(), "training": FileInput("--training", is_required=False)})

    show: str = param(Choice(TABLES), default="measures", about="Table to show.", display_only=True)

    def of(
        self,
        checkpoint: Checkpoint,
        rows: Rows,
        training: Rows | None = None,
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> EvaluateResult:
        """Compare the predictions of the task head with the labels.

        Args:
            checkpoint: the model with the task head.
            rows: labeled texts from `read_labeled_texts` for a text-classification head, or sentences from
                `read_tagged_sentences` for a token-classification head.
            training: labeled texts or sentences on which the baselines are fitted. If None, no baselines are
                computed.
            truncate: truncate texts that are too long instead of raising an error.
            progress: called with the number of texts done and the total.

        Raises:
            EmptyTextError: there are no rows.
            TextError: the task head does not predict one of the labels, or a text cannot be encoded. The
                message states the line numbers.
            UnavailableError: the checkpoint has no task head for this label type, or its predictions are
                not finite.
        """
        checkpoint = checkpoint.snapshot()
        kind = _label_type(rows)
        if training is not None and _label_type(training) != kind:
            raise TextError(
                f"The training rows have labels of type {_label_type(training)}, the evaluation rows {kind}. "
                "Read both files with the same type of labels."
            )
        output = head_for(checkpoint, kind)
        if kind != NUMBER:
            _check_labels(rows, output.labels, checkpoint)
        predictions = (
            predict_texts(checkpoint, output, rows.rows, truncate, progress)
            if isinstance(rows, LabeledTexts)
            else predict_words(checkpoint, output, tuple(rows), truncate, progress)
        )
        true = _true_values(rows, predictions, output.labels)
        predicted, certainty = _DECISIONS[kind](predictions.logits)
        files = {"rows": rows} | ({} if training is None else {"training": training})
        inputs = InputRecord.of_tagged(checkpoint, files, predictions.dropped)
        return EvaluateResult(
            self,
            inputs,
            kind,
            output.labels,
            *_unit_texts(rows, predictions),
            read_only(predictions.texts),
            read_only(predictions.words),
            read_only(true),
            read_only(predicted),
            read_only(certainty),
            {}
            if training is None
            else _score_baselines(
                rows, training, predictions, predicted, final_progress(progress, len(predicted))
            ),
        )


def _label_type(rows: Rows) -> str:
    count = len(rows.rows) if isinstance(rows, LabeledTexts) else len(rows)
    if not count:
        raise EmptyTextError("There are no labeled texts. Pass at least one labeled text.")
    return rows.kind if isinstance(rows, LabeledTexts) else TAGS


def _check_labels(rows: Rows, labels: Sequence[str], checkpoint: Checkpoint) -> None:
    """Raise an error with the line numbers of all labels that the task head does not predict."""
    errors, head_labels = ValidationErrors("The data"), set(labels)
    for line, row_labels in _labels_by_line(rows):
        for label in dict.fromkeys(row_labels):
            if label not in head_labels:
                errors.add(line, f"{label[:40]} is not a label of {checkpoint.description.name}")
    try:
        errors.check()
    except InvalidFileError as error:
        message = f"{error} The labels of the model are {format_labels(labels)}."
        raise InvalidFileError(message, error.faults, error.count) from None


def _labels_by_line(rows: Rows) -> list[tuple[int, tuple[str, ...]]]:
    if not isinstance(rows, LabeledTexts):
        return [(row.line, row.tags) for row in rows]
    return [(row.line, row.label if isinstance(row.label, tuple) else (str(row.label),)) for row in rows.rows]


def _true_values(rows: Rows, predictions: HeadPredictions, labels: Sequence[str]) -> Array:
    """Return the true label or number of each text or word; see `EvaluateResult.true` for the shape."""
    if not isinstance(rows, LabeledTexts):
        units = zip(predictions.texts, predictions.words, strict=True)
        return np.array([labels.index(rows[text].tags[word]) for text, word in units])
    if rows.kind == NUMBER:
        return np.array([row.label for row in rows.rows], dtype=np.float64)
    if rows.kind == CLASSES:
        return np.array([labels.index(str(row.label)) for row in rows.rows])
    return np.array([[label in row_labels for label in labels] for _, row_labels in _labels_by_line(rows)])


def _decide_class(logits: Array) -> tuple[Array, Array]:
    return logits.argmax(axis=-1), softmax(logits).max(axis=-1)


def _decide_labels(logits: Array) -> tuple[Array, Array]:
    probabilities = sigmoid(logits)
    return probabilities >= THRESHOLD, np.maximum(probabilities, 1 - probabilities).min(axis=-1)


def _decide_number(logits: Array) -> tuple[Array, Array]:
    return logits[:, 0], np.full(len(logits), np.nan)


# For each label type, a function that takes logits and returns the predictions and their certainties.
_DECISIONS: Mapping[str, Any] = {
    CLASSES: _decide_class,
    MULTI_LABEL: _decide_labels,
    NUMBER: _decide_number,
    TAGS: _decide_class,
}


def _unit_texts(
    rows: Rows, predictions: HeadPredictions
) -> tuple[tuple[str, ...], tuple[str | None, ...], Array]:
    """Return the text, the second text and the line number of each unit, which is a text or a word.

    For a word, the second text is None, and the line number is that of the sentence.
    """
    if isinstance(rows, LabeledTexts):
        texts = tuple(row.text for row in rows.rows)
        return texts, tuple(row.pair for row in rows.rows), np.array([row.line for row in rows.rows])
    units = zip(predictions.texts, predictions.words, strict=True)
    words = tuple(rows[text].words[word] for text, word in units)
    return words, (None,) * len(words), np.array([rows[text].line for text in predictions.texts])


def _score_baselines(
    rows: Rows, training: Rows, predictions: HeadPredictions, predicted: Array, progress: Progress
) -> dict[str, float]:
    """Return the main measure of each baseline on the same texts or words as the task head, by name.

    Args:
        rows: the evaluated texts or sentences.
        training: the texts or sentences on which the baselines are fitted.
        predictions: logits of the task head, with the text index and word index of each row.
        predicted: predictions of the task head; see `EvaluateResult`.
        progress: called while the bag of words is fitted.
    """
    if not isinstance(rows, LabeledTexts):
        assert not isinstance(training, LabeledTexts)
        order = np.argsort(predictions.texts, kind="stable")
        texts, starts = np.unique(predictions.texts[order], return_index=True)
        parts = np.split(predictions.words[order], starts[1:])
        units = dict(zip(texts.tolist(), parts, strict=True)) if len(texts) else {}
        words = [[rows[text].words[word] for word in indices] for text, indices in units.items()]
        tags = [[rows[text].tags[word] for word in indices] for text, indices in units.items()]
        tags_by_baseline = predict_tags(training, words)
        return {
            name: head_predictions.score_tags(tags, values)["accuracy"]
            for name, values in tags_by_baseline.items()
        }
    assert isinstance(training, LabeledTexts)
    labels = [row.label for row in rows.rows]
    labels_by_baseline = predict_labels(training, rows.rows, progress)
    if rows.kind == NUMBER:
        return {
            name: head_predictions.score_numbers(np.array(labels, dtype=float), np.array(values))["mse"]
            for name, values in labels_by_baseline.items()
        }
    return {
        name: sum(label == value for label, value in zip(labels, values, strict=True)) / len(predicted)
        for name, values in labels_by_baseline.items()
    }


@dataclass(frozen=True, eq=False, repr=False)
class EvaluateResult(Result):
    """The predictions of a task head, with the true labels.

    A unit is a text or, if the labels are tags, a word. Arrays have shape [unit] unless another shape is
    stated.

    Attributes:
        kind: the label type: "classes", "several", "number" or "tags".
        labels: labels of the task head, in its order.
        texts, pairs: text and second text of each unit.
        lines: line number, from 1, where the text or sentence of each unit starts in the file.
        rows: index of the text or sentence of each unit.
        words: index of each word in its sentence, from 0; 0 if units are texts.
        true, predicted: label indices; bools of shape [unit, label] for "several"; float64 for "number".
        certainty: probability of the prediction, float64. For "several", where a decision is made for each
            label, the probability of the least certain decision. NaN for "number".
        baselines: main measure of each baseline, by name (see `MAIN_MEASURES`); empty without training rows.
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
        shape = (units, len(self.labels)) if self.kind == MULTI_LABEL else (units,)
        if not self.true.shape == self.predicted.shape == shape or self.certainty.shape != (units,):
            raise ShapeError(
                f"true and predicted must have shape {shape}, and certainty {(units,)}, not "
                f"{self.true.shape}, {self.predicted.shape} and {self.certainty.shape}."
            )

    @property
    def is_correct(self) -> Array:
        """Whether each prediction is correct, bool [unit]; not meaningful if the labels are numbers."""
        equal = self.true == self.predicted
        return read_only(equal.all(axis=1) if self.kind == MULTI_LABEL else equal)

    @property
    def measures(self) -> Mapping[str, float]:
        """Mapping from the name of each measure to its value.

        For the measures of each label type, see `score_classes`, `score_multilabel`, `score_numbers` and
        `score_tags`.
        """
        if self.kind == TAGS:
            return head_predictions.score_tags(self._tags(self.true), self._tags(self.predicted))
        score_fn = {
            CLASSES: head_predictions.score_classes,
            MULTI_LABEL: head_predictions.score_multilabel,
            NUMBER: head_predictions.score_numbers,
        }[self.kind]
        return score_fn(self.true, self.predicted)

    @property
    def main(self) -> float:
        """The value of the measure that is compared with the baselines."""
        return self.measures[MAIN_MEASURES[self.kind]]

    @property
    def confusion(self) -> Array:
        """The confusion matrix, int64 of shape [true class, predicted class].

        Raises:
            SelectionError: the labels are neither classes nor tags.
        """
        self._check_classes()
        return read_only(head_predictions.confusion(self.true, self.predicted, len(self.labels)))

    def where(self, true: int, predicted: int) -> Array:
        """Return the indices of the texts or words with a given true class and predicted class."""
        self._check_classes()
        return np.flatnonzero((self.true == true) & (self.predicted == predicted))

    @property
    def least_certain(self) -> Array:
        """Indices of all texts or words, least certain first; in original order if the labels are numbers."""
        return np.argsort(self.certainty, kind="stable")

    @property
    def confident_errors(self) -> Array:
        """Indices of the wrong predictions, most confident first.

        If the labels are numbers, the indices of all texts, largest error first.
        """
        if self.kind == NUMBER:
            return np.argsort(-np.abs(self.predicted - self.true), kind="stable")
        errors = np.flatnonzero(~self.is_correct)
        return errors[np.argsort(-self.certainty[errors], kind="stable")]

    def listed(self, units: Array | Sequence[int]) -> pd.DataFrame:
        """Return a table with one row per selected text or word.

        Columns: line, text, pair (if any text has one), true, predicted, probability, right (whether the
        prediction is correct). If the labels are numbers, probability and right are left out.
        """
        indices = [int(unit) for unit in units]
        columns: dict[str, Any] = {
            "line": self.lines[indices],
            "text": pd.Series([self.texts[unit] for unit in indices], dtype=object),
        }
        if any(pair is not None for pair in self.pairs):
            columns["pair"] = pd.Series([self.pairs[unit] for unit in indices], dtype=object)
        for name, values in (("true", self.true), ("predicted", self.predicted)):
            columns[name] = pd.Series([self.named(values[unit]) for unit in indices], dtype=object)
        if self.kind == NUMBER:
            columns |= {name: values.astype(float) for name, values in columns.items() if name in _ANSWERS}
            return pd.DataFrame(columns)
        columns |= {"probability": self.certainty[indices], "right": self.is_correct[indices]}
        return pd.DataFrame(columns)

    def named(self, value: Any) -> str:
        """Return a value of `true` or `predicted` as text, in the format of label files."""
        if self.kind == NUMBER:
            return repr(float(value))
        if self.kind == MULTI_LABEL:
            return "|".join(label for label, applies in zip(self.labels, value, strict=True) if applies)
        return self.labels[int(value)]

    def by_class(self) -> pd.DataFrame:
        """Return a table with one row per class: label, precision, recall, f1, count.

        For BIO tags, rows for the entity types precede the rows for the classes.

        Raises:
            SelectionError: the labels are numbers.
        """
        if self.kind == NUMBER:
            raise SelectionError(
                "A regression head has no classes. Choose the table “measures” or “texts” instead."
            )
        classes = head_predictions.class_report(self.true, self.predicted, self.labels)
        tags = self._tags(self.true) if self.kind == TAGS else []
        if not head_predictions.is_bio(tags):
            return classes
        entities = head_predictions.entity_report(tags, self._tags(self.predicted))
        entities["label"] = [f"entity {label}" for label in entities["label"]]
        return pd.concat([entities, classes], ignore_index=True)

    @property
    def sort_order(self) -> SortOrder | None:
        """The order of the least certain and of the wrong predictions, by probability; otherwise None."""
        is_sorted = self.kind != NUMBER and self.question.show in ("uncertain", "wrong")
        return SortOrder("probability") if is_sorted else None

    def frame(self) -> pd.DataFrame:
        """Return the table selected by ``show``; see `TABLES`."""
        show = self.question.show
        if show == "classes":
            return self.by_class()
        if show == "confusion":
            return frames.matrix(self.confusion, self.labels, self.labels, "true")
        if show != "measures":
            units = {"uncertain": self.least_certain, "wrong": self.confident_errors}
            return self.listed(units.get(show, range(len(self.texts))))
        values = {**self.measures}
        values |= {f"{name}_{MAIN_MEASURES[self.kind]}": value for name, value in self.baselines.items()}
        values["words" if self.kind == TAGS else "texts"] = len(self.texts)
        return pd.DataFrame({"measure": pd.Series([*values], dtype=object), "value": [*values.values()]})

    def _tags(self, values: Array) -> list[list[str]]:
        """Return the tags with the given label indices, one list per sentence."""
        bounds = np.flatnonzero(np.diff(self.rows)) + 1
        return [[self.labels[index] for index in sentence] for sentence in np.split(values, bounds)]

    def _check_classes(self) -> None:
        if self.kind not in (CLASSES, TAGS):
            raise SelectionError(
                "A confusion matrix needs exactly one class per text, but the labels are of type "
                f"{self.kind}. Choose the table “measures” or “texts” instead."
            )


_ANSWERS = ("true", "predicted")


MOST_FREQUENT, MEAN, BAG_OF_WORDS, BY_WORD = "most_frequent", "mean", "bag_of_words", "by_word"

BASELINE_DESCRIPTIONS = {
    BAG_OF_WORDS: "a bag of words",
    BY_WORD: "each word's most frequent tag",
    MOST_FREQUENT: "the most frequent label",
    MEAN: "the mean",
}
"""Mapping from the name of each baseline to its description in the UI.

The bag of words is a logistic regression (ridge regression for numbers) on tf-idf weights of words and word
bigrams, with scikit-learn's defaults.
"""


_LBFGS_COPIES = 24
"""Number of arrays of the size of the coefficients that scikit-learn's L-BFGS optimizer keeps in memory."""


def predict_labels(
    training: LabeledTexts, rows: Sequence[LabeledText], progress: Progress = no_progress
) -> dict[str, list[Any]]:
    """Return the predictions of each baseline for labeled texts.

    Args:
        training: labeled texts on which the baselines are fitted.
        rows: labeled texts whose labels are predicted.
        progress: called while the bag of words is fitted; it may raise an error to cancel the fit.

    Raises:
        OutOfMemoryError: the bag of words does not fit into memory.
    """
    labels = [row.label for row in training.rows]
    if training.kind == NUMBER:
        constant, answer = MEAN, float(np.mean(np.array(labels, dtype=np.float64)))
    else:
        constant, answer = MOST_FREQUENT, _most_frequent(labels)
    predictions = {constant: [answer] * len(rows)}
    if len(set(labels)) > 1:
        predictions[BAG_OF_WORDS] = run_cancellable(lambda: _bag_of_words(training, rows), progress)
    return predictions


def predict_tags(
    training: Sequence[TaggedSentence], sentences: Sequence[Sequence[str]]
) -> dict[str, list[list[str]]]:
    """Return the tags that each baseline predicts for the words of sentences.

    Args:
        training: tagged sentences on which the baselines are fitted.
        sentences: the words of each sentence.
    """
    tags: dict[str, Counter[str]] = {}
    for sentence in training:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            tags.setdefault(word, Counter())[tag] += 1
    most_frequent = _most_frequent([tag for sentence in training for tag in sentence.tags])
    best = {word: _first(counts) for word, counts in tags.items()}
    return {
        MOST_FREQUENT: [[most_frequent] * len(words) for words in sentences],
        BY_WORD: [[best.get(word, most_frequent) for word in words] for words in sentences],
    }


def _bag_of_words(training: LabeledTexts, rows: Sequence[LabeledText]) -> list[Any]:
    # imported here because the import is slow
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier

    # Keep one-letter words and punctuation, because punctuation such as "?" is informative.
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]")
    weights = vectorizer.fit_transform([_text(row) for row in training.rows])
    evaluated = vectorizer.transform([_text(row) for row in rows])
    if training.kind == NUMBER:
        ridge = Ridge().fit(weights, [row.label for row in training.rows])
        return [float(value) for value in ridge.predict(evaluated)]
    regression = LogisticRegression(max_iter=1000)
    if training.kind == CLASSES:
        names = sorted({str(row.label) for row in training.rows})
        # Pass indices, because an array of names would need the memory of the longest name for every row.
        indices = {name: index for index, name in enumerate(names)}
        size = _LBFGS_COPIES * 8 * len(names) * weights.shape[1]
        with reserved_memory(size, "The bag of words", "Use fewer training rows."):
            fitted = regression.fit(weights, [indices[str(row.label)] for row in training.rows])
        return [names[index] for index in fitted.predict(evaluated)]
    target = np.array([[label in _labels(row) for label in training.labels] for row in training.rows])
    # Logistic regression needs texts with the label and texts without the label.
    varies = target.any(axis=0) & ~target.all(axis=0)
    answers = np.tile(target.all(axis=0), (len(rows), 1))
    if varies.any():
        fitted = OneVsRestClassifier(regression).fit(weights, target[:, varies].astype(int))
        answers[:, varies] = fitted.predict(evaluated).reshape(len(rows), -1).astype(bool)
    return [
        tuple(label for label, applies in zip(training.labels, answer, strict=True) if applies)
        for answer in answers
    ]


def _text(row: LabeledText) -> str:
    return row.text if row.pair is None else f"{row.text}\n{row.pair}"


def _labels(row: LabeledText) -> tuple[str, ...]:
    assert isinstance(row.label, tuple)
    return row.label


def _most_frequent(answers: Sequence[Any]) -> Any:
    return _first(Counter(answers))


def _first(counts: Counter[Any]) -> Any:
    """Return the most frequent value; in a tie, the smallest, so that row order does not matter."""

    def sort_key(value: Hashable) -> tuple[int, Any]:
        return -counts[value], value

    return min(counts, key=sort_key)
