"""The views that were picked: their order, and a note on each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import streamlit as st

from bert_probe.errors import ProbeError
from bert_probe.reports import notes
from bert_probe.reports.drafts import Draft, DraftEntry
from bert_probe.reports.view_files import asked_in, subject_of
from bert_probe.ui import drafts, state

_TITLE = "report_title"


def title() -> None:
    """The report's title."""
    st.session_state[_TITLE] = drafts.held().title
    st.text_input("Title", key=_TITLE, max_chars=200, placeholder="Report", on_change=_retitle)


def _retitle() -> None:
    _safely(lambda: drafts.take(Draft(st.session_state[_TITLE].strip(), drafts.held().entries)))


def entries() -> None:
    """Each view with its buttons and its note."""
    drafts.told()
    held = drafts.held().entries
    for place, entry in enumerate(held):
        with st.container(border=True, key=f"report_view_{place}"):
            _head(place, entry, len(held))
            _note(place, entry)


def _head(place: int, entry: DraftEntry, count: int) -> None:
    view = entry.view
    title, asked = asked_in(view)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        where = f" · from {view.page.title()}" if view.page and view.page != title.lower() else ""
        st.markdown(f"**{place + 1} · {state.plain(title)}**:gray[{where}]", width="content")
        st.space("stretch")
        for label, says, by in (("↑", "up", -1), ("↓", "down", 1)):
            st.button(
                label,
                key=f"{says} {place}",
                help=f"Move view {place + 1} {says}",
                disabled=not 0 <= place + by < count,
                on_click=partial(drafts.move, place, by),
            )
        st.button(
            "Remove",
            key=f"remove {place}",
            type="tertiary",
            help=f"Take view {place + 1} out",
            on_click=partial(drafts.remove, place),
        )
    of = subject_of(view)
    lines = [
        state.plain(of, 400),
        state.plain(asked, 300),
        *(state.plain(model.shown) for model in view.models),
    ]
    st.caption("  \n".join(line for line in lines if line))


def _note(place: int, entry: DraftEntry) -> None:
    key = f"report_note_{place}"
    # From the tray in every run: what is moved takes its note along.
    st.session_state[key] = entry.note
    st.text_area(
        f"Note on view {place + 1}",
        key=key,
        height=80,
        max_chars=notes.LONGEST,
        placeholder=f"Plain text. {notes.HOW}",
        on_change=_noted,
        args=(place, key),
    )
    own = notes.unchecked(entry.note)
    if own:
        said = state.plain(", ".join(own))
        st.caption(f"Written by hand, so that nobody can check it: {said}. {state.plain(notes.HOW)}")


def _noted(place: int, key: str) -> None:
    _safely(lambda: drafts.note(place, st.session_state[key]))


def _safely(change: Callable[[], None]) -> None:
    try:
        change()
    except ProbeError as error:
        drafts.tell(str(error))
