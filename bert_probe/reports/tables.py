"""Tables of a report, and notes with references to their numbers.

Table cells are Python values that survive a round trip through JSON. A note is plain text with references
such as ``{{3, weight}}``. Verification recomputes referenced numbers, but cannot check other numbers in a
note.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import numpy as np
import pandas as pd

from bert_probe.core import files
from bert_probe.errors import ReportError, ReportTooLargeError
from bert_probe.reports.json_reader import parse_object

ColumnKind = Literal["number", "integer", "truth", "text"]
KINDS: Final[tuple[ColumnKind, ...]] = ("number", "integer", "truth", "text")

MAX_CELLS: Final = 500_000
"""Maximum number of cells in a view's table."""
MAX_TABLE_CHARACTERS: Final = 20_000_000
"""Maximum number of characters of all texts in a table, which may repeat a long text in each row."""
_MAX_ROW_NAME: Final = 1_000
"""Maximum number of characters of a row's name."""

DECIMALS: Final = 4
"""Number of decimals in displayed cells; the table's data have all digits."""

_NO_VALUE: Final = "–"
_INFINITIES: Final = {"Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: the name of the column.
        kind: type of the cells: "number" (with a rounding error), "integer" (exact), "truth" or "text".
        cells: Python values; None for missing values.
    """

    name: str
    kind: ColumnKind
    cells: tuple[Any, ...]


@dataclass(frozen=True)
class ReportTable:
    """A table of a report.

    Attributes:
        columns: columns of equal length.
        matrix: whether all numeric columns contain the same quantity, for example for different tokens or
            layers; if so, the first column contains the row names.
    """

    columns: tuple[Column, ...]
    matrix: bool = False

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Self:
        """Convert the DataFrame of a result to a `ReportTable`."""
        columns = [_column(str(name), series) for name, series in files.flatten_index(frame).items()]
        return cls(tuple(columns), frame.index.name is not None)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.columns[0].cells) if self.columns else 0

    @property
    def characters(self) -> int:
        """Return the number of characters of all texts in the table."""
        return sum(len(cell) for column in self.columns for cell in column.cells if isinstance(cell, str))

    def cell(self, row: int, column: int) -> str:
        """Return the displayed text of a cell; rows and columns count from 0."""
        return format_cell(self.columns[column].kind, self.columns[column].cells[row])

    def row_name(self, row: int) -> str:
        """Return the name of a row: the 1-based row number, and the first string in the row."""
        texts = (column.cells[row] for column in self.columns if column.kind == "text")
        name = next(texts, None)
        return f"{row + 1}" if name is None else f"{row + 1} {name[:_MAX_ROW_NAME]}"

    def to_json(self) -> dict[str, Any]:
        """Return the table as a JSON object."""
        columns = [
            {"name": column.name, "kind": column.kind, "cells": [_json_cell(cell) for cell in column.cells]}
            for column in self.columns
        ]
        return {"matrix": self.matrix, "columns": columns}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse and check the JSON of a table.

        Raises:
            ReportError: the value is not a table, or has more than `MAX_CELLS` cells.
        """
        with parse_object(value, "A table in the report") as parsed:
            matrix = parsed.flag("matrix")
            raw_columns = parsed.array("columns")
        cells = sum(map(_count_cells, raw_columns))
        if cells > MAX_CELLS:
            raise ReportError(
                f"A table in the report has {cells:,} cells, but at most {MAX_CELLS:,} are allowed. Choose "
                "another file."
            )
        columns = tuple(map(_parse_column, raw_columns))
        if len({len(column.cells) for column in columns}) > 1:
            raise ReportError("A table in the report has columns of different lengths.")
        return cls(columns, matrix)

    def marks(self) -> dict[str, list[str]]:
        """Return a checksum of each row and each column, so that a changed cell can be located."""
        columns = [[_json_cell(cell) for cell in column.cells] for column in self.columns]
        rows = zip(*columns, strict=True) if columns else ()
        return {"rows": [_checksum(row) for row in rows], "columns": [_checksum(cells) for cells in columns]}


def _column(name: str, series: pd.Series) -> Column:
    kind = _column_kind(series)
    is_float32 = series.dtype == np.float32
    cells = zip(series.to_numpy(dtype=object), pd.isna(series), strict=True)
    return Column(
        name,
        kind,
        tuple(None if is_missing else _python_value(cell, kind, is_float32) for cell, is_missing in cells),
    )


def _column_kind(series: pd.Series) -> ColumnKind:
    if pd.api.types.is_bool_dtype(series.dtype):
        return "truth"
    if pd.api.types.is_integer_dtype(series.dtype):
        return "integer"
    return "number" if pd.api.types.is_float_dtype(series.dtype) else "text"


def _python_value(cell: Any, kind: ColumnKind, is_float32: bool) -> Any:
    if kind == "number":
        # A float32 becomes the shortest decimal that identifies it, such as 0.1 and not 0.10000000149.
        return float(str(np.float32(cell))) if is_float32 else float(cell)
    return {"truth": bool, "integer": int}.get(kind, str)(cell)


def format_cell(kind: ColumnKind, cell: Any) -> str:
    """Format a cell for display: numbers with `DECIMALS` decimals, booleans as yes or no."""
    if cell is None:
        return _NO_VALUE
    if kind == "truth":
        return "yes" if cell else "no"
    if kind != "number":
        return str(cell)
    if not math.isfinite(cell):
        return "∞" if cell > 0 else "−∞"
    is_small = cell != 0 and abs(cell) < 10.0**-DECIMALS
    return (f"{cell:.2e}" if is_small else f"{cell:.{DECIMALS}f}").replace("-", "−")


def _json_cell(cell: Any) -> Any:
    """Convert a cell to a JSON value; infinite numbers become strings, because JSON has no infinity."""
    if isinstance(cell, float) and not math.isfinite(cell):
        return "Infinity" if cell > 0 else "-Infinity"
    return cell


def _count_cells(value: Any) -> int:
    cells = value.get("cells") if isinstance(value, dict) else None
    return len(cells) if isinstance(cells, list) else 0


def _parse_column(value: Any) -> Column:
    with parse_object(value, "A column in the report") as parsed:
        name, kind, cells = parsed.text("name"), parsed.choice("kind", KINDS), parsed.array("cells")
    if kind == "number":
        cells = [_INFINITIES.get(cell, cell) if isinstance(cell, str) else cell for cell in cells]
        cells = [float(cell) if type(cell) is int else cell for cell in cells]
    if any(cell is not None and type(cell) is not _TYPES[kind] for cell in cells):
        raise ReportError(
            f"The column {name[:60]!r} of the report has a cell that is not of the type {kind}."
        )
    return Column(name, kind, tuple(cells))


_TYPES: Final = {"number": float, "integer": int, "truth": bool, "text": str}


def finite(value: Any) -> Any:
    """Replace numbers that JSON cannot represent: NaN by None, and infinite numbers by strings."""
    if isinstance(value, Mapping):
        return {str(key): finite(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [finite(child) for child in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return _json_cell(value)


def too_large(max_bytes: int) -> ReportTooLargeError:
    """Return the error for a report of more than `max_bytes` bytes."""
    return ReportTooLargeError(
        f"The report has more than {max_bytes / 1e6:.0f} MB. Remove views, or choose shorter texts."
    )


def canonical(value: Any) -> bytes:
    """Serialize a JSON value in a canonical form: sorted keys, no spaces, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest(value: Any) -> str:
    """Return the SHA-256 of bytes, or of the canonical form of a JSON value."""
    return hashlib.sha256(value if isinstance(value, bytes) else canonical(value)).hexdigest()


def _checksum(cells: Iterable[Any]) -> str:
    return f"{zlib.crc32(canonical(list(cells))):08x}"


def changed(stated: Sequence[str], actual: Sequence[str]) -> list[int]:
    """Return the indices at which two lists of checksums differ."""
    return [index for index, pair in enumerate(zip(stated, actual, strict=False)) if pair[0] != pair[1]]


def match_rows(table: ReportTable, other: ReportTable) -> list[int | None]:
    """Match each row of `table` with the row of `other` that has the same strings, integers and booleans.

    Two tables sorted by a measured number may differ in the order of rows with nearly equal numbers. A row
    without a counterpart is matched with the next unmatched row, or with None if there is none.

    Returns:
        Index of the matching row, for each row of `table`.
    """
    keys, other_keys = _row_keys(table), _row_keys(other)
    matches: list[int | None] = [
        row if row < len(other_keys) and other_keys[row] == key else None for row, key in enumerate(keys)
    ]
    matched = {row for row in matches if row is not None}
    unmatched: dict[Any, list[int]] = defaultdict(list)
    for row in reversed(range(len(other_keys))):
        if row not in matched:
            unmatched[other_keys[row]].append(row)
    for row, key in enumerate(keys):
        if matches[row] is None and unmatched[key]:
            matches[row] = unmatched[key].pop()
    remaining = iter(sorted(row for rows in unmatched.values() for row in rows))
    return [next(remaining, None) if row is None else row for row in matches]


def _row_keys(table: ReportTable) -> list[tuple[Any, ...]]:
    exact = [column.cells for column in table.columns if column.kind != "number"]
    return [tuple(cells[row] for cells in exact) for row in range(table.rows)]


MAX_NOTE_CHARACTERS: Final = 20_000
"""Maximum length of a note in characters."""
MAX_SHOWN_CHARACTERS: Final = 100_000
"""Maximum length of a note with the cells that it refers to, which may contain long texts."""
_MAX_COLUMN_NAMES: Final = 12
"""Maximum number of column names in an error message."""

REFERENCE_HELP: Final = (
    "{{3, weight}} inserts the number in row 3 of the column weight, and is verified with the table."
)

# Spaces around a column name are stripped later, because matching them here would take cubic time.
_REFERENCE: Final = re.compile(r"\{\{([^{},]*),([^{}]*)\}\}")
_ROW: Final = re.compile("[0-9]{1,9}")
_FIRST, _OTHER = "\ue000", "\ue001"
"""Private characters in place of the first and the other characters of a reference."""
_JOINERS: Final = "eE'‘’‚·⋅∙_\u115f\u1160"
_INVISIBLE: Final = ("Cc", "Cf", "Me", "Mn")
_LETTERS_AND_POINTS: Final = ("Ll", "Lm", "Lu", "Po", "Sk")
"""Unicode categories of characters that may look like e or a decimal point."""
_NUMBER: Final = re.compile(rf"0[0.,]*0|0|{_FIRST}{_OTHER}*(?:[.,j]*{_FIRST}{_OTHER}*)+")


@dataclass(frozen=True)
class NoteSegment:
    """A segment of a note: the author's words, or a referenced cell.

    Attributes:
        text: the displayed text.
        row: the row of the referenced cell, from 0; None for the author's words.
        column: the column of the referenced cell, from 0; None for the author's words.
    """

    text: str
    row: int | None = None
    column: int | None = None


def split_note(note: str, table: ReportTable) -> list[NoteSegment]:
    """Split a note into segments, and resolve the references.

    Raises:
        ReportError: the note is too long, also with the text of its references, or refers to a cell that
            does not exist.
    """
    if len(note) > MAX_NOTE_CHARACTERS:
        raise ReportError(
            f"The note has {len(note):,} characters, but at most {MAX_NOTE_CHARACTERS:,} are allowed. "
            "Shorten the note."
        )
    segments, end, length = [], 0, len(note)
    for reference in _REFERENCE.finditer(note):
        if not _is_reference(reference):
            continue
        segments.append(NoteSegment(note[end : reference.start()]))
        row, column = _resolve(reference[1].strip(), reference[2].strip(), table)
        text = table.cell(row, column)
        length += len(text) - len(reference[0])
        if length > MAX_SHOWN_CHARACTERS:
            raise ReportError(
                f"The note and the cells that it refers to have more than {MAX_SHOWN_CHARACTERS:,} "
                "characters. Remove references to long texts."
            )
        segments.append(NoteSegment(text, row, column))
        end = reference.end()
    segments.append(NoteSegment(note[end:]))
    return [segment for segment in segments if segment.text]


def render_note(note: str, table: ReportTable) -> str:
    """Return the text of a note in which each reference is replaced by the table cell it refers to.

    Raises:
        ReportError: see `split_note`.
    """
    return "".join(segment.text for segment in split_note(note, table))


def unchecked_numbers(note: str) -> list[str]:
    """Return the numbers in a note that cannot be verified.

    These are typed numbers, and references that are joined to one number, as in ``{{1, row}}.{{2, row}}``.
    """
    masked = _REFERENCE.sub(lambda match: _mask_reference(match) if _is_reference(match) else match[0], note)
    masked = "".join(map(_mask, masked))
    return [note[slice(*number.span())] for number in _NUMBER.finditer(masked)]


def _mask_reference(reference: re.Match[str]) -> str:
    return _FIRST + _OTHER * (len(reference[0]) - 1)


def _mask(character: str) -> str:
    """Return the kind of a character: "0" for a digit of any script, "j" for one that may join two numbers.

    The characters of references are returned unchanged, points and commas of any width as "." and ",", and a
    space for all others.
    """
    if character in (_FIRST, _OTHER):
        return character
    if unicodedata.numeric(character, None) is not None:
        return "0"
    normalized = unicodedata.normalize("NFKC", character)
    if normalized in (".", ","):
        return normalized
    return "j" if _is_joiner(normalized if len(normalized) == 1 else character) else " "


def _is_joiner(character: str) -> bool:
    if character in _JOINERS:
        return True
    category = unicodedata.category(character)
    if category in _INVISIBLE:
        return not character.isspace()
    # Wide punctuation such as “、” in Chinese separates numbers and does not look like a decimal point.
    is_wide = unicodedata.east_asian_width(character) == "W"
    return category in _LETTERS_AND_POINTS and not character.isascii() and not is_wide


def _is_reference(match: re.Match[str]) -> bool:
    return _ROW.fullmatch(match[1].strip()) is not None


def _resolve(row: str, name: str, table: ReportTable) -> tuple[int, int]:
    names = [column.name for column in table.columns]
    if name not in names:
        listed = ", ".join(names[:_MAX_COLUMN_NAMES])
        more = f", {len(names) - _MAX_COLUMN_NAMES:,} more" if len(names) > _MAX_COLUMN_NAMES else ""
        raise ReportError(f"The note refers to a column {name!r}; this view's table has {listed}{more}.")
    if not 1 <= int(row) <= table.rows:
        raise ReportError(
            f"The note refers to row {row}, but the table of this view has rows 1 to {table.rows:,}."
        )
    return int(row) - 1, names.index(name)


def note_difference(actual: str, expected: str, segments: Sequence[NoteSegment]) -> tuple[str, str, str]:
    """Locate the first difference in the text of a note.

    Args:
        actual: text in the report.
        expected: correct text of the note.
        segments: the segments of `expected`, from `split_note`.

    Returns:
        The row and column of the referenced cell in which the texts differ, or ""; and excerpts of both
        texts around the difference.
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
