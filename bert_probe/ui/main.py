"""The Streamlit script, which runs on every interaction and draws the workbench and the current page."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from bert_probe.errors import ProbeError
from bert_probe.server import asgi, paths
from bert_probe.ui import blocks, drafts, preload, state, view_files, workbench

_STATIC = Path(__file__).with_name("static")


def main() -> None:
    """Draw the input form of the sidebar (the workbench) and the current page."""
    # Start the imports only now, so that they do not delay the browser's first requests.
    preload.start()
    page = st.navigation(
        {
            section: [
                # Pages have no icons, because the browser would fetch Material icons from another server.
                st.Page(
                    paths.page_script(name),
                    title=name.title(),
                    url_path=name,
                    default=name == asgi.FRONT_PAGE,
                )
                for name in names
            ]
            for section, names in asgi.sections().items()
        },
        position="top",
    )
    st.set_page_config(
        f"{page.title} · BERT Probe", _STATIC / "favicon.svg", layout="wide", initial_sidebar_state=340
    )
    st.logo(_STATIC / "logo.svg", size="large", icon_image=_STATIC / "favicon.svg")
    state.enter(page.url_path or asgi.FRONT_PAGE)
    try:
        view_files.open_pending()
        workbench.draw_sidebar()
        with st.sidebar:
            view_files.uploader()
        if not preload.is_done():
            with st.spinner("Starting …"):
                preload.wait()
        blocks.not_run_on_page()
        workbench.draw_precision()
        page.run()
        view_files.warn_other_weights()
        workbench.draw_playground_link()
    except ProbeError as error:
        blocks.error_box(error)
    finally:
        workbench.draw_model_line()
        drafts.publish()
        state.publish(asgi.ATTENTION_PARAMETERS if page.url_path in ("", asgi.FRONT_PAGE) else frozenset())
    workbench.confirm_drafts()


main()
