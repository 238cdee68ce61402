"""The script that Streamlit runs on every interaction: navigation, workbench, the page."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from bert_probe.errors import ProbeError
from bert_probe.server import asgi, paths
from bert_probe.ui import blocks, drafts, preload, state, view_files, workbench

_STATIC = Path(__file__).with_name("static")


def main() -> None:
    """Draw the chosen page around the workbench."""
    # Not before the browser has its scripts: both would share one processor's time.
    preload.begin()
    page = st.navigation(
        {
            section: [
                # No icons: for Material ones the browser would ask a server outside.
                st.Page(paths.page(name), title=name.title(), url_path=name, default=name == asgi.FRONT_PAGE)
                for name in names
            ]
            for section, names in asgi.SECTIONS.items()
        },
        position="top",
    )
    st.set_page_config(
        f"{page.title} · BERT Probe", _STATIC / "favicon.svg", layout="wide", initial_sidebar_state=340
    )
    st.logo(_STATIC / "logo.svg", size="large", icon_image=_STATIC / "favicon.svg")
    state.enter(page.url_path or asgi.FRONT_PAGE)
    try:
        view_files.arrive()
        workbench.sidebar()
        with st.sidebar:
            view_files.uploader()
        if not preload.is_done():
            with st.spinner("Starting …"):
                preload.wait()
        page.run()
        view_files.other_weights()
    except ProbeError as error:
        blocks.refusal(error)
    finally:
        workbench.model_line()
        drafts.publish()
        state.publish(asgi.OF_ATTENTION if page.url_path in ("", asgi.FRONT_PAGE) else frozenset())
    workbench.confirm_drafts()


main()
