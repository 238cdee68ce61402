"""Batched predictions of a task head for many texts, and measures of their quality.

Precision, recall and F1 come from scikit-learn, entities from seqeval; the two libraries are imported
lazily, because each import takes a second. A measure with a zero denominator is 0, as in both libraries.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.outputs.prediction import problem_type
from bert_probe.errors import TextError, UnavailableError
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint, encode_texts
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import BATCH_TOKENS, as_array, batch, forward, group_by_length
from bert_probe.model.outputs import OutputHead, output_head
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array
from bert_probe.text.labeled_texts import CLASSES, MULTI_LABEL, NUMBER, LabeledText
from bert_probe.text.tagged_sentences import TaggedSentence

TAGS = "tags"
"""Label type of tagged words; the label types of texts are defined in `text.labeled_texts`."""

_LABEL_TYPES = {
    "single_label_classification": CLASSES,
    "multi_label_classification": MULTI_LABEL,
    "regression": NUMBER,
}


@dataclass(frozen=True, eq=False)
class HeadPredictions:
    """The logits of a task head for texts or for words.

    Attributes:
        logits: the logits, [unit, label]; a unit is a text or a word.
        texts: index of the text of each unit, [unit].
        words: index of each word in its text, from 0; 0 if units are texts, [unit].
        dropped: number of tokens removed by truncation, summed over the texts.
    """

    logits: Array
    texts: Array
    words: Array
    dropped: int


def label_type(checkpoint: Checkpoint) -> str:
    """Return the label type that a checkpoint predicts: "classes", "several", "number" or "tags".

    Raises:
        UnavailableError: the checkpoint has no classification head, or its head predicts several numbers per
            text.
    """
    if TOKEN_CLASSIFICATION in checkpoint.outputs and TEXT_CLASSIFICATION not in checkpoint.outputs:
        return TAGS
    output = output_head(checkpoint, TEXT_CLASSIFICATION)
    kind = _LABEL_TYPES[problem_type(output)]
    if kind == NUMBER and len(output.labels) != 1:
        raise UnavailableError(
            f"The head of {checkpoint.description.name} predicts {len(output.labels)} numbers per text, but "
            "only heads that predict one number can be evaluated."
        )
    return kind


def head_for(checkpoint: Checkpoint, kind: str) -> OutputHead:
    """Return the task head that predicts labels of the given type.

    Raises:
        UnavailableError: the checkpoint has no task head for this label type.
    """
    task = TOKEN_CLASSIFICATION if kind == TAGS else TEXT_CLASSIFICATION
    output = output_head(checkpoint, task)
    if kind != TAGS and kind != label_type(checkpoint):
        raise UnavailableError(
            f"The labels are of type {kind}, but the head of {checkpoint.description.name} predicts "
            f"{label_type(checkpoint)}. Read the file as {label_type(checkpoint)}."
        )
    return output


def predict_texts(
    checkpoint: Checkpoint,
    output: OutputHead,
    rows: Sequence[LabeledText],
    truncate: bool,
    progress: Progress,
) -> HeadPredictions:
    """Return a task head's predictions for texts or text pairs.

    Args:
        checkpoint: the model.
        output: the task head.
        rows: the labeled texts.
        truncate: truncate texts that are too long instead of raising an error.
        progress: called with the number of texts done and the total.

    Raises:
        TextError: a text cannot be encoded. The message states the line number.
        UnavailableError: the logits are not finite.
    """
    encodings = encode_texts(checkpoint, [(row.line, row.text, row.pair) for row in rows], truncate)
    logits_by_text = np.empty((len(rows), len(output.labels)), dtype=np.float64)
    for index, logits in _logits(checkpoint, output, encodings, progress):
        logits_by_text[index] = _check_finite(logits, checkpoint, rows[index].line)
    count = len(rows)
    return HeadPredictions(logits_by_text, np.arange(count), np.zeros(count, dtype=int), _dropped(encodings))


def predict_words(
    checkpoint: Checkpoint,
    output: OutputHead,
    sentences: Sequence[TaggedSentence],
    truncate: bool,
    progress: Progress,
) -> HeadPredictions:
    """Return a task head's predictions for words, made at the first token of each word (Devlin et al. 2019).

    Words without tokens, for example because of truncation, are omitted.

    Raises:
        TextError, UnavailableError: see `predict_texts`.
    """
    encodings = encode_texts(
        checkpoint, [(sentence.line, sentence.text, None) for sentence in sentences], truncate
    )
    positions = [
        _first_tokens(encoding, sentence) for encoding, sentence in zip(encodings, sentences, strict=True)
    ]
    logits_by_sentence: list[list[Array]] = [[] for _ in sentences]
    for index, logits in _logits(checkpoint, output, encodings, progress):
        first = [position for position in positions[index] if position is not None]
        logits_by_sentence[index] = [*_check_finite(logits[first], checkpoint, sentences[index].line)]
    units = [
        (text, word)
        for text, tokens in enumerate(positions)
        for word, position in enumerate(tokens)
        if position is not None
    ]
    if not units:
        raise TextError("The tokenizer removes every word of these sentences. Use other sentences.")
    texts, words = np.array(units).T
    return HeadPredictions(
        np.stack([row for rows in logits_by_sentence for row in rows]), texts, words, _dropped(encodings)
    )


def _first_tokens(encoding: Encoding, sentence: TaggedSentence) -> list[int | None]:
    """Return, for each word, the position of the first token that overlaps it, or None if no token does."""
    tokens = [token for token in encoding.tokens if token.start is not None and token.end is not None]
    positions: list[int | None] = []
    index = 0
    for start, end in sentence.spans:
        # Words are in order, but the words of a contraction may share one token.
        while index < len(tokens) and (tokens[index].end or 0) <= start:
            index += 1
        overlaps = index < len(tokens) and (tokens[index].start or 0) < end
        positions.append(tokens[index].position if overlaps else None)
    return positions


def _logits(
    checkpoint: Checkpoint, output: OutputHead, encodings: Sequence[Encoding], progress: Progress
) -> Iterator[tuple[int, Array]]:
    """Yield the index and the logits of each text, [label] or [token, label], in the order of the batches."""
    done = 0
    progress(done, len(encodings))
    for group in group_by_length([len(encoding) for encoding in encodings], BATCH_TOKENS, checkpoint.pads):
        selected = [encodings[index] for index in group]
        states, _ = forward(checkpoint, selected)
        with torch.inference_mode(), checkpoint.running():
            pooled = getattr(states, "pooler_output", None)
            logits = output.answer(batch(checkpoint, selected), states.last_hidden_state, pooled)
        yield from zip(group, as_array(logits), strict=True)
        done += len(group)
        progress(done, len(encodings))


def _check_finite(logits: Array, checkpoint: Checkpoint, line: int) -> Array:
    if not np.isfinite(logits).all():
        raise UnavailableError(
            f"The head of {checkpoint.description.name} predicts values that are not finite for line "
            f"{line:,}, so the head cannot be evaluated. Use float32, or train the head with a lower "
            "learning rate."
        )
    return logits


def _dropped(encodings: Sequence[Encoding]) -> int:
    return sum(encoding.dropped for encoding in encodings)


Z_95 = 1.959963984540054
"""97.5th percentile of the standard normal distribution."""

OUTSIDE = "O"


def wilson_interval(correct: int, count: int) -> tuple[float, float]:
    """Return the 95% confidence interval of a proportion (Wilson 1927).

    The interval stays within 0 and 1, and has a positive width even if all or no predictions are correct.

    Args:
        correct: number of correct predictions.
        count: number of all predictions.
    """
    share, correction = correct / count, Z_95**2 / count
    middle = (share + correction / 2) / (1 + correction)
    margin = Z_95 / (1 + correction) * math.sqrt(share * (1 - share) / count + correction / (4 * count))
    return max(0.0, middle - margin), min(1.0, middle + margin)


def score_classes(true: Array, predicted: Array) -> dict[str, float]:
    """Return the accuracy of single-label predictions with its 95% interval, and the macro F1.

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
    """Return the subset accuracy with its 95% interval, and the F1 scores, of multi-label predictions.

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
    """Return whether the tags follow a BIO scheme (Ramshaw and Marcus 1995).

    This is the case if all tags except "O" begin with B- or I-, and there is at least one such tag.
    """
    entity_tags = {tag for sentence in tags for tag in sentence} - {OUTSIDE}
    return bool(entity_tags) and all(tag.startswith(("B-", "I-")) for tag in entity_tags)


def entity_report(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> pd.DataFrame:
    """Return a table with one row per entity type, and a last row for all types.

    Columns: label, precision, recall, f1, count (the support). An entity is correct if its first word, last
    word and type are correct. Entities are delimited as in the script conlleval.
    """
    from seqeval.metrics import classification_report

    with warnings.catch_warnings():
        # seqeval warns about entity types without predictions, whose precision is 0.
        warnings.simplefilter("ignore")
        report = classification_report([*map(list, true)], [*map(list, predicted)], output_dict=True)
    rows_by_label = {name: row for name, row in report.items() if name not in ("macro avg", "weighted avg")}
    rows_by_label["all"] = rows_by_label.pop("micro avg")
    rows = [
        (name, float(row["precision"]), float(row["recall"]), float(row["f1-score"]), int(row["support"]))
        for name, row in rows_by_label.items()
    ]
    return pd.DataFrame(rows, columns=["label", "precision", "recall", "f1", "count"])


def class_report(true: Array, predicted: Array, labels: Sequence[str]) -> pd.DataFrame:
    """Return a table with one row per label: label, precision, recall, f1, count (the support).

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
    """Return the confusion matrix, int64 of shape [true class, predicted class].

    Args:
        true, predicted: class index of each text or word.
        count: number of classes.
    """
    matrix = np.zeros((count, count), dtype=np.int64)
    np.add.at(matrix, (true, predicted), 1)
    return matrix


def _correlation(x: Array, y: Array) -> float:
    # Compare the values: rounding may leave small values after centering equal numbers.
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    x, y = x - x.mean(), y - y.mean()
    norm = math.sqrt(float((x**2).sum()) * float((y**2).sum()))
    return float((x * y).sum()) / norm if norm else math.nan


def _mean(values: Array) -> float:
    return float(np.mean(values))
