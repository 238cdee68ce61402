"""Training data: encoded texts with targets, split into training and held-out examples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from bert_probe.errors import SelectionError, SubjectError, TextError
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.model.encoding import token_strings
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.text.duplicates import text_key
from bert_probe.text.labeled_texts import (
    CLASSES,
    MAX_ABS_LABEL,
    MAX_LABELS,
    NUMBER,
    LabeledTexts,
)
from bert_probe.text.similarity_examples import SimilarityExample, SimilarityExamples, split_groups
from bert_probe.text.tagged_sentences import TaggedSentence
from bert_probe.training.contrastive import AUTO, SimilarityObjective
from bert_probe.training.models import in_checkpoint_order, regression_labels
from bert_probe.training.objectives import (
    IGNORE_INDEX,
    MaskedLmObjective,
    Objective,
    TextObjective,
    TokenObjective,
    TrainingExample,
)
from bert_probe.training.splits import (
    check_split,
    format_lines,
    format_names,
    label_notes,
    share_notes,
    shared_notes,
    split,
    split_texts,
    text_keys,
    truncation_notes,
)

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Encoded texts with their targets, split into training and held-out examples.

    Attributes:
        objective: the training objective.
        training, held_out: encoded examples for training and for evaluation.
        data: the training rows, before encoding.
        held_out_rows: the held-out rows, before encoding; None if nothing is held out.
        about: counts and digests of the training and held-out texts, for the provenance.
        notes: notes on the data for the user, one sentence each.
        files: names of the data files and of the function that reads these files, for code snippets.
    """

    objective: Objective
    training: list[TrainingExample]
    held_out: list[TrainingExample]
    data: Any
    held_out_rows: Any
    about: Mapping[str, Any]
    notes: tuple[str, ...]
    files: Mapping[str, str]

    def batches(self) -> list[dict[str, torch.Tensor]]:
        """Return batches of the held-out texts, grouped by length."""
        groups = self.objective.groups(self.held_out, BATCH_TOKENS // 2)
        return [self.objective.batch([self.held_out[index] for index in group]) for group in groups]


@dataclass(frozen=True)
class SplitConfig:
    """Settings for preparing data: share of held-out texts, seed of the split, and maximum text length."""

    share: float
    seed: int
    longest: int | None


def build_dataset(
    checkpoint: Checkpoint,
    data: Any,
    held_out: Any,
    config: SplitConfig,
    whole_words: bool,
    loss: str = AUTO,
) -> Dataset:
    """Encode data, and split them into training and held-out examples.

    Args:
        checkpoint: the model to train, whose tokenizer encodes the data.
        data, held_out: as in `Train.plan`.
        config: settings of the split.
        whole_words: whether masked-language modeling masks all tokens of a word or none.
        loss: loss of similarity training, from `contrastive.LOSSES`.

    Raises:
        SubjectError: the type of the data is unsupported, or the held-out data have another type.
        TextError: the data cannot be used for training.
        UnavailableError: the model family has no head for the task.
    """
    data_type = _type(data)
    if data_type is None:
        raise SubjectError(
            "Train needs labeled texts, tagged sentences, similarity examples or lines, not a "
            f"{type(data).__name__}. Use read_labeled_texts, read_tagged_sentences, "
            "read_similarity_examples or read_sentences."
        )
    if held_out is not None and _type(held_out) is not data_type:
        raise SubjectError(
            "The held-out data and the training data have different types. Read both files with the "
            "same function."
        )
    if loss != AUTO and data_type is not SimilarityExamples:
        raise SelectionError(f"The loss {loss} applies to similarity examples only. Omit the loss.")
    if data_type is SimilarityExamples:
        return _from_similarity_examples(checkpoint, data, held_out, config, loss)
    if data_type is LabeledTexts:
        return _from_labeled_texts(checkpoint, data, held_out, config)
    if data_type is TaggedSentence:
        return _from_tagged_sentences(checkpoint, data, held_out, config)
    return _from_lines(checkpoint, data, held_out, config, whole_words)


def _type(data: Any) -> type | None:
    if isinstance(data, LabeledTexts | SimilarityExamples):
        return type(data)
    if not isinstance(data, Sequence) or isinstance(data, str | bytes):
        return None
    return next(
        (type_ for type_ in (TaggedSentence, str) if all(isinstance(row, type_) for row in data)), None
    )


def _from_labeled_texts(
    checkpoint: Checkpoint, data: LabeledTexts, held_out: LabeledTexts | None, config: SplitConfig
) -> Dataset:
    check_texts(data, held_out, checkpoint.description.dtype)
    train, evaluation = split_texts(data, config.share, config.seed)
    if held_out is not None:
        train, evaluation = [*data.rows], [*held_out.rows]
    check_split(
        train,
        evaluation,
        0 if held_out else config.share,
        text_keys(data.rows),
        [row.label for row in data.rows],
    )
    labels = (
        regression_labels(checkpoint)
        if data.kind == NUMBER
        else in_checkpoint_order(checkpoint, TEXT_CLASSIFICATION, data.labels)
    )
    objective = TextObjective(checkpoint, data, labels)
    train_examples, held_out_examples = (
        objective.examples(checkpoint, rows, config.longest) for rows in (train, evaluation)
    )
    return Dataset(
        objective,
        train_examples,
        held_out_examples,
        LabeledTexts.of(data.kind, train),
        LabeledTexts.of(data.kind, evaluation) if evaluation else None,
        _provenance(train_examples, data.digest, held_out_examples, held_out.digest if held_out else ""),
        (
            *label_notes(data),
            *_example_notes(
                train_examples,
                held_out_examples,
                held_out,
                config,
                "equal texts are in the same split, and each class with several texts is in both"
                if data.kind == CLASSES
                else "equal texts are in the same split",
            ),
        ),
        _files("read_labeled_texts", "csv", held_out),
    )


def _from_tagged_sentences(
    checkpoint: Checkpoint,
    data: Sequence[TaggedSentence],
    held_out: Sequence[TaggedSentence] | None,
    config: SplitConfig,
) -> Dataset:
    train, evaluation = _split_or_given(
        data, held_out, config, lambda rows: [text_key(row.text) for row in rows]
    )
    labels = sorted({tag for sentence in data for tag in sentence.tags})
    if len(labels) < 2:
        raise TextError(f"All words have the label {labels[0]}. Use data with at least two labels.")
    if len(labels) > MAX_LABELS:
        raise TextError(
            f"The words have {len(labels):,} different labels, but at most {MAX_LABELS:,} are supported. "
            "Check that the last column contains the labels."
        )
    check_labels(labels, sorted({tag for sentence in evaluation for tag in sentence.tags}), "words")
    objective = TokenObjective(checkpoint, in_checkpoint_order(checkpoint, TOKEN_CLASSIFICATION, labels))
    train_examples, held_out_examples = (
        objective.examples(checkpoint, rows, config.longest) for rows in (train, evaluation)
    )
    incomplete = [
        example.line
        for example, sentence in zip(train_examples, train, strict=True)
        if (example.target != IGNORE_INDEX).sum() < len(sentence.words) and not example.inputs.dropped
    ]
    notes = (
        [
            "Words that share a token with another word, or have no token, are ignored: "
            f"{format_lines(incomplete)}."
        ]
        if incomplete
        else []
    )
    return Dataset(
        objective,
        train_examples,
        held_out_examples,
        tuple(train),
        tuple(evaluation) if evaluation else None,
        _provenance(
            train_examples,
            _digest(map(_content, data)),
            held_out_examples,
            _digest(map(_content, held_out or ())),
        ),
        (*notes, *_example_notes(train_examples, held_out_examples, held_out, config)),
        _files("read_tagged_sentences", "conllu" if data[0].heads else "conll", held_out),
    )


def _from_similarity_examples(
    checkpoint: Checkpoint,
    data: SimilarityExamples,
    held_out: SimilarityExamples | None,
    config: SplitConfig,
    loss: str,
) -> Dataset:
    """Return a dataset of similarity examples, split by their `split_groups`."""
    if held_out is not None and held_out.kind != data.kind:
        raise TextError(
            f"The held-out data are {held_out.kind}, but the training data are {data.kind}. Use files "
            "with the same columns."
        )
    objective = SimilarityObjective(checkpoint, data, loss)
    train, evaluation = _split_or_given(
        data.rows, None if held_out is None else held_out.rows, config, split_groups
    )
    train_examples, held_out_examples = (
        objective.examples(checkpoint, rows, config.longest) for rows in (train, evaluation)
    )
    return Dataset(
        objective,
        train_examples,
        held_out_examples,
        SimilarityExamples.of(data.kind, train),
        SimilarityExamples.of(data.kind, evaluation) if evaluation else None,
        _provenance(train_examples, data.digest, held_out_examples, held_out.digest if held_out else ""),
        (
            *_example_notes(
                train_examples,
                held_out_examples,
                held_out,
                config,
                "examples with the same first text, or connected by reversed pairs, are in the same split",
            ),
            *([] if held_out else _first_text_notes(train, evaluation)),
        ),
        _files("read_similarity_examples", "csv", held_out),
    )


def _content(sentence: TaggedSentence) -> Any:
    return [sentence.text, sentence.words, sentence.tags]


def _from_lines(
    checkpoint: Checkpoint,
    data: Sequence[str],
    held_out: Sequence[str] | None,
    config: SplitConfig,
    whole_words: bool,
) -> Dataset:
    train, evaluation = _split_or_given(data, held_out, config, lambda rows: [*map(text_key, rows)])
    objective = MaskedLmObjective(checkpoint, config.seed, whole_words)
    train_examples, held_out_examples = (
        objective.examples(checkpoint, rows, config.longest) if rows else [] for rows in (train, evaluation)
    )
    notes = []
    if held_out_examples:
        token, share = objective.most_frequent_token(train_examples, held_out_examples)
        (name,) = token_strings(checkpoint.tokenizer, [token])
        notes.append(
            f"Always predicting “{name}”, the most frequent token, would be correct for {share:.1%} of "
            "the masked tokens."
        )
    return Dataset(
        objective,
        train_examples,
        held_out_examples,
        tuple(train),
        tuple(evaluation) if evaluation else None,
        _provenance(
            train_examples, _digest(map(str, data)), held_out_examples, _digest(map(str, held_out or ()))
        ),
        (*notes, *_example_notes(train_examples, held_out_examples, held_out, config)),
        _files("read_sentences", "txt", held_out),
    )


def _split_or_given(
    data: Sequence[T],
    held_out: Sequence[T] | None,
    config: SplitConfig,
    groups: Callable[[Sequence[T]], Sequence[Hashable]],
) -> tuple[list[T], list[T]]:
    """Return training and held-out rows; without separate held-out rows, split the data at random.

    Args:
        groups: function that returns the group of each row; the rows of a group are in the same split.
    """
    if held_out is not None:
        return [*data], [*held_out]
    groups_of_rows = groups(data)
    train, evaluation = split(data, config.share, config.seed, groups_of_rows)
    check_split(train, evaluation, config.share, groups_of_rows)
    return train, evaluation


def _example_notes(
    train: Sequence[TrainingExample],
    evaluation: Sequence[TrainingExample],
    held_out: Any,
    config: SplitConfig,
    reason: str = "equal texts are in the same split",
) -> list[str]:
    """Return notes for the user on the split and on truncated texts.

    Args:
        held_out: the separate held-out data, or None.
        reason: why the share of held-out examples can differ from that of `config`.
    """
    shares = [] if held_out is not None else share_notes(len(train), len(evaluation), config.share, reason)
    return [*shares, *shared_notes(train, evaluation, held_out is not None), *truncation_notes(train)]


def _first_text_notes(
    train: Sequence[SimilarityExample], evaluation: Sequence[SimilarityExample]
) -> list[str]:
    """Return a note for the user if `split_groups` could not keep all examples of a first text together."""
    first_texts = {text_key(row.texts[0]) for row in train}
    count = sum(text_key(row.texts[0]) in first_texts for row in evaluation)
    if not count:
        return []
    return [
        f"{count:,} of {len(evaluation):,} held-out examples have the first text of a training example, "
        "because common texts and reversed pairs connect most examples. This can inflate the score."
    ]


def _digest(texts: Iterable[Any]) -> str:
    """Return the SHA-256 digest of texts, each serialized as a line of JSON; "" if there are no texts."""
    lines = "".join(f"{json.dumps(text)}\n" for text in texts)
    return hashlib.sha256(lines.encode()).hexdigest() if lines else ""


def _provenance(
    train: Sequence[TrainingExample], digest: str, held_out: Sequence[TrainingExample], held_out_digest: str
) -> dict[str, Any]:
    """Return the provenance of the data: numbers of examples, digests, and number of truncated tokens.

    The truncated tokens of held-out examples are not counted. If a share of the data is held out, the digest
    covers the training and held-out rows together.
    """
    return {
        "sentences": len(train),
        "sentences_sha256": digest,
        "held_out": len(held_out),
        **({"held_out_sha256": held_out_digest} if held_out_digest else {}),
        "tokens_dropped": sum(example.inputs.dropped for example in train),
    }


def _files(reader: str, ending: str, held_out: Any) -> dict[str, str]:
    files = {"reader": reader, "data": f"data.{ending}"}
    return files if held_out is None else files | {"held_out": f"held_out.{ending}"}


def check_texts(data: LabeledTexts, held_out: LabeledTexts | None, dtype: str) -> None:
    """Check the labels of the training data, and that they include all labels of the held-out data.

    Args:
        data: training data.
        held_out: held-out data, if they are separate.
        dtype: data type of the checkpoint.

    Raises:
        TextError: all texts have the same class, the numbers are too large or differ too little for the
            model's precision, no text has a label, the held-out texts have another type of labels, or a
            held-out label does not occur in the training data.
    """
    if data.kind == CLASSES and len(data.labels) < 2:
        raise TextError(
            f"All {len(data.rows):,} texts have the label {data.labels[0]}. Use data with at least two "
            "labels."
        )
    if data.kind != NUMBER and not data.labels:
        raise TextError("No text has a label. Write at least one label in the column with the labels.")
    for rows in (data, held_out):
        if rows is not None and rows.kind == NUMBER:
            _check_numbers(rows)
    if data.kind == NUMBER:
        _check_deviation([float(row.label) for row in data.rows if isinstance(row.label, int | float)], dtype)
    if held_out is None:
        return
    if held_out.kind != data.kind:
        raise TextError(
            f"The held-out texts have {LABEL_DESCRIPTIONS[held_out.kind]}, but the training texts have "
            f"{LABEL_DESCRIPTIONS[data.kind]}. Use files with the same type of labels."
        )
    check_labels(data.labels, held_out.labels, "texts")


def _check_numbers(data: LabeledTexts) -> None:
    for row in data.rows:
        if not isinstance(row.label, float | int) or not abs(row.label) <= MAX_ABS_LABEL:  # also rejects NaN
            raise TextError(
                f"Line {row.line:,} has the number {row.label}, but absolute values must be at most "
                f"{MAX_ABS_LABEL:g}. Divide all numbers by the same factor, or remove the row."
            )


_MIN_DEVIATION = 100
"""Minimum standard deviation of the numbers to predict, in steps between neighboring floating-point numbers.

Otherwise, rounding the bias and the predictions of the saved model would change R² by more than 0.0001.
"""


def _check_deviation(numbers: Sequence[float], dtype: str) -> None:
    precision = "float64" if dtype == "float64" else "float32"  # all other models are trained in float32
    smallest, largest, deviation = min(numbers), max(numbers), float(np.std(numbers))
    step = float(np.spacing(np.dtype(precision).type(max(abs(smallest), abs(largest)))))
    if smallest == largest:
        raise TextError(f"All texts have the number {smallest:g}. Use texts with different numbers.")
    if deviation < _MIN_DEVIATION * step:
        raise TextError(
            f"The numbers, from {smallest:.12g} to {largest:.12g}, have a standard deviation of "
            f"{deviation:.3g}. This is too small for numbers of this size in {precision}, the model's "
            "precision. Subtract their mean from all numbers, or use numbers that differ more."
        )


def check_labels(labels: Sequence[str], held_out_labels: Sequence[str], units: str) -> None:
    """Check that all held-out labels occur in the training data.

    Args:
        labels: labels of the training data.
        held_out_labels: labels of the held-out data.
        units: noun for the labeled units in error messages: "texts" or "words".

    Raises:
        TextError: a held-out label does not occur in the training data.
    """
    unknown = sorted({*held_out_labels} - {*labels})
    if unknown:
        raise TextError(
            f"The held-out {units} have labels that do not occur in the training data: "
            f"{format_names(unknown)}. Add {units} with these labels to the training data, or remove "
            f"these {units} from the held-out data."
        )


LABEL_DESCRIPTIONS = {
    "classes": "one class per text",
    "several": "zero or more labels per text (multi-label)",
    "number": "one number per text",
}
