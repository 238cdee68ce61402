"""Limits on the length of texts, and truncation."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from bert_probe.errors import TextError, TooLongError

MAX_CHARACTERS = 250_000
"""Maximum number of characters of a text, truncated or not.

The longest input of common encoders has 8,192 tokens. The limit allows 30 characters per token, while few
languages average more than 6.
"""

MAX_TOKENS = 16_384
"""Maximum number of input tokens for every model, because the cost of attention grows quadratically."""

_LONGEST_LIGATURE = 18
"""Number of characters to which U+FDFA, the longest ligature, is expanded by normalization."""


def check_text(text: object) -> None:
    """Raise an error if a text is not a string, is too long, or cannot be encoded in UTF-8.

    Raises:
        TooLongError: the text has more than `MAX_CHARACTERS` characters.
        TextError: the text is not a string, or contains an unpaired surrogate.
    """
    if not isinstance(text, str):
        raise TextError(f"A text must be a string, not {type(text).__name__}.")
    character_count = len(text) if len(text) > MAX_CHARACTERS else _expanded_length(text)
    if character_count > MAX_CHARACTERS:
        expanded = " after its ligatures are expanded" if character_count > len(text) else ""
        raise TooLongError(
            f"{character_count:,} characters{expanded}; a text may have at most {MAX_CHARACTERS:,}, even if "
            "truncated. Shorten the text."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TextError(
            f"Character {error.start} is half of a surrogate pair, which no encoding can represent. Remove "
            "it."
        ) from None


def _expanded_length(text: str) -> int:
    """Return an upper bound on the number of characters after normalization, which expands ligatures up to
    18-fold.
    """
    if text.isascii() or len(text) * _LONGEST_LIGATURE <= MAX_CHARACTERS:
        return len(text)
    # Normalize each character separately, because a long run of combining marks takes quadratic time.
    return sum(
        count * len(unicodedata.normalize("NFKC", character)) for character, count in Counter(text).items()
    )


def max_input_tokens(accepted: int | None) -> int:
    """Return the maximum number of input tokens, which is at most `MAX_TOKENS`.

    Args:
        accepted: the model's own limit; None for no limit.
    """
    return MAX_TOKENS if accepted is None else min(accepted, MAX_TOKENS)


def too_many_tokens(tokens: int, accepted: int | None) -> TooLongError:
    """Return the error for a text with too many tokens."""
    if accepted is None or accepted > MAX_TOKENS:
        limit = f"at most {MAX_TOKENS:,} are supported for any model"
    else:
        limit = f"this model accepts {accepted:,}"
    return TooLongError(f"{tokens:,} tokens; {limit}. Shorten the text or turn on truncation.")


def kept_positions(
    texts: Sequence[int | None], limit: int, side: Literal["left", "right"] = "right"
) -> list[int]:
    """Return the positions that remain after transformers' default truncation, which shortens the longest
    text first.

    Args:
        texts: index of each token's text, 0 or 1; None for a token that the tokenizer added.
        limit: maximum number of remaining tokens. Added tokens count and always remain.
        side: the end at which tokens are removed.
    """
    first, second = texts.count(0), texts.count(1)
    added = len(texts) - first - second
    kept_counts = _shares(first, second, max(0, limit - added))
    skipped = (first - kept_counts[0], second - kept_counts[1]) if side == "left" else (0, 0)
    positions: list[int] = []
    counts = [0, 0]
    for position, text in enumerate(texts):
        if text is None:
            positions.append(position)
            continue
        if skipped[text] <= counts[text] < skipped[text] + kept_counts[text]:
            positions.append(position)
        counts[text] += 1
    return positions


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of each text are kept: first the longer text is shortened until both are equally
    long, then both are shortened.
    """
    if first + second <= room:
        return first, second
    shorter, longer = sorted((first, second))
    if shorter <= room // 2:
        longer = room - shorter
    else:
        shorter, longer = room // 2, room - room // 2
    return (shorter, longer) if first <= second else (longer, shorter)
