"""The file of texts that the map page is given; a column of labels tells the parts of the file."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from bert_probe.errors import ProbeError
from bert_probe.text.labeled_texts import LabeledTexts, parse_labeled_texts
from bert_probe.text.sentence_files import columns_of, parse_sentences, usual_column
from bert_probe.ui import blocks, sentence_input, state

MOST = 5_000
"""Texts that this page takes."""


@dataclass(frozen=True)
class _File:
    """A file as it was uploaded, and what is in it, where its columns say that, or why it cannot be read."""

    name: str
    content: bytes
    columns: tuple[str, ...]
    rows: LabeledTexts | ProbeError | None


def chosen() -> tuple[str, ...] | LabeledTexts | None:
    """The texts; None while there is no file.

    Raises:
        TextError, EmptyTextError, SelectionError: a file that cannot be read, or too many texts.
    """
    size = f"{sentence_input.MAX_BYTES / 1e6:.0f} MB"
    about = (
        "One text a line, or a table with a header. A column called label tells its parts. In UTF-8, at most "
        f"{size}. It stays on this machine, in memory."
    )
    file = sentence_input.kept_file("map", "A file of texts", ["txt", "csv", "tsv", "jsonl"], about, _read)
    if file is None:
        return None
    if isinstance(file.rows, ProbeError):
        raise file.rows
    if file.rows is not None:
        sentence_input.check_number(file.rows.rows, MOST)
        labels = f"{len(file.rows.labels):,} labels" if file.rows.labels else "numbers"
        blocks.caveat(f"{len(file.rows.rows):,} texts of {state.plain(file.name)}, with {labels}.")
        return file.rows
    texts = parse_sentences(file.content, file.name, _column(file))
    sentence_input.check_number(texts, MOST)
    blocks.caveat(f"{len(texts):,} texts of {state.plain(file.name)}. Empty lines are left out.")
    return texts


def take(name: str, content: bytes) -> None:
    """Keep a file, as if it had been chosen here."""
    sentence_input.hand_in("map", _read(name, content))


def _read(name: str, content: bytes) -> _File:
    try:
        sentence_input.check_size(name, content)
        columns = columns_of(content, name)
        called = {column.casefold() for column in columns}
        rows = parse_labeled_texts(content, name) if called & {"label", "labels"} else None
    except ProbeError as error:
        return _File(name, b"", (), error)
    return _File(name, content, columns, rows)


def _column(file: _File) -> str | None:
    """The column that holds the texts; None for a file that is no table."""
    if len(file.columns) < 2:
        return file.columns[0] if file.columns else None
    key = "map_column"
    if st.session_state.get(key) not in file.columns:
        st.session_state[key] = file.columns[usual_column(file.columns) or 0]
    columns = list(dict.fromkeys(file.columns))
    picked: str = st.selectbox(
        f"Column of {state.plain(file.name)}", columns, key=key, persist_state="session"
    )
    return picked
