"""Notes: plain text with references to numbers of the view's table, such as ``{{3, weight}}``.

Verification recomputes referenced numbers. All other numbers in a note are the author's own and cannot be
verified.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from bert_probe.errors import ReportError
from bert_probe.reports.tables import ReportTable

MAX_CHARACTERS: Final = 20_000
"""Maximum length of a note in characters."""
_MAX_NAMES: Final = 12
"""Maximum number of column names in an error message."""

REFERENCE_HELP: Final = (
    "{{3, weight}} inserts the number in row 3 of the column weight, and is verified with the table."
)

# Spaces are stripped later: matching them on both sides of a name would take cubic time.
_REFERENCE: Final = re.compile(r"\{\{([^{},]*),([^{}]*)\}\}")
_ROW: Final = re.compile("[0-9]{1,9}")
_NUMBER: Final = re.compile(r"0[0.,]*0|0")
_SEPARATORS: Final = ".,"


@dataclass(frozen=True)
class NoteSegment:
    """A segment of a note: the author's words, or a referenced cell.

    Attributes:
        text: the text as it is displayed.
        row: the row of the referenced cell, from 0; None for the author's words.
        column: the column of the referenced cell, from 0; None for the author's words.
    """

    text: str
    row: int | None = None
    column: int | None = None


def split_note(note: str, table: ReportTable) -> list[NoteSegment]:
    """Split a note into segments, with its references resolved.

    Raises:
        ReportError: the note is too long, or refers to a cell that does not exist.
    """
    if len(note) > MAX_CHARACTERS:
        raise ReportError(
            f"The note has {len(note):,} characters; at most {MAX_CHARACTERS:,} are allowed. Shorten it."
        )
    segments, end = [], 0
    for reference in _REFERENCE.finditer(note):
        if not _is_reference(reference):
            continue
        segments.append(NoteSegment(note[end : reference.start()]))
        row, column = _resolve(reference[1].strip(), reference[2].strip(), table)
        segments.append(NoteSegment(table.cell(row, column), row, column))
        end = reference.end()
    segments.append(NoteSegment(note[end:]))
    return [segment for segment in segments if segment.text]


def render_note(note: str, table: ReportTable) -> str:
    """Return the text of a note with its references resolved."""
    return "".join(segment.text for segment in split_note(note, table))


def unchecked_numbers(note: str) -> list[str]:
    """Return the numbers of a note that are not references and therefore cannot be verified."""
    text = _REFERENCE.sub(lambda match: " " if _is_reference(match) else match[0], note)
    digits = "".join(map(_mask, text))
    return [text[slice(*number.span())] for number in _NUMBER.finditer(digits)]


def _mask(character: str) -> str:
    """Return "0" for a numeric character of any script, a separator unchanged, and otherwise a space."""
    if character in _SEPARATORS:
        return character
    return " " if unicodedata.numeric(character, None) is None else "0"


def _is_reference(match: re.Match[str]) -> bool:
    return _ROW.fullmatch(match[1].strip()) is not None


def _resolve(row: str, name: str, table: ReportTable) -> tuple[int, int]:
    names = [column.name for column in table.columns]
    if name not in names:
        listed = ", ".join(names[:_MAX_NAMES])
        more = f", {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
        raise ReportError(f"The note refers to a column {name!r}; this view's table has {listed}{more}.")
    if not 1 <= int(row) <= table.rows:
        raise ReportError(f"The note refers to row {row}; this view's table has rows 1 to {table.rows:,}.")
    return int(row) - 1, names.index(name)
