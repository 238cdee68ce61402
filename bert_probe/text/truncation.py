"""Text cut for a message or a label, where it may be longer than what stands around it."""


def truncate_text(text: str, most: int = 40) -> str:
    """The text, or its beginning and "…": at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
