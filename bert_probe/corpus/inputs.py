"""What a corpus is made of: files that are checked before anything runs, and their rows as a stream."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path

from bert_probe.corpus.formats.endings import PARQUET, WITHOUT_COLUMNS, ending_of, places_of, rows_of
from bert_probe.corpus.formats.row import FileRow, refused
from bert_probe.corpus.input_files import ENDINGS, meant
from bert_probe.corpus.lines import lines_of, opened, reason_of, unpacked
from bert_probe.errors import EmptyTextError, ProbeError, SelectionError, TextError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.text.formats import JSON_LINES, TABLE, checked, format_of
from bert_probe.text.tagged_sentences import TaggedSentence

_CHUNK = 1 << 20
_TOLD = 1000
"""Records that are counted before somebody is told."""


@dataclass(frozen=True, slots=True)
class MatchedFile:
    """A file to be read.

    Attributes:
        name: as the reader knows it: below the folder or the pattern that found it, or as it was given.
            No two files of a run have the same.
        path: where it lies.
    """

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class InputFile(MatchedFile):
    """A file, and what tells it from one that was changed.

    Attributes:
        size: in bytes.
        sha256: of its bytes, packed as they are.
        stamp: what changes with its bytes and is read without them: inode, size and time of modification.
    """

    size: int
    sha256: str
    stamp: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Record:
    """A row of the inputs.

    Attributes:
        row: from 1, over all files in order; those without a text count too.
        file: its name.
        line: that it begins on, from 1; in Parquet, which has no lines, the number of the row in its file.
        text: without the spaces around it, and a space for each line break; None where it cannot be read.
        tagged: its words with their tags, where the format has them.
        trouble: why there is no text, as a sentence; else "".
    """

    row: int
    file: str
    line: int
    text: str | None
    tagged: TaggedSentence | None = None
    trouble: str = ""


def find_inputs(
    given: Sequence[str | Path] | str | Path, column: str | None = None, as_named: bool = False
) -> tuple[MatchedFile, ...]:
    """The files that are meant, each once, in the order given; those of a folder or a pattern by name.

    A folder gives all that have one of `ENDINGS`, at any depth; so does a pattern such as ``data/**/*.txt``.
    Hidden files are left out, and links to folders are not followed. A file that is named itself may end in
    anything, and is then a text with a sentence a line.

    Args:
        column: of the tables among them; None takes the only one, or the one called sentence or text.
        as_named: read files as their endings say, even if they look like another format.

    Raises:
        TextError: a file cannot be opened, is none that can be read, or looks like another format;
            EmptyTextError: there is none.
        SelectionError: a table has no such column, or several and none named.
    """
    every = [given] if isinstance(given, (str, Path)) else given
    files = _named(chain.from_iterable(meant(one) for one in every))
    if not files:
        raise EmptyTextError("There is nothing to read. Give files, folders or patterns.")
    for file in files:
        _check(file, column)
        if not as_named and ending_of(file.path) != PARQUET:
            _check_format(file, column)
    if column is not None and all(ending_of(file.path) in ("", *WITHOUT_COLUMNS) for file in files):
        raise SelectionError(
            f"None of the files has columns, so there is none called {column}. Leave it out."
        )
    return files


def described(files: Sequence[MatchedFile], report: Progress = no_progress) -> tuple[InputFile, ...]:
    """The files with their sizes and digests.

    Args:
        report: is told how many bytes are read, and how many there are.

    Raises:
        TextError: a file cannot be read.
    """
    done, found = 0, []
    try:
        total = sum(file.path.stat().st_size for file in files)
        for file in files:
            stamp = _stamp(file)
            size, digest = _digest(file, report, done, total)
            done += size
            found.append(InputFile(file.name, file.path, size, digest, stamp))
    except OSError as error:
        raise TextError(f"{error.filename or 'A file'} cannot be read: {reason_of(error)}.") from None
    check_unchanged(found)
    return tuple(found)


def check_unchanged(files: Sequence[InputFile]) -> None:
    """Refuse files that are no longer what `described` read.

    Raises:
        TextError: one has other bytes, or is gone.
    """
    for file in files:
        try:
            if _stamp(file) == file.stamp:
                continue
            same = _digest(file)[1] == file.sha256  # it may have been touched, or written with the same bytes
        except OSError:
            same = False
        if not same:
            raise TextError(
                f"{file.name} changed while it was read, so that two versions of it would be mixed. What was "
                "written is of the first version. Run the corpus again, into another folder, when nothing "
                "writes to its inputs."
            )


def _digest(
    file: MatchedFile, report: Progress = no_progress, done: int = 0, total: int = 0
) -> tuple[int, str]:
    """Return the number of bytes and the SHA-256 of a file; ``done`` is the number of bytes before it."""
    digest, size = hashlib.sha256(), 0
    with opened(file.path) as stream:
        while piece := stream.read(_CHUNK):
            digest.update(piece)
            size += len(piece)
            report(done + size, total)
    return size, digest.hexdigest()


def _stamp(file: MatchedFile) -> tuple[int, ...]:
    status = file.path.stat()
    # The time of the last change of the inode cannot be set back, unlike the modification time.
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _named(meant: Iterable[tuple[str, Path]]) -> tuple[MatchedFile, ...]:
    """Each file once, under a name of its own."""
    found: dict[str, MatchedFile] = {}
    names: set[str] = set()
    for short, path in meant:
        place = os.path.realpath(path)
        if place not in found:
            told = (
                _legible(one) for one in chain((short, path.as_posix()), (f"{short} ({n})" for n in count(2)))
            )
            name = next(one for one in told if one not in names)
            names.add(name)
            found[place] = MatchedFile(name, path)
    return tuple(found.values())


def _legible(name: str) -> str:
    """A name that can be written down: of a file it may hold any bytes."""
    return os.fsencode(name).decode(errors="replace")


def _check(file: MatchedFile, column: str | None) -> None:
    """Read the header of a file, or look whether one of an unknown ending can be a text."""
    if ending_of(file.path):
        with rows_of(file.path, file.name, column):
            return
    if {".json", PARQUET} & {suffix.lower() for suffix in file.path.suffixes[-2:]}:
        raise TextError(f"{file.name} is not read as it is. Give {' or '.join(ENDINGS)}.")
    try:
        with unpacked(file.path) as stream:
            text = b"\0" not in stream.read(_CHUNK)
    except (OSError, EOFError) as error:
        raise TextError(f"{file.name} cannot be unpacked: {reason_of(error)}.") from None
    if not text:
        raise TextError(f"{file.name} is no text in UTF-8: it holds a NUL. Give {' or '.join(ENDINGS)}.")


def _check_format(file: MatchedFile, column: str | None) -> None:
    """Refuse a file whose first lines look like another format than its ending says."""
    read_as = format_of(f"file{ending_of(file.path)}")
    if read_as in (TABLE, JSON_LINES) and column is not None:  # whose header was found
        return
    with lines_of(file.path) as lines:
        checked((f"{line.text or ''}\n" for line in lines), file.name, read_as, as_named=False)


def records(files: Iterable[MatchedFile], column: str | None = None) -> Iterator[Record]:
    """The rows of files, as they are read: what is held of a file does not grow with it.

    The same files give the same records. Blank lines are none. What cannot be read is a record with its
    trouble, and the rest goes on; a file that cannot be read to its end has one such record for what is left.

    Args:
        column: of the tables among them; None takes the only one, or the one called sentence or text.
    """
    number = 0
    for file in files:
        for row in _rows(file, column):
            number += 1
            yield Record(number, file.name, row.line, row.text, row.tagged, row.trouble)


def count_records(
    files: Iterable[MatchedFile], column: str | None = None, report: Progress = no_progress
) -> int:
    """How many `records` there are, found without reading what tagged sentences say.

    Args:
        report: is told now and then how many are counted; nobody knows of how many.
    """
    number = 0
    for file in files:
        for _ in _places(file, column):
            number += 1
            if number % _TOLD == 0:
                report(number, 0)
    return number


def _places(file: MatchedFile, column: str | None) -> Iterator[object]:
    try:
        with places_of(file.path, file.name, column) as places:
            yield from places
    except ProbeError as error:  # see `_rows`
        yield error


def _rows(file: MatchedFile, column: str | None) -> Iterator[FileRow]:
    try:
        with rows_of(file.path, file.name, column) as rows:
            yield from rows
    except ProbeError as error:  # it was changed since it was found
        yield refused(1, str(error))
