"""How long a text may be, and what is left of one that is cut."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from bert_probe.errors import TextError, TooLongError

MOST_CHARACTERS = 250_000
"""Of a text, cut or not: the 8,192 tokens of the longest input that the usual encoders read, with 30
characters for each, where few languages have more than 6. That is half a book."""

MOST_TOKENS = 16_384
"""Of one input, where the model has no lower limit: attention grows with the square of it."""

_LONGEST_LIGATURE = 18
"""Characters of U+FDFA, a blessing in Arabic, when it is written out."""


def check_text(text: object) -> None:
    """Refuse what is no string, too long a one, or one that UTF-8 cannot hold.

    Raises:
        TooLongError: more than `MOST_CHARACTERS`.
        TextError: no string, or half a surrogate pair, with its place.
    """
    if not isinstance(text, str):
        raise TextError(f"A text must be a string, not {type(text).__name__}.")
    written = len(text) if len(text) > MOST_CHARACTERS else _written_out(text)
    if written > MOST_CHARACTERS:
        how = " once its ligatures are written out" if written > len(text) else ""
        raise TooLongError(
            f"{written:,} characters{how}; a text may have at most {MOST_CHARACTERS:,}, cut or not. "
            "Give a part of it."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TextError(
            f"Character {error.start} is half of a surrogate pair, which no encoding can hold. Remove it."
        ) from None


def _written_out(text: str) -> int:
    """Characters that a tokenizer makes of a text at most: many write ligatures out, one as up to 18."""
    if text.isascii() or len(text) * _LONGEST_LIGATURE <= MOST_CHARACTERS:
        return len(text)
    # One by one: a whole text of combining marks would take the square of its length.
    return sum(times * len(unicodedata.normalize("NFKC", one)) for one, times in Counter(text).items())


def most_tokens(accepted: int | None) -> int:
    """The longest input that is read by a model that accepts so many tokens; None for any number."""
    return MOST_TOKENS if accepted is None else min(accepted, MOST_TOKENS)


def too_many(tokens: int, accepted: int | None) -> TooLongError:
    """The refusal of a text with too many tokens."""
    if accepted is None or accepted > MOST_TOKENS:
        limit = f"at most {MOST_TOKENS:,} are read at once, whatever the model accepts"
    else:
        limit = f"this model accepts {accepted:,}"
    return TooLongError(f"{tokens:,} tokens; {limit}. Shorten the text or turn on truncation.")


def kept(texts: Sequence[int | None], limit: int, side: Literal["left", "right"] = "right") -> list[int]:
    """Places that are left when an input is cut as transformers does it by default, longest text first.

    Args:
        texts: for each token the text that it is of, 0 or 1; None for one that the tokenizer added.
        limit: tokens that are left at most; what was added counts, and stays even where it is more.
        side: where tokens are taken away.
    """
    first, second = texts.count(0), texts.count(1)
    added = len(texts) - first - second
    left = _shares(first, second, max(0, limit - added))
    gone = (first - left[0], second - left[1]) if side == "left" else (0, 0)
    places: list[int] = []
    seen = [0, 0]
    for place, text in enumerate(texts):
        if text is None:
            places.append(place)
            continue
        if gone[text] <= seen[text] < gone[text] + left[text]:
            places.append(place)
        seen[text] += 1
    return places


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts find room: the longer one gives way until both are alike."""
    if first + second <= room:
        return first, second
    less, more = sorted((first, second))
    if less <= room // 2:
        more = room - less
    else:
        less, more = room // 2, room - room // 2
    return (less, more) if first <= second else (more, less)
