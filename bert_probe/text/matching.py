"""Searching pieces of a vocabulary, also by a regular expression of anybody's, within a bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import regex

from bert_probe.errors import SelectionError
from bert_probe.text.pieces import Pieces

CONTAINS, PREFIX, EXACT, REGEX = "contains", "prefix", "exact", "regex"
MATCHES = (CONTAINS, PREFIX, EXACT, REGEX)
LONGEST = 200
"""Characters that are searched for. An expression's compiling takes a time that grows with them."""
SECONDS = 2.0
"""For all pieces together. Some short expressions would take longer than anybody lives."""


def check(search: str, match: str) -> None:
    """Refuse what cannot be searched for.

    Raises:
        SelectionError: too long, or no regular expression.
    """
    if len(search) > LONGEST:
        raise SelectionError(
            f"{len(search):,} characters are searched for; {LONGEST} can be given. Shorten it."
        )
    if match == REGEX:
        _compiled(search, False)


def matching(pieces: Pieces, search: str, match: str, case: bool) -> list[int]:
    """Ids of the pieces whose name, as the vocabulary has it, or whose text, as a person reads it, matches.

    Args:
        match: of `MATCHES`.
        case: capitals differ from small letters.

    Raises:
        SelectionError: an expression that takes too long, or what `check` refuses.
    """
    check(search, match)
    if not search:
        return [*range(len(pieces))]
    if match == REGEX:
        return _by_expression(pieces, search, case)
    wanted = search if case else search.casefold()
    tells: dict[str, Callable[[str], bool]] = {
        CONTAINS: lambda one: wanted in one,
        PREFIX: lambda one: one.startswith(wanted),
        EXACT: lambda one: one == wanted,
    }
    test = tells[match]
    pairs = enumerate(zip(pieces.names, pieces.texts, strict=True))
    if case:
        return [number for number, (name, text) in pairs if test(name) or test(text)]
    return [number for number, (name, text) in pairs if test(name.casefold()) or test(text.casefold())]


def _compiled(search: str, case: bool) -> Any:
    try:
        return regex.compile(search, regex.V0 if case else regex.V0 | regex.IGNORECASE)
    except (regex.error, ValueError, OverflowError, RecursionError) as error:
        reason = getattr(error, "msg", None) or str(error)
        place = getattr(error, "pos", None)
        where = "" if place is None else f" at character {place + 1}"
        raise SelectionError(
            f"This regular expression cannot be read: {reason}{where}. Mend it, or search for what is "
            f"contained."
        ) from None


def _by_expression(pieces: Pieces, search: str, case: bool) -> list[int]:
    expression = _compiled(search, case)
    ends = time.monotonic() + SECONDS
    found = []
    try:
        for number, (name, text) in enumerate(zip(pieces.names, pieces.texts, strict=True)):
            if _within(expression, name, ends) or (text != name and _within(expression, text, ends)):
                found.append(number)
    except TimeoutError:
        raise SelectionError(
            f"This regular expression takes more than {SECONDS:g} s for {len(pieces):,} pieces, so it was "
            f"given "
            "up. Write it without a repeat within a repeat, or search for what is contained."
        ) from None
    return found


def _within(expression: Any, text: str, ends: float) -> bool:
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    # Other threads go on meanwhile.
    return expression.search(text, timeout=left, concurrent=True) is not None
