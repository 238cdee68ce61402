"""Evaluation measures, computed from arrays of true and predicted labels.

Precision, recall and F1 come from scikit-learn, entities from seqeval; both are imported lazily because each
import takes a second. A measure with a zero denominator is 0, as in these libraries.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bert_probe.model.trace import Array

Z_95 = 1.959963984540054
"""97.5th percentile of the standard normal distribution."""

OUTSIDE = "O"


def wilson_interval(correct: int, count: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a proportion; Wilson 1927.

    The interval stays within 0 and 1, and has a positive width even if all or no predictions are correct.
    """
    share, correction = correct / count, Z_95**2 / count
    middle = (share + correction / 2) / (1 + correction)
    margin = Z_95 / (1 + correction) * math.sqrt(share * (1 - share) / count + correction / (4 * count))
    return max(0.0, middle - margin), min(1.0, middle + margin)


def score_classes(true: Array, predicted: Array) -> dict[str, float]:
    """Return the accuracy of single-label predictions with its 95 % interval, and the macro F1.

    Macro F1 is the mean over the classes that are true or predicted for at least one text.

    Args:
        true, predicted: class index of each text.
    """
    from sklearn.metrics import f1_score

    correct = int((true == predicted).sum())
    low, high = wilson_interval(correct, len(true))
    return {
        "accuracy": correct / len(true),
        "accuracy_low": low,
        "accuracy_high": high,
        "macro_f1": float(f1_score(true, predicted, average="macro", zero_division=0)),
    }


def score_multilabel(true: Array, predicted: Array) -> dict[str, float]:
    """Return the subset accuracy and the F1 scores of multi-label predictions.

    Subset accuracy is the share of texts with exactly the true labels. Micro F1 is over all pairs of text and
    label; macro F1 is the mean over the labels that are true or predicted for at least one text.

    Args:
        true, predicted: bools of shape [text, label].
    """
    from sklearn.metrics import f1_score

    occurring = (true | predicted).any(axis=0)
    correct = int((true == predicted).all(axis=1).sum())
    low, high = wilson_interval(correct, len(true))
    return {
        "subset_accuracy": correct / len(true),
        "subset_accuracy_low": low,
        "subset_accuracy_high": high,
        "micro_f1": float(f1_score(true, predicted, average="micro", zero_division=0)),
        "macro_f1": _mean(
            f1_score(true[:, occurring], predicted[:, occurring], average=None, zero_division=0)
        )
        if occurring.any()
        else 0.0,
    }


def score_numbers(true: Array, predicted: Array) -> dict[str, float]:
    """Return the mean squared error, mean absolute error and correlations of predicted numbers.

    A correlation is NaN if the true or the predicted numbers are constant.
    """
    from scipy.stats import rankdata

    error = predicted - true
    return {
        "mse": _mean(error**2),
        "mae": _mean(np.abs(error)),
        "pearson": _correlation(true, predicted),
        "spearman": _correlation(rankdata(true), rankdata(predicted)),
    }


def score_tags(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return the accuracy over the words and, for BIO tags, precision, recall and F1 over the entities.

    Args:
        true, predicted: tags of the words, one list per sentence.
    """
    correct = sum(
        tag == predicted_tag
        for tags, predicted_tags in zip(true, predicted, strict=True)
        for tag, predicted_tag in zip(tags, predicted_tags, strict=True)
    )
    measures = {"accuracy": correct / sum(map(len, true))}
    if not is_bio(true):
        return measures
    total = entity_report(true, predicted).iloc[-1]
    return measures | {f"entity_{name}": float(total[name]) for name in ("precision", "recall", "f1")}


def is_bio(tags: Sequence[Sequence[str]]) -> bool:
    """Return whether all tags but "O" begin with B- or I-, as in BIO schemes (Ramshaw and Marcus 1995)."""
    entity_tags = {tag for sentence in tags for tag in sentence} - {OUTSIDE}
    return bool(entity_tags) and all(tag.startswith(("B-", "I-")) for tag in entity_tags)


def entity_report(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> pd.DataFrame:
    """Return one row per entity type and a last row for all types: label, precision, recall, f1, count.

    An entity is correct if its first word, last word and type are correct. Entities are delimited as in
    conlleval.
    """
    from seqeval.metrics import classification_report

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a type that is never predicted has precision 0
        report = classification_report([*map(list, true)], [*map(list, predicted)], output_dict=True)
    rows_by_label = {name: row for name, row in report.items() if name not in ("macro avg", "weighted avg")}
    rows_by_label["all"] = rows_by_label.pop("micro avg")
    rows = [
        (name, float(row["precision"]), float(row["recall"]), float(row["f1-score"]), int(row["support"]))
        for name, row in rows_by_label.items()
    ]
    return pd.DataFrame(rows, columns=["label", "precision", "recall", "f1", "count"])


def class_report(true: Array, predicted: Array, labels: Sequence[str]) -> pd.DataFrame:
    """Return one row per label: label, precision, recall, f1, count (number of true occurrences).

    Args:
        true, predicted: label index of each text, or bools of shape [text, label].
    """
    from sklearn.metrics import precision_recall_fscore_support

    precision, recall, f1, count = precision_recall_fscore_support(
        true, predicted, labels=range(len(labels)), zero_division=0
    )
    return pd.DataFrame(
        {
            "label": pd.Series(labels, dtype=object),
            "precision": precision,
            "recall": recall,
            "f1": f1,
            "count": count,
        }
    )


def confusion(true: Array, predicted: Array, count: int) -> Array:
    """Return the confusion matrix, int64 of shape [true class, predicted class]."""
    matrix = np.zeros((count, count), dtype=np.int64)
    np.add.at(matrix, (true, predicted), 1)
    return matrix


def _correlation(x: Array, y: Array) -> float:
    x, y = x - x.mean(), y - y.mean()
    norm = math.sqrt(float((x**2).sum()) * float((y**2).sum()))
    return float((x * y).sum()) / norm if norm else math.nan


def _mean(values: Array) -> float:
    return float(np.mean(values))
