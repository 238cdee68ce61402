"""The Streamlit script. It runs on every interaction and draws the sidebar and the current page."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import streamlit as st

from bert_probe.errors import ProbeError
from bert_probe.model.sources import BUILT_IN
from bert_probe.server import asgi, paths
from bert_probe.ui import blocks, drafts, preload, state, view_files, workbench

_STATIC = Path(__file__).with_name("static")

_PLAYGROUND_VIEWS = {
    "attention": "heads",
    "tokens": "tokens",
    "similarity": "similarity",
    "answer": "sentences",
}
"""Page of the app → view of the browser playground (`js/site/playground.js`) with the page's analysis."""

_COMPARISONS = ("similarity", "sentences")
"""Views of the playground that compare two separate texts."""


def _draw_playground_link() -> None:
    """Draw a link that opens the texts in the playground, which runs the built-in model in the browser.

    The link is omitted if no playground is configured, if the playground has no view for the current page, if
    its view compares two separate texts but the texts are a pair, or if another model is selected.
    """
    now, url, view = workbench.request(), paths.playground(), _playground_view()
    is_joined = bool(now.b.strip()) and now.relation == "pair"
    if not url or view is None or (now.model or BUILT_IN) != BUILT_IN:
        return
    if is_joined and view in _COMPARISONS:
        return
    texts = {"a": now.a, "b": now.b} if now.b.strip() else {"a": now.a}
    joined = {"of": "joined"} if is_joined else {}
    st.link_button(
        "Open in the playground",
        f"{url}#{urlencode(texts | {'view': view} | joined)}",
        type="tertiary",
        help="Opens the same texts on a page that runs the model in your browser. The texts are in the part "
        "of the URL after #, which browsers do not send.",
    )


def _playground_view() -> str | None:
    """Return the playground view with the analysis of the current page, or None if there is none."""
    page = state.current_page()
    if page == "attention" and st.session_state.get("show") == "model":
        return "model"
    if page == "heads" and st.session_state.get("heads_part") == "find":
        return "find"
    return _PLAYGROUND_VIEWS.get(page)


def main() -> None:
    """Draw the input form of the sidebar (the workbench) and the current page."""
    # Preload modules when the first page runs, because imports would delay the browser's first requests.
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
        _draw_playground_link()
    except ProbeError as error:
        blocks.error_box(error)
    finally:
        workbench.draw_model_line()
        drafts.publish()
        state.publish(asgi.ATTENTION_PARAMETERS if page.url_path in ("", asgi.FRONT_PAGE) else frozenset())
    workbench.confirm_drafts()


main()
