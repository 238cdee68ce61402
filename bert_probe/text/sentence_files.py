"""Read sentences from files, with one sentence per line or in a column of a table."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, cast

from bert_probe.errors import EmptyTextError, SelectionError, TextError
from bert_probe.model.lengths import check_list
from bert_probe.text.formats import (
    FASTA,
    LINES,
    FastaRecord,
    NonTextCell,
    check_format,
    format_of,
    parse_fasta,
    records_in_text,
)
from bert_probe.text.tables import find_column, is_table, table_of

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
        TextError: `sentences` is a string or a table instead of a list.
        EmptyTextError: all sentences are blank.
    """
    check_list(sentences, item_name)
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


def is_utf_8(path: Path) -> bool:
    """Return whether an absolute path is UTF-8, so that pages, JSON and Parquet can contain it."""
    return not any("\ud800" <= character <= "\udfff" for character in str(path.resolve()))


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
            if line == 1 and error.object.startswith(b"PAR1"):
                raise TextError(
                    f"{name} is a Parquet file, which this command does not read. Save the table as CSV or "
                    "JSON lines."
                ) from None
            line += len(_LINE_END.findall("\r" * has_pending_return + error.object[: error.start].decode()))
            raise TextError(
                f"{name} is not UTF-8, because line {line:,} cannot be decoded. Save the file as UTF-8."
            ) from None
        line += text.count("\n")
        yield text
        if not chunk:
            return
