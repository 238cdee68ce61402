"""Searching a vocabulary, including by untrusted regular expressions, in bounded time and memory."""

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
MAX_SEARCH_LENGTH = 200
"""Maximum length of the search text."""
SECONDS = 5.0
"""Time limit of a regular expression for the whole vocabulary."""
MAX_TOKEN_LENGTH = 10_000
"""Maximum length of a token for regular expressions, because a call of RE2 cannot be interrupted."""
_PROGRAM_BYTES = 2**21
"""Memory limit of a compiled regular expression. RE2 caches the last 128."""

_SYNTAX = re.compile(
    r"\\Q.*?(?:\\E|$)|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\\.",
    re.DOTALL,
)
"""Syntactic units that are rewritten together: a quotation, a character class, an escaped character."""
_UNICODE = {"w": r"\p{L}\p{M}\p{N}\p{Pc}", "d": r"\p{Nd}", "s": r"\s\p{Z}\x0b\x{85}"}
"""Perl character classes, which are ASCII-only in RE2, as the contents of Unicode character classes."""


def check(search: str, match: str, case: bool = False) -> None:
    """Raise an error unless `search` can be searched for.

    Raises:
        SelectionError: too long, or not a valid regular expression.
    """
    if len(search) > MAX_SEARCH_LENGTH:
        raise SelectionError(
            f"The search text has {len(search):,} characters; at most {MAX_SEARCH_LENGTH} are allowed. "
            "Shorten it."
        )
    if match == REGEX:
        _compiled(search, case)


def matching(pieces: VocabularyTokens, search: str, match: str, case: bool) -> list[int]:
    """Return the ids of the tokens that match.

    Vocabulary strings are searched. If a mark such as Ġ or ▁ replaces the space before a word, the readable
    texts are searched instead, unless the search text contains the mark.

    Args:
        match: one of `MATCHES`.
        case: whether the search is case-sensitive.

    Raises:
        SelectionError: an expression that takes too long, or a search that `check` rejects.
    """
    check(search, match, case)
    if not search:
        return [*range(len(pieces))]
    space = pieces.marks.space
    texts = pieces.texts if space and space not in search else pieces.names
    if match == REGEX:
        return _match_regex(texts, search, case)
    target = search if case else search.casefold()
    predicates: dict[str, Callable[[str], bool]] = {
        CONTAINS: lambda text: target in text,
        PREFIX: lambda text: text.startswith(target),
        EXACT: lambda text: text == target,
    }
    matches = predicates[match]
    return [number for number, text in enumerate(texts) if matches(text if case else text.casefold())]


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
        message = error.args[0].decode("utf-8", "replace")
        raise SelectionError(
            f"Invalid regular expression: {message}. The syntax is that of RE2: up to 1,000 repetitions, no "
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
            f"Invalid regular expression: {escaped[0]} is not allowed within [ ]. Use {escaped[0]} outside, "
            "or "
            f"[^{escaped[0].lower()}]."
        )
    return _UNICODE.get(escaped[1], escaped[0])


def _match_regex(texts: Sequence[str], search: str, case: bool) -> list[int]:
    max_length = max(map(len, texts), default=0)
    if max_length > MAX_TOKEN_LENGTH:
        raise SelectionError(
            f"This vocabulary has a token of {max_length:,} characters; regular expressions support at most "
            f"{MAX_TOKEN_LENGTH:,}. Search for plain text."
        )
    expression, end = _compiled(search, case), time.monotonic() + SECONDS
    ids = []
    for number, text in enumerate(texts):
        if time.monotonic() > end:
            raise SelectionError(
                f"This regular expression takes more than {SECONDS:g} s for {len(texts):,} tokens. Use "
                "fewer repetitions, or search for plain text."
            )
        if expression.search(text.encode("utf-8", "surrogatepass")):
            ids.append(number)
    return ids
