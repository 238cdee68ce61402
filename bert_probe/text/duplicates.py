"""Find texts that must be in the same split, because a model may not distinguish them."""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

Group = TypeVar("Group", bound=Hashable)


def text_key(text: str) -> str:
    """Return a value that is equal for texts that differ only in details that tokenizers may ignore.

    These are case, whitespace, Unicode compatibility (NFKD), accents, and control and format characters.
    """
    # Accents are removed first, because the time to normalize a long sequence of them is quadratic.
    return _without_ignored(unicodedata.normalize("NFKD", _without_ignored(text))).casefold()


def _without_ignored(text: str) -> str:
    """Remove accents and other combining characters, whitespace, and control and replacement characters."""
    ignored = [
        character
        for character in set(text)
        if (category := unicodedata.category(character)) == "Mn"
        or category[0] in "CZ"
        or unicodedata.combining(character)
        or character == "\ufffd"
    ]
    return text.translate(dict.fromkeys(map(ord, ignored)))


def pair_key(text: str, pair: str | None) -> tuple[str, ...]:
    """Return the `text_key` of a text, or the sorted keys of a pair: those of the reversed pair are equal."""
    return (text_key(text),) if pair is None else tuple(sorted((text_key(text), text_key(pair))))


def group_rows(*columns: Iterable[Hashable]) -> list[int]:
    """Return the group of each row, as the index of the group's first row.

    Two rows are in the same group if they have the same value in a column, or if a chain of such rows
    connects them.

    Args:
        columns: columns of equal length, with one value per row.
    """
    parents: list[int] = []  # a forest of rows, with a tree per group and the first row as its root

    def root(row: int) -> int:
        while parents[row] != row:
            parents[row] = row = parents[parents[row]]
        return row

    first_rows: dict[tuple[int, Hashable], int] = {}
    for index, row in enumerate(zip(*columns, strict=True)):
        parents.append(index)
        for cell in enumerate(row):
            first, second = sorted((root(first_rows.setdefault(cell, index)), root(index)))
            parents[second] = first
    return [root(row) for row in range(len(parents))]


def groups_to_hold_out(sizes: Mapping[Group, int], target: int) -> set[Group]:
    """Return the groups to hold out, so that the number of their rows is close to `target`.

    Groups are added in the given order if this brings the number of rows closer to `target`. If there are
    several groups, at least one is held out and at least one is not.

    Args:
        sizes: number of rows of each group, in random order.
        target: number of rows to hold out, at least 1.
    """
    candidates = [*sizes][:-1]
    missing, held_out = target, set[Group]()
    for group in candidates:
        if sizes[group] < 2 * missing:
            held_out.add(group)
            missing -= sizes[group]
    return held_out or ({min(sizes, key=sizes.__getitem__)} if candidates else set())
