"""Baselines for an evaluation: predictors that need no language model.

Each baseline is fitted on the training rows and predicts the rows of the evaluation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from bert_probe.text.labeled_texts import CLASSES, NUMBER, LabeledText, LabeledTexts
from bert_probe.text.tagged_sentences import TaggedSentence

MOST_FREQUENT, MEAN, BAG_OF_WORDS, BY_WORD = "most_frequent", "mean", "bag_of_words", "by_word"

BASELINE_DESCRIPTIONS = {
    BAG_OF_WORDS: "a bag of words",
    BY_WORD: "each word's most frequent tag",
    MOST_FREQUENT: "the most frequent answer",
    MEAN: "the mean",
}
"""Baseline → description for people.

The bag of words is a logistic regression (ridge regression for numbers) on tf-idf weights of words and word
bigrams, with scikit-learn's defaults.
"""


def predict_labels(training: LabeledTexts, rows: Sequence[LabeledText]) -> dict[str, list[Any]]:
    """Return the predictions of each baseline for labeled texts."""
    labels = [row.label for row in training.rows]
    if training.kind == NUMBER:
        constant, answer = MEAN, float(np.mean(np.array(labels, dtype=np.float64)))
    else:
        constant, answer = MOST_FREQUENT, _most_frequent(labels)
    predictions = {constant: [answer] * len(rows)}
    if len(set(labels)) > 1:
        predictions[BAG_OF_WORDS] = _bag_of_words(training, rows)
    return predictions


def predict_tags(
    training: Sequence[TaggedSentence], sentences: Sequence[Sequence[str]]
) -> dict[str, list[list[str]]]:
    """Return the predicted tags of each baseline for the words of sentences."""
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
    # Importing scikit-learn takes seconds.
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline

    # Keep one-letter words and punctuation: "?" marks a question.
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]")
    training_texts, texts = [_text(row) for row in training.rows], [_text(row) for row in rows]
    if training.kind == NUMBER:
        ridge = make_pipeline(vectorizer, Ridge()).fit(training_texts, [row.label for row in training.rows])
        return [float(value) for value in ridge.predict(texts)]
    regression = LogisticRegression(max_iter=1000)
    if training.kind == CLASSES:
        fitted = make_pipeline(vectorizer, regression).fit(
            training_texts, [row.label for row in training.rows]
        )
        return [str(label) for label in fitted.predict(texts)]
    target = np.array([[label in _labels(row) for label in training.labels] for row in training.rows])
    varies = target.any(axis=0) & ~target.all(axis=0)  # a regression needs both classes
    answers = np.tile(target.all(axis=0), (len(rows), 1))
    if varies.any():
        fitted = make_pipeline(vectorizer, OneVsRestClassifier(regression)).fit(
            training_texts, target[:, varies].astype(int)
        )
        answers[:, varies] = fitted.predict(texts).reshape(len(rows), -1).astype(bool)
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
    """Return the most frequent value; of several the first in order, so that row order does not matter."""

    def sort_key(value: Hashable) -> tuple[int, Any]:
        return -counts[value], value

    return min(counts, key=sort_key)
