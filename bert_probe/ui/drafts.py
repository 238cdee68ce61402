"""Views that a reader picked for a report: in the session, and under a name in the address for a reload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import streamlit as st

from bert_probe.errors import ReportError
from bert_probe.reports.drafts import MOST_VIEWS, Draft, DraftEntry
from bert_probe.reports.view_files import ViewFile
from bert_probe.ui import state, url_texts

MOST_BYTES: Final = 4_000_000
"""Of all views together: they hold texts, and no numbers."""

_SAID: Final = "tray_said"
"""Session key of what is to be said."""
_KEY: Final = "tray"
"""Session key, and parameter."""


def held() -> Draft:
    """What was picked: that of the session, else of the address."""
    if _KEY not in st.session_state:
        kept = url_texts.recall(_KEY)
        try:
            st.session_state[_KEY] = Draft() if kept is None else Draft.read(kept.encode())
        except ReportError:  # somebody wrote it into an address
            st.session_state[_KEY] = Draft()
        state.hold(_KEY)
    found: Draft = st.session_state[_KEY]
    return found


def is_gone() -> bool:
    """Whether the address names a report whose views are not kept any more."""
    return bool(url_texts.gone(_KEY))


def tell(sentence: str) -> None:
    """Say something where `told` is next: callbacks draw nothing."""
    st.session_state[_SAID] = sentence


def told() -> None:
    """Say what a callback had to say."""
    sentence = st.session_state.pop(_SAID, None)
    if sentence is not None:
        st.toast(state.plain(sentence, 400))


def add(view: ViewFile) -> None:
    """Pick a view; it comes last.

    Raises:
        ReportError: there are as many as a report takes, or they hold as much text.
    """
    take(replace(held(), entries=(*held().entries, DraftEntry(view))))


def take(tray: Draft) -> None:
    """Make this what was picked.

    Raises:
        ReportError: more than a report takes.
    """
    if len(tray.entries) > MOST_VIEWS:
        raise ReportError(f"A report takes at most {MOST_VIEWS} views. Take one out first.")
    written = tray.to_bytes()
    if len(written) > MOST_BYTES:
        raise ReportError(
            f"The views' texts and notes would be more than {MOST_BYTES / 1e6:.0f} MB. Take one out first."
        )
    st.session_state[_KEY] = tray
    state.hold(_KEY)
    publish()


def publish() -> None:
    """See to it that the address names what was picked, also after a step back."""
    tray = st.session_state.get(_KEY)
    if tray is not None:
        # By name even where it is short: a link is to show a view, and not what somebody collects.
        written = None if tray == Draft() else tray.to_bytes().decode()
        url_texts.remember(_KEY, written, named=True)


def put(entries: Sequence[DraftEntry]) -> None:
    """The same title, other views or notes."""
    take(replace(held(), entries=tuple(entries)))


def move(place: int, by: int) -> None:
    """Exchange a view, from 0, with one beside it."""
    entries = list(held().entries)
    if 0 <= place + by < len(entries):
        entries[place], entries[place + by] = entries[place + by], entries[place]
        put(entries)


def remove(place: int) -> None:
    """Take a view out, from 0."""
    entries = list(held().entries)
    del entries[place]
    put(entries)


def note(place: int, text: str) -> None:
    """Write the note of a view, from 0."""
    entries = list(held().entries)
    entries[place] = replace(entries[place], note=text)
    put(entries)
