"""Text of a person in a picture: a word may be as long as its text, and is not to be drawn whole."""

from collections.abc import Sequence

from bert_probe.model.encoding import Token
from bert_probe.text.words import Unit

LONGEST = 100
"""Characters of a token or word that is drawn; files hold it whole."""


def shown(text: str) -> str:
    """A token or word as it is drawn: its beginning and its length, where it is long."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"


def labels(units: Sequence[Token | Unit]) -> list[str]:
    """Tokens, or words, as people read them."""
    return [shown(unit.display) for unit in units]


def positions(units: Sequence[Token | Unit]) -> list[int]:
    """Their places in the input."""
    return [unit.position for unit in units]
