"""Notes: plain text in which a number of the view's table can stand by reference, ``{{3, weight}}``.

What stands by reference is computed again by whoever checks a report. Other digits are a person's own, and
cannot be.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bert_probe.errors import ReportError
from bert_probe.reports.tables import Table

LONGEST: Final = 20_000
"""Characters of a note."""

HOW: Final = "{{3, weight}} is the number in row 3 of the column weight, and is checked with the table."

# Spaces are stripped afterwards: patterns for them on both sides of a name would take cubic time.
_REFERENCE: Final = re.compile(r"\{\{([^{},]*),([^{}]*)\}\}")
_ROW: Final = re.compile("[0-9]{1,9}")
_NUMBER: Final = re.compile(r"0[0.,]*0|0")
_SEPARATORS: Final = ".,"


@dataclass(frozen=True)
class NoteSegment:
    """A part of a note.

    Attributes:
        text: as it is shown.
        row, column: of the cell that it is, both from 0; None for a person's own words.
    """

    text: str
    row: int | None = None
    column: int | None = None


def pieces(note: str, table: Table) -> list[NoteSegment]:
    """A note as it is shown, its references put in.

    Raises:
        ReportError: too long, or a reference to a cell that there is not.
    """
    if len(note) > LONGEST:
        raise ReportError(f"{len(note):,} characters; a note may have at most {LONGEST:,}. Shorten it.")
    found, end = [], 0
    for reference in _REFERENCE.finditer(note):
        if not _is_reference(reference):
            continue
        found.append(NoteSegment(note[end : reference.start()]))
        row, column = _cell(reference[1].strip(), reference[2].strip(), table)
        found.append(NoteSegment(table.cell(row, column), row, column))
        end = reference.end()
    found.append(NoteSegment(note[end:]))
    return [piece for piece in found if piece.text]


def shown(note: str, table: Table) -> str:
    """The same as one text."""
    return "".join(piece.text for piece in pieces(note, table))


def unchecked(note: str) -> list[str]:
    """Numbers of a note that stand there by themselves, so that nobody can compute them again."""
    text = _REFERENCE.sub(lambda match: " " if _is_reference(match) else match[0], note)
    marks = "".join(_mark(sign) for sign in text)
    return [text[slice(*number.span())] for number in _NUMBER.finditer(marks)]


def _mark(sign: str) -> str:
    """Return 0 for a sign that shows a number in any script, such as ٣, ½ or ², and others as they are."""
    return sign if sign in _SEPARATORS else "0" if unicodedata.numeric(sign, None) is not None else " "


def _is_reference(match: re.Match[str]) -> bool:
    return _ROW.fullmatch(match[1].strip()) is not None


def _cell(row: str, name: str, table: Table) -> tuple[int, int]:
    names = [column.name for column in table.columns]
    if name not in names:
        known = ", ".join(_some(names))
        raise ReportError(f"The note refers to a column {name!r}; this view's table has {known}.")
    if not 1 <= int(row) <= table.rows:
        raise ReportError(f"The note refers to row {row}; this view's table has rows 1 to {table.rows:,}.")
    return int(row) - 1, names.index(name)


def _some(names: list[str], most: int = 12) -> Iterator[str]:
    yield from names[:most]
    if len(names) > most:
        yield f"{len(names) - most:,} more"
