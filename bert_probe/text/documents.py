"""Read documents for a search from files with one document per line or row, or from a folder of files.

The columns of a table are those of the BEIR benchmark: `_id`, `title` and `text`.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Self

from bert_probe.errors import EmptyTextError, SelectionError, TextError
from bert_probe.model.lengths import check_list, check_text
from bert_probe.model.progress import Progress, no_progress
from bert_probe.text.formats import (
    FASTA,
    JSON_LINES,
    LINES,
    TABLE,
    BrokenRow,
    FastaRecord,
    JsonRow,
    NonTextCell,
    ValidationErrors,
    check_format,
    check_unique_columns,
    format_of,
    read_records,
    records_in_text,
)
from bert_probe.text.parquet import parquet_table
from bert_probe.text.sentence_files import (
    MAX_BYTES,
    MAX_SENTENCES,
    is_dir,
    lines,
    lines_of,
    open_file,
    unpack,
)
from bert_probe.text.tables import default_column, is_table, list_columns, table_of

ID_COLUMNS = ("_id", "id", "document")
"""Names of the column with the IDs of the documents, in order of precedence."""
_COLUMNS = (*ID_COLUMNS, "title", "text")
"""Names of all columns that are read."""
MAX_ID = 200
"""Maximum length of an ID in characters."""
FOLDER_ENDINGS = (".txt", ".md")
"""Extensions of the files in a folder that are read as documents."""
MAX_ENTRIES = 1_000_000
"""Maximum number of files in a folder of documents and its subfolders, including files that are not read."""
SKIP_REMEDY = "Correct the file, or skip these rows (skip_broken=True, --skip-broken)."
_ROWS_PER_REPORT = 1_000
"""Number of rows between two reports of progress."""
_NOT_UTF8 = re.compile("[\ud800-\udfff]")
"""Matches surrogate escapes, to which bytes that are not UTF-8 are decoded."""


class Document(str):
    """A document. The string value is the model's input: title and text, joined by a space.

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

    @property
    def cache_key(self) -> Hashable:
        """Cache key that distinguishes documents with the same string but different IDs or titles."""
        return type(self), self.id, self.title, self.text


class DocumentList(tuple[Document, ...]):
    """Documents, each with an ID, and the rows of their file that were skipped.

    Attributes:
        skipped: (row number, error) pairs of the first skipped rows; see `ValidationErrors`.
        skipped_count: number of all skipped rows.
        unit: unit of the row numbers: "line", "row" or "file".
    """

    skipped: tuple[tuple[int, str], ...]
    skipped_count: int
    unit: str

    def __new__(cls, documents: Iterable[Document], errors: ValidationErrors | None = None) -> Self:
        """Create a list from documents with IDs and the errors in the skipped rows."""
        self = super().__new__(cls, documents)
        self.skipped = () if errors is None else tuple(errors.found)
        self.skipped_count = 0 if errors is None else errors.count
        self.unit = "line" if errors is None else errors.unit
        return self

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The documents as JSON lines, one string per document."""
        return tuple(document.line for document in self)

    @property
    def about_skipped(self) -> dict[str, Any]:
        """The number of skipped rows and a list of the first ones, as JSON values; {} if none was skipped."""
        if not self.skipped_count:
            return {}
        rows = [{self.unit: number, "problem": problem} for number, problem in self.skipped]
        return {"skipped": {"count": self.skipped_count, "first": rows}}

    @property
    def skipped_sentence(self) -> str:
        """A sentence with the number of skipped rows and a list of the first ones; "" if none was skipped."""
        if not self.skipped_count:
            return ""
        listed = "; ".join(f"{self.unit} {number:,}: {problem}" for number, problem in self.skipped)
        more = self.skipped_count - len(self.skipped)
        unit = "file" if self.unit == "file" else "row"
        counted = f"{self.skipped_count:,} broken {unit}{' was' if self.skipped_count == 1 else 's were'}"
        return f"{counted} skipped: {listed}{f'; and {more:,} more' if more else ''}."

    @property
    def cache_key(self) -> Hashable:
        """Cache key that distinguishes lists with the same documents but different skipped rows."""
        keys = (document.cache_key for document in self)
        return type(self), *keys, self.skipped, self.skipped_count, self.unit


def as_documents(texts: Iterable[str]) -> DocumentList:
    """Convert texts to documents. A document without an ID gets its 1-based position as its ID.

    Raises:
        TextError: `texts` is not a list, an item is not a string, or two documents have the same ID.
        EmptyTextError: there are no documents.
    """
    if isinstance(texts, DocumentList):
        return texts
    check_list(texts, "document")
    documents = []
    numbers: dict[str, int] = {}
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise TextError(f"Document {number:,} must be a string, not {type(text).__name__}.")
        try:
            check_text(text)
        except TextError as error:
            raise type(error)(f"Document {number:,}: {error}") from None
        document = text if isinstance(text, Document) else Document(text)
        document = document if document.id else Document(document.text, str(number), document.title)
        if document.id in numbers:
            raise TextError(
                f"Documents {numbers[document.id]:,} and {number:,} have the same ID, {document.id[:100]!r}. "
                "Each document needs its own ID."
            )
        numbers[document.id] = number
        documents.append(document)
    if not documents:
        raise EmptyTextError("There are no documents. Write one document per line.")
    return DocumentList(documents)


def read_documents(
    file: str | Path,
    as_named: bool = False,
    skip_broken: bool = False,
    progress: Progress = no_progress,
) -> DocumentList:
    """Read documents from a text file, one per line, from the rows of a table, from FASTA, or from a folder.

    The file may be compressed (.gz, .zst). A table is a .csv, .tsv, .jsonl, .ndjson or .parquet file with a
    column `text` (or only one column), and optional columns `_id` and `title`. Without `_id`, the ID of a
    document is the number of its row, from 1. Blank lines are skipped.

    In a FASTA file (.fasta, .fa, .faa or .fna), each sequence is a document, and the name in its header is
    its ID. The rest of the header is ignored, so that the model reads only the sequence.

    In a folder, each file with an extension in `FOLDER_ENDINGS`, at any depth, is a document. Its ID is its
    path within the folder. Hidden files and folders and symbolic links are not read.

    A row is broken if its number of cells differs from the header, if it is not valid JSON or UTF-8, if it
    has neither a title nor a text, or if an earlier row has the same ID. A file in a folder is broken if it
    is empty or is not UTF-8.

    Args:
        file: a file in UTF-8, or a folder.
        as_named: trust the file extension, even if the contents look like another format.
        skip_broken: skip broken rows, which `DocumentList.skipped` lists, instead of raising an error.
        progress: called with the number of bytes read from the file and their total.

    Raises:
        InvalidFileError: rows are broken and `skip_broken` is False, or all rows are broken. The message
            lists the first broken rows.
        TextError: the file cannot be opened or decompressed, is neither text nor a table, exceeds a limit,
            looks like another format, or changes while it is read.
        EmptyTextError: there are no documents.
        SelectionError: there is no column with the text.
    """
    if is_dir(Path(file)):
        return _folder_documents(Path(file), skip_broken)
    with open_file(file) as (stream, name):
        size = os.fstat(stream.fileno()).st_size

        def on_rows() -> None:
            if size:  # a pipe has no size and no position
                progress(stream.tell(), size)

        return _documents(stream, name, as_named, skip_broken, on_rows=on_rows)


def parse_documents(
    content: BinaryIO,
    name: str,
    skip_broken: bool = False,
    max_documents: int = MAX_SENTENCES,
    max_bytes: int | None = None,
) -> DocumentList:
    """Read documents from an open file, as `read_documents` does.

    Args:
        content: the open file.
        name: the file name; its extension distinguishes tables from plain text.
        skip_broken: see `read_documents`.
        max_documents: maximum number of documents and broken rows.
        max_bytes: maximum size of the decompressed file in bytes; by default the limit of `read_documents`.
    """
    return _documents(content, name, False, skip_broken, max_documents, max_bytes)


def documents_in_text(text: str) -> list[str]:
    """Split a typed text into documents: FASTA sequences, paragraphs between empty lines, or lines.

    Raises:
        InvalidFileError: the text is FASTA with invalid lines.
    """
    if records := records_in_text(text, "The text"):
        return list(map(_document_of_record, records))
    paragraphs = [part.strip() for part in re.split(r"\n[^\S\n]*\n", text) if part.strip()]
    return paragraphs if len(paragraphs) > 1 else list(lines(text))


def _document_of_record(record: FastaRecord) -> Document:
    return Document(record.sequence, record.name)


def document_of_line(line: str) -> Document:
    """Parse a document from a line that `Document.line` returned.

    Raises:
        TextError: the line has another format.
    """
    try:
        values = json.loads(line)
        if isinstance(values, dict) and all(isinstance(value, str) for value in values.values()):
            document = Document(values.get("text", ""), values.get("_id", ""), values.get("title", ""))
            if document.line == line:
                return document
    except (ValueError, RecursionError):
        pass
    raise TextError(
        f"{line[:60]!r} is not in the format in which BERT Probe saves documents, such as "
        f"{Document('A text.', '1').line}. Save the view again."
    )


@dataclass(frozen=True)
class _Columns:
    """Column indices in a table; None for a missing column.

    Attributes:
        names: names of all columns of the header.
    """

    text: int
    title: int | None
    id: int | None
    names: frozenset[str]

    @classmethod
    def of(cls, header: list[str], name: str, is_json: bool) -> _Columns:
        """Find the columns in a header.

        If `is_json` is True and the first objects have the keys of `Document.line` except `title` or `text`,
        this column is appended to the header, to which the rows refer: a later document may have it.

        Raises:
            SelectionError: there is no column with the text.
        """
        names = [column.strip().casefold() for column in header]
        check_unique_columns(_COLUMNS, names, name)
        if is_json and {"_id"} < {*header} < {"_id", "title", "text"}:
            (late,) = {"title", "text"} - {*header}
            header.append(late)
            names.append(late)
        text = names.index("text") if "text" in names else default_column(header)
        if text is None:
            raise SelectionError(
                f"{name} has {len(header)} columns: {list_columns(header)}. The column with the text must be "
                "named text."
            )
        ids = [names.index(column) for column in ID_COLUMNS if column in names]
        title = names.index("title") if "title" in names else None
        title = None if title == text else title  # a single column is the text
        return cls(text, title, ids[0] if ids else None, frozenset(header))

    def document(self, row: Sequence[str]) -> Document:
        """Return the document in a row; its ID is "" if the row has none.

        Raises:
            ValueError: the row is broken; the message is a phrase with the reason.
        """
        if isinstance(row, JsonRow):
            late = {*row.keys} - self.names
            if new_keys := sorted(key for key in late if key.strip().casefold() in _COLUMNS):
                raise ValueError(
                    f"the key {new_keys[0]!r} does not occur in the first lines of the file, "
                    "which define the columns"
                )

        def cell(index: int | None) -> str:
            try:
                value = "" if index is None else row[index]
            except TextError:  # A row of a JSON lines file raises TextError for an invalid cell.
                raise ValueError(
                    "a text is not UTF-8, or contains a NUL character or an unpaired surrogate"
                ) from None
            if isinstance(value, NonTextCell):
                raise ValueError(f"a cell is {value}, but must be a string")
            return value.strip()

        return Document(cell(self.text), cell(self.id), cell(self.title))


class _Reader:
    """Collects the documents and the broken rows of a file.

    Args:
        name: name of the file, for error messages.
        unit: unit of the row numbers: "line", "row" or "file".
        max_rows: maximum number of documents and broken rows.
        on_rows: called after every `_ROWS_PER_REPORT` rows.
    """

    def __init__(
        self,
        name: str,
        unit: str = "line",
        max_rows: int = MAX_SENTENCES,
        on_rows: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.unit, self._max_rows, self._on_rows = name, unit, max_rows, on_rows
        self.errors = ValidationErrors(name, unit, SKIP_REMEDY)
        self._documents: list[Document] = []
        self._numbers: dict[str, int] = {}  # row number of each document, by ID
        self._rows = 0

    def refuse(self, number: int, problem: str) -> None:
        """Count the broken row `number`, and collect its error `problem`."""
        self._count()
        self.errors.add(number, problem)

    def refuse_all(self, errors: ValidationErrors) -> None:
        """Count a FASTA record with invalid lines as one broken row, and collect the errors of its lines."""
        self._count()
        self.errors.extend(errors)

    def add(self, number: int, document: Document) -> None:
        """Add the document in row `number`, or an error if it is empty or its ID is too long or repeated."""
        self._count()
        identifier = document.id or str(self._rows)
        if not document:
            self.errors.add(number, "the title and the text are both missing")
        elif len(identifier) > MAX_ID:
            self.errors.add(number, f"the ID has more than {MAX_ID} characters")
        elif identifier in self._numbers:
            first = f"{self.unit} {self._numbers[identifier]:,}"
            self.errors.add(number, f"the ID {identifier[:100]!r} is also the ID of {first}")
        else:
            self._numbers[identifier] = number
            self._documents.append(Document(document.text, identifier, document.title))

    def documents(self, skip_broken: bool) -> DocumentList:
        """Return the documents.

        Raises:
            InvalidFileError: there are broken rows, and `skip_broken` is False or all rows are broken.
            EmptyTextError: there are no rows.
        """
        if not skip_broken or not self._documents:
            self.errors.check()
        if not self._documents:
            raise EmptyTextError(f"{self.name} has no documents. Write one document per line.")
        return DocumentList(self._documents, self.errors)

    @property
    def has_rows(self) -> bool:
        """Whether a document or a broken row was added."""
        return self._rows > 0

    def _count(self) -> None:
        self._rows += 1
        if self._rows > self._max_rows:
            raise TextError(f"{self.name} has more than {self._max_rows:,} documents. Split the file.")
        if self._rows % _ROWS_PER_REPORT == 0:
            self._on_rows()


def _documents(
    stream: BinaryIO,
    name: str,
    as_named: bool,
    skip_broken: bool,
    max_documents: int = MAX_SENTENCES,
    max_bytes: int | None = None,
    on_rows: Callable[[], None] = lambda: None,
) -> DocumentList:
    with unpack(stream, name) as (unpacked, stem):
        if stem.lower().endswith(".parquet"):
            reader = _Reader(name, "row", max_documents, on_rows)
            _add_rows(reader, *parquet_table(unpacked, name, _COLUMNS))
            return reader.documents(skip_broken)
        reader = _Reader(name, max_rows=max_documents, on_rows=on_rows)
        is_named = as_named or is_table(stem)
        form = format_of(stem) if is_table(stem) or format_of(stem) == FASTA else LINES
        file_lines = check_format(
            lines_of(unpacked, name, "surrogateescape", max_bytes), name, form, is_named
        )
        if is_table(stem):
            header, rows = table_of(file_lines, stem, keep_broken=True)
            if form == TABLE and any(map(_NOT_UTF8.search, header)):
                raise TextError(f"The header of {name} is not UTF-8. Save the file as UTF-8.")
            _add_rows(reader, header, rows, form == JSON_LINES)
            return reader.documents(skip_broken)
        _add_lines(reader, file_lines, form == FASTA)
    return reader.documents(skip_broken)


def _add_lines(reader: _Reader, file_lines: Iterable[str], is_fasta: bool) -> None:
    """Add the lines of a text file, or the records of a FASTA file, to a reader."""
    if is_fasta:
        for record in read_records(enumerate(file_lines, 1), unique=False):
            if _NOT_UTF8.search(record.name):
                record.errors.add(record.line, "the header is not UTF-8")
            if record.errors.count:
                reader.refuse_all(record.errors)
            else:
                reader.add(record.line, _document_of_record(record))
        return
    for number, line in enumerate(file_lines, 1):
        if _NOT_UTF8.search(line):
            reader.refuse(number, "the line is not UTF-8")
        elif line.strip():
            reader.add(number, Document(line.strip()))


def _add_rows(
    reader: _Reader, header: list[str], rows: Iterable[tuple[int, Sequence[str]]], is_json: bool = False
) -> None:
    """Add the rows of a table to a reader. For `is_json`, see `_Columns.of`.

    Raises:
        SelectionError: there is no column with the text.
    """
    columns = _Columns.of(header, reader.name, is_json)
    for number, row in rows:
        if isinstance(row, BrokenRow):
            reader.refuse(number, row.problem)
        elif len(row) != len(header):
            cells = "1 cell" if len(row) == 1 else f"{len(row):,} cells"
            reader.refuse(number, f"the row has {cells}, but the header has {len(header):,}")
        elif isinstance(row, list) and any(map(_NOT_UTF8.search, row)):
            reader.refuse(number, "the row is not UTF-8")
        else:
            try:
                reader.add(number, columns.document(row))
            except ValueError as error:
                reader.refuse(number, str(error))


def _folder_documents(folder: Path, skip_broken: bool) -> DocumentList:
    """Return each text file of a folder as a document."""
    reader = _Reader(folder.name or str(folder), "file")
    remaining = MAX_BYTES
    for number, path in enumerate(_walk(folder), 1):
        name = path.relative_to(folder).as_posix()
        try:
            with path.open("rb") as stream:
                content = stream.read(remaining + 1)
        except OSError as error:
            raise TextError(f"{path} cannot be opened: {error.strerror}. Check the path.") from None
        remaining -= len(content)
        if remaining < 0:
            raise TextError(
                f"The files of {reader.name} have more than {MAX_BYTES / 1e6:.0f} MB. Split the folder."
            )
        try:
            text = content.decode("utf-8-sig").replace("\r\n", "\n").strip()
            name.encode()
        except UnicodeError:
            reader.refuse(number, f"{ascii(name)[1:-1][:MAX_ID]} is not UTF-8")
            continue
        if "\0" in text:
            reader.refuse(number, f"{name[:MAX_ID]} contains a NUL")
        elif not text:
            reader.refuse(number, f"{name[:MAX_ID]} is empty")
        else:
            reader.add(number, Document(text, name))
    if not reader.has_rows:
        raise EmptyTextError(
            f"{folder} contains no file with the extension {' or '.join(FOLDER_ENDINGS)}. Choose a file, "
            "or in Python pass bert_probe.open_corpus(folder).documents for a corpus store."
        )
    return reader.documents(skip_broken)


def _walk(folder: Path) -> list[Path]:
    """Return the text files in a folder and its subfolders, sorted; skip hidden files and links."""

    def fail(error: OSError) -> None:
        raise TextError(f"{error.filename} cannot be opened: {error.strerror}. Check the path.") from None

    paths = []
    entries = 0
    for parent, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        entries += len(files)
        if entries > MAX_ENTRIES:
            raise TextError(
                f"{folder} has more than {MAX_ENTRIES:,} files. Choose a folder with fewer files."
            )
        for name in files:
            path = Path(parent, name)
            is_text = path.suffix.lower() in FOLDER_ENDINGS and not name.startswith(".")
            try:
                if is_text and stat.S_ISREG(path.lstat().st_mode):
                    paths.append(path)
            except OSError as error:  # a folder that may be listed, but not searched
                fail(error)
    return sorted(paths)
