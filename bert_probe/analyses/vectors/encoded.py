"""Many texts as a model's input."""

from __future__ import annotations

from collections.abc import Sequence

from bert_probe.errors import TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.progress import Progress, no_progress

Line = tuple[int, str, str | None]
"""A text and its pair, if it has one, with the line of its file, from 1."""


def encoded(
    checkpoint: Checkpoint,
    lines: Sequence[Line],
    truncate: bool,
    report: Progress = no_progress,
    name: str = "",
) -> list[Encoding]:
    """All of them before any is read by the model: a mistake in the last line is told at once.

    Args:
        report: told that none is done yet, and of how many, so that it can be cancelled.
        name: of the file, where there are several.

    Raises:
        EmptyTextError, TooLongError, TextError: one that cannot be read, by its line.
    """
    encodings = []
    for line, text, pair in lines:
        report(0, len(lines))
        try:
            encodings.append(checkpoint.encode(text, pair, truncate))
        except TextError as error:
            where = f"{name}, line" if name else "Line"
            raise type(error)(f"{where} {line:,}: {error}") from None
    return encodings
