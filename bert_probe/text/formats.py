"""Detect the format of text files, read CSV, JSON lines and FASTA, and collect the errors in a file."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Protocol, overload

from bert_probe.errors import EmptyTextError, InvalidFileError, TextError
from bert_probe.model.lengths import MAX_CHARACTERS
from bert_probe.text import strict_json
from bert_probe.text.strict_json import DuplicateKeyError

LINES, TABLE, JSON_LINES, CONLL, CONLLU = "lines", "table", "JSON lines", "CoNLL", "CoNLL-U"
FASTA = "FASTA"
FASTA_ENDINGS = (".fasta", ".fa", ".faa", ".fna")
_JSON, _MARKUP = "JSON", "markup"

_ENDINGS = {
    ".csv": TABLE,
    ".tsv": TABLE,
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
    ".conll": CONLL,
    ".conllu": CONLLU,
    **dict.fromkeys(FASTA_ENDINGS, FASTA),
}
_DESCRIPTIONS = {
    LINES: "plain text",
    TABLE: "a CSV or TSV table",
    JSON_LINES: "JSON lines",
    CONLL: "CoNLL",
    CONLLU: "CoNLL-U",
    FASTA: "FASTA",
    _JSON: "JSON",
    _MARKUP: "HTML or XML",
}
_REMEDIES = {
    LINES: "Change the file extension to .txt",
    TABLE: "Change the file extension to .csv or .tsv",
    JSON_LINES: "Change the file extension to .jsonl",
    CONLL: "Change the file extension to .conll",
    CONLLU: "Change the file extension to .conllu",
    FASTA: "Change the file extension to .fasta",
    _JSON: "Save the data as JSON Lines, with one object per line",
    _MARKUP: "Save the content as plain text, or a table as CSV",
}
_SAMPLE = 50
"""Number of lines that are inspected to detect the format."""
_MIN_LINES = 3
"""Minimum number of lines from which columns are detected; fewer lines may look like columns by chance."""
_HEADER_CELL = re.compile(r"[^\W\d][\w.-]{0,40}")
_COLUMNS = {"text", "sentence", "text_a", "text_b", "label", "labels"}
_TAG = re.compile(r"[BIOES]-\S+|O|[A-Z]{1,6}\$?|[.,:;!?]")
_SENTENCE_WORDS = 6
"""Minimum number of words in a first line that is treated as a sentence rather than as a header."""


def format_of(name: str) -> str:
    """Return the format that a file's extension indicates; unknown extensions indicate plain text."""
    return _ENDINGS.get(Path(name).suffix.lower(), LINES)


def check_format(lines: Iterator[str], name: str, read_as: str, as_named: bool) -> Iterator[str]:
    """Return the lines unchanged, or raise an error if they look like another format.

    Args:
        lines: the lines of the file.
        name: file name for the error message.
        read_as: the format in which the lines will be parsed.
        as_named: whether to skip the check.

    Raises:
        TextError: the lines look like another format.
    """
    if as_named:
        return lines
    start = list(islice(lines, _SAMPLE))
    detected = looks_like([line.rstrip("\n") for line in start], read_as)
    if detected not in ("", read_as):
        raise TextError(
            f"{name} is read as {_DESCRIPTIONS[read_as]}, but it looks like {_DESCRIPTIONS[detected]}. "
            f"{_REMEDIES[detected]}. If the file really is {_DESCRIPTIONS[read_as]}, pass --as-named."
        )
    return chain(start, lines)


def looks_like(lines: Sequence[str], read_as: str) -> str:
    """Return the format that the first lines of a file look like; "" if the format is unclear.

    Lines with columns are a table only if they begin with a header whose cells are single words.

    Args:
        lines: the first lines of the file.
        read_as: the format in which the file will be parsed. For CoNLL, tabs do not indicate a table; for a
            table, a first line that is a sentence indicates plain text.
    """
    filled = [line for line in lines if line.strip()]
    if not filled:
        return ""
    first = filled[0].lstrip()
    if re.match(r"<(!doctype\s+html|html|\?xml)\b", first, re.IGNORECASE):
        return _MARKUP
    if first[0] in "{[" and (kind := _json_kind(filled)):
        return kind
    if is_fasta(filled):
        return FASTA
    if _is_treebank(filled):
        return CONLLU
    if _is_conll(lines):
        return CONLL
    if _is_table(filled, ",;" if read_as in (CONLL, CONLLU) else "\t,;"):
        return TABLE
    return LINES if read_as == TABLE and _is_sentence(filled[0]) else ""


_SEQUENCE = re.compile(r"[A-Za-z*.-]{2,}")


def is_fasta(lines: Sequence[str]) -> bool:
    """Return whether lines are FASTA: a header with a name, followed by a line with only a sequence."""
    filled = [line.strip() for line in lines[:_SAMPLE] if line.strip() and not line.startswith(";")]
    return (
        len(filled) > 1
        and bool(re.match(r">\s*\S", filled[0]))
        and bool(_SEQUENCE.fullmatch("".join(filled[1].split())))
        and len(filled[1].split()[0]) > 1
    )


def _json_kind(filled: Sequence[str]) -> str:
    values = [_parsed(line) for line in filled[:5]]
    if all(isinstance(value, dict) for value in values):
        return JSON_LINES
    begins = filled[0].strip() in ("{", "[", "[{")
    return _JSON if begins or all(isinstance(value, dict | list) for value in values) else ""


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_treebank(filled: Sequence[str]) -> bool:
    words = [line for line in filled if not line.startswith("#")]
    return bool(words) and all(
        re.match(r"[0-9]+([-.][0-9]+)?\t", line) and line.count("\t") == 9 for line in words
    )


def _is_conll(lines: Sequence[str]) -> bool:
    """Return whether every line contains a word and a tag, with blank lines between sentences."""
    filled = [line.split() for line in lines if line.strip() and not line.startswith("# ")]
    widths = {len(columns) for columns in filled}
    return (
        len(filled) >= _MIN_LINES
        and len(widths) == 1
        and min(widths) >= 2
        and any(not line.strip() for line in lines[:-1])
        and all(_TAG.fullmatch(columns[-1]) for columns in filled)
    )


def _is_table(filled: Sequence[str], separators: str) -> bool:
    """Return whether lines are a table: a header of single words, and rows with as many cells as the header.

    Args:
        filled: the lines that are not blank.
        separators: the characters that may separate the cells.
    """
    if len(filled) < 2:
        return False
    for separator in separators:
        try:
            rows = list(csv_reader((f"{line}\n" for line in filled), separator))
        except csv.Error:  # the sample is not CSV, or ends within a quoted cell
            continue
        header = [cell.casefold() for cell in rows[0]]
        widths = {len(row) for row in rows}
        if len(widths) == 1 and min(widths) >= 2 and all(_HEADER_CELL.fullmatch(cell) for cell in header):
            # Lines of plain text may also contain a tab, between two texts or between a label and a text.
            return len({*header}) == len(header) and (separator != "\t" or bool(_COLUMNS & {*header}))
    return False


def _is_sentence(line: str) -> bool:
    """Return whether the first line of a table is probably a sentence rather than a header."""
    words = line.split()
    return not any(mark in line for mark in "\t;,") and (
        len(words) >= _SENTENCE_WORDS or (len(words) > 1 and words[-1].endswith((".", "!", "?")))
    )


class CsvReader(Protocol):
    """The type of the objects that `csv.reader` returns, which has no public name."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


def csv_reader(lines: Iterable[str], separator: str) -> CsvReader:
    """Return a strict CSV reader that accepts cells of up to `MAX_CHARACTERS` characters."""
    # The limit applies to the whole process, so it must not be lowered.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CHARACTERS))
    return csv.reader(lines, delimiter=separator, strict=True)


def check_unique_columns(columns: Iterable[str], header: Sequence[str], name: str) -> None:
    """Raise an error if one of `columns` occurs several times in the header of a table.

    Raises:
        TextError: a column occurs several times; `name` is the name of the file.
    """
    for column in columns:
        if header.count(column) > 1:
            raise TextError(f"{name} has several columns named {column}. Keep one of these columns.")


def describe_csv_error(error: csv.Error) -> str:
    """Return a message for an error that the CSV reader raises, without the final period."""
    if "field limit" not in str(error):
        return str(error)
    return f"a cell has more than {MAX_CHARACTERS:,} characters, or its quotation mark is not closed"


_SAMPLE_OBJECTS = 100
"""Number of lines at the start of a JSON lines file whose keys form the header."""


LIST_COLUMNS = ("label", "labels")
"""Names of the columns whose cells may be lists of strings."""


class LabelList(str):
    """A cell whose value is a list of strings, joined by |."""

    __slots__ = ()


class NonTextCell(str):
    """A cell whose JSON value is neither text nor a finite number; contains its type, such as "a list"."""

    __slots__ = ()


class JsonRow(Sequence[str]):
    """A JSON object as a row of a table. A cell is converted only when it is read.

    Converting all cells would be slow for a file with many keys and many lines.
    """

    def __init__(self, header: Sequence[str], value: Mapping[str, object], name: str, line: int) -> None:
        self._header, self._value, self._name, self._line = header, value, name, line

    @property
    def keys(self) -> Iterable[str]:
        """The keys of the object, which may include keys that the header lacks."""
        return self._value.keys()

    def __len__(self) -> int:
        return len(self._header)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        key = self._header[index]
        return _cell(key, self._value.get(key), self._name, self._line)


class BrokenRow(list[str]):
    """A row of a table that cannot be read. It has no cells.

    Attributes:
        problem: a phrase that describes what is wrong, without a final period.
    """

    def __init__(self, problem: str) -> None:
        super().__init__()
        self.problem = problem


def json_table(
    lines: Iterator[str], name: str, keep_broken: bool = False
) -> tuple[list[str], Iterator[tuple[int, Sequence[str]]]]:
    """Read a JSON lines file as a table. Return its header, and an iterator over (line number, row) pairs.

    A JSON string becomes a row with the column "text". Numbers become digits, null and NaN become an empty
    cell, and lists of labels are joined by "|".

    Args:
        lines: the lines of the file.
        name: file name for error messages.
        keep_broken: yield a `BrokenRow` for a line that cannot be read, instead of raising an error.

    Raises:
        TextError: a line is not JSON.
        EmptyTextError: there are no lines.
    """
    objects = ((number, _object(line)) for number, line in enumerate(lines, 1) if line.strip())
    sample = list(islice(_checked(objects, name, keep_broken), _SAMPLE_OBJECTS))
    if not sample:
        raise EmptyTextError(f"{name} is empty. Write one JSON object with a text per line.")
    header = list(dict.fromkeys(key for _, value in sample if isinstance(value, dict) for key in value))
    header = header or ["text"]  # use a default header if all lines of the sample are broken
    values = chain(sample, _checked(objects, name, keep_broken))
    return header, (
        (number, JsonRow(header, value, name, number) if isinstance(value, dict) else value)
        for number, value in values
    )


_JsonLine = tuple[int, dict[str, object] | BrokenRow]
"""A line number, and the JSON object in the line, or a `BrokenRow` if the line cannot be read."""


def _checked(objects: Iterator[_JsonLine], name: str, keep_broken: bool) -> Iterator[_JsonLine]:
    for number, value in objects:
        if isinstance(value, BrokenRow) and not keep_broken:
            raise TextError(
                f"{name} is invalid in line {number:,}: {value.problem}. Write one object per line."
            )
        yield number, value


def _object(line: str) -> dict[str, object] | BrokenRow:
    try:
        value = strict_json.loads(line)
    except json.JSONDecodeError as error:
        return BrokenRow(f"{error.msg}, at character {error.colno:,}")
    except DuplicateKeyError as error:
        return BrokenRow(str(error))
    except (ValueError, RecursionError):
        return BrokenRow("a number has too many digits, or objects are nested too deeply")
    if isinstance(value, str):
        return {"text": value}
    return value if isinstance(value, dict) else BrokenRow("the value is neither an object nor a string")


def _cell(key: str, value: object, name: str, number: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "" if math.isnan(value) else NonTextCell("an infinite number")  # pandas writes null as NaN
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        if key.casefold() not in LIST_COLUMNS:
            return NonTextCell("a list")
        if not all(isinstance(item, str) and "|" not in item for item in value):
            return NonTextCell("a list with a value that is not a string or contains |")
        value = LabelList("|".join(value))
    if not isinstance(value, str):
        return NonTextCell("an object")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise TextError(
            f"{name}, line {number:,}: a text contains a NUL character or an unpaired surrogate. Remove the "
            "NUL character or surrogate."
        )
    return value


MAX_LISTED = 10
"""Maximum number of errors listed in the message about a file. Further errors are only counted."""


MAX_LABEL_LENGTH = 1_000
"""Maximum number of characters of a label or tag."""


def label_error(label: str) -> str:
    """Return an error message for a label or tag that is too long; otherwise ""."""
    if len(label) <= MAX_LABEL_LENGTH:
        return ""
    return f"a label has {len(label):,} characters, but at most {MAX_LABEL_LENGTH:,} are supported"


_CORRECT_FILE = "Correct the file, and open the file again."


class ValidationErrors:
    """Collects the errors in a file to report them together.

    Attributes:
        name: file name, for error messages.
        unit: unit of the error numbers, such as "line".
        remedy: sentence that tells the user what to do.
        found: (line number, message) pairs of the first `MAX_LISTED` errors.
        count: total number of errors.
    """

    def __init__(self, name: str, unit: str = "line", remedy: str = _CORRECT_FILE) -> None:
        self.name, self.unit, self.remedy = name, unit, remedy
        self.found: list[tuple[int, str]] = []
        self.count = 0

    def add(self, line: int, message: str) -> None:
        """Add an error in a line of the file. Lines count from 1."""
        self.count += 1
        if len(self.found) < MAX_LISTED:
            self.found.append((line, message))

    def extend(self, errors: ValidationErrors) -> None:
        """Add the errors that another `ValidationErrors` object collected in a section of the file."""
        self.found += errors.found[: MAX_LISTED - len(self.found)]
        self.count += errors.count

    def check(self) -> None:
        """Raise an exception if any errors were added.

        Raises:
            InvalidFileError: errors were added. The message lists the first errors and counts the rest.
        """
        if not self.count:
            return
        listed = "; ".join(f"{self.unit} {line:,}: {error.rstrip('.')}" for line, error in self.found)
        more = f"; and {self.count - len(self.found):,} more" if self.count > len(self.found) else ""
        number = "an error" if self.count == 1 else f"{self.count:,} errors"
        message = f"{self.name} has {number}: {listed}{more}. {self.remedy}"
        raise InvalidFileError(message, self.found, self.count)


ALLOWED = "letters and the characters . - *"
"""The characters allowed in a FASTA sequence, for error messages: residues or nucleotides in upper or lower
case, stops and gaps."""
_INVALID = re.compile(r"[^A-Za-z*.-]")


@dataclass
class FastaRecord:
    """A record of a FASTA file.

    Attributes:
        line: line number of the header, from 1.
        name: first word of the header.
        description: the remaining words of the header.
        sequence: the sequence without line breaks; case, stops and gaps are unchanged.
        errors: the errors in the lines of the record.
    """

    line: int
    name: str
    description: str = ""
    sequence: str = ""
    errors: ValidationErrors = field(default_factory=lambda: ValidationErrors("The record"))


def read_records(
    lines: Iterable[tuple[int, str]], max_length: int | None = None, unique: bool = True
) -> Iterator[FastaRecord]:
    """Yield the records of a FASTA file. Blank lines and comments, which begin with ";", are skipped.

    Args:
        lines: line number and text of each line.
        max_length: maximum length of a sequence. A longer sequence is an error and is not stored.
        unique: whether a duplicate name is an error.
    """
    header_lines: dict[str, int] = {}
    record: FastaRecord | None = None
    parts: list[str] = []
    size = 0
    for number, line in lines:
        text = line.strip()
        if not text or text.startswith(";"):
            continue
        if text.startswith(">"):
            if record is not None:
                yield _finish(record, parts, size, max_length)
            record, parts, size = _start(number, text, header_lines if unique else {}), [], 0
            continue
        if record is None:
            record = FastaRecord(number, "")
            record.errors.add(
                number,
                "there is text before the first header. Begin each record with > and the name of the record",
            )
        part = "".join(text.split())
        if invalid := sorted(set(_INVALID.findall(part))):
            listed = " ".join(repr(character) for character in invalid[:5])
            record.errors.add(number, f"the sequence contains {listed}, but may contain only {ALLOWED}")
        size += len(part)
        if max_length is None or size <= max_length:
            parts.append(part)
    if record is not None:
        yield _finish(record, parts, size, max_length)


def _start(number: int, text: str, header_lines: dict[str, int]) -> FastaRecord:
    name, _, description = text[1:].strip().partition(" ")
    record = FastaRecord(number, name, description.strip())
    if not name:
        record.errors.add(number, "the header has no name. Write a name after >")
    elif name in header_lines:
        record.errors.add(number, f"the name {name[:100]} is also in line {header_lines[name]:,}")
    header_lines.setdefault(name, number)
    return record


def _finish(record: FastaRecord, parts: list[str], size: int, max_length: int | None) -> FastaRecord:
    if not size:
        record.errors.add(record.line, "the record has no sequence")
    elif max_length is not None and size > max_length:
        record.errors.add(record.line, f"the sequence is longer than {max_length:,} characters")
    else:
        record.sequence = "".join(parts)
    return record


def parse_fasta(
    lines: Iterable[str], name: str, max_records: int | None = None, remedy: str = _CORRECT_FILE
) -> list[FastaRecord]:
    """Return the records of a FASTA file.

    Args:
        lines: the lines of the file.
        name: file name for error messages.
        max_records: maximum number of records to read. Further records are ignored.
        remedy: see `ValidationErrors`.

    Raises:
        InvalidFileError: lines are invalid; the message lists the errors.
        EmptyTextError: there are no records.
    """
    records: list[FastaRecord] = []
    errors = ValidationErrors(name, remedy=remedy)
    for record in islice(read_records(enumerate(lines, 1)), max_records):
        errors.extend(record.errors)
        if errors.count:
            records.clear()  # free the memory, because no records are returned after an error
        else:
            records.append(record)
    errors.check()
    if not records:
        raise EmptyTextError(f"{name} has no sequences. Write a header, such as >name, before each sequence.")
    return records


def records_in_text(text: str, name: str, max_records: int | None = None) -> list[FastaRecord]:
    """Return the FASTA records in a typed text, at most `max_records`; [] if the text is not FASTA.

    Raises:
        InvalidFileError: the text is FASTA with invalid lines.
    """
    lines = text.splitlines()
    return parse_fasta(lines, name, max_records, "Correct the text.") if is_fasta(lines) else []


def single_record(text: str) -> FastaRecord | None:
    """Return the single FASTA record in a typed text; None if the text is not FASTA.

    Raises:
        TextError: the text has several records, or invalid lines.
    """
    records = records_in_text(text, "The text")
    if len(records) > 1:
        raise TextError(
            f"The text has {len(records):,} FASTA records, but this input accepts a single sequence. Keep "
            "one record. To use several, save the records to a file for Sentences, Search or a corpus."
        )
    return records[0] if records else None
