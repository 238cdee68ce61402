"""Tokenization of many texts before the model reads any of them."""

from __future__ import annotations

from collections.abc import Sequence

from bert_probe.errors import TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.progress import Progress, no_progress

Line = tuple[int, str, str | None]
"""Line number in the file (from 1), text, and the second text of a pair or None."""


def encode_texts(
    checkpoint: Checkpoint,
    lines: Sequence[Line],
    truncate: bool,
    progress: Progress = no_progress,
    name: str = "",
) -> list[Encoding]:
    """Encode all texts, so that errors are raised before the model runs.

    Args:
        checkpoint: the model.
        lines: the texts with their line numbers.
        truncate: truncate texts that are too long instead of raising an error.
        progress: called with 0 and the number of texts before each text, so that the work can be canceled.
        name: name of the file in error messages; "" if there is only one file.

    Raises:
        EmptyTextError, TooLongError, TextError: a text cannot be encoded; the message names its line.
    """
    encodings = []
    for line, text, pair in lines:
        progress(0, len(lines))
        try:
            encodings.append(checkpoint.encode(text, pair, truncate))
        except TextError as error:
            where = f"{name}, line" if name else "Line"
            raise type(error)(f"{where} {line:,}: {error}") from None
    return encodings
