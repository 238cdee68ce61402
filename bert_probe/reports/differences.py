"""What is reported of a report that is not as it must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bert_probe.reports import notes
from bert_probe.reports.tables import shown

DIFFERS: Final = "differs from what the model gives"
CHANGED: Final = "changed since it was written"
OTHERWISE: Final = "shown otherwise than stated"
OTHER_MODEL: Final = "another model than the one named"
OTHER_VERSION: Final = "another BERT Probe, whose pages and files cannot be rendered here"
NOT_RENDERED: Final = "differs from what BERT Probe renders from the data"

MOST: Final = 1_000
"""Differences that are told of one part of a view."""

_LONGEST: Final = 500
"""Characters of a stated or recomputed value that a difference shows."""


@dataclass(frozen=True)
class Difference:
    """Something that is not as it must be.

    Attributes:
        view: number from 1; 0 for the file itself.
        table: the part of the view: table, note, picture 1, …
        row, column: of it; rows by their number from 1 and name.
        finding: in words.
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


def note_difference(here: str, should: str, told: Sequence[notes.NoteSegment]) -> tuple[str, str, str]:
    """Where a note was changed: the cell that it refers to there, if any, and both texts around."""
    end = next(
        (i for i, (a, b) in enumerate(zip(here, should, strict=False)) if a != b), min(len(here), len(should))
    )
    before, column = 0, ""
    for piece in told:
        if before <= end < before + len(piece.text) and piece.row is not None:
            column = f"row {piece.row + 1}, column {(piece.column or 0) + 1}"
        before += len(piece.text)
    start = max(0, end - 20)
    return column, here[start : end + 20], should[start : end + 20]


def exactly(cell: Any) -> str:
    """Return a cell with every digit."""
    return clipped(shown("text", cell if cell is None or isinstance(cell, str) else repr(cell)))


def clipped(text: str) -> str:
    """Return a text as a file can hold it: half surrogates are escaped."""
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return text.encode("utf-8", "backslashreplace").decode()
