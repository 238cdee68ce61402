"""Documents for a search, read from files with one document per line or row.

The columns of a table are those of the BEIR benchmark: `_id`, `title` and `text`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from bert_probe.errors import EmptyTextError, SelectionError, TextError
from bert_probe.text.fasta import FastaRecord, parse_fasta, records_in_text
from bert_probe.text.formats import FASTA, LINES, NonTextCell, check_format, format_of
from bert_probe.text.sentence_files import (
    MAX_SENTENCES,
    find_column,
    is_table,
    lines,
    lines_of,
    open_file,
    table_of,
    unpack,
)

ID_COLUMNS = ("_id", "id", "document")
"""Names of the column with the IDs of the documents, in order of precedence."""
MAX_ID = 200
"""Maximum length of an ID in characters."""


class Document(str):
    """A document. The string is what a model reads: title and text, joined by a space.

    Attributes:
        id: ID of the document; "" if it has none.
        title: title of the document; "" if it has none.
        text: text of the document, without the title.
    """

    __slots__ = ("id", "text", "title")

    id: str
    title: str  # type: ignore[assignment]  # replaces str.title, which documents do not need
    text: str

    def __new__(cls, text: str, id: str = "", title: str = "") -> Document:  # noqa: A002
        """Create a document from its text, ID and title."""
        document = super().__new__(cls, f"{title} {text}".strip() if title else text)
        document.id, document.title, document.text = id, title, text
        return document

    def __getnewargs__(self) -> tuple[str, str, str]:  # type: ignore[override]
        return self.text, self.id, self.title

    @property
    def line(self) -> str:
        """The document as a line of a JSON lines file, without line break."""
        values = {"_id": self.id, "title": self.title, "text": self.text}
        return json.dumps({name: value for name, value in values.items() if value}, ensure_ascii=False)


def as_documents(texts: Iterable[str]) -> tuple[Document, ...]:
    """Return documents; the ID of one without an ID is its number, from 1.

    Raises:
        TextError: `texts` is a string, an item is not a string, or two documents have the same ID.
        EmptyTextError: there are no documents.
    """
    if isinstance(texts, str):
        raise TextError("Give a list of documents, not a string.")
    documents = []
    numbers: dict[str, int] = {}
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise TextError(f"Document {number:,} must be a string, not {type(text).__name__}.")
        document = text if isinstance(text, Document) else Document(text)
        document = document if document.id else Document(document.text, str(number), document.title)
        if document.id in numbers:
            raise TextError(
                f"Documents {numbers[document.id]:,} and {number:,} have the same ID, {document.id[:100]!r}. "
                "Give each document another ID."
            )
        numbers[document.id] = number
        documents.append(document)
    if not documents:
        raise EmptyTextError("There are no documents. Give one per line.")
    return tuple(documents)


def read_documents(file: str | Path, as_named: bool = False) -> tuple[Document, ...]:
    """Read documents from a text file, one per line, from the rows of a table, or from FASTA.

    The file may be compressed by gzip (.gz). Of a FASTA file (.fasta, .fa, .faa or .fna), each sequence is a
    document, with the name in its header as ID; descriptions are not read, because the model would read them
    with the sequence. A table is a .csv, .tsv, .jsonl or .ndjson file with a column
    `text` (or only one column), and optional columns `_id` and `title`. Without `_id`, the ID of a document
    is its number, from 1. Blank lines and documents without title and text are skipped.

    Args:
        file: a file in UTF-8.
        as_named: trust the file extension, even if the contents look like another format.

    Raises:
        TextError: the file cannot be opened, is not UTF-8, is a broken table, exceeds a limit, looks like
            another format, changes while it is read, or two documents have the same ID.
        EmptyTextError: the file has no documents.
        SelectionError: there is no column with the text.
    """
    with open_file(file) as (stream, name):
        return _documents(stream, name, as_named)


def parse_documents(content: BinaryIO, name: str) -> tuple[Document, ...]:
    """Read documents from an open file, as `read_documents` does.

    Args:
        name: the file name; its extension distinguishes tables from plain text.
    """
    return _documents(content, name, as_named=False)


def documents_in_text(text: str) -> list[str]:
    """Return the documents of a typed text: the sequences of FASTA records, paragraphs if empty lines
    separate them, or lines.

    Raises:
        InvalidFileError: the text is FASTA with invalid lines.
    """
    if records := records_in_text(text, "The text"):
        return list(map(_document_of_record, records))
    paragraphs = [part.strip() for part in re.split(r"\n[^\S\n]*\n", text) if part.strip()]
    return paragraphs if len(paragraphs) > 1 else list(lines(text))


def _document_of_record(record: FastaRecord) -> Document:
    return Document(record.sequence, record.name[:MAX_ID])


def document_of_line(line: str) -> Document:
    """Return the document that `Document.line` describes."""
    values = json.loads(line)
    return Document(values.get("text", ""), values.get("_id", ""), values.get("title", ""))


@dataclass(frozen=True)
class _Columns:
    """Indices of the columns of a table; None for a column that it lacks."""

    text: int
    title: int | None
    id: int | None

    @classmethod
    def of(cls, header: Sequence[str], name: str) -> _Columns:
        names = [column.strip().casefold() for column in header]
        text = names.index("text") if "text" in names else find_column(header, None, name)
        ids = [names.index(column) for column in ID_COLUMNS if column in names]
        return cls(text, names.index("title") if "title" in names else None, ids[0] if ids else None)

    def document(self, row: Sequence[str], name: str, line: int) -> Document:
        def cell(index: int | None) -> str:
            value = "" if index is None or index >= len(row) else row[index]
            if isinstance(value, NonTextCell):
                raise TextError(f"{name}, line {line:,}: a cell is {value}. Give a text in each column.")
            return value.strip()

        if len(identifier := cell(self.id)) > MAX_ID:
            raise TextError(f"{name}, line {line:,}: an ID may have at most {MAX_ID} characters.")
        return Document(cell(self.text), identifier, cell(self.title))


def _documents(stream: BinaryIO, name: str, as_named: bool) -> tuple[Document, ...]:
    with unpack(stream, name) as (unpacked, stem):
        is_named = as_named or is_table(stem)
        form = format_of(stem) if is_table(stem) or format_of(stem) == FASTA else LINES
        file_lines = check_format(lines_of(unpacked, name), name, form, is_named)
        documents = tuple(islice(_rows(file_lines, name, stem), MAX_SENTENCES + 1))
    if len(documents) > MAX_SENTENCES:
        raise TextError(f"{name} has more than {MAX_SENTENCES:,} documents. Split the file.")
    if not documents:
        raise EmptyTextError(f"{name} has no documents. Write one per line.")
    try:
        return as_documents(documents)
    except TextError as error:
        raise TextError(f"{name}: {error}") from None


def _rows(file_lines: Iterator[str], name: str, stem: str) -> Iterator[Document]:
    if format_of(stem) == FASTA:
        yield from map(_document_of_record, parse_fasta(file_lines, name))
        return
    if not is_table(stem):
        yield from (Document(line.strip()) for line in file_lines if line.strip())
        return
    header, rows = table_of(file_lines, stem)
    try:
        columns = _Columns.of(header, name)
    except SelectionError as error:
        raise SelectionError(f"{error} The column with the text must be named text.") from None
    for line, row in rows:
        document = columns.document(row, name, line)
        if document:
            yield document
