"""Splits of training data into training and held-out examples, and notes on them for the user."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np

from bert_probe.errors import TextError
from bert_probe.text.duplicates import groups_to_hold_out, pair_key, text_key
from bert_probe.text.labeled_texts import CLASSES, LabeledText, LabeledTexts
from bert_probe.training.objectives import TrainingExample

T = TypeVar("T")

MAX_NAMED = 5
"""Maximum number of lines or labels that a note lists by name."""


def split(
    rows: Sequence[T],
    share: float,
    seed: int,
    groups: Sequence[Hashable],
    stratum: Callable[[T], Hashable] = lambda _: None,
) -> tuple[list[T], list[T]]:
    """Split rows into training and held-out rows, each in their original order.

    The split is stratified. At least one row is held out of each stratum that has several groups, unless
    the share is 0. All rows of a group are in the same split, so the share of a stratum with large groups can
    differ from the given one; see `groups_to_hold_out`.

    Args:
        rows: the rows of the data.
        share: share of the rows to hold out, from 0 to less than 1.
        seed: random seed of the split.
        groups: group of each row, such as its text.
        stratum: function that returns the stratum of a row, such as its class.
    """
    rows_by_group: dict[Hashable, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        rows_by_group[group].append(index)
    strata: dict[Hashable, list[Hashable]] = defaultdict(list)
    for group, indices in rows_by_group.items():
        strata[stratum(rows[indices[0]])].append(group)
    random = np.random.default_rng(seed)
    held_out: set[Hashable] = set()
    for stratum_groups in strata.values() if share else ():
        shuffled = [stratum_groups[choice] for choice in random.permutation(len(stratum_groups))]
        sizes = {group: len(rows_by_group[group]) for group in shuffled}
        held_out |= groups_to_hold_out(sizes, max(1, round(share * sum(sizes.values()))))
    train = [row for row, group in zip(rows, groups, strict=True) if group not in held_out]
    return train, [row for row, group in zip(rows, groups, strict=True) if group in held_out]


def split_texts(data: LabeledTexts, share: float, seed: int) -> tuple[list[LabeledText], list[LabeledText]]:
    """Split labeled texts into training and held-out texts, stratified by class.

    Texts with the same `pair_key` are in the same split and count toward the class of the first of them. They
    are used for training if one of their classes would otherwise have no training text.
    """
    keys = text_keys(data.rows)
    if data.kind != CLASSES:
        return split(data.rows, share, seed, keys)
    train, held_out = split(data.rows, share, seed, keys, lambda row: row.label)
    missing = {row.label for row in held_out} - {row.label for row in train}
    if not missing:
        return train, held_out
    moved = {key for key, row in zip(keys, data.rows, strict=True) if row.label in missing}
    held_out_keys = {*text_keys(held_out)} - moved
    is_held_out = [key in held_out_keys for key in keys]
    train = [row for row, held in zip(data.rows, is_held_out, strict=True) if not held]
    return train, [row for row, held in zip(data.rows, is_held_out, strict=True) if held]


def text_keys(rows: Sequence[LabeledText]) -> list[Hashable]:
    """Return the `pair_key` of each row."""
    return [pair_key(row.text, row.pair) for row in rows]


def check_split(
    train: Sequence[Any],
    evaluation: Sequence[Any],
    share: float,
    groups: Sequence[Hashable],
    labels: Sequence[Hashable] = (),
) -> None:
    """Check that there are training rows and, if `share` is above 0, held-out rows.

    Args:
        train, evaluation: rows of the training split and of the held-out split.
        share: share of the rows to hold out.
        groups: group of each row, which is equal for rows that must be in the same split.
        labels: label of each row.

    Raises:
        TextError: a split is empty; the message names the reason.
    """
    if train and (evaluation or not share):
        return
    count, remedy = len(groups), "or pass another file for evaluation (--held-out FILE)"
    different = len(set(groups))
    if count > 1 and different == 1:
        raise TextError(
            f"All {count:,} texts are equal or differ only in case, spaces or accents, so none can be held "
            f"out. Use different texts, {remedy}."
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


def truncation_notes(examples: Sequence[TrainingExample]) -> list[str]:
    """Return a note on the truncated examples for the user, if there are any."""
    truncated = [example.line for example in examples if example.inputs.dropped]
    prefix = f"{len(truncated):,} texts are" if len(truncated) > 1 else "A text is"
    return [f"{prefix} longer than the limit and truncated: {format_lines(truncated)}."] if truncated else []


def label_notes(data: LabeledTexts) -> list[str]:
    """Return notes for the user on the labels of training texts, one sentence each."""
    notes = []
    if data.kind == CLASSES:
        labels = [row.label for row in data.rows]
        counts = Counter(labels)
        texts = Counter(label for _, label in {*zip(text_keys(data.rows), labels, strict=True)})
        singletons = sorted(str(label) for label, count in texts.items() if count == 1)
        if singletons:
            notes.append(
                f"Some labels have a single text, which cannot be in both splits: {format_names(singletons)}."
            )
        lookalikes = _lookalikes(data.labels)
        if lookalikes:
            notes.append(f"Some labels look the same but are different: {format_names(lookalikes)}.")
        smallest_count = min(counts.values())
        largest_count = max(counts.values())
        if largest_count >= 10 * smallest_count and smallest_count > 1:
            notes.append(
                f"The labels are imbalanced: the rarest label has {smallest_count:,} texts, the most "
                f"frequent label {largest_count:,}."
            )
    # Unlike for `text_keys`, a pair differs from the reversed pair, whose label can be different.
    keys = [(text_key(row.text), row.pair and text_key(row.pair)) for row in data.rows]
    labels_by_text: dict[Hashable, set[Hashable]] = defaultdict(set)
    for key, row in zip(keys, data.rows, strict=True):
        labels_by_text[key].add(row.label)
    conflicting = [row.line for key, row in zip(keys, data.rows, strict=True) if len(labels_by_text[key]) > 1]
    if conflicting:
        notes.append(
            "Some texts occur with different labels (ignoring case, spaces and accents): "
            f"{format_lines(conflicting)}."
        )
    return notes


def shared_notes(
    train: Sequence[TrainingExample], held_out: Sequence[TrainingExample], has_file: bool
) -> list[str]:
    """Return a note for the user on held-out examples with the tokens of a training example, if any.

    Args:
        train, held_out: the encoded examples.
        has_file: whether the held-out examples are from a separate file.
    """
    train_keys = {example.key for example in train}
    shared = [example.line for example in held_out if example.key in train_keys]
    if not shared:
        return []
    file = " of the held-out file" if has_file else ""
    return [
        f"{len(shared):,} of {len(held_out):,} held-out texts have the same tokens as a training text, which "
        f"inflates the score: {format_lines(shared)}{file}."
    ]


def share_notes(train: int, held_out: int, share: float, reason: str) -> list[str]:
    """Return a note for the user if the share of held-out rows differs from the given one by over a quarter.

    Args:
        train, held_out: number of rows of each split.
        share: share of the rows to hold out.
        reason: clause that states the reason.
    """
    total = train + held_out
    if abs(held_out - share * total) <= max(1, share * total / 4):
        return []
    return [
        f"{held_out:,} of {total:,} texts ({held_out / total:.1%}) are held out instead of {share:.1%}, "
        f"because {reason}."
    ]


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


def format_names(names: Sequence[str]) -> str:
    """Format names for a message; at most `MAX_NAMED` of them are listed."""
    return ", ".join(names[:MAX_NAMED]) + (
        f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    )
