"""Read FASTA: sequences of proteins or nucleic acids, each after a header line that begins with ">"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from bert_probe.errors import EmptyTextError, TextError
from bert_probe.text.formats import ValidationErrors, is_fasta

ALLOWED = "letters, ., - and *"
"""The characters of a sequence: residues or nucleotides in either case, stops and gaps."""
_INVALID = re.compile(r"[^A-Za-z*.-]")


@dataclass
class FastaRecord:
    """A record of a FASTA file.

    Attributes:
        line: line number of its header, from 1.
        name: first word of the header.
        description: the remaining words of the header.
        sequence: the sequence on one line, as it is written: case, stops and gaps are kept.
        errors: the errors in its lines.
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
        unique: whether a name that occurs again is an error.
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
            record.errors.add(number, "text before the first header. Begin each record with > and its name")
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


def parse_fasta(lines: Iterable[str], name: str, max_records: int | None = None) -> list[FastaRecord]:
    """Return the records of a FASTA file.

    Args:
        lines: the lines of the file.
        name: file name for error messages.
        max_records: maximum number of records to read. Further records are ignored.

    Raises:
        InvalidFileError: lines are invalid; the message lists the errors.
        EmptyTextError: there are no records.
    """
    records: list[FastaRecord] = []
    errors = ValidationErrors(name)
    for record in islice(read_records(enumerate(lines, 1)), max_records):
        errors.extend(record.errors)
        if errors.count:
            records.clear()  # they are not returned
        else:
            records.append(record)
    errors.check()
    if not records:
        raise EmptyTextError(f"{name} has no sequences. Write a header, such as >name, before each sequence.")
    return records


def records_in_text(text: str, name: str) -> list[FastaRecord]:
    """Return the FASTA records of a typed text; [] if it is not FASTA.

    Raises:
        InvalidFileError: the text is FASTA with invalid lines.
    """
    lines = text.splitlines()
    return parse_fasta(lines, name) if is_fasta(lines) else []


def single_record(text: str) -> FastaRecord | None:
    """Return the record of a typed text that is FASTA; None if it is not FASTA.

    Raises:
        TextError: the text has several records, or invalid lines.
    """
    records = records_in_text(text, "The text")
    if len(records) > 1:
        raise TextError(
            f"The text has {len(records):,} FASTA records, but this input accepts a single sequence. Keep "
            f"one "
            "record. To use several, save the records to a file for Sentences, Search or a corpus."
        )
    return records[0] if records else None
