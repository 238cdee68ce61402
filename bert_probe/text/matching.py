"""Search the pieces of a vocabulary, also by untrusted regular expressions, in bounded time and memory."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import re2

from bert_probe.errors import SelectionError
from bert_probe.text.pieces import VocabularyTokens

CONTAINS, PREFIX, EXACT, REGEX = "contains", "prefix", "exact", "regex"
MATCHES = (CONTAINS, PREFIX, EXACT, REGEX)
LONGEST = 200
"""Characters that are searched for."""
SECONDS = 5.0
"""Time limit of a regular expression over the whole vocabulary."""
LONGEST_PIECE = 10_000
"""Characters of a piece that a regular expression is applied to, as a call of RE2 cannot be interrupted."""
_PROGRAM_BYTES = 2**21
"""Memory limit of a compiled regular expression. RE2 keeps the last 128 of them."""

_SYNTAX = re.compile(
    r"\\Q.*?(?:\\E|$)|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\\.",
    re.DOTALL,
)
"""What is read as a unit: a quotation, a character class, an escaped character."""
_UNICODE = {"w": r"\p{L}\p{M}\p{N}\p{Pc}", "d": r"\p{Nd}", "s": r"\s\p{Z}\x0b\x{85}"}
"""Perl's classes, which cover only ASCII in RE2, as the contents of a character class."""


def check(search: str, match: str, case: bool = False) -> None:
    """Raise an error unless `search` can be searched for.

    Raises:
        SelectionError: too long, or not a valid regular expression.
    """
    if len(search) > LONGEST:
        raise SelectionError(
            f"{len(search):,} characters are searched for; {LONGEST} can be given. Shorten it."
        )
    if match == REGEX:
        _compiled(search, case)


def matching(pieces: VocabularyTokens, search: str, match: str, case: bool) -> list[int]:
    """Ids of the pieces that match.

    They are searched as the vocabulary has them; where a mark stands for the space before a word, as Ġ and
    ▁ do, as a person reads them, without it, unless the mark is searched for itself.

    Args:
        match: of `MATCHES`.
        case: capitals differ from small letters.

    Raises:
        SelectionError: an expression that takes too long, or what `check` refuses.
    """
    check(search, match, case)
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
    """Compile a regular expression with RE2, whose time is linear and whose memory is limited."""
    options = re2.Options()
    options.max_mem = _PROGRAM_BYTES
    options.case_sensitive = case
    options.never_capture = True  # The memory of a search grows with the number of groups.
    options.log_errors = False
    try:
        return re2.compile(_SYNTAX.sub(_with_unicode, search).encode("utf-8", "surrogatepass"), options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace")
        raise SelectionError(
            f"Invalid regular expression: {reason}. The syntax is that of RE2: up to 1,000 repetitions, no "
            "lookaround and no backreferences. Correct it, or search for plain text."
        ) from None


def _with_unicode(unit: re.Match[str]) -> str:
    """Rewrite the Perl classes of a unit of the syntax so that they cover Unicode, as in Python."""
    text = unit[0]
    if text.startswith("\\Q"):
        return text
    if text.startswith("["):
        return re.sub(r"\\(.)", _class_member, text, flags=re.DOTALL)
    if text == r"\Z":  # Python's name of RE2's \z
        return r"\z"
    members = _UNICODE.get(text[1].lower())
    if members is None:
        return text
    return f"[{members}]" if text[1].islower() else f"[^{members}]"


def _class_member(escaped: re.Match[str]) -> str:
    if escaped[1] == "D":
        return r"\P{Nd}"
    if escaped[1] in "WS":
        raise SelectionError(
            f"Invalid regular expression: {escaped[0]} cannot stand within [ ]. Use {escaped[0]} alone, or "
            f"[^{escaped[0].lower()}]."
        )
    return _UNICODE.get(escaped[1], escaped[0])


def _by_expression(written: Sequence[str], search: str, case: bool) -> list[int]:
    longest = max(map(len, written), default=0)
    if longest > LONGEST_PIECE:
        raise SelectionError(
            f"This vocabulary has a piece of {longest:,} characters; regular expressions are applied to at "
            f"most {LONGEST_PIECE:,}. Search for plain text."
        )
    expression, end = _compiled(search, case), time.monotonic() + SECONDS
    ids = []
    for number, text in enumerate(written):
        if time.monotonic() > end:
            raise SelectionError(
                f"This regular expression takes more than {SECONDS:g} s for {len(written):,} pieces. Use "
                "fewer repetitions, or search for plain text."
            )
        if expression.search(text.encode("utf-8", "surrogatepass")):
            ids.append(number)
    return ids
