"""Read the rows of tables in CSV, TSV and JSON lines files."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from bert_probe.errors import EmptyTextError, SelectionError, TextError
from bert_probe.text.formats import (
    JSON_LINES,
    TABLE,
    BrokenRow,
    csv_reader,
    describe_csv_error,
    format_of,
    json_table,
)

DEFAULT_COLUMNS = ("sentence", "text")
"""Names of the columns that contain the sentences by default."""

_JOINED = "quotation marks join lines"


def default_column(columns: Sequence[str]) -> int | None:
    """Return the index of the only column, or of the column named "sentence" or "text"; otherwise None."""
    if len(columns) == 1:
        return 0
    candidates = [
        index for index, column in enumerate(columns) if column.strip().casefold() in DEFAULT_COLUMNS
    ]
    return candidates[0] if len(candidates) == 1 else None


def is_table(name: str) -> bool:
    """Return whether a file named `name` is read as a table."""
    return format_of(name) in (TABLE, JSON_LINES)


def table_of(
    file_lines: Iterator[str], name: str, keep_broken: bool = False
) -> tuple[list[str], Iterator[tuple[int, Sequence[str]]]]:
    """Read a table. Return its header, and an iterator over (line number, row) pairs without blank rows.

    Args:
        file_lines: the lines that `lines_of` returns.
        name: the file name. In .jsonl and .ndjson files, the keys of the objects are the header; in other
            files, the separator is detected in the header.
        keep_broken: yield a `BrokenRow` for a row that cannot be read, instead of raising an error.

    Raises:
        TextError: the file is not a table.
        EmptyTextError: the file has no header.
    """
    if format_of(name) == JSON_LINES:
        return json_table(file_lines, name, keep_broken)
    start = []
    for line in file_lines:
        start.append(line)
        if line != "\n":
            break
    rows = _rows(
        chain(start, file_lines), detect_separator(start[-1] if start else "", name), name, keep_broken
    )
    header = next(rows, None)
    if header is None:
        raise EmptyTextError(f"{name} is empty. Add a header, and write one sentence per row.")
    return [cell.strip() for cell in header[1]], rows


def detect_separator(header: str, name: str) -> str:
    """Return the most frequent separator in the header of a table: tab, semicolon or comma.

    A header with a single column has none; then, the extension of the file name determines the separator.
    """
    if any(mark in header for mark in "\t;,"):
        return max("\t;,", key=header.count)
    return "\t" if ".tsv" in [suffix.lower() for suffix in Path(name).suffixes[-2:]] else ","


def joins_rows(cells: Sequence[str], separator: str, width: int) -> bool:
    """Return whether a row with quotation marks may in fact be several rows of `width` cells each.

    Many programs write TSV without quoting, so two quotation marks do not always enclose a cell.
    """
    rows = [row for row in separator.join(cells).split("\n") if row.strip()]
    return (
        separator == "\t"
        and width > 1
        and len(rows) > 1
        and all(row.count(separator) == width - 1 for row in rows)
    )


def _rows(
    file_lines: Iterator[str], separator: str, name: str, keep_broken: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a table that are not blank, each with the number of its first line."""
    reader = csv_reader(file_lines, separator)
    width = 0  # number of cells in the header, in which errors are raised even if `keep_broken` is True
    while True:
        line = reader.line_num + 1
        problem, where, remedy, row = "", "", "", None
        try:
            row = next(reader, None)
        except csv.Error as error:
            problem, where = describe_csv_error(error), f"line {line:,}, "
            remedy = "Correct the row, or save the table as CSV again."
        if row is None and not problem:
            return
        if row and joins_rows(row, separator, width or len(row)):
            problem = f"{_JOINED} {line:,} to {reader.line_num:,}, which may be several rows"
            remedy = (
                "Write commas in place of the tabs between cells, or remove the tabs or line breaks within "
                "the quotation marks."
            )
        if problem and (not width or not keep_broken):
            raise TextError(f"{name} is a broken table: {where}{problem}. {remedy}")
        if problem:
            if "not closed" in problem:  # the row extends to the end of the file, so no further row follows
                yield line, BrokenRow(f"{problem}; the row extends to the end of the file")
                return
            is_long = reader.line_num > line and not problem.startswith(_JOINED)
            yield line, BrokenRow(problem + is_long * f"; the row extends to line {reader.line_num:,}")
        elif row and any(cell.strip() for cell in row):
            yield line, row
            width = width or len(row)


def find_column(header: Sequence[str], column: str | None, name: str) -> int:
    """Return the index of a column. By default, the only column, or the column named "sentence" or "text".

    Raises:
        SelectionError: the column does not exist, or `column` is None and there are several columns.
    """
    if column is None:
        default = default_column(header)
        if default is None:
            raise SelectionError(
                f"{name} has {len(header)} columns: {list_columns(header)}. Choose one of these columns."
            )
        return default
    matches = [index for index, name_in_header in enumerate(header) if name_in_header == column.strip()]
    if len(matches) != 1:
        problem = "several columns" if matches else "no column"
        raise SelectionError(
            f"{name} has {problem} {column}. Its columns are {list_columns(header)}. Choose one of "
            "these columns."
        )
    return matches[0]


def list_columns(header: Sequence[str]) -> str:
    """Return the names of the first columns of a table, separated by commas."""
    names = [name[:40] + ("…" if len(name) > 40 else "") for name in header[:8]]
    return ", ".join(names) + (", …" if len(header) > 8 else "")


def unquoted_table_of(
    file_lines: Iterator[str], name: str, max_rows: int
) -> tuple[list[str], Sequence[tuple[int, Sequence[str]]]]:
    """Return the header of a table, and its rows with their line numbers.

    Many programs write TSV without quoting. A TSV file is therefore read without quoting if its quotation
    marks are invalid as quoting.

    Raises:
        TextError: the table has more than `max_rows` rows; or it cannot be read with quoting, and is not a
            TSV file with invalid quoting and the same number of cells in every line.
    """
    all_lines = list(file_lines)
    try:
        header, quoted = table_of(iter(all_lines), name)
        rows: list[tuple[int, Sequence[str]]] = list(islice(quoted, max_rows + 1))
    except TextError:
        if not _has_invalid_quoting(all_lines, name):
            raise
        counts = {line.count("\t") for line in all_lines if line.strip()}
        if len(counts) != 1 or counts == {0}:
            raise
        unquoted = (
            (number, line.rstrip("\r\n").split("\t"))
            for number, line in enumerate(all_lines, 1)
            if line.strip()
        )
        header = [cell.strip() for cell in next(unquoted)[1]]
        rows = [*islice(unquoted, max_rows + 1)]
    if len(rows) > max_rows:
        raise TextError(f"{name} has more than {max_rows:,} rows. Remove rows, or split the file.")
    return header, rows


def _has_invalid_quoting(all_lines: Sequence[str], name: str) -> bool:
    """Return whether a row of a table cannot have been written with quoting. Rows that `joins_rows` can.

    A quotation mark that is not closed in the last line of a table with other quotation marks may be the end
    of an incomplete file.
    """
    try:
        _, rows = table_of(iter(all_lines), name, keep_broken=True)
    except TextError:
        return True
    last = max((number for number, line in enumerate(all_lines, 1) if line.strip()), default=0)
    has_other_marks = any('"' in line for line in all_lines[: last - 1])
    return any(
        isinstance(row, BrokenRow)
        and not row.problem.startswith(_JOINED)
        and not (has_other_marks and line == last and "unexpected end" in row.problem)
        for line, row in rows
    )
