"""Sentences out of files: one a line, or a column of a table."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from bert_probe.errors import EmptyTextError, SelectionError, TextError
from bert_probe.text.csv_reader import csv_reader, describe
from bert_probe.text.formats import JSON_LINES, LINES, TABLE, checked, format_of
from bert_probe.text.json_lines import NonTextCell, json_table

USUAL_COLUMNS = ("sentence", "text")
"""Names of the column that is taken where none is named."""

# Not what str.splitlines knows, which also cuts at separators that stand within sentences.
_LINE_END = re.compile(r"\r\n|\r|\n")


MAX_BYTES = 50_000_000
"""Of a file of sentences; counted while it is read, as a pipe or a device may have no end."""
MAX_SENTENCES = 1_000_000
"""In a file."""
MAX_LINES = 5_000_000
"""In a file, with those that hold nothing: each takes time, and a blank one a single byte."""
_CHUNK = 1 << 16


class Sentence(str):
    """A sentence that knows the line it stands on, so that an error can name it; else a plain string.

    Attributes:
        line: in its file, from 1, as editors count; lines without a sentence count too.
    """

    __slots__ = ("line",)  # a dict for each would be larger than the sentence

    line: int

    def __new__(cls, text: str, line: int) -> Sentence:
        """A text that stands on a line."""
        sentence = super().__new__(cls, text)
        sentence.line = line
        return sentence

    def __getnewargs__(self) -> tuple[str, int]:  # type: ignore[override]
        return str(self), self.line


def numbered(sentences: Sequence[str], what: str) -> list[tuple[int, str]]:
    """Those that are not blank, each with its line: that of its file, or else its place in the list from 1.

    Args:
        what: one of them is called.

    Raises:
        TextError: a single text instead of a list; EmptyTextError: there is none.
    """
    if isinstance(sentences, str):
        raise TextError(f"Give a list of {what}s, one an entry.")
    found = [
        (text.line if isinstance(text, Sentence) else number, text)
        for number, text in enumerate(sentences, 1)
        if not (isinstance(text, str) and not text.strip())
    ]
    if not found:
        raise EmptyTextError(f"There is no {what}. Give one a line.")
    return found


def read_sentences(file: str | Path, column: str | None = None, as_named: bool = False) -> tuple[str, ...]:
    """The sentences of a text file, one a line, or of a column of a table with a header.

    Blank lines and empty cells are left out. An error in a sentence names its line all the same. The file is
    read piece by piece; no more of it than `MAX_BYTES` and `MAX_SENTENCES` is ever held.

    Args:
        file: in UTF-8; .csv, .tsv, .jsonl and .ndjson are tables, everything else has one sentence a line.
        column: of a table; None takes the only one, or the one called sentence or text.
        as_named: read the file as its ending says, even if it looks like another format.

    Raises:
        TextError: the file cannot be opened, is not UTF-8, a broken table, larger than the bounds, looks like
            another format, or changes while it is read.
        EmptyTextError: nothing in it.
        SelectionError: no such column, or several and none named.
    """
    with opened(file) as (stream, name):
        return _sentences(stream, name, column, as_named)


@contextmanager
def opened(file: str | Path) -> Iterator[tuple[BinaryIO, str]]:
    """A file to be read, and its name.

    Raises:
        TextError: it cannot be opened, is larger than `MAX_BYTES`, or changes within the block.
    """
    path = Path(file)
    try:
        with path.open("rb") as stream:
            before = os.fstat(stream.fileno())
            if before.st_size > MAX_BYTES:  # 0 of a pipe
                raise _too_large(path.name)
            yield stream, path.name
            if stat.S_ISREG(before.st_mode) and _version(os.fstat(stream.fileno())) != _version(before):
                raise TextError(
                    f"{path.name} was changed while it was read. Give it again once it is written."
                )
    except (OSError, ValueError) as error:  # a ValueError where the name holds a NUL
        reason = getattr(error, "strerror", None) or error
        raise TextError(f"{path} cannot be opened: {reason}. Check the path.") from None


def _version(about: os.stat_result) -> tuple[int, ...]:
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns


def parse_sentences(
    content: bytes, name: str, column: str | None = None, as_named: bool = False
) -> tuple[str, ...]:
    """The sentences in a file's bytes; see `read_sentences`. A line break in a cell becomes a space.

    Args:
        name: of the file; its ending tells a table from a text.

    Raises:
        TextError, EmptyTextError, SelectionError: as `read_sentences`.
    """
    return _sentences(io.BytesIO(content), name, column, as_named)


def _sentences(stream: BinaryIO, name: str, column: str | None, as_named: bool = False) -> tuple[str, ...]:
    read_as = format_of(name) if is_table(name) else LINES
    written = checked(
        lines_of(stream, name), name, read_as, as_named or (is_table(name) and column is not None)
    )
    if is_table(name):
        header, rows = table_of(written, name)
        place = column_of(header, column, name)
        # A cell that is missing at the end of a short row is an empty one.
        cells = ((line, _one_line(row[place], name, line)) for line, row in rows if len(row) > place)
    else:
        if column is not None:
            raise SelectionError(f"{name} has no columns: only .csv, .tsv and .jsonl have. Leave it out.")
        cells = ((line, text.strip()) for line, text in enumerate(written, 1))
    kept = tuple(islice((Sentence(text, line) for line, text in cells if text), MAX_SENTENCES + 1))
    if not kept:
        raise EmptyTextError(f"{name} holds no sentences. Write one a line.")
    if len(kept) > MAX_SENTENCES:
        raise TextError(f"{name} holds more than {MAX_SENTENCES:,} sentences. Give a part of it.")
    return kept


def _one_line(cell: str, name: str, line: int) -> str:
    if isinstance(cell, NonTextCell):
        raise TextError(f"{name}, line {line:,}: the text is {cell}. Give a text in each object.")
    return " ".join(lines(cell))


def _too_large(name: str) -> TextError:
    return TextError(f"{name} is larger than {MAX_BYTES / 1e6:.0f} MB. Give a part of it.")


def lines(text: str) -> list[Sentence]:
    """The lines of a text that hold something, without the spaces around it."""
    numbered = enumerate(_LINE_END.split(text), 1)
    return [Sentence(line.strip(), number) for number, line in numbered if line.strip()]


def columns_of(content: bytes, name: str) -> tuple[str, ...]:
    """Names of a table's columns; none for a plain text file.

    Raises:
        TextError: as `read_sentences`.
    """
    if not is_table(name):
        return ()
    written = checked(lines_of(io.BytesIO(content), name), name, format_of(name), as_named=False)
    return tuple(table_of(written, name)[0])


def usual_column(columns: Sequence[str]) -> int | None:
    """The column that is taken where none is named: the only one, or the one called sentence or text."""
    if len(columns) == 1:
        return 0
    usual = [place for place, column in enumerate(columns) if column.strip().casefold() in USUAL_COLUMNS]
    return usual[0] if len(usual) == 1 else None


def is_table(name: str) -> bool:
    """Whether a file of this name is read as a table."""
    return format_of(name) in (TABLE, JSON_LINES)


def lines_of(stream: BinaryIO, name: str) -> Iterator[str]:
    """The lines of a file, each with its end, which is always "\\n" here, however it was written.

    Raises:
        TextError: not UTF-8, a NUL in it, or larger than `MAX_BYTES` or `MAX_LINES`.
    """
    begun = ""
    line = 1
    for text in _decoded(stream, name):
        before, nul, _ = text.partition("\0")
        if nul:
            line += before.count("\n")
            raise TextError(f"{name} is no text file: line {line:,} holds a NUL. Save it as UTF-8 text.")
        line += text.count("\n")
        if line > MAX_LINES:
            raise TextError(f"{name} has more than {MAX_LINES:,} lines. Give a part of it.")
        *whole, rest = text.split("\n")
        if whole:
            yield f"{begun}{whole[0]}\n"
            yield from (f"{one}\n" for one in whole[1:])
            begun = rest
        else:
            begun += rest
    if begun:
        yield begun


def _decoded(stream: BinaryIO, name: str) -> Iterator[str]:
    """The text of a file in pieces; every line end is "\\n"."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(), translate=True)
    size, line = 0, 1
    while True:
        chunk = stream.read(_CHUNK)
        size += len(chunk)
        if size > MAX_BYTES:
            raise _too_large(name)
        waits = bool(decoder.getstate()[1] & 1)  # a "\r", which may be half of a line end
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            line += len(_LINE_END.findall("\r" * waits + error.object[: error.start].decode()))
            raise TextError(f"{name} is not UTF-8: line {line:,} cannot be read. Save it as UTF-8.") from None
        line += text.count("\n")
        yield text
        if not chunk:
            return


def table_of(written: Iterator[str], name: str) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Header and rows, each with the line that it begins on; cells are parted by the header's own mark.

    Args:
        written: lines, as `lines_of` gives them; only rows that hold something are given.
        name: of the file; .jsonl and .ndjson have an object a line, whose keys are the header.

    Raises:
        TextError: no table; EmptyTextError: not even a header.
    """
    if format_of(name) == JSON_LINES:
        return json_table(written, name)
    begun = []
    for line in written:
        begun.append(line)
        if line != "\n":
            break
    rows = _rows(chain(begun, written), separator_of(begun[-1] if begun else ""), name)
    header = next(rows, None)
    if header is None:
        raise EmptyTextError(f"{name} is empty. Give a header and a sentence in each row.")
    return [cell.strip() for cell in header[1]], rows


def separator_of(header: str) -> str:
    """What parts the cells of a table: the mark that its header has most of."""
    return max("\t;,", key=header.count) if any(mark in header for mark in "\t;,") else ","


def _rows(written: Iterator[str], separator: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Rows that hold something, each with the line that it begins on."""
    reader = csv_reader(written, separator)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise TextError(
                f"{name} is a broken table: line {line:,}, {describe(error)}. Correct the row, or save the "
                "table as CSV again."
            ) from None
        if row is None:
            return
        if separator == "\t" and any("\n" in cell and "\t" in cell for cell in row):
            # Many programs write tabs without quoting: two such quotation marks would join their rows.
            raise TextError(
                f"{name} is a broken table: a quotation mark in line {line:,} joins it with the next line. "
                'Write each " as "" and the cell in quotation marks, or save the table as CSV.'
            )
        if any(cell.strip() for cell in row):
            yield line, row


def column_of(header: Sequence[str], column: str | None, name: str) -> int:
    """Index of a table's column; None takes the only one, or the one called sentence or text.

    Raises:
        SelectionError: no such column, or several and none named.
    """
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


def _listed(header: Sequence[str]) -> str:
    shown = [one[:40] + ("…" if len(one) > 40 else "") for one in header[:8]]
    return ", ".join(shown) + (", …" if len(header) > 8 else "")
