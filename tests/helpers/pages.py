"""Functions that open pages in Streamlit's app test runner, and read their content."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, TypeVar

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Button
from streamlit.util import calc_hash

from bert_probe.cli.main import main
from bert_probe.core import files
from bert_probe.core.question import Question
from bert_probe.runtime import shared_cache
from bert_probe.server.asgi import FRONT_PAGE
from bert_probe.ui import selection_state
from bert_probe.views.selection import Selection
from tests.helpers.opening import share_opened_models

Asked = TypeVar("Asked", bound=Question)
MAIN = Path(__file__).parents[2] / "bert_probe" / "ui" / "main.py"

HOSTILE = "</script><img src=x onerror=window.__pwned=1> **bold** $x^2$ :red[no] =1+1 [a](http://b) `c`"
"""A text that breaks code which treats it as HTML, Markdown, a formula or a spreadsheet cell."""

MARKDOWN = (
    ":red[no] :blue-badge[no] :smile: :streamlit: :material/home: :material_home:",
    "www.evil.com http://evil.com/x https://evil.com:80 a@evil.com",
    "[a](http://b.c) ![a](http://b.c) ^[x] [x]: http://b.c",
    "-> --> <- <-> -- >= <= != ~=",
    "**b** _i_ `c` ~~s~~ ~s~ $x^2$ $$x$$ \\a",
    "# h",
    "1. x",
    "+ x",
    "* x",
    "> q",
    "|a|b|",
    "<b>x</b> <img src=x onerror=alert(1)> &amp; &#65; <!-- -->",
)
"""Texts that would change if Streamlit rendered them as Markdown, including its own extensions."""


def open_page(page: str = "attention", agrees: bool = True, **address: str) -> AppTest:
    """Open a page, run it, and return its app test.

    Args:
        agrees: click "Open" if the page asks for consent to open a model.
    """
    app = AppTest.from_file(MAIN, default_timeout=120)
    for key, value in address.items():
        app.query_params[key] = value
    if page != FRONT_PAGE:
        app._page_hash = calc_hash(page)  # `switch_page` requires a run of the front page.
    app.run()
    while agrees and consent_buttons(app):
        consent_buttons(app)[0].click().run()
    return app


def consent_buttons(app: AppTest) -> list[Button]:
    """Return the buttons that ask for consent to open a model."""
    return [button for button in app.button if button.label == "Open"]


def change_url(app: AppTest, **parameters: str) -> AppTest:
    """Change the URL and rerun, like the toolbar's browser code, which the test runner does not have."""
    app.session_state["address"] = dict(app.session_state["address"]) | parameters
    return app.run()


def follow_link(app: AppTest, page: str, **parameters: str) -> None:
    """Open a page in the same session, as a link with URL parameters or, without them, the menu does."""
    app._page_hash = calc_hash(page)
    for name in list(app.query_params):
        del app.query_params[name]
    for name, value in parameters.items():
        app.query_params[name] = value
    app.run()


def displayed_view(app: AppTest) -> Selection:
    """Return the selection that the attention views share."""
    view = app.session_state[selection_state.KEY].value
    assert isinstance(view, Selection)
    return view


def page_text(app: AppTest) -> str:
    """Return all text of the page."""
    parts = (app.title, app.subheader, app.markdown, app.caption, app.text, app.warning)
    return "\n".join(element.value for part in parts for element in part)


def page_inputs(app: AppTest) -> str:
    """Return which fields the form shows: "texts model" (both), "model", or "" (none)."""
    (inputs,) = re.findall('data-inputs="(.*?)"', "".join(element.proto.body for element in app.get("html")))
    return inputs


def error_text(app: AppTest) -> str:
    """Return the error message of the page; empty if there is none."""
    return "\n".join(element.value for element in app.text)


def url_params(app: AppTest) -> dict[str, str]:
    """Return the URL parameters as strings; Streamlit's test runner stores some of them as lists."""
    return {name: "".join(value) for name, value in app.query_params.items()}


def question_in_url(app: AppTest, kind: type[Asked]) -> Asked:
    """Return the question of the class `kind` that the page's URL contains, for the built-in model."""
    return kind.from_address(url_params(app), shared_cache.open_checkpoint("", "").description)


def table_of_snippets(app: AppTest, capfdbinary: pytest.CaptureFixture[bytes]) -> Any:
    """Return the table of the export menu's Python snippet, after checking that the shell snippet agrees."""
    python, shell = (code.value for code in app.get("code")[:2])
    before, _, last = python.rpartition("\n")
    scope: dict[str, Any] = {}
    with share_opened_models():
        exec(before, scope)
        frame = eval(last, scope)
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(shell.splitlines()[-1])[1:])
    assert ended.value.code == 0
    assert capfdbinary.readouterr().out == files.to_bytes(frame, "csv")
    return frame
