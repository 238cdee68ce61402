"""How well answers agree with what is right: the measures of an evaluation, from arrays alone.

Precision, recall and F1 are scikit-learn's, entities are seqeval's; both are imported where they are used, as
each takes a second. Where a measure is a division by nothing it is 0, as there.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bert_probe.model.trace import Array

CERTAIN = 1.959963984540054
"""Standard errors on either side that hold 95 % of a normal distribution."""

OUTSIDE = "O"


def interval(right: int, count: int) -> tuple[float, float]:
    """Where the share lies that ``right`` of ``count`` was drawn from, at 95 %; Wilson 1927.

    It never leaves 0 to 1, and is not empty where all or none are right.
    """
    share, extra = right / count, CERTAIN**2 / count
    middle = (share + extra / 2) / (1 + extra)
    half = CERTAIN / (1 + extra) * math.sqrt(share * (1 - share) / count + extra / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def of_classes(true: Array, predicted: Array) -> dict[str, float]:
    """Of one class a text, [text]: accuracy with its interval, and F1 as a mean over the classes.

    The mean is over the classes that are right for a text, or answered for one.
    """
    from sklearn.metrics import f1_score

    right = int((true == predicted).sum())
    low, high = interval(right, len(true))
    return {
        "accuracy": right / len(true),
        "accuracy_low": low,
        "accuracy_high": high,
        "macro_f1": float(f1_score(true, predicted, average="macro", zero_division=0)),
    }


def of_several(true: Array, predicted: Array) -> dict[str, float]:
    """Of any number of labels a text, bool [text, label].

    Subset accuracy is the share of the texts that have exactly the right labels; F1 is over all pairs of a
    text and a label (micro), and as a mean over the labels that are right for a text or answered (macro).
    """
    from sklearn.metrics import f1_score

    met = (true | predicted).any(axis=0)
    right = int((true == predicted).all(axis=1).sum())
    low, high = interval(right, len(true))
    return {
        "subset_accuracy": right / len(true),
        "subset_accuracy_low": low,
        "subset_accuracy_high": high,
        "micro_f1": float(f1_score(true, predicted, average="micro", zero_division=0)),
        "macro_f1": _mean(f1_score(true[:, met], predicted[:, met], average=None, zero_division=0))
        if met.any()
        else 0.0,
    }


def of_numbers(true: Array, predicted: Array) -> dict[str, float]:
    """Of a number a text, [text]: squared and absolute error, and how the two rise together.

    A correlation is NaN where one of them is the same for every text.
    """
    from scipy.stats import rankdata

    error = predicted - true
    return {
        "mse": _mean(error**2),
        "mae": _mean(np.abs(error)),
        "pearson": _correlation(true, predicted),
        "spearman": _correlation(rankdata(true), rankdata(predicted)),
    }


def of_tags(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Of a tag a word, a list for each sentence: accuracy by word, and where tags are BIO, by entity."""
    right = sum(
        one == answer
        for sentence, answers in zip(true, predicted, strict=True)
        for one, answer in zip(sentence, answers, strict=True)
    )
    found = {"accuracy": right / sum(map(len, true))}
    if not is_bio(true):
        return found
    every = by_entity(true, predicted).iloc[-1]
    return found | {f"entity_{name}": float(every[name]) for name in ("precision", "recall", "f1")}


def is_bio(tags: Sequence[Sequence[str]]) -> bool:
    """Whether tags tell where parts of a sentence begin (B-) and go on (I-): Ramshaw and Marcus 1995."""
    known = {tag for sentence in tags for tag in sentence} - {OUTSIDE}
    return bool(known) and all(tag.startswith(("B-", "I-")) for tag in known)


def by_entity(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> pd.DataFrame:
    """For each type of entity, last for all: label, precision, recall, f1, count; as seqeval has it.

    An entity is found where first word, last word and type are right; what conlleval reads as one is one.
    """
    from seqeval.metrics import classification_report

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a type that is never answered has the precision 0
        report = classification_report([*map(list, true)], [*map(list, predicted)], output_dict=True)
    named = {name: row for name, row in report.items() if name not in ("macro avg", "weighted avg")}
    named["all"] = named.pop("micro avg")
    rows = [
        (name, float(row["precision"]), float(row["recall"]), float(row["f1-score"]), int(row["support"]))
        for name, row in named.items()
    ]
    return pd.DataFrame(rows, columns=["label", "precision", "recall", "f1", "count"])


def by_class(true: Array, predicted: Array, labels: Sequence[str]) -> pd.DataFrame:
    """For each label: label, precision, recall, f1, and the count of those it is right for.

    Args:
        true, predicted: indices of labels, [text]; or bool [text, label].
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
    """How many of each class were answered as each, int64 [true, predicted]."""
    found = np.zeros((count, count), dtype=np.int64)
    np.add.at(found, (true, predicted), 1)
    return found


def _correlation(one: Array, other: Array) -> float:
    one, other = one - one.mean(), other - other.mean()
    size = math.sqrt(float((one**2).sum()) * float((other**2).sum()))
    return float((one * other).sum()) / size if size else math.nan


def _mean(values: Array) -> float:
    return float(np.mean(values))
