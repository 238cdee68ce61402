"""Labels of tokens and words, shortened because a user's text may contain a very long word."""

import math
from collections.abc import Sequence

from bert_probe.model.encoding import Token
from bert_probe.text.words import Unit

MAX_CHARACTERS = 100
"""Maximum length of a label, in characters; data files contain the complete token."""


def shorten(text: str) -> str:
    """Return the label of a token or word. If too long, it is truncated and its length is appended."""
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… ({len(text):,} characters)"


def percentage(value: float) -> str:
    """Return a percentage with one decimal; only 100 is written as 100.0%.

    An undefined percentage is NaN and is written as "an undefined share".
    """
    if math.isnan(value):
        return "an undefined share"
    return f"{value if value == 100 else min(value, 99.9):.1f}%"


def labels(units: Sequence[Token | Unit]) -> list[str]:
    """Return the label of each token or word, shortened if necessary."""
    return [shorten(unit.display) for unit in units]


def positions(units: Sequence[Token | Unit]) -> list[int]:
    """Return the positions of tokens or words in the model's input."""
    return [unit.position for unit in units]
