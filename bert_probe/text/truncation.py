"""Truncation of text in messages and labels."""


def truncate_text(text: str, max_length: int = 40) -> str:
    """Return the text with at most `max_length` characters; a truncated text ends in "…"."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
