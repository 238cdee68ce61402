"""Differences that verification finds in a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bert_probe.reports import notes
from bert_probe.reports.tables import format_cell

DIFFERS: Final = "differs from the recomputed value"
CHANGED: Final = "changed after the report was written"
DISPLAY_DIFFERS: Final = "displayed value differs from the data"
OTHER_MODEL: Final = "weights differ from those of the stated model"
OTHER_VERSION: Final = "another version of BERT Probe, so pages and files cannot be compared"
NOT_RENDERED: Final = "differs from BERT Probe's rendering of the data"

MAX_DIFFERENCES: Final = 1_000
"""Maximum number of differences that are listed for one part of a view."""

_MAX_CHARACTERS: Final = 500
"""Maximum number of characters of a stated or recomputed value in a difference."""


@dataclass(frozen=True)
class Difference:
    """A difference between a report and its recomputed content.

    Attributes:
        view: number of the view, from 1; 0 for the file itself.
        table: the part of the view: table, note, picture 1, …
        row: name of the row, beginning with its number from 1.
        column: name of the column.
        stated: value in the report.
        recomputed: value that was computed or rendered by the verification.
        difference: absolute difference of two numbers.
        tolerance: allowed difference.
        finding: kind of the difference, one of the constants of this module, such as `DIFFERS`.
    """

    view: int
    table: str
    row: str
    column: str
    stated: str
    recomputed: str
    difference: float | None = None
    tolerance: float | None = None
    finding: str = DIFFERS


def note_difference(
    actual: str, expected: str, segments: Sequence[notes.NoteSegment]
) -> tuple[str, str, str]:
    """Locate the first difference in the text of a note.

    Args:
        actual: text in the report.
        expected: text that the note should have.
        segments: the segments of the expected text.

    Returns:
        The cell whose reference contains the difference, or ""; and the part of each text around the
        difference.
    """
    shorter = min(len(actual), len(expected))
    pairs = zip(actual, expected, strict=False)
    position = next((i for i, (left, right) in enumerate(pairs) if left != right), shorter)
    start, column = 0, ""
    for segment in segments:
        if start <= position < start + len(segment.text) and segment.row is not None:
            column = f"row {segment.row + 1}, column {(segment.column or 0) + 1}"
        start += len(segment.text)
    around = slice(max(0, position - 20), position + 20)
    return column, actual[around], expected[around]


def exact_text(cell: Any) -> str:
    """Return the text of a cell with all digits."""
    return clip(format_cell("text", cell if cell is None or isinstance(cell, str) else repr(cell)))


def clip(text: str) -> str:
    """Truncate a text, and escape lone surrogates, which UTF-8 cannot encode."""
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[:_MAX_CHARACTERS]}…"
    return text.encode("utf-8", "backslashreplace").decode()
