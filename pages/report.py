"""Report: the views that were picked, with notes, as one file."""

from __future__ import annotations

import streamlit as st

from bert_probe.ui import blocks, drafts
from bert_probe.ui.report import listed, making


def main() -> None:
    """The page."""
    blocks.heading(
        "Report",
        "Views that you picked, in your order and with your notes, as one file: live pictures, tables, where "
        "each number comes from, and the code that makes it again.",
    )
    if drafts.is_gone():
        st.warning(
            "The views that this address names are not kept any more: the app was started anew. Where you "
            "saved them, open their file under Open a view."
        )
    held = drafts.held()
    if not held.entries:
        with st.container(border=True, key="report_empty"):
            st.header("Nothing is picked yet", anchor=False)
            st.markdown(
                "On any page choose **Export**, then **Add to report**. What you pick is kept while you look "
                "at other pages."
            )
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=420):
            listed.title()
        st.download_button(
            "Save these views",
            held.to_bytes(),
            file_name="report.views.json",
            mime="application/json",
            on_click="ignore",
            help="A small file with the views and notes, and no numbers. Open a view takes it again.",
        )
    listed.entries()
    making.part(held)


main()
