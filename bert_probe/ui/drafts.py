"""The draft of a report: the views that the user added, stored in the session and named in the URL."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

import streamlit as st

from bert_probe.errors import ReportError
from bert_probe.reports.drafts import MOST_VIEWS, Draft, DraftEntry
from bert_probe.reports.view_files import ViewFile
from bert_probe.ui import state, url_texts

MAX_BYTES: Final = 4_000_000
"""Size limit of a draft, in bytes. The views in a draft contain texts but no results."""

_MESSAGE: Final = "draft message"
"""Session key of the next message about the draft."""
_KEY: Final = "tray"
"""Session key and URL parameter of the draft."""


def current() -> Draft:
    """Return the draft from the session or, if there is none, from the URL."""
    if _KEY not in st.session_state:
        text = url_texts.recall(_KEY)
        try:
            st.session_state[_KEY] = Draft() if text is None else _parsed(text)
        except ReportError:  # the user has edited the draft in the URL
            st.session_state[_KEY] = Draft()
        state.preserve(_KEY)
    draft: Draft = st.session_state[_KEY]
    return draft


_drafts: WeakValueDictionary[bytes, Draft] = WeakValueDictionary()


def _parsed(text: str) -> Draft:
    """Parse a draft. Sessions with equal drafts share one object, which takes up to 20 times the text.

    Raises:
        ReportError: the text is not a draft.
    """
    content = text.encode()
    key = hashlib.sha256(content).digest()
    draft = _drafts.get(key)
    if draft is None:
        draft = _drafts.setdefault(key, Draft.read(content))
    return draft


def is_missing() -> bool:
    """Return whether the URL names a draft that is no longer stored."""
    return bool(url_texts.missing(_KEY))


def set_message(sentence: str) -> None:
    """Set the message that `show_message` shows in the next run, because callbacks cannot draw."""
    st.session_state[_MESSAGE] = sentence


def show_message() -> None:
    """Show the message that the last callback set, if any, and clear it."""
    sentence = st.session_state.pop(_MESSAGE, None)
    if sentence is not None:
        st.toast(state.escape(sentence, 400))


def add(view: ViewFile) -> None:
    """Add a view at the end of the draft.

    Raises:
        ReportError: the draft has too many views or too much text.
    """
    replace_draft(replace(current(), entries=(*current().entries, DraftEntry(view))))


def replace_draft(draft: Draft) -> None:
    """Replace the session's draft and write it to the URL.

    Raises:
        ReportError: the draft has too many views or too much text.
    """
    if len(draft.entries) > MOST_VIEWS:
        raise ReportError(f"A report can contain at most {MOST_VIEWS} views. Remove a view first.")
    content = draft.to_bytes()
    if len(content) > MAX_BYTES:
        raise ReportError(
            f"The texts and notes of the views would be larger than {MAX_BYTES / 1e6:.0f} MB. Remove a view "
            "first."
        )
    st.session_state[_KEY] = draft
    state.preserve(_KEY)
    publish()


def publish() -> None:
    """Store the draft, and write its name to the URL, where it is missing after the user navigated back."""
    draft = st.session_state.get(_KEY)
    if draft is not None:
        # Store even a short draft under a name, because the URL should share the view and not the draft.
        text = None if draft == Draft() else draft.to_bytes().decode()
        url_texts.remember(_KEY, text, named=True)


def set_entries(entries: Sequence[DraftEntry]) -> None:
    """Replace the views and notes of the draft, and keep its title."""
    replace_draft(replace(current(), entries=tuple(entries)))


def move(index: int, by: int) -> None:
    """Swap the view at ``index``, counted from 0, with the view at ``index + by``."""
    entries = list(current().entries)
    if 0 <= index + by < len(entries):
        entries[index], entries[index + by] = entries[index + by], entries[index]
        set_entries(entries)


def remove(index: int) -> None:
    """Remove the view at ``index``, counted from 0."""
    entries = list(current().entries)
    del entries[index]
    set_entries(entries)


def set_note(index: int, text: str) -> None:
    """Set the note of the view at ``index``, counted from 0."""
    entries = list(current().entries)
    entries[index] = replace(entries[index], note=text)
    set_entries(entries)
