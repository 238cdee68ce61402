"""The script that Streamlit runs on every interaction: navigation, workbench, the page."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from bert_probe.errors import ProbeError
from bert_probe.ui import blocks, state, workbench

_PAGES = Path(__file__).resolve().parents[2] / "pages"
_STATIC = Path(__file__).with_name("static")

# File, title, address. No icons: for Material ones the browser would ask a server outside.
_NAVIGATION = (
    ("tokens.py", "Tokens", "tokens"),
    ("attention.py", "Attention", "attention"),
    ("similarity.py", "Similarity", "similarity"),
    ("embeddings.py", "Embeddings", "embeddings"),
    ("parameters.py", "Parameters", "parameters"),
)


def main() -> None:
    """Draw the chosen page around the workbench."""
    page = st.navigation(
        [
            st.Page(_PAGES / file, title=title, url_path=path, default=path == "attention")
            for file, title, path in _NAVIGATION
        ],
        position="top",
    )
    st.set_page_config(
        f"{page.title} · BERT Probe", _STATIC / "favicon.svg", layout="wide", initial_sidebar_state=340
    )
    st.html(_STATIC / "page.css")
    if blocks.dark():
        # White on the dark theme's light accent could hardly be read.
        st.html(_STATIC / "page-dark.css")
    st.logo(_STATIC / "logo.svg", size="large", icon_image=_STATIC / "favicon.svg")
    try:
        workbench.sidebar()
        page.run()
    except ProbeError as error:
        blocks.refusal(error)
    finally:
        workbench.model_line()
        state.publish()


main()
