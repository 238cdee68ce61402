"""Read the rows of input files one by one, without loading complete files into memory.

A reader takes the lines of a file, the file's name for error messages, and a column name, and yields rows.
Blank lines are not rows. An invalid row has a `problem`, a sentence that describes the error, instead of a
text; reading continues after it.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import stat
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple, cast

import pyarrow as pa

from bert_probe.errors import EmptyTextError, SelectionError, TextError
from bert_probe.text import strict_json
from bert_probe.text.formats import (
    FASTA_ENDINGS,
    ValidationErrors,
    csv_reader,
    describe_csv_error,
    read_records,
)
from bert_probe.text.parquet import column_batches
from bert_probe.text.parquet_child import open_parquet
from bert_probe.text.sentence_files import lines
from bert_probe.text.tables import detect_separator, find_column, joins_rows
from bert_probe.text.tagged_sentences import BlockReader, TaggedSentence, block_reader

COMPRESSED_ENDINGS = (".gz", ".zst")
"""Extensions of files that are decompressed while they are read."""
MAX_LINE = 1_000_000
"""Maximum length of a line in bytes. Longer lines are rejected without loading them into memory."""

_CHUNK = 1 << 16
_READ_ERRORS = (OSError, EOFError, zlib.error, pa.ArrowException)


class InputLine(NamedTuple):
    """A line of a file without its line break.

    Attributes:
        number: line number, from 1.
        text: the line, with surrogate escapes if it is not UTF-8; None if it cannot be read or is too long.
        problem: a sentence that explains why the line is not valid text; "" for a valid line.
    """

    number: int
    text: str | None
    problem: str = ""


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[InputLine]]:
    """Open a file, decompress it according to its extension, and yield an iterator over its lines.

    If the rest of the file cannot be read, the last line has a `problem` that describes the error.

    Raises:
        TextError: the path is not a regular file, or cannot be opened.
    """
    with open_decompressed(path) as stream:
        yield _lines(stream)


@contextmanager
def open_decompressed(path: Path) -> Iterator[BinaryIO]:
    """Open a file, and yield a stream that decompresses it according to its extension."""
    ending = path.suffix.lower()
    with open_file(path) as stream:
        if ending == ".gz":
            with gzip.open(stream) as content:
                yield cast(BinaryIO, content)
        elif ending == ".zst":
            # Unlike other Zstandard readers, Arrow raises an error for a truncated file.
            with pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd") as content:
                yield content
        else:
            yield stream


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading, and yield its bytes as a stream.

    Raises:
        TextError: the path cannot be opened, or is not a regular file. Pipes and devices are rejected, as
            they may never end.
    """
    try:
        is_regular = stat.S_ISREG(path.stat().st_mode)
        stream = path.open("rb") if is_regular else None
    except (OSError, ValueError) as error:  # Python raises ValueError if a path contains NUL.
        raise TextError(f"{path} cannot be opened: {describe_error(error)}. Check the path.") from None
    if stream is None:
        raise TextError(
            f"{path} is not a regular file. Write the content to a regular file, and pass that file."
        )
    with stream:
        yield stream


def describe_error(error: Exception) -> str:
    """Return the message of an exception, such as an OSError, without the final period."""
    return str(getattr(error, "strerror", None) or error).rstrip(".")


def read_problem(error: Exception) -> str:
    """Return a sentence that describes why the rest of a file cannot be read.

    Decompression detects damage late, so lines before the error may be damaged too.
    """
    is_system_error = isinstance(error, OSError) and error.errno is not None
    warning = "" if is_system_error else ", and earlier lines may also be damaged"
    return f"The file cannot be read from this line on{warning}: {describe_error(error)}."


def _lines(stream: BinaryIO) -> Iterator[InputLine]:
    number = 0
    try:
        for number, content in enumerate(_split_lines(stream), 1):
            yield _decode(number, content)
    except _READ_ERRORS as error:
        yield InputLine(number + 1, None, read_problem(error))


def _decode(number: int, content: bytes | None) -> InputLine:
    if content is None:
        return InputLine(number, None, f"The line is longer than {MAX_LINE:,} bytes.")
    if number == 1:
        content = content.removeprefix(codecs.BOM_UTF8)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return InputLine(number, content.decode(errors="surrogateescape"), "The line is not UTF-8.")
    return InputLine(number, text, "The line contains a NUL character." if "\0" in text else "")


def _split_lines(stream: BinaryIO) -> Iterator[bytes | None]:
    r"""Yield the lines of a stream without line breaks (\n, \r or \r\n); None for a line that is too long."""
    pending: bytes | None = b""  # beginning of a line that continues in the next chunk
    after_return = False  # whether the last chunk ended with "\r", which may be the first half of "\r\n"
    while chunk := stream.read1(_CHUNK):  # type: ignore[attr-defined]
        content = chunk[1:] if after_return and chunk.startswith(b"\n") else chunk
        after_return = content.endswith(b"\r")
        lines = content.splitlines() or [b""]
        if content.endswith((b"\n", b"\r")):
            lines.append(b"")
        *complete, last = lines
        for line in complete:
            yield _join(pending, line)
            pending = b""
        pending = _join(pending, last)
    if pending != b"":
        yield pending


def _join(start: bytes | None, end: bytes) -> bytes | None:
    return None if start is None or len(start) + len(end) > MAX_LINE else start + end


HEADER_LINES, MAX_KEYS = 100, 1_000_000
"""Number of lines at the start of a JSON lines file that determine the columns of the file, and the maximum
number of characters of their keys."""
_PARQUET_ERRORS = (OSError, pa.ArrowException)


class FileRow(NamedTuple):
    """A row of an input file: a sentence, or the reason why it cannot be read.

    Attributes:
        line: first line of the row, from 1; in Parquet, which has no lines, the number of the row.
        text: the sentence; None if it cannot be read.
        tagged: words and tags of the sentence; None if the format has no tags.
        problem: a sentence that explains why the text cannot be read; "" for a valid row.
        header: name and description of a sequence from FASTA; None for other rows.
    """

    line: int
    text: str | None
    tagged: TaggedSentence | None = None
    problem: str = ""
    header: Mapping[str, str] | None = None


def refused_row(line: int, problem: str) -> FileRow:
    """Return a rejected row, which has a problem instead of a text."""
    return FileRow(line, None, problem=problem)


def _row_of_value(line: int, value: object) -> FileRow:
    """Return a row with the text of a cell, stripped and with spaces in place of line breaks."""
    if not isinstance(value, str):
        if value is None:
            return refused_row(line, "The row has no text.")
        types = {dict: "an object", list: "a list", bool: "true or false"}
        return refused_row(line, f"The text must be a string, not {types.get(type(value), 'a number')}.")
    if len(value) > MAX_LINE:
        return refused_row(line, f"The text is longer than {MAX_LINE:,} characters.")
    text = " ".join(lines(value))
    if not text:
        return refused_row(line, "The text is empty.")
    if "\0" in text:
        return refused_row(line, "The text contains a NUL character.")
    try:
        text.encode()
    except UnicodeEncodeError:
        return refused_row(line, "The text contains a lone surrogate, which is not valid Unicode.")
    return FileRow(line, text)


def _text_rows(lines: Iterator[InputLine], name: str, column: str | None) -> Iterator[FileRow]:  # noqa: ARG001
    """Yield one sentence for each line of a text file that is not blank."""
    for line in lines:
        if line.problem or line.text is None:
            yield refused_row(line.number, line.problem)
        elif text := line.text.strip():
            yield FileRow(line.number, text)


# CSV and TSV files have a header, and a sentence in one column of each row.
def _table_rows(lines: Iterator[InputLine], name: str, column: str | None) -> Iterator[FileRow]:
    """Return the rows of a CSV or TSV file.

    Raises:
        TextError: the header is missing or cannot be read.
        SelectionError: the column does not exist, or `column` is None and there are several columns.
    """
    first_line = next((line for line in lines if line.problem or _has_cells(line)), None)
    if first_line is None:
        raise EmptyTextError(f"{name} is empty. Add a header, and write one sentence per row.")
    raw_rows = _RowSplitter(chain([first_line], lines), detect_separator(first_line.text or "", name)).rows()
    header_row = next(raw_rows)
    if header_row.problem:
        raise TextError(
            f"The header of {name} cannot be read (line {header_row.line:,}). {header_row.problem}"
        )
    header = [cell.strip() for cell in header_row.cells]
    index = find_column(header, column, name)
    return (_table_row(row, len(header), index) for row in raw_rows)


def _table_row(row: _RawRow, columns: int, index: int) -> FileRow:
    count = len(row.cells)
    if row.problem:
        return refused_row(row.line, row.problem)
    if count != columns:
        return refused_row(row.line, f"The row has {count:,} cells, but the header has {columns:,}.")
    return _row_of_value(row.line, row.cells[index])


def _has_cells(line: InputLine) -> bool:
    return bool(line.text and line.text.strip(" "))


class _RawRow(NamedTuple):
    """A table row: the number of its first line, its cells, and its problem ("" for a valid row)."""

    line: int
    cells: list[str]
    problem: str


class _RowSplitter:
    """Splits the lines of a table into rows. A row with a quoted cell may span several lines.

    A row with an unclosed quotation mark would extend to the end of the file. Therefore, only the line with
    this quotation mark is rejected, and each of the following lines is read again as a separate row. Lines
    that may be one row or several are all rejected.
    """

    def __init__(self, lines: Iterator[InputLine], separator: str) -> None:
        self._lines = lines
        self._separator = separator
        self._width = 0  # number of cells in the header
        # Lines after an unclosed quotation mark, to be read again. Only the last can begin a multi-line row.
        self._pushed_back: deque[InputLine] = deque()

    def rows(self) -> Iterator[_RawRow]:
        """Yield the rows of the table, without rows for blank lines."""
        while (line := self._next()) is not None:
            if line.text is None:
                yield _RawRow(line.number, [], line.problem)
            elif line.problem or _has_cells(line):
                yield (row := self._row(line, line.text))
                self._width = self._width or len(row.cells)

    def _next(self) -> InputLine | None:
        return self._pushed_back.popleft() if self._pushed_back else next(self._lines, None)

    def _row(self, line: InputLine, text: str) -> _RawRow:
        if '"' not in text:
            return _RawRow(line.number, text.split(self._separator), line.problem)
        row_lines = [line]
        texts = iter([text]) if self._pushed_back else chain([f"{text}\n"], self._following(row_lines))
        try:
            cells = next(csv_reader(texts, self._separator))
        except csv.Error as error:
            self._pushed_back.extendleft(reversed(row_lines[1:]))
            return _RawRow(line.number, [], f"The row cannot be read: {describe_csv_error(error)}.")
        if joins_rows(cells, self._separator, self._width or len(cells)):
            lines = f"{line.number:,} to {row_lines[-1].number:,}"
            problem = f"Quotation marks join lines {lines}, which may be one row or several."
            rest = filter(_has_cells, row_lines[1:])
            self._pushed_back.extend(part._replace(text=None, problem=problem) for part in rest)
            return _RawRow(line.number, [], problem)
        return _RawRow(line.number, cells, next((part.problem for part in row_lines if part.problem), ""))

    def _following(self, row_lines: list[InputLine]) -> Iterator[str]:
        """Yield the next lines when the CSV reader requests them, and append these lines to `row_lines`."""
        size = 0
        while (line := self._next()) is not None:
            row_lines.append(line)
            size += len(line.text or "")
            if line.text is None or size > MAX_LINE:
                raise csv.Error("a quotation mark is not closed")
            yield f"{line.text}\n"


# In JSON lines files, each line is a string with a sentence, or an object with a sentence among its values.
def _json_rows(lines: Iterator[InputLine], name: str, column: str | None) -> Iterator[FileRow]:
    """Return the rows of a JSON lines file.

    Raises:
        SelectionError: the first lines lack the key `column`, or `column` is None and there are several keys.
    """
    first_lines = list(islice(lines, HEADER_LINES))
    keys: dict[str, None] = {}  # this dict is used as an ordered set
    for line in first_lines:
        value = None if line.problem else _parse_json(line.text or "")[0]
        if isinstance(value, dict):
            keys.update(dict.fromkeys(value))
        if sum(map(len, keys)) > MAX_KEYS:
            raise SelectionError(
                f"The keys in the first lines of {name} have more than {MAX_KEYS:,} characters. Write short "
                "keys, and write long texts as values."
            )
    key = [*keys][find_column([key.strip() for key in keys], column, name)] if keys else column
    return (
        _json_row(line, key)
        for line in chain(first_lines, lines)
        if line.problem or (line.text and line.text.strip())
    )


def _json_row(line: InputLine, key: str | None) -> FileRow:
    if line.problem or line.text is None:
        return refused_row(line.number, line.problem)
    value, problem = _parse_json(line.text)
    if problem:
        return refused_row(line.number, problem)
    if not isinstance(value, dict):
        return _row_of_value(line.number, value)
    if key is None:
        return refused_row(line.number, "The line is a JSON object, but the first lines are strings.")
    if key not in value:
        return refused_row(line.number, f"The object has no key {key[:40]}.")
    return _row_of_value(line.number, value[key])


def _parse_json(text: str) -> tuple[object, str]:
    """Parse a line of JSON. Return its value and "", or None and a sentence that describes the error."""
    try:
        return strict_json.loads(text), ""
    except json.JSONDecodeError as error:
        return None, f"The line is not valid JSON: {error.msg}, at character {error.colno:,}."
    except ValueError as error:
        return None, f"The JSON on this line cannot be used: {error}."
    except RecursionError:
        return None, "The JSON on this line is nested too deeply."


# FASTA files have a header line before each sequence, which may have several lines.
def _fasta_rows(lines: Iterator[InputLine], name: str, column: str | None) -> Iterator[FileRow]:  # noqa: ARG001
    """Yield the sequences of a FASTA file. A record with an invalid line is rejected as a whole."""
    unreadable: list[tuple[int, str]] = []  # (line, problem) of the first unreadable line of a record, if any

    def numbered_lines() -> Iterator[tuple[int, str]]:
        for line in lines:
            if line.problem or line.text is None:
                if not unreadable:
                    unreadable.append((line.number, line.problem))
            else:
                yield line.number, line.text

    for record in read_records(numbered_lines(), MAX_LINE, unique=False):
        problems = sorted([*record.errors.found, *unreadable])
        unreadable.clear()
        header = {"name": record.name, "description": record.description}
        yield (
            _fasta_row(record.line, problems)
            if problems
            else FileRow(record.line, record.sequence, header=header)
        )
    if unreadable:
        yield _fasta_row(unreadable[0][0], unreadable)


def _fasta_row(line: int, problems: list[tuple[int, str]]) -> FileRow:
    """Return a rejected row for the FASTA record that begins at `line`, with the first of its problems."""
    number, problem = problems[0]
    return refused_row(line, f"Line {number:,}: {problem.rstrip('.')}.")


# CoNLL and CoNLL-U files have one word per line, and a blank line after each sentence.
def _conllu_rows(lines: Iterator[InputLine], name: str, column: str | None) -> Iterator[FileRow]:  # noqa: ARG001
    """Yield the sentences of a CoNLL-U file."""
    return _tagged_rows(lines, name, treebank=True)


def _conll_rows(lines: Iterator[InputLine], name: str, column: str | None) -> Iterator[FileRow]:  # noqa: ARG001
    """Yield the sentences of a CoNLL file."""
    return _tagged_rows(lines, name, treebank=False)


def _tagged_rows(lines: Iterator[InputLine], name: str, treebank: bool) -> Iterator[FileRow]:
    reader = block_reader(treebank)
    for block in _blocks(lines):
        if row := _tagged_row(reader, block, name):
            yield row


def _tagged_row(reader: BlockReader, block: list[InputLine], name: str) -> FileRow | None:
    """Return the sentence in a block of lines, None without words, or a refused row with the first error."""
    errors = ValidationErrors(name)
    for line in block:
        if line.problem:
            errors.add(line.number, line.problem)
    sentence = None
    if not errors.count:
        sentence = reader.sentence([(line.number, line.text or "") for line in block], errors)
    if errors.count:
        number, problem = errors.found[0]
        return refused_row(number, f"{problem[0].upper()}{problem[1:].rstrip('.')}.")
    return None if sentence is None else FileRow(sentence.line, sentence.text, sentence)


def _tagged_starts(lines: Iterator[InputLine], treebank: bool) -> Iterator[int]:
    """Yield the first line number of each sentence in a tagged file, without parsing most sentences."""
    reader = block_reader(treebank)
    for block in _blocks(lines):
        # A block with an invalid line or a numbered word is always a row. Other blocks must be parsed.
        if any(line.problem or _has_word_number(line.text or "") for line in block) or _tagged_row(
            reader, block, ""
        ):
            yield block[0].number


def _has_word_number(line: str) -> bool:
    number, tab, _ = line.partition("\t")
    return bool(tab) and number.isdecimal()


def _blocks(lines: Iterator[InputLine]) -> Iterator[list[InputLine]]:
    """Yield the blocks of lines between blank lines. A block that is too long ends with a rejected line."""
    block: list[InputLine] = []
    size = 0
    for line in lines:
        if line.problem or (line.text and line.text.strip()):
            previous_size, size = size, size + len(line.text or "")
            if size <= MAX_LINE:
                block.append(line)
            elif previous_size <= MAX_LINE:
                problem = f"The sentence is longer than {MAX_LINE:,} characters."
                block.append(InputLine(line.number, None, problem))
        else:
            if block:
                yield block
            block, size = [], 0
    if block:
        yield block


# Parquet files have a sentence in one column of each row, and are decoded in a child process.


def _parquet_rows(stream: BinaryIO, name: str, column: str | None) -> Iterator[FileRow]:
    """Return the rows of a Parquet file.

    Raises:
        TextError: the file is not Parquet.
        SelectionError: the column does not exist or is not text, or `column` is None and there are several
            columns.
    """
    try:
        schema = open_parquet(stream).schema_arrow
        names = schema.names
    except UnicodeDecodeError:
        raise TextError(
            f"{name} has a column whose name is not UTF-8. Rename the column, and save the file again."
        ) from None
    except (*_PARQUET_ERRORS, ValueError) as error:
        raise TextError(
            f"{name} cannot be read: {describe_error(error)}. Save the file as Parquet again."
        ) from None
    field = schema.field(find_column(names, column, name))
    data_type = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    text_types = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(is_type(data_type) for is_type in text_types):
        raise SelectionError(
            f"Column {field.name} of {name} has type {field.type}, not string. Choose another column."
        )
    return _parquet_cells(stream, field.name)


def _parquet_cells(stream: BinaryIO, column: str) -> Iterator[FileRow]:
    number = 0
    try:
        for cell in chain.from_iterable(column_batches(stream, column)):
            number += 1
            try:
                row = _row_of_value(number, cell.as_py())
            except UnicodeDecodeError:
                row = refused_row(number, "The text is not UTF-8.")
            yield row
    except (*_PARQUET_ERRORS, ValueError) as error:
        yield refused_row(number + 1, read_problem(error))


# Each file extension has a reader, which yields the rows of a file.

Reader = Callable[[Iterator[InputLine], str, str | None], Iterator[FileRow]]

PARQUET = ".parquet"
READERS: Mapping[str, Reader] = MappingProxyType(
    {
        ".txt": _text_rows,
        ".text": _text_rows,
        ".csv": _table_rows,
        ".tsv": _table_rows,
        ".jsonl": _json_rows,
        ".ndjson": _json_rows,
        ".conllu": _conllu_rows,
        ".conll": _conll_rows,
        **dict.fromkeys(FASTA_ENDINGS, _fasta_rows),
    }
)
ENDINGS = (*READERS, PARQUET)
"""Extensions of the files that are read from a folder. One of `COMPRESSED_ENDINGS` may follow each extension
except .parquet."""
WITHOUT_COLUMNS = (".txt", ".text", ".conllu", ".conll", *FASTA_ENDINGS)


def ending_of(path: Path) -> str:
    """Return the extension that determines a file's format, such as ".csv" for "a.csv.gz"; "" if unknown."""
    name = path.name.lower()
    suffix = path.suffix.lower()
    uncompressed = name.removesuffix(suffix) if suffix in COMPRESSED_ENDINGS else name
    ending = Path(uncompressed).suffix
    return ending if ending in READERS or (ending == PARQUET and uncompressed == name) else ""


@contextmanager
def open_rows(path: Path, name: str, column: str | None) -> Iterator[Iterator[FileRow]]:
    """Open a file, and yield an iterator over its rows. The file extension determines the format.

    A file with an unknown extension is read as one sentence per line.

    Args:
        path: the path of the file.
        name: the name of the file, for error messages.
        column: the text column of a table. If None, the only column, or the column named "sentence" or
            "text".

    Raises:
        TextError: the file cannot be opened, or its header cannot be read.
        SelectionError: the column does not exist, or `column` is None and there are several columns.
    """
    if ending_of(path) == PARQUET:
        with open_file(path) as stream:
            yield _parquet_rows(stream, name, column)
    else:
        with open_lines(path) as file_lines:
            yield READERS.get(ending_of(path), _text_rows)(file_lines, name, column)


@contextmanager
def open_row_starts(path: Path, name: str, column: str | None) -> Iterator[Iterator[object]]:
    """Open a file, and yield an iterator with one item per row, in order to count the rows.

    This is faster than `open_rows` for tagged sentences, because most of these sentences are not parsed.
    """
    ending = ending_of(path)
    if ending in (".conllu", ".conll"):
        with open_lines(path) as file_lines:
            yield _tagged_starts(file_lines, treebank=ending == ".conllu")
    else:
        with open_rows(path, name, column) as rows:
            yield rows
