"""Sentences out of a file: one a line, or a column of a table."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from bert_probe.analyses.sentences import check_count
from bert_probe.errors import EmptyTextError, SelectionError, TextError

USUAL_COLUMNS = ("sentence", "text")
"""Names of the column that is taken where none is named."""

MAX_BYTES = 5_000_000


def sentences_from_file(file: str | Path, column: str | None = None) -> tuple[str, ...]:
    """The sentences of a text file, one a line, or of a column of a CSV file.

    Args:
        column: its name, for a file that ends in .csv; see `sentences_of`.

    Raises:
        TextError: the file cannot be opened, or as `sentences_of`.
    """
    path = Path(file)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TextError(_too_large(path.name))
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # a ValueError where the name holds a NUL
        reason = getattr(error, "strerror", None) or error
        raise TextError(f"{path} cannot be opened: {reason}. Check the path.") from None
    return sentences_of(content, path.name, column)


def sentences_of(content: bytes, name: str, column: str | None = None) -> tuple[str, ...]:
    """The sentences in a file's bytes; empty lines and cells are left out, line breaks in a cell are spaces.

    Args:
        name: of the file; .csv and .tsv are tables with a header, everything else has one sentence a line.
        column: of a table; None takes the only one, or the one called sentence or text.

    Raises:
        EmptyTextError: nothing in it.
        TextError: too large, not UTF-8, a broken table, or too many lines.
        SelectionError: no such column, or several and none named.
    """
    text = _decoded(content, name)
    if _is_table(name):
        header, rows = _table(text, name)
        place = _column(header, column, name)
        # A cell that is missing at the end of a short row is an empty one.
        found = [row[place] for row in rows if len(row) > place]
    else:
        if column is not None:
            raise SelectionError(f"{name} has no columns: only .csv and .tsv files have. Leave it out.")
        found = lines(text)
    kept = tuple(" ".join(lines(sentence)) for sentence in found if sentence.strip())
    if not kept:
        raise EmptyTextError(f"{name} holds no sentences. Write one a line.")
    check_count(kept)
    return kept


def lines(text: str) -> list[str]:
    """The lines of a text that hold something."""
    # Not splitlines, which also cuts at separators that stand within sentences.
    return [line.strip() for line in re.split(r"\r\n|\r|\n", text) if line.strip()]


def columns_of(content: bytes, name: str) -> tuple[str, ...]:
    """Names of a table's columns; none for a plain text file.

    Raises:
        TextError: as `sentences_of`.
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


def _too_large(name: str) -> str:
    return f"{name} is larger than {MAX_BYTES / 1e6:.0f} MB. Give a smaller part of it."


def _decoded(content: bytes, name: str) -> str:
    if len(content) > MAX_BYTES:
        raise TextError(_too_large(name))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(
            f"{name} is not UTF-8: byte {error.start:,} cannot be read. Save it as UTF-8."
        ) from None
    if "\0" in text:
        raise TextError(f"{name} holds NUL characters, so it is no text file. Save it as UTF-8 text.")
    return text


def _table(text: str, name: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows; the separator is the one that the header holds most often."""
    head = text.lstrip("\r\n").partition("\n")[0]
    separator = max("\t;,", key=head.count) if any(mark in head for mark in "\t;,") else ","
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except csv.Error as error:
        raise TextError(f"{name} is a broken table: {error}. Save it as CSV again.") from None
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if not rows:
        raise EmptyTextError(f"{name} is empty. Give a header and a sentence in each row.")
    return [cell.strip() for cell in rows[0]], rows[1:]


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
