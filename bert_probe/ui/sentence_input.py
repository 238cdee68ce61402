"""Where pages get sentences from: a field to type in, or a file. Both are kept.

Also how many sentences, and how large a file, a page takes; the library has no such bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import TypeVar

import streamlit as st
from streamlit.runtime.uploaded_file_manager import DeletedFile

from bert_probe.errors import TextError
from bert_probe.text.sentence_files import columns_of, lines, parse_sentences, usual_column
from bert_probe.ui import blocks, state, url_texts
from bert_probe.ui.examples import SENTENCES

T = TypeVar("T")

MAX_BYTES = 5_000_000
"""Of a file; `server.maxUploadSize` in Streamlit's settings says the same in its own units."""

_DRAFT, _TYPED, _UPLOAD, _FILE = "sentences_draft", "sentences_typed", "sentences_upload", "sentences_file"
_SOURCES = {"typed": "Typed or pasted", "file": "A file"}


def chosen() -> tuple[str, ...] | None:
    """The sentences to compare; None where a file is yet to be given.

    Raises:
        TextError, SelectionError: a file that cannot be read; see `parse_sentences`.
    """
    source = state.pick("sentences_from", "Where the sentences are", _SOURCES, "typed")
    return _typed() if source == "typed" else _from_file()


def check_size(name: str, content: bytes | str) -> None:
    """Refuse a file, or a text, that is too large for a page.

    Raises:
        TextError: larger than `MAX_BYTES`.
    """
    if len(content) > MAX_BYTES or (isinstance(content, str) and len(content.encode()) > MAX_BYTES):
        raise TextError(
            f"{name} is larger than {MAX_BYTES / 1e6:.0f} MB. Give a part of it, or use the command line."
        )


def kept_file(
    key: str, label: str, types: Sequence[str], about: str, read: Callable[[str, bytes], T]
) -> T | None:
    """Ask for a file, which is kept while other pages are shown: the widget itself would forget it.

    Args:
        key: of the widget and of what is kept.
        about: which files, and where they stay.
        read: name and content → what is kept; called once for each file.
    """
    upload, kept = f"{key}_upload", f"{key}_file"

    def keep() -> None:
        file = st.session_state[upload]
        if file is None:
            st.session_state.pop(kept, None)
        elif not is_deleted(file):
            st.session_state[kept] = read(file.name, file.getvalue())
            state.hold(kept, upload)

    st.file_uploader(label, types, key=upload, on_change=keep, help=about)
    found: T | None = st.session_state.get(kept)
    return found


def is_deleted(file: object) -> bool:
    """Return whether an uploader holds a file that the server has deleted to make room.

    What was read from the file is kept; only the content is gone.
    """
    return isinstance(file, DeletedFile)


def hand_in(key: str, kept: object) -> None:
    """Keep what was read of a file, as if it had been chosen in `kept_file`."""
    st.session_state[f"{key}_file"] = kept
    state.hold(f"{key}_file")


def take(name: str, content: bytes) -> None:
    """Keep a file of sentences, as if it had been chosen here."""
    hand_in("sentences", (name, content))


def pasted(key: str, label: str, placeholder: str, height: int = 180, about: str | None = None) -> str:
    """Ask for lines, which are kept while other pages are shown.

    Raises:
        TextError: larger than `MAX_BYTES`.
    """
    state.hold(key)
    written = st.text_area(
        label, key=key, height=height, placeholder=placeholder, help=about, persist_state="session"
    )
    check_size("What is pasted here", written or "")
    return written or ""


def uploaded(key: str, label: str) -> tuple[str, ...]:
    """Ask for a text file, which is kept as it is; its sentences, none while there is no file.

    Raises:
        TextError: larger than `MAX_BYTES`, or it cannot be read; see `parse_sentences`.
    """
    kept = f"{key}_file"
    given = st.file_uploader(label, type=["txt"], key=f"{key}_upload")
    if given is not None and not is_deleted(given):
        st.session_state[kept] = (given.name, given.getvalue())
        state.hold(kept)
    if kept not in st.session_state:
        return ()
    name, content = st.session_state[kept]
    check_size(name, content)
    if given is None:
        blocks.caveat(f"{state.plain(name)}, as uploaded before.")
    return parse_sentences(content, name)


def check_number(sentences: Sized, most: int) -> None:
    """Refuse more sentences than a page takes.

    Raises:
        TextError: more than ``most``.
    """
    if len(sentences) > most:
        raise TextError(
            f"{len(sentences):,} sentences; this page takes at most {most:,}. "
            "Give fewer, or use the command line."
        )


def _typed() -> tuple[str, ...]:
    if _TYPED not in st.session_state:
        if url_texts.gone("sentences"):
            st.session_state[_TYPED] = ""
        else:
            _take(url_texts.recall("sentences") or "\n".join(SENTENCES))
    if _DRAFT not in st.session_state:
        st.session_state[_DRAFT] = st.session_state[_TYPED]
    # No form: that would lose what is typed when another page is opened.
    st.text_area(
        "Sentences, one a line",
        key=_DRAFT,
        height=180,
        placeholder="Type or paste two sentences or more, one a line",
        persist_state="session",
    )
    with st.container(horizontal=True):
        st.button("Compare", type="primary", on_click=_submit)
        st.button("Example", on_click=_example)
    typed = st.session_state[_TYPED]
    if not typed:
        url_texts.check("sentences")
    check_size("What is typed here", typed)
    return tuple(lines(typed))


def _submit() -> None:
    _take(st.session_state[_DRAFT])


def _example() -> None:
    st.session_state[_DRAFT] = "\n".join(SENTENCES)
    _submit()


def _take(typed: str) -> None:
    st.session_state[_TYPED] = typed
    url_texts.remember("sentences", typed if typed and typed != "\n".join(SENTENCES) else None)


def _from_file() -> tuple[str, ...] | None:
    st.file_uploader(
        "A text file with a sentence a line, or a table with a header",
        ["txt", "csv", "tsv", "jsonl"],
        key=_UPLOAD,
        on_change=_keep,
        help=f"In UTF-8, at most {MAX_BYTES / 1e6:.0f} MB. It stays on this machine, in memory.",
    )
    if _FILE not in st.session_state:
        return None
    name, content = st.session_state[_FILE]
    check_size(name, content)
    columns = columns_of(content, name)
    column = _column(columns, name) if columns else None
    found = parse_sentences(content, name, column)
    of = f", column {state.plain(column)}" if column is not None else ""
    st.caption(f"{len(found):,} sentences of {state.plain(name)}{of}. Empty lines are left out.")
    return found


def _keep() -> None:
    """Hold on to a file, or let it go: the widget itself forgets it when another page is shown."""
    file = st.session_state[_UPLOAD]
    if file is None:
        st.session_state.pop(_FILE, None)
    elif not is_deleted(file):
        st.session_state[_FILE] = (file.name, file.getvalue())
        state.hold(_FILE, _UPLOAD)


def _column(columns: tuple[str, ...], name: str) -> str:
    usual = usual_column(columns)
    key = "sentences_column"
    if st.session_state.get(key) not in columns:
        st.session_state[key] = columns[usual or 0]
    picked: str = st.selectbox(
        f"Column of {state.plain(name)}", list(dict.fromkeys(columns)), key=key, persist_state="session"
    )
    return picked
