"""Text of a person in a picture: a word may be as long as its text, and is not to be drawn whole."""

LONGEST = 100
"""Characters of a token or word that is drawn; files hold it whole."""


def shown(text: str) -> str:
    """A token or word as it is drawn: its beginning and its length, where it is long."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"
