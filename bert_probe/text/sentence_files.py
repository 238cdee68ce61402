"""Read sentences from files, with one sentence per line or in a column of a table."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, cast

from bert_probe.errors import EmptyTextError, SelectionError, TextError
from bert_probe.text.formats import (
    FASTA,
    JSON_LINES,
    LINES,
    TABLE,
    BrokenRow,
    FastaRecord,
    NonTextCell,
    check_format,
    csv_reader,
    describe_csv_error,
    format_of,
    json_table,
    parse_fasta,
    records_in_text,
)

DEFAULT_COLUMNS = ("sentence", "text")
"""Names of the columns that contain the sentences by default."""

# Matches only real line breaks, whereas str.splitlines also splits at characters within sentences.
_LINE_END = re.compile(r"\r\n|\r|\n")


MAX_BYTES = 50_000_000
"""Maximum size of a file in bytes. It is also checked while reading, because a pipe may never end."""
MAX_SENTENCES = 1_000_000
"""Maximum number of sentences in a file."""
MAX_LINES = 5_000_000
"""Maximum number of lines in a file, including blank lines, because these take time too."""
_CHUNK = 1 << 16


class Sentence(str):
    """A sentence with its line number, for error messages.

    Attributes:
        line: line number in the file, from 1; blank lines count.
        name: name of a sequence, from the header of a FASTA record; "" for other sentences.
    """

    __slots__ = ("line", "name")  # avoids an instance dict, which would be larger than the sentence

    line: int
    name: str

    def __new__(cls, text: str, line: int, name: str = "") -> Sentence:
        """Create a sentence from a text, its line number and its name."""
        sentence = super().__new__(cls, text)
        sentence.line, sentence.name = line, name
        return sentence

    def __getnewargs__(self) -> tuple[str, int, str]:  # type: ignore[override]
        return str(self), self.line, self.name


def with_line_numbers(sentences: Sequence[str], item_name: str) -> list[tuple[int, str]]:
    """Return a (line number, sentence) pair for each sentence that is not blank.

    A `Sentence` has a line number; a plain string gets its 1-based position in `sentences`.

    Args:
        sentences: `Sentence` objects or plain strings.
        item_name: noun for a sentence in error messages, such as "sentence".

    Raises:
        TextError: `sentences` is a string instead of a list.
        EmptyTextError: all sentences are blank.
    """
    if isinstance(sentences, str):
        raise TextError(f"Pass a list of {item_name}s, not a string.")
    items = [
        (text.line if isinstance(text, Sentence) else number, text)
        for number, text in enumerate(sentences, 1)
        if not (isinstance(text, str) and not text.strip())
    ]
    if not items:
        raise EmptyTextError(f"There is no {item_name}. Write one {item_name} per line.")
    return items


def read_sentences(file: str | Path, column: str | None = None, as_named: bool = False) -> tuple[str, ...]:
    """Read sentences from a text file, one per line, from a column of a table, or from FASTA.

    Blank lines and empty cells are skipped; error messages still give line numbers of the file. The file is
    read in chunks, so memory is bounded by `MAX_BYTES` and `MAX_SENTENCES`.

    Args:
        file: a file in UTF-8, which may be compressed by gzip (.gz). .csv, .tsv, .jsonl and .ndjson files are
            tables. In .fasta, .fa, .faa and .fna files, each sequence is a sentence. All other files have one
            sentence per line.
        column: name of the column. By default, the only column, or the column named "sentence" or "text".
        as_named: trust the file extension, even if the contents look like another format.

    Raises:
        TextError: the file cannot be opened, is not UTF-8, is a broken table, exceeds a limit, looks like
            another format, or changes while it is read.
        EmptyTextError: the file has no sentences.
        SelectionError: the column does not exist, or `column` is None and there are several columns.
    """
    with open_file(file) as (stream, name):
        return _sentences(stream, name, column, as_named)


@contextmanager
def open_file(file: str | Path) -> Iterator[tuple[BinaryIO, str]]:
    """Open a file for reading, and yield its stream and its name.

    Raises:
        TextError: the file cannot be opened, exceeds `MAX_BYTES`, or changes before the ``with`` block ends.
    """
    path = Path(file)
    try:
        with path.open("rb") as stream:
            before = os.fstat(stream.fileno())
            if before.st_size > MAX_BYTES:  # pipes report size 0, so the size is checked during reading
                raise _too_large(path.name)
            yield stream, path.name
            if stat.S_ISREG(before.st_mode) and _version(os.fstat(stream.fileno())) != _version(before):
                raise TextError(
                    f"{path.name} was changed while it was being read. Read the file again when it is "
                    "complete."
                )
    except (OSError, ValueError) as error:  # Python raises ValueError if a path contains NUL.
        reason = getattr(error, "strerror", None) or error
        raise TextError(f"{path} cannot be opened: {reason}. Check the path.") from None


def is_dir(path: Path) -> bool:
    """Return whether a path is a folder; False if it cannot be examined. Opening it then gives the reason."""
    return os.path.isdir(path)  # noqa: PTH112 - `Path.is_dir` raises an error before Python 3.14


def is_file(path: Path) -> bool:
    """Return whether a path is a regular file; False if it cannot be examined."""
    return os.path.isfile(path)  # noqa: PTH113 - like `is_dir`


@contextmanager
def unpack(stream: BinaryIO, name: str) -> Iterator[tuple[BinaryIO, str]]:
    """Yield the decompressed stream of a .gz or .zst file, and the name without this extension.

    For other files, yield the stream and the name unchanged.

    Raises:
        TextError: the file cannot be decompressed.
    """
    stem, _, ending = name.rpartition(".")
    if ending.lower() not in ("gz", "zst"):
        yield stream, name
        return
    try:
        with _decompressed(stream, ending.lower()) as unpacked:
            yield unpacked, stem
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the file could not be read, so its contents may be correct
        program = "gzip" if ending.lower() == "gz" else "zstd"
        raise TextError(
            f"{name} cannot be decompressed: {error}. Compress the file with {program} again."
        ) from None


def check_unpacked_size(content: bytes, name: str, max_bytes: int) -> None:
    """Raise an error if a file is larger than a limit after decompression, without keeping its content.

    Args:
        name: the file name; files whose names do not end in .gz or .zst are not decompressed.

    Raises:
        TextError: the file is larger than `max_bytes` bytes, or cannot be decompressed.
    """
    with unpack(io.BytesIO(content), name) as (stream, _):
        size = 0
        while chunk := stream.read(_CHUNK):
            size += len(chunk)
            if size > max_bytes:
                raise _too_large(name, max_bytes, " after decompression" * (len(content) <= max_bytes))


def _decompressed(stream: BinaryIO, ending: str) -> AbstractContextManager[BinaryIO]:
    if ending == "gz":
        return cast(AbstractContextManager[BinaryIO], gzip.open(stream))
    import pyarrow

    # Unlike other Zstandard readers, Arrow raises an error for a truncated file.
    # Arrow would close the stream, which belongs to the caller.
    handle = SimpleNamespace(read=stream.read, close=lambda: None, closed=False)
    unpacked = pyarrow.CompressedInputStream(pyarrow.PythonFile(handle, "r"), "zstd")
    return cast(AbstractContextManager[BinaryIO], unpacked)


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def parse_sentences(
    content: bytes,
    name: str,
    column: str | None = None,
    as_named: bool = False,
    max_bytes: int | None = None,
    max_sentences: int | None = None,
) -> tuple[str, ...]:
    """Parse the sentences in a file's bytes, as `read_sentences` does. Line breaks in cells become spaces.

    Args:
        content: the content of the file.
        name: the file name; its extension distinguishes tables from plain text.
        column, as_named: see `read_sentences`.
        max_bytes: maximum size of the decompressed file in bytes; by default `MAX_BYTES`.
        max_sentences: maximum number of sentences, by default `MAX_SENTENCES`; reading stops at the next one.

    Raises:
        TextError, EmptyTextError, SelectionError: as in `read_sentences`.
    """
    return _sentences(io.BytesIO(content), name, column, as_named, max_bytes, max_sentences)


def _sentences(
    stream: BinaryIO,
    name: str,
    column: str | None,
    as_named: bool = False,
    max_bytes: int | None = None,
    max_sentences: int | None = None,
) -> tuple[str, ...]:
    maximum = MAX_SENTENCES if max_sentences is None else max_sentences
    with unpack(stream, name) as (unpacked, stem):
        sentences = _unpacked_sentences(unpacked, stem, column, as_named, max_bytes, maximum + 1)
    if len(sentences) > maximum:
        raise TextError(f"{name} has more than {maximum:,} sentences. Split the file.")
    return sentences


def _unpacked_sentences(
    stream: BinaryIO, name: str, column: str | None, as_named: bool, max_bytes: int | None, count: int
) -> tuple[str, ...]:
    """Return at most the first `count` sentences."""
    read_as = format_of(name) if is_table(name) or format_of(name) == FASTA else LINES
    file_lines = check_format(
        lines_of(stream, name, max_bytes=max_bytes),
        name,
        read_as,
        as_named or (is_table(name) and column is not None),
    )
    cells: Iterable[tuple[int, str]]
    if is_table(name):
        header, rows = table_of(file_lines, name)
        index = find_column(header, column, name)
        cells = _column(rows, index, len(header), name)
    else:
        if column is not None:
            raise SelectionError(
                f"{name} has no columns: only .csv, .tsv and .jsonl files have columns. Omit the column."
            )
        if read_as == FASTA:
            return tuple(map(sentence_of_record, parse_fasta(file_lines, name, count)))
        cells = ((line, text.strip()) for line, text in enumerate(file_lines, 1))
    sentences = tuple(islice((Sentence(text, line) for line, text in cells if text), count))
    if not sentences:
        raise EmptyTextError(f"{name} has no sentences. Write one sentence per line.")
    return sentences


def _column(
    rows: Iterable[tuple[int, Sequence[str]]], index: int, width: int, name: str
) -> Iterator[tuple[int, str]]:
    """Yield line number and cell of each row in a column.

    Raises:
        TextError: a row has fewer or more cells than the header, apart from empty cells at the end: a text
            contains a line break or the separator.
    """
    for line, row in rows:
        if len(row) < width or (len(row) > width and any(row[width:])):
            cells = "1 cell" if len(row) == 1 else f"{len(row):,} cells"
            raise TextError(
                f"{name}, line {line:,}: the row has {cells}, but the header has {width:,}. Put texts that "
                "contain the separator or a line break in double quotes, and write the separators of empty "
                "cells at the end of a row."
            )
        yield line, _one_line(row[index], name, line)


def _one_line(cell: str, name: str, line: int) -> str:
    if isinstance(cell, NonTextCell):
        raise TextError(
            f"{name}, line {line:,}: the text is {cell}, but must be a string. Write a string in each object."
        )
    return " ".join(lines(cell))


def _too_large(name: str, max_bytes: int = MAX_BYTES, when: str = "") -> TextError:
    return TextError(f"{name} is larger than {max_bytes / 1e6:.0f} MB{when}. Split the file.")


MAX_TYPED_LINES = 100_000
"""Maximum number of lines of a typed text, because each takes hundreds of bytes of memory as a sentence."""
_LINE_BREAK = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def check_lines(text: str, name: str = "The text") -> None:
    """Raise TextError if a typed text has more than `MAX_TYPED_LINES` line breaks."""
    breaks = islice(_LINE_BREAK.finditer(text), MAX_TYPED_LINES + 1)
    if len(text) > MAX_TYPED_LINES and sum(1 for _ in breaks) > MAX_TYPED_LINES:
        raise TextError(
            f"{name} has more than {MAX_TYPED_LINES:,} lines. Remove lines, or use the command line."
        )


def lines(text: str, count: int | None = None) -> list[Sentence]:
    """Return the nonblank lines of a text, at most `count`, without leading and trailing spaces."""
    numbered = enumerate(_split_lines(text), 1)
    return list(islice((Sentence(line.strip(), number) for number, line in numbered if line.strip()), count))


def _split_lines(text: str) -> Iterator[str]:
    start = 0
    for line_end in _LINE_END.finditer(text):
        yield text[start : line_end.start()]
        start = line_end.end()
    yield text[start:]


def sentence_of_record(record: FastaRecord) -> Sentence:
    """Return the sequence of a FASTA record as a sentence."""
    return Sentence(record.sequence, record.line, record.name)


def sentence_name(text: str) -> str:
    """Return the name of a sequence from a FASTA file, or the sentence itself if it has no name."""
    name = text.name if isinstance(text, Sentence) else ""
    return name or str(text)


def sentences_in_text(text: str, count: int | None = None) -> tuple[Sentence, ...]:
    """Split a typed text into at most `count` sentences: the sequences of FASTA records, otherwise lines.

    Raises:
        InvalidFileError: the text is FASTA with invalid lines.
    """
    records = records_in_text(text, "The text", count)
    return tuple(map(sentence_of_record, records)) if records else tuple(lines(text, count))


def column_names(content: bytes, name: str) -> tuple[str, ...]:
    """Return the column names of a table; () for plain text.

    Raises:
        TextError: as in `read_sentences`.
    """
    with unpack(io.BytesIO(content), name) as (stream, stem):
        if not is_table(stem):
            return ()
        file_lines = check_format(lines_of(stream, stem), stem, format_of(stem), as_named=False)
        return tuple(table_of(file_lines, stem)[0])


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


def lines_of(
    stream: BinaryIO, name: str, errors: str = "strict", max_bytes: int | None = None
) -> Iterator[str]:
    r"""Yield the lines of a file, including their line breaks, which are normalized to "\n".

    Args:
        stream: the open file.
        name: the file name, for error messages.
        errors: "surrogateescape" to decode bytes that are not UTF-8 to lone surrogates.
        max_bytes: maximum size of the file in bytes, by default `MAX_BYTES`.

    Raises:
        TextError: the file is not UTF-8, contains a NUL character, or exceeds ``max_bytes`` or `MAX_LINES`.
    """
    pending = ""
    line = 1
    for text in _decoded(stream, name, errors, MAX_BYTES if max_bytes is None else max_bytes):
        before, nul, _ = text.partition("\0")
        if nul:
            line += before.count("\n")
            raise TextError(
                f"{name} is not a text file, because line {line:,} contains a NUL character. Save the "
                "file as UTF-8 text."
            )
        line += text.count("\n")
        if line > MAX_LINES:
            raise TextError(f"{name} has more than {MAX_LINES:,} lines. Split the file.")
        *complete, remainder = text.split("\n")
        if complete:
            yield f"{pending}{complete[0]}\n"
            yield from (f"{text_line}\n" for text_line in complete[1:])
            pending = remainder
        else:
            pending += remainder
    if pending:
        yield pending


def _decoded(stream: BinaryIO, name: str, errors: str, max_bytes: int) -> Iterator[str]:
    r"""Yield the text of a file in chunks, with line breaks normalized to "\n"."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8-sig")(errors), translate=True)
    size, line = 0, 1
    while True:
        chunk = stream.read(_CHUNK)
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(name, max_bytes)
        # whether the text may end with the first half of "\r\n"
        has_pending_return = bool(decoder.getstate()[1] & 1)
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            line += len(_LINE_END.findall("\r" * has_pending_return + error.object[: error.start].decode()))
            raise TextError(
                f"{name} is not UTF-8, because line {line:,} cannot be decoded. Save the file as UTF-8."
            ) from None
        line += text.count("\n")
        yield text
        if not chunk:
            return


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

    Many programs write TSV without quoting, so two quotation marks may not enclose a cell.
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
            problem = f"quotation marks join lines {line:,} to {reader.line_num:,}, which may be several rows"
            remedy = "Save the table as CSV, or remove the tabs or line breaks within the quotation marks."
        if problem and (not width or not keep_broken):
            raise TextError(f"{name} is a broken table: {where}{problem}. {remedy}")
        if problem:
            if "not closed" in problem:  # the row extends to the end of the file, so no further row follows
                yield line, BrokenRow(f"{problem}; the row extends to the end of the file")
                return
            is_long = reader.line_num > line
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
    file_lines: Iterator[str], name: str
) -> tuple[list[str], Sequence[tuple[int, Sequence[str]]]]:
    """Return the header of a table, and at most `MAX_SENTENCES` + 1 rows with their line numbers.

    Many programs write TSV without quoting. A TSV file that cannot be read with quoting is therefore read
    without it.

    Raises:
        TextError: the table cannot be read with quoting, and is not a TSV file with the same number of cells
            in every line.
    """
    all_lines = list(file_lines)
    try:
        header, rows = table_of(iter(all_lines), name)
        return header, list(islice(rows, MAX_SENTENCES + 1))
    except TextError:
        table = [
            (number, line.rstrip("\r\n").split("\t"))
            for number, line in enumerate(all_lines, 1)
            if line.strip()
        ]
        sizes = {len(row) for _, row in table}
        if len(sizes) != 1 or sizes == {1}:
            raise
        return [cell.strip() for cell in table[0][1]], table[1 : MAX_SENTENCES + 2]
