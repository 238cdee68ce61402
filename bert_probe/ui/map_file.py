"""The file uploader of the Map page, which accepts texts and an optional column of labels."""

from __future__ import annotations

from dataclasses import dataclass

from bert_probe.errors import ProbeError
from bert_probe.text.labeled_texts import LabeledTexts, parse_labeled_texts
from bert_probe.text.sentence_files import column_names, parse_sentences
from bert_probe.ui import blocks, sentence_input, state

MAX_TEXTS = 5_000
"""Maximum number of texts in a file for the Map page."""


@dataclass(frozen=True)
class _File:
    """An uploaded file, with its labeled rows if it has labels, or an error if it cannot be read."""

    name: str
    content: bytes
    columns: tuple[str, ...]
    rows: LabeledTexts | ProbeError | None


def choose_file() -> tuple[str, ...] | LabeledTexts | None:
    """Draw an uploader and return the texts of the file, or None if no file is uploaded.

    Raises:
        TextError, EmptyTextError, SelectionError: the file cannot be read, or has too many texts.
    """
    size = f"{sentence_input.MAX_BYTES / 1e6:.0f} MB"
    help_text = (
        "One text per line, or a table with a header. A column named label divides the texts into groups. "
        f"UTF-8, at most {size}. The file stays in memory on this machine."
    )
    types = ["txt", "csv", "tsv", "jsonl"]
    file = sentence_input.upload_file("map", "Text file", types, help_text, _read)
    if file is None:
        return None
    if isinstance(file.rows, ProbeError):
        raise file.rows
    if file.rows is not None:
        sentence_input.check_count(file.rows.rows, MAX_TEXTS)
        labels = f"{len(file.rows.labels):,} labels" if file.rows.labels else "numeric labels"
        blocks.caveat(f"{len(file.rows.rows):,} texts from {state.escape(file.name)}, with {labels}.")
        return file.rows
    texts = parse_sentences(file.content, file.name, _column(file))
    sentence_input.check_count(texts, MAX_TEXTS)
    blocks.caveat(f"{len(texts):,} texts from {state.escape(file.name)}. Empty lines are skipped.")
    return texts


def use_file(name: str, content: bytes) -> None:
    """Use a file on the Map page as if the user had uploaded it."""
    sentence_input.store_file("map", _read(name, content))


def _read(name: str, content: bytes) -> _File:
    try:
        sentence_input.check_size(name, content)
        columns = column_names(content, name)
        names = {column.casefold() for column in columns}
        rows = parse_labeled_texts(content, name) if names & {"label", "labels"} else None
    except ProbeError as error:
        return _File(name, b"", (), error)
    return _File(name, content, columns, rows)


def _column(file: _File) -> str | None:
    """Return the name of the column that contains the texts, or None if the file is not a table."""
    if len(file.columns) < 2:
        return file.columns[0] if file.columns else None
    return sentence_input.choose_column("map_column", file.columns, file.name)
