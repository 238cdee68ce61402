"""Training data: encoded texts with targets, split into training and held-out examples."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from bert_probe.errors import SelectionError, SubjectError, TextError
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.model.encoding import token_strings
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.text.labeled_texts import (
    CLASSES,
    MAX_ABS_LABEL,
    MAX_LABELS,
    NUMBER,
    LabeledText,
    LabeledTexts,
)
from bert_probe.text.similarity_examples import SimilarityExamples, split_key
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
    _check_split(
        train,
        evaluation,
        0 if held_out else config.share,
        data.rows,
        text_key,
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
        (*split_notes(data, train, evaluation), *_truncation_notes(train_examples)),
        _files("read_labeled_texts", "csv", held_out),
    )


def _from_tagged_sentences(
    checkpoint: Checkpoint,
    data: Sequence[TaggedSentence],
    held_out: Sequence[TaggedSentence] | None,
    config: SplitConfig,
) -> Dataset:
    train, evaluation = _split_or_given(data, held_out, config, lambda sentence: sentence.text)
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
        (*notes, *_truncation_notes(train_examples)),
        _files("read_tagged_sentences", "conllu" if data[0].heads else "conll", held_out),
    )


def _from_similarity_examples(
    checkpoint: Checkpoint,
    data: SimilarityExamples,
    held_out: SimilarityExamples | None,
    config: SplitConfig,
    loss: str,
) -> Dataset:
    """Return a dataset of similarity examples, whose splits `split_key` determines."""
    if held_out is not None and held_out.kind != data.kind:
        raise TextError(
            f"The held-out data are {held_out.kind}, but the training data are {data.kind}. Use files "
            "with the same columns."
        )
    objective = SimilarityObjective(checkpoint, data, loss)
    train, evaluation = _split_or_given(
        data.rows, None if held_out is None else held_out.rows, config, split_key(data.rows)
    )
    train_examples, held_out_examples = (
        objective.examples(checkpoint, rows, config.longest) for rows in (train, evaluation)
    )
    train_texts = {row.content for row in train}
    shared = [row.line for row in evaluation if row.content in train_texts]
    notes = (
        [f"{len(shared):,} held-out examples are also in the training data: {format_lines(shared)}."]
        if shared
        else []
    )
    return Dataset(
        objective,
        train_examples,
        held_out_examples,
        SimilarityExamples.of(data.kind, train),
        SimilarityExamples.of(data.kind, evaluation) if evaluation else None,
        _provenance(train_examples, data.digest, held_out_examples, held_out.digest if held_out else ""),
        (*notes, *_truncation_notes(train_examples)),
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
    train, evaluation = _split_or_given(data, held_out, config, str)
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
        (*notes, *_truncation_notes(train_examples)),
        _files("read_sentences", "txt", held_out),
    )


def _split_or_given(
    data: Sequence[T], held_out: Sequence[T] | None, config: SplitConfig, key: Callable[[T], Hashable]
) -> tuple[list[T], list[T]]:
    """Return training and held-out rows; without separate held-out rows, split the data at random."""
    if held_out is not None:
        return [*data], [*held_out]
    train, evaluation = split(data, config.share, config.seed, key)
    _check_split(train, evaluation, config.share, data, key)
    return train, evaluation


def _check_split(
    train: Sequence[Any],
    evaluation: Sequence[Any],
    share: float,
    data: Sequence[T],
    key: Callable[[T], Hashable],
    labels: Sequence[Hashable] = (),
) -> None:
    """Raise an error if there are no training rows, or no held-out rows although `share` is above 0."""
    if train and (evaluation or not share):
        return
    count, remedy = len(data), "or pass another file for evaluation (--held-out FILE)"
    different = len({key(row) for row in data})
    if count > 1 and different == 1:
        raise TextError(
            f"All {count:,} texts are identical, so no texts can be held out. Use different texts, {remedy}."
        )
    if count > 2 and len(set(labels)) == count:
        raise TextError(
            f"Each of the {count:,} texts has a different label, so no label can be in both the training and "
            f"the held-out texts. Use at least two texts per label, {remedy}."
        )
    if different < count:
        raise TextError(
            f"The {count:,} texts include only {different:,} different texts, which are too few to hold out "
            f"a share of {share:g}. Use more different texts, {remedy}."
        )
    raise TextError(
        f"{count:,} texts are too few to hold out a share of {share:g}. Use more texts, {remedy}."
    )


def _truncation_notes(examples: Sequence[TrainingExample]) -> list[str]:
    truncated = [example.line for example in examples if example.inputs.dropped]
    prefix = f"{len(truncated):,} texts are" if len(truncated) > 1 else "A text is"
    return [f"{prefix} longer than the limit and truncated: {format_lines(truncated)}."] if truncated else []


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


MAX_NAMED = 5
"""Maximum number of lines or labels that a note lists by name."""


def split(
    rows: Sequence[T],
    share: float,
    seed: int,
    key: Callable[[T], Hashable],
    stratum: Callable[[T], Hashable] = lambda _: None,
) -> tuple[list[T], list[T]]:
    """Split rows into training and held-out rows, each in their original order.

    The split is stratified. At least one row is held out of each stratum that has several keys, unless the
    share is 0. Rows with the same key stay together, so that no text is in both splits.

    Args:
        rows: the rows of the data.
        share: share of the rows to hold out, from 0 to less than 1.
        seed: random seed of the split.
        key: function that returns the key of a row, such as its text.
        stratum: function that returns the stratum of a row, such as its class.
    """
    groups_by_key: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups_by_key[key(row)].append(index)
    strata: dict[Hashable, list[list[int]]] = defaultdict(list)
    for indices in groups_by_key.values():
        strata[stratum(rows[indices[0]])].append(indices)
    random = np.random.default_rng(seed)
    held_out: set[int] = set()
    for stratum_groups in strata.values():
        target = round(share * sum(map(len, stratum_groups))) if share else 0
        target = max(target, 1) if share else 0
        count = 0
        for group in random.permutation(len(stratum_groups))[:-1]:  # keep at least one group for training
            if count >= target:
                break
            held_out.update(stratum_groups[group])
            count += len(stratum_groups[group])
    train = [row for index, row in enumerate(rows) if index not in held_out]
    return train, [row for index, row in enumerate(rows) if index in held_out]


def split_texts(data: LabeledTexts, share: float, seed: int) -> tuple[list[LabeledText], list[LabeledText]]:
    """Split labeled texts into training and held-out texts, stratified by class.

    A text with several rows counts toward the class of its first row. It is used for training if one of its
    classes would otherwise have no training text.
    """
    if data.kind != CLASSES:
        return split(data.rows, share, seed, text_key)
    train, held_out = split(data.rows, share, seed, text_key, lambda row: row.label)
    missing = {row.label for row in held_out} - {row.label for row in train}
    moved = {text_key(row) for row in held_out if row.label in missing}
    if not moved:
        return train, held_out
    held_out_keys = {text_key(row) for row in held_out} - moved
    train = [row for row in data.rows if text_key(row) not in held_out_keys]
    return train, [row for row in data.rows if text_key(row) in held_out_keys]


def text_key(row: LabeledText) -> tuple[str, str | None]:
    """Return the (text, second text) pair by which `split` keeps equal texts in the same split."""
    return row.text, row.pair


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
            f"{_format_names(unknown)}. Add {units} with these labels to the training data, or remove "
            f"these {units} from the held-out data."
        )


LABEL_DESCRIPTIONS = {
    "classes": "one class per text",
    "several": "zero or more labels per text (multi-label)",
    "number": "one number per text",
}


def split_notes(
    data: LabeledTexts, train: Sequence[LabeledText], held_out: Sequence[LabeledText]
) -> list[str]:
    """Return notes for the user on a split of labeled texts, one sentence each."""
    notes = []
    if data.kind == CLASSES:
        counts = Counter(row.label for row in data.rows)
        singletons = sorted(str(label) for label, count in counts.items() if count == 1)
        if singletons:
            notes.append(
                "Some labels have a single text, which cannot be in both splits: "
                f"{_format_names(singletons)}."
            )
        lookalikes = _lookalikes(data.labels)
        if lookalikes:
            notes.append(f"Some labels look the same but are different: {_format_names(lookalikes)}.")
        smallest_count = min(counts.values())
        largest_count = max(counts.values())
        if largest_count >= 10 * smallest_count and smallest_count > 1:
            notes.append(
                f"The labels are imbalanced: the rarest label has {smallest_count:,} texts, the most "
                f"frequent label {largest_count:,}."
            )
    labels_by_text: dict[Hashable, set[Hashable]] = defaultdict(set)
    for row in data.rows:
        labels_by_text[text_key(row)].add(row.label)
    conflicting = [row.line for row in data.rows if len(labels_by_text[text_key(row)]) > 1]
    if conflicting:
        notes.append(f"Some texts occur with different labels: {format_lines(conflicting)}.")
    train_texts = {text_key(row) for row in train}
    shared = [row.line for row in held_out if text_key(row) in train_texts]
    if shared:
        notes.append(
            f"{len(shared):,} of {len(held_out):,} held-out texts are also in the training data, which "
            f"inflates the score: {format_lines(shared)} of the held-out file."
        )
    return notes


def _lookalikes(labels: Sequence[str]) -> list[str]:
    """Return the labels that look like another label, as ASCII literals.

    Two labels look alike if they differ only in case, Unicode compatibility (NFKC), invisible characters, or
    whitespace at the start or end.
    """
    forms: dict[str, list[str]] = defaultdict(list)
    for label in labels:
        visible = "".join(sign for sign in label if unicodedata.category(sign) not in ("Cf", "Cc"))
        forms[unicodedata.normalize("NFKC", visible).casefold().strip()].append(label)
    return [ascii(label) for group in forms.values() if len(group) > 1 for label in group]


def format_lines(lines: Sequence[int]) -> str:
    """Format line numbers for a message; at most `MAX_NAMED` of them are listed."""
    listed_lines = ", ".join(f"{line:,}" for line in lines[:MAX_NAMED])
    more = f" and {len(lines) - MAX_NAMED:,} more" if len(lines) > MAX_NAMED else ""
    return f"line {listed_lines}" if len(lines) == 1 else f"lines {listed_lines}{more}"


def _format_names(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (
        f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    )
