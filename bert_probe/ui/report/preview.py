"""The preview of the report on the page."""

from __future__ import annotations

from typing import Final

import streamlit as st

from bert_probe.server.report_preview import Preview

HEIGHT: Final = 720
_KEY: Final = "report_preview"


def part(page: bytes) -> None:
    """Show the report in a frame."""
    held: Preview | None = st.session_state.get(_KEY)
    if held is None or held.page is not page:
        held = st.session_state[_KEY] = Preview(page)
    st.header("As it will look", anchor=False)
    with st.container(border=True):
        st.iframe(held.address, height=HEIGHT, alt="The report, with live pictures")
