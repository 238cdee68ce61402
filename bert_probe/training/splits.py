"""What is taught with and what is held out, and what a person should know of the two."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np

from bert_probe.errors import TextError
from bert_probe.text.labeled_texts import CLASSES, MOST_NUMBER, NUMBER, LabeledText, LabeledTexts

T = TypeVar("T")

_NAMED = 5
"""Lines and labels that a note names one by one."""


def parted(
    rows: Sequence[T],
    share: float,
    seed: int,
    key: Callable[[T], Hashable],
    stratum: Callable[[T], Hashable] = lambda _: None,
) -> tuple[list[T], list[T]]:
    """Rows to teach with and rows held out, each in their order.

    Of each stratum the share is held out, one row at least where it has two. Rows of one key stay together: a
    text is not taught and asked for.
    """
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        alike[key(row)].append(place)
    strata: dict[Hashable, list[list[int]]] = defaultdict(list)
    for places in alike.values():
        strata[stratum(rows[places[0]])].append(places)
    random = np.random.default_rng(seed)
    out: set[int] = set()
    for groups in strata.values():
        wanted = round(share * sum(map(len, groups))) if share else 0
        wanted = max(wanted, 1) if share else 0
        taken = 0
        for number in random.permutation(len(groups))[:-1]:  # one always stays to be taught
            if taken >= wanted:
                break
            out.update(groups[number])
            taken += len(groups[number])
    taught = [row for place, row in enumerate(rows) if place not in out]
    return taught, [row for place, row in enumerate(rows) if place in out]


def parted_texts(data: LabeledTexts, share: float, seed: int) -> tuple[list[LabeledText], list[LabeledText]]:
    """Labelled texts, each class in both parts alike."""
    stratum = (lambda row: row.label) if data.kind == CLASSES else (lambda _: None)
    return parted(data.rows, share, seed, text_of, stratum)


def text_of(row: LabeledText) -> tuple[str, str | None]:
    """What makes two rows the same text."""
    return row.text, row.pair


def check_texts(data: LabeledTexts, held_out: LabeledTexts | None) -> None:
    """Refuse labels from which nothing can be learned, and held-out ones that are never taught.

    Raises:
        TextError: with what there is.
    """
    if data.kind == CLASSES and len(data.labels) < 2:
        raise TextError(
            f"All {len(data.rows):,} texts have the label {data.labels[0]}. Give two labels or more."
        )
    for rows in (data, held_out):
        if rows is not None and rows.kind == NUMBER:
            _check_numbers(rows)
    if not data.labels and len({row.label for row in data.rows}) < 2:
        raise TextError(f"All texts have the number {data.rows[0].label}. Give texts with different ones.")
    if held_out is None:
        return
    if held_out.kind != data.kind:
        raise TextError(
            f"The held-out texts have {_IN_WORDS[held_out.kind]}, the others {_IN_WORDS[data.kind]}. "
            "Give files of one kind."
        )
    check_taught(data.labels, held_out.labels, "texts")


def _check_numbers(data: LabeledTexts) -> None:
    for row in data.rows:
        if (
            not isinstance(row.label, float | int) or not abs(row.label) <= MOST_NUMBER
        ):  # also where it is NaN
            raise TextError(
                f"Line {row.line:,} has the number {row.label}; numbers of at most {MOST_NUMBER:g} can be "
                "learned. Divide all of them by the same number, or remove the row."
            )


def check_taught(labels: Sequence[str], asked: Sequence[str], what: str) -> None:
    """Refuse held-out labels that are never taught.

    Args:
        what: has the labels: texts or words.

    Raises:
        TextError: with these.
    """
    foreign = sorted({*asked} - {*labels})
    if foreign:
        raise TextError(
            f"The held-out {what} have labels that are never taught: {_some(foreign)}. Add {what} with "
            "them, or take them out."
        )


_IN_WORDS = {"classes": "a class each", "several": "any number of labels each", "number": "a number each"}


def notes_on(data: LabeledTexts, taught: Sequence[LabeledText], held_out: Sequence[LabeledText]) -> list[str]:
    """What a person should know of labelled texts, a sentence each."""
    notes = []
    if data.kind == CLASSES:
        times = Counter(row.label for row in data.rows)
        once = sorted(str(label) for label, count in times.items() if count == 1)
        if once:
            notes.append(f"Seen once, so taught or held out but not both: {_some(once)}.")
        alike = _alike(data.labels)
        if alike:
            notes.append(f"Labels that look alike are different ones: {_some(alike)}.")
        least = min(times.values())
        most = max(times.values())
        if most >= 10 * least and least > 1:
            notes.append(f"The rarest label has {least:,} texts and the most frequent {most:,}.")
    said: dict[Hashable, set[Hashable]] = defaultdict(set)
    for row in data.rows:
        said[text_of(row)].add(row.label)
    torn = [row.line for row in data.rows if len(said[text_of(row)]) > 1]
    if torn:
        notes.append(f"The same text with different labels: {in_lines(torn)}.")
    known = {text_of(row) for row in taught}
    both = [row.line for row in held_out if text_of(row) in known]
    if both:
        notes.append(
            f"{len(both):,} of {len(held_out):,} held-out texts are taught as well, which flatters the "
            f"measure: {in_lines(both)} of the held-out file."
        )
    return notes


def _alike(labels: Sequence[str]) -> list[str]:
    """Return labels that differ only in case, Unicode form or invisible characters, as Python writes them."""
    forms: dict[str, list[str]] = defaultdict(list)
    for label in labels:
        visible = "".join(sign for sign in label if unicodedata.category(sign) not in ("Cf", "Cc"))
        forms[unicodedata.normalize("NFKC", visible).casefold().strip()].append(label)
    return [ascii(label) for group in forms.values() if len(group) > 1 for label in group]


def in_lines(lines: Sequence[int]) -> str:
    """Lines of a file, the first of them by number."""
    named = ", ".join(f"{line:,}" for line in lines[:_NAMED])
    more = f" and {len(lines) - _NAMED:,} more" if len(lines) > _NAMED else ""
    return f"line {named}" if len(lines) == 1 else f"lines {named}{more}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")
