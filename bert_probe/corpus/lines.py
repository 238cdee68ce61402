"""Read the lines of a file of any size, one at a time, and continue after a line that cannot be read."""

from __future__ import annotations

import codecs
import gzip
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import pyarrow as pa

from bert_probe.errors import TextError

COMPRESSED_ENDINGS = (".gz", ".zst")
"""Endings of files that are decompressed while they are read."""
MAX_LINE = 1_000_000
"""Maximum bytes of a line; a longer line is skipped without being held in memory."""

_CHUNK = 1 << 16
_READ_ERRORS = (OSError, EOFError, zlib.error, pa.ArrowException)


class InputLine(NamedTuple):
    """A line of a file without its line end.

    Attributes:
        number: line number, from 1.
        text: None if nothing can be read; if there is a problem, it may contain surrogate escapes.
        problem: why the line is not a valid text, as a sentence; else "".
    """

    number: int
    text: str | None
    problem: str = ""


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[InputLine]]:
    """Yield the lines of a file, decompressed according to its name.

    If the rest of the file cannot be read, the last line has a problem.

    Raises:
        TextError: the path is not a regular file, or cannot be opened.
    """
    with open_decompressed(path) as stream:
        yield _lines(stream)


@contextmanager
def open_decompressed(path: Path) -> Iterator[BinaryIO]:
    """Yield the content of a file as a stream, decompressed according to its name."""
    ending = path.suffix.lower()
    with open_file(path) as stream:
        if ending == ".gz":
            with gzip.open(stream) as content:
                yield cast(BinaryIO, content)
        elif ending == ".zst":
            # Unlike other Zstandard readers, Arrow raises an error if the file was cut off.
            with pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd") as content:
                yield content
        else:
            yield stream


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading bytes.

    Raises:
        TextError: the path cannot be opened, or is not a regular file: a pipe or a device may have no end.
    """
    try:
        is_regular = stat.S_ISREG(path.stat().st_mode)
        stream = path.open("rb") if is_regular else None
    except (OSError, ValueError) as error:  # a ValueError if the name has a NUL
        raise TextError(f"{path} cannot be opened: {describe_error(error)}. Check the path.") from None
    if stream is None:
        raise TextError(f"{path} is not a regular file. Write its content to a file, and use that.")
    with stream:
        yield stream


def describe_error(error: Exception) -> str:
    """Return the message of an error of the system or of a decoder, without the full stop."""
    return str(getattr(error, "strerror", None) or error).rstrip(".")


def read_problem(error: Exception) -> str:
    """Return why the rest of a file cannot be read, as a sentence.

    Decompression notices damage late, so lines before the error may be damaged too.
    """
    is_system_error = isinstance(error, OSError) and error.errno is not None
    warning = "" if is_system_error else ", and what comes before may be damaged"
    return f"From here on the file cannot be read{warning}: {describe_error(error)}."


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
    return InputLine(number, text, "The line contains a NUL." if "\0" in text else "")


def _split_lines(stream: BinaryIO) -> Iterator[bytes | None]:
    r"""Yield lines without their ends, which are \n, \r or \r\n; None for a line that is too long."""
    pending: bytes | None = b""  # the start of a line that goes on in the next chunk
    after_return = False  # the previous chunk ended with "\r", which may be the first half of "\r\n"
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
