"""Lines of a file of any size, one at a time; what is wrong with one is said of it and ends nothing."""

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

PACKED = (".gz", ".zst")
"""Endings of files that are unpacked while they are read."""
MAX_LINE = 1_000_000
"""Bytes in a line; what a longer one holds is passed over piece by piece."""

_CHUNK = 1 << 16
_BROKEN = (OSError, EOFError, zlib.error, pa.ArrowException)


class InputLine(NamedTuple):
    """A line as it stands, without its end.

    Attributes:
        number: from 1, as editors count.
        text: None where there is nothing to go on with; it may hold stand-ins where there is trouble.
        trouble: why it must not be taken for a text, as a sentence; else "".
    """

    number: int
    text: str | None
    trouble: str = ""


@contextmanager
def lines_of(path: Path) -> Iterator[Iterator[InputLine]]:
    """The lines of a file, unpacked where its name says so; one that cannot be read further ends in trouble.

    Raises:
        TextError: it is no ordinary file, or cannot be opened.
    """
    with unpacked(path) as stream:
        yield _lines(stream)


@contextmanager
def unpacked(path: Path) -> Iterator[BinaryIO]:
    """What a file holds, as a stream; see `lines_of`."""
    packing = path.suffix.lower()
    with opened(path) as stream:
        if packing == ".gz":
            with gzip.open(stream) as inner:
                yield cast(BinaryIO, inner)
        elif packing == ".zst":
            # Other readers of Zstandard take a file that was cut off for a whole one.
            with pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd") as inner:
                yield inner
        else:
            yield stream


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file's bytes as they are.

    Raises:
        TextError: it is no ordinary file, which may have no end or wait for ever; or it cannot be opened.
    """
    try:
        ordinary = stat.S_ISREG(path.stat().st_mode)
        stream = path.open("rb") if ordinary else None
    except (OSError, ValueError) as error:  # a ValueError where the name holds a NUL
        raise TextError(f"{path} cannot be opened: {reason_of(error)}. Check the path.") from None
    if stream is None:
        raise TextError(f"{path} is no ordinary file. Write what it gives to a file, and give that.")
    with stream:
        yield stream


def reason_of(error: Exception) -> str:
    """What an error of the system or of a decoder says, without the full stop."""
    return str(getattr(error, "strerror", None) or error).rstrip(".")


def broken_off(error: Exception) -> str:
    """Why a file cannot be read to its end. What is packed is known to be damaged only some way behind."""
    system = isinstance(error, OSError) and error.errno is not None
    before = "" if system else ", and what comes before may be damaged"
    return f"From here on the file cannot be read{before}: {reason_of(error)}."


def _lines(stream: BinaryIO) -> Iterator[InputLine]:
    number = 0
    try:
        for number, content in enumerate(_parted(stream), 1):
            yield _decoded(number, content)
    except _BROKEN as error:
        yield InputLine(number + 1, None, broken_off(error))


def _decoded(number: int, content: bytes | None) -> InputLine:
    if content is None:
        return InputLine(number, None, f"The line is longer than {MAX_LINE:,} bytes.")
    if number == 1:
        content = content.removeprefix(codecs.BOM_UTF8)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return InputLine(number, content.decode(errors="surrogateescape"), "The line is not UTF-8.")
    return InputLine(number, text, "The line holds a NUL." if "\0" in text else "")


def _parted(stream: BinaryIO) -> Iterator[bytes | None]:
    r"""What stands between line ends, be they \n, \r or \r\n; None for what is too long."""
    begun: bytes | None = b""
    returned = False  # the piece before ended with "\r", which may be half of a line end
    while chunk := stream.read1(_CHUNK):  # type: ignore[attr-defined]
        piece = chunk[1:] if returned and chunk.startswith(b"\n") else chunk
        returned = piece.endswith(b"\r")
        *whole, rest = (
            [*piece.splitlines(), b""] if piece.endswith((b"\n", b"\r")) else piece.splitlines() or [b""]
        )
        for one in whole:
            yield _joined(begun, one)
            begun = b""
        begun = _joined(begun, rest)
    if begun != b"":
        yield begun


def _joined(begun: bytes | None, piece: bytes) -> bytes | None:
    return None if begun is None or len(begun) + len(piece) > MAX_LINE else begun + piece
