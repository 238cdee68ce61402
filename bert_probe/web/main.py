"""The script that Streamlit runs on every interaction: navigation, workbench, the page."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from bert_probe.errors import ProbeError
from bert_probe.web import blocks, places, ready, serve, state, workbench

_STATIC = Path(__file__).with_name("static")


def main() -> None:
    """Draw the chosen page around the workbench."""
    # Not before the browser has its scripts: both would share one processor's time.
    ready.begin()
    page = st.navigation(
        {
            section: [
                # No icons: for Material ones the browser would ask a server outside.
                st.Page(
                    places.page(name), title=name.title(), url_path=name, default=name == serve.FRONT_PAGE
                )
                for name in names
            ]
            for section, names in serve.SECTIONS.items()
        },
        position="top",
    )
    st.set_page_config(
        f"{page.title} · BERT Probe", _STATIC / "favicon.svg", layout="wide", initial_sidebar_state=340
    )
    st.logo(_STATIC / "logo.svg", size="large", icon_image=_STATIC / "favicon.svg")
    state.enter(page.url_path)
    try:
        workbench.sidebar()
        if not ready.is_done():
            with st.spinner("Starting …"):
                ready.wait()
        page.run()
    except ProbeError as error:
        blocks.refusal(error)
    finally:
        workbench.model_line()
        state.publish(serve.OF_ATTENTION if page.url_path in ("", serve.FRONT_PAGE) else frozenset())


main()
