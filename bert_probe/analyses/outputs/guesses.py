"""What can be had without a model: the baselines that an evaluation is held against.

Each is learned from training rows alone and answers the rows of the evaluation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from bert_probe.text.labeled_texts import CLASSES, NUMBER, LabeledText, LabeledTexts
from bert_probe.text.tagged_sentences import TaggedSentence

MOST_FREQUENT, MEAN, BAG_OF_WORDS, BY_WORD = "most_frequent", "mean", "bag_of_words", "by_word"

ABOUT = {
    BAG_OF_WORDS: "a bag of words",
    BY_WORD: "each word's most frequent tag",
    MOST_FREQUENT: "the most frequent answer",
    MEAN: "the mean",
}
"""Baseline → what it is, for people. The bag of words is a logistic regression (ridge, for numbers) on tf-idf
of words and of pairs of neighbouring words, with scikit-learn's own settings."""


def of_rows(training: LabeledTexts, rows: Sequence[LabeledText]) -> dict[str, list[Any]]:
    """What each baseline answers for labelled texts."""
    known = [row.label for row in training.rows]
    if training.kind == NUMBER:
        constant, usual = MEAN, float(np.mean(np.array(known, dtype=np.float64)))
    else:
        constant, usual = MOST_FREQUENT, _most_frequent(known)
    found = {constant: [usual] * len(rows)}
    if len(set(known)) > 1:
        found[BAG_OF_WORDS] = _bag_of_words(training, rows)
    return found


def of_sentences(
    training: Sequence[TaggedSentence], sentences: Sequence[Sequence[str]]
) -> dict[str, list[list[str]]]:
    """What each baseline answers for the words of sentences."""
    tags: dict[str, Counter[str]] = {}
    for sentence in training:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            tags.setdefault(word, Counter())[tag] += 1
    usual = _most_frequent([tag for sentence in training for tag in sentence.tags])
    best = {word: _first(counts) for word, counts in tags.items()}
    return {
        MOST_FREQUENT: [[usual] * len(words) for words in sentences],
        BY_WORD: [[best.get(word, usual) for word in words] for words in sentences],
    }


def _bag_of_words(training: LabeledTexts, rows: Sequence[LabeledText]) -> list[Any]:
    # Seconds, which only this function should cost.
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline

    # Words of one letter and marks count too: "?" tells a question.
    words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]")
    known, texts = [_text(row) for row in training.rows], [_text(row) for row in rows]
    if training.kind == NUMBER:
        ridge = make_pipeline(words, Ridge()).fit(known, [row.label for row in training.rows])
        return [float(one) for one in ridge.predict(texts)]
    regression = LogisticRegression(max_iter=1000)
    if training.kind == CLASSES:
        fitted = make_pipeline(words, regression).fit(known, [row.label for row in training.rows])
        return [str(one) for one in fitted.predict(texts)]
    target = np.array([[label in _labels(row) for label in training.labels] for row in training.rows])
    told = target.any(axis=0) & ~target.all(axis=0)  # a label of all texts, or of none, has nothing to learn
    answers = np.tile(target.all(axis=0), (len(rows), 1))
    if told.any():
        fitted = make_pipeline(words, OneVsRestClassifier(regression)).fit(known, target[:, told].astype(int))
        answers[:, told] = fitted.predict(texts).reshape(len(rows), -1).astype(bool)
    return [
        tuple(label for label, given in zip(training.labels, answer, strict=True) if given)
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
    """The most frequent; among equals the first in the alphabet, so that the order of rows says nothing."""

    def place(one: Hashable) -> tuple[int, Any]:
        return -counts[one], one

    return min(counts, key=place)
