"""CSV and TSV: a header, and a sentence in a column of each row. Blank lines are no rows."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from bert_probe.corpus.formats.row import FileRow, refused, row_of
from bert_probe.corpus.lines import MAX_LINE, InputLine
from bert_probe.errors import EmptyTextError, TextError
from bert_probe.text.csv_reader import csv_reader, describe
from bert_probe.text.sentence_files import column_of, separator_of


def rows(lines: Iterator[InputLine], name: str, column: str | None) -> Iterator[FileRow]:
    """The rows of a table.

    Raises:
        TextError: no header, or none that can be read; SelectionError: no such column, or none named.
    """
    head = next((line for line in lines if line.trouble or _holds(line)), None)
    if head is None:
        raise EmptyTextError(f"{name} is empty. Give a header and a sentence in each row.")
    written = _Table(chain([head], lines), separator_of(head.text or "")).rows()
    first = next(written)
    if first.trouble:
        raise TextError(f"{name} has no header that can be read, in line {first.line:,}. {first.trouble}")
    header = [cell.strip() for cell in first.cells]
    place = column_of(header, column, name)
    return (_row(one, len(header), place) for one in written)


def _row(written: _RawRow, columns: int, place: int) -> FileRow:
    count = len(written.cells)
    if written.trouble:
        return refused(written.line, written.trouble)
    if count != columns:
        return refused(
            written.line, f"The row has not as many cells as the header: {count:,}, not {columns:,}."
        )
    return row_of(written.line, written.cells[place])


def _holds(line: InputLine) -> bool:
    return bool(line.text and line.text.strip(" "))


class _RawRow(NamedTuple):
    """A row as it is written: the line it begins on, its cells, and why they cannot be read or ""."""

    line: int
    cells: list[str]
    trouble: str


class _Table:
    """Parts lines into rows.

    A quote that is never closed would swallow all that follows. It costs its own row alone: the lines after
    it are read again, each as a row of its own, so that no line is read more than three times.
    """

    def __init__(self, lines: Iterator[InputLine], separator: str) -> None:
        self._lines = lines
        self._separator = separator
        self._swallowed: deque[InputLine] = deque()
        """The last of them broke the row, and may itself go on over several lines."""

    def rows(self) -> Iterator[_RawRow]:
        """Row by row."""
        while (line := self._next()) is not None:
            if line.text is None:
                yield _RawRow(line.number, [], line.trouble)
            elif line.trouble or _holds(line):
                yield self._row(line, line.text)

    def _next(self) -> InputLine | None:
        return self._swallowed.popleft() if self._swallowed else next(self._lines, None)

    def _row(self, line: InputLine, text: str) -> _RawRow:
        if '"' not in text:
            return _RawRow(line.number, text.split(self._separator), line.trouble)
        taken = [line]
        written = iter([text]) if self._swallowed else chain([f"{text}\n"], self._following(taken))
        try:
            cells = next(csv_reader(written, self._separator))
        except csv.Error as error:
            self._swallowed.extendleft(reversed(taken[1:]))
            return _RawRow(line.number, [], f"The row cannot be read: {describe(error)}.")
        return _RawRow(line.number, cells, next((one.trouble for one in taken if one.trouble), ""))

    def _following(self, taken: list[InputLine]) -> Iterator[str]:
        """Lines after the first, as far as they are asked for; each is noted."""
        size = 0
        while (line := self._next()) is not None:
            taken.append(line)
            size += len(line.text or "")
            if line.text is None or size > MAX_LINE:
                raise csv.Error("a quotation mark is not closed")
            yield f"{line.text}\n"
