"""Sentences out of files: one a line, or a column of a table."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from bert_probe.errors import EmptyTextError, SelectionError, TextError

USUAL_COLUMNS = ("sentence", "text")
"""Names of the column that is taken where none is named."""

# Not what str.splitlines knows, which also cuts at separators that stand within sentences.
_LINE_END = re.compile(r"\r\n|\r|\n")


class Sentence(str):
    """A sentence that knows the line it stands on, so that an error can name it; else a plain string.

    Attributes:
        line: in its file, from 1, as editors count; lines without a sentence count too.
    """

    line: int

    def __new__(cls, text: str, line: int) -> Sentence:
        """A text that stands on a line."""
        sentence = super().__new__(cls, text)
        sentence.line = line
        return sentence

    def __getnewargs__(self) -> tuple[str, int]:  # type: ignore[override]
        return str(self), self.line


def read_sentences(file: str | Path, column: str | None = None) -> tuple[str, ...]:
    """The sentences of a text file, one a line, or of a column of a table with a header.

    Blank lines and empty cells are left out. An error in a sentence names its line all the same.

    Args:
        file: in UTF-8; .csv and .tsv are tables, everything else has one sentence a line.
        column: of a table; None takes the only one, or the one called sentence or text.

    Raises:
        TextError: the file cannot be opened, is not UTF-8, or is a broken table.
        EmptyTextError: nothing in it.
        SelectionError: no such column, or several and none named.
    """
    path = Path(file)
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # a ValueError where the name holds a NUL
        reason = getattr(error, "strerror", None) or error
        raise TextError(f"{path} cannot be opened: {reason}. Check the path.") from None
    return sentences_of(content, path.name, column)


def sentences_of(content: bytes, name: str, column: str | None = None) -> tuple[str, ...]:
    """The sentences in a file's bytes; see `read_sentences`. A line break in a cell becomes a space.

    Args:
        name: of the file; its ending tells a table from a text.

    Raises:
        TextError, EmptyTextError, SelectionError: as `read_sentences`.
    """
    text = _decoded(content, name)
    if _is_table(name):
        header, rows = _table(text, name)
        place = _column(header, column, name)
        # A cell that is missing at the end of a short row is an empty one.
        cells = [(line, " ".join(lines(row[place]))) for line, row in rows if len(row) > place]
        kept = [Sentence(cell, line) for line, cell in cells if cell]
    else:
        if column is not None:
            raise SelectionError(f"{name} has no columns: only .csv and .tsv files have. Leave it out.")
        kept = lines(text)
    if not kept:
        raise EmptyTextError(f"{name} holds no sentences. Write one a line.")
    return tuple(kept)


def lines(text: str) -> list[Sentence]:
    """The lines of a text that hold something, without the spaces around it."""
    numbered = enumerate(_LINE_END.split(text), 1)
    return [Sentence(line.strip(), number) for number, line in numbered if line.strip()]


def columns_of(content: bytes, name: str) -> tuple[str, ...]:
    """Names of a table's columns; none for a plain text file.

    Raises:
        TextError: as `read_sentences`.
    """
    return tuple(_table(_decoded(content, name), name)[0]) if _is_table(name) else ()


def usual_column(columns: Sequence[str]) -> int | None:
    """The column that is taken where none is named: the only one, or the one called sentence or text."""
    if len(columns) == 1:
        return 0
    usual = [place for place, one in enumerate(columns) if one.strip().casefold() in USUAL_COLUMNS]
    return usual[0] if len(usual) == 1 else None


def _is_table(name: str) -> bool:
    return Path(name).suffix.lower() in (".csv", ".tsv")


def _decoded(content: bytes, name: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Without the mark at its beginning, which the place of the error does not count either.
        line = _line_at_end(error.object[: error.start].decode())
        raise TextError(f"{name} is not UTF-8: line {line:,} cannot be read. Save it as UTF-8.") from None
    before, nul, _ = text.partition("\0")
    if nul:
        line = _line_at_end(before)
        raise TextError(f"{name} is no text file: line {line:,} holds a NUL. Save it as UTF-8 text.")
    return text


def _line_at_end(text: str) -> int:
    return len(_LINE_END.findall(text)) + 1


def _table(text: str, name: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Header and rows, each with the line that it begins on; cells are parted by the header's own mark."""
    head = text.lstrip("\r\n").partition("\n")[0]
    separator = max("\t;,", key=head.count) if any(mark in head for mark in "\t;,") else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows, line = [], 1
    try:
        for row in reader:
            rows.append((line, row))
            line = reader.line_num + 1
    except csv.Error as error:
        raise TextError(f"{name} is a broken table: line {line:,}, {error}. Save it as CSV again.") from None
    rows = [(line, row) for line, row in rows if any(cell.strip() for cell in row)]
    if not rows:
        raise EmptyTextError(f"{name} is empty. Give a header and a sentence in each row.")
    return [cell.strip() for cell in rows[0][1]], rows[1:]


def _column(header: list[str], column: str | None, name: str) -> int:
    if column is None:
        usual = usual_column(header)
        if usual is None:
            raise SelectionError(f"{name} has {len(header)} columns: {_listed(header)}. Name one of them.")
        return usual
    places = [place for place, one in enumerate(header) if one == column.strip()]
    if len(places) != 1:
        trouble = "several columns" if places else "no column"
        raise SelectionError(f"{name} has {trouble} {column}; there are {_listed(header)}. Name one of them.")
    return places[0]


def _listed(header: list[str]) -> str:
    shown = [one[:40] + ("…" if len(one) > 40 else "") for one in header[:8]]
    return ", ".join(shown) + (", …" if len(header) > 8 else "")
