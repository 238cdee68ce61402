"""Searching pieces of a vocabulary, also by a regular expression of anybody's, within a bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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
    """Ids of the pieces that match.

    They are searched as the vocabulary has them; where a mark stands for the space before a word, as Ġ and
    ▁ do, as a person reads them, without it, unless the mark is searched for itself.

    Args:
        match: of `MATCHES`.
        case: capitals differ from small letters.

    Raises:
        SelectionError: an expression that takes too long, or what `check` refuses.
    """
    check(search, match)
    if not search:
        return [*range(len(pieces))]
    space = pieces.marks.space
    written = pieces.texts if space and space not in search else pieces.names
    if match == REGEX:
        return _by_expression(written, search, case)
    wanted = search if case else search.casefold()
    tells: dict[str, Callable[[str], bool]] = {
        CONTAINS: lambda one: wanted in one,
        PREFIX: lambda one: one.startswith(wanted),
        EXACT: lambda one: one == wanted,
    }
    test = tells[match]
    return [number for number, one in enumerate(written) if test(one if case else one.casefold())]


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


def _by_expression(written: Sequence[str], search: str, case: bool) -> list[int]:
    expression = _compiled(search, case)
    ends = time.monotonic() + SECONDS
    try:
        return [number for number, one in enumerate(written) if _within(expression, one, ends)]
    except TimeoutError:
        raise SelectionError(
            f"This regular expression takes more than {SECONDS:g} s for {len(written):,} pieces, so it was "
            "given up. Write it without a repeat within a repeat, or search for what is contained."
        ) from None


def _within(expression: Any, text: str, ends: float) -> bool:
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    # Other threads go on meanwhile.
    return expression.search(text, timeout=left, concurrent=True) is not None
