"""The Streamlit script, which runs on every interaction and draws navigation, workbench and current page."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import streamlit as st
from streamlit import delta_generator

from bert_probe.errors import ProbeError
from bert_probe.runtime.imports import long_lived_imports
from bert_probe.server import asgi, paths
from bert_probe.ui import blocks, drafts, state, view_files, workbench

_STATIC = Path(__file__).with_name("static")


def main() -> None:
    """Draw the workbench and the current page."""
    # Started only now, because the browser's first requests have priority.
    start()
    page = st.navigation(
        {
            section: [
                # No icons: the browser would fetch Material icons from another server.
                st.Page(
                    paths.page_script(name),
                    title=name.title(),
                    url_path=name,
                    default=name == asgi.FRONT_PAGE,
                )
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
        view_files.open_pending()
        workbench.draw_sidebar()
        with st.sidebar:
            view_files.uploader()
        if not is_done():
            with st.spinner("Starting …"):
                wait()
        blocks.not_run_on_page()
        page.run()
        view_files.warn_other_weights()
    except ProbeError as error:
        blocks.error_box(error)
    finally:
        workbench.draw_model_line()
        drafts.publish()
        state.publish(asgi.ATTENTION_PARAMETERS if page.url_path in ("", asgi.FRONT_PAGE) else frozenset())
    workbench.confirm_drafts()


main()


def start() -> None:
    """Start the imports in a thread, once per process."""
    # Before its first element, Streamlit checks the files of all modules to find out whether it runs in a
    # Python prompt. During imports this takes half a second, so the check is skipped.
    delta_generator._use_warning_has_been_displayed = True
    _imports()


def wait() -> None:
    """Wait for the imports, and raise the error of a failed import."""
    _imports().result()


def is_done() -> bool:
    """Return whether the imports are done."""
    return _imports().done()


@cache
def _imports() -> Future[None]:
    future: Future[None] = Future()

    def work() -> None:
        try:
            # The modules that open a model, and those of the front page.
            with long_lived_imports(), _shorter_switch_interval():
                import bert_probe.model.loading
                import bert_probe.ui.overview  # noqa: F401
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    # A daemon thread, so that Ctrl+C does not wait for it.
    threading.Thread(target=work, name="imports", daemon=True).start()
    return future


@contextmanager
def _shorter_switch_interval() -> Iterator[None]:
    """Switch threads ten times as often, so that the browser's first requests are answered during imports."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 10)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
