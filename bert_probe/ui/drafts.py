"""The draft of a report: the views that the user added, stored in the session and named in the URL."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

import streamlit as st

from bert_probe.errors import ReportError
from bert_probe.reports.drafts import MOST_VIEWS, Draft, DraftEntry, read_any
from bert_probe.reports.view_files import ViewFile
from bert_probe.server import sessions
from bert_probe.ui import state, url_texts

MAX_BYTES: Final = 4_000_000
"""Size limit of a draft, in bytes. The views in a draft contain texts but no results."""

_MESSAGE: Final = "draft message"
"""Session key of the next message about the draft."""
_KEY: Final = "tray"
"""Session key and URL parameter of the draft."""
_LATEST: Final = "latest draft"
"""Session key of a list whose only element is the draft, for functions that run outside the script."""


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


_drafts: Final[WeakValueDictionary[bytes, Draft]] = WeakValueDictionary()
_queue: Final = sessions.ReadingQueue()
_views: Final[WeakValueDictionary[bytes, ViewFile]] = WeakValueDictionary()


def _parsed(text: str) -> Draft:
    """Parse a draft. Sessions with equal drafts share one object.

    Raises:
        ReportError: the text is not a draft.
    """
    content = text.encode()
    key = hashlib.sha256(content).digest()
    draft = _drafts.get(key)
    if draft is None:
        with _queue.turn():
            draft = _drafts.get(key)
            if draft is None:
                draft = Draft.read(content)
                _check(draft, "The draft")
                draft = _drafts[key] = _shared(draft)
    return draft


def read_shared(content: bytes, name: str) -> ViewFile | Draft:
    """Parse a view file or a draft.

    Equal views share one object, because it can be 20 times as large as the file.

    Args:
        content: the content of the file.
        name: the name of the file, for error messages.

    Raises:
        ReportError: the file is neither a view file nor a draft, or contains a lone surrogate.
    """
    with _queue.turn():
        parsed = read_any(content, name)
        _check(parsed, name)
        return _shared_view(parsed) if isinstance(parsed, ViewFile) else _shared(parsed)


def _check(parsed: ViewFile | Draft, name: str) -> None:
    """Raise ReportError if a view file or a draft contains a lone surrogate."""
    draft = Draft(entries=(DraftEntry(parsed),)) if isinstance(parsed, ViewFile) else parsed
    texts = [draft.title, *([entry.note, entry.view.to_json()] for entry in draft.entries)]
    try:
        json.dumps(texts, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ReportError(
            f"{name} contains a lone surrogate, which a page cannot show. Remove this character, or use "
            "the command line."
        ) from None


def _shared(draft: Draft) -> Draft:
    entries = (replace(entry, view=_shared_view(entry.view)) for entry in draft.entries)
    return replace(draft, entries=tuple(entries))


def _shared_view(view: ViewFile) -> ViewFile:
    return _views.setdefault(hashlib.sha256(view.to_bytes()).digest(), view)


def latest() -> Callable[[], Draft]:
    """Return a function that returns the session's draft at the time of the call, in any thread."""
    draft = current()
    drafts: list[Draft] = st.session_state.setdefault(_LATEST, [draft])
    drafts[0] = draft
    return lambda: drafts[0]


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
        ReportError: the draft would have too many views or too much text, or `read_shared` cannot read
            the view.
    """
    read_shared(view.to_bytes(), "The view")
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
    if _LATEST in st.session_state:
        st.session_state[_LATEST][0] = draft
    state.preserve(_KEY, _LATEST)
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


def move(key: int, by: int) -> None:
    """Swap the entry with this key and the entry ``by`` places after it, if both are in the draft."""
    entries = list(current().entries)
    index = _index(key)
    if index is not None and 0 <= index + by < len(entries):
        entries[index], entries[index + by] = entries[index + by], entries[index]
        set_entries(entries)


def remove(key: int) -> None:
    """Remove the entry with this key, if it is in the draft."""
    set_entries([entry for entry in current().entries if entry.key != key])


def set_note(key: int, text: str) -> None:
    """Set the note of the entry with this key, if it is in the draft."""
    set_entries([replace(entry, note=text) if entry.key == key else entry for entry in current().entries])


def _index(key: int) -> int | None:
    return next((index for index, entry in enumerate(current().entries) if entry.key == key), None)
