"""A page through Streamlit's own test runner: opening it, and reading what it says."""

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
from bert_probe.ui.attention import view_state
from bert_probe.views.view import View
from tests.helpers.opening import opened_once

Asked = TypeVar("Asked", bound=Question)
MAIN = Path(__file__).parents[2] / "bert_probe" / "ui" / "main.py"

HOSTILE = "</script><img src=x onerror=window.__pwned=1> **bold** $x^2$ :red[no] =1+1 [a](http://b) `c`"
"""A text that breaks whatever takes it for HTML, Markdown, a formula or a spreadsheet's."""

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
"""Texts that Markdown, or what Streamlit adds to it, would make something else of; one line each."""


def opened(page: str = "attention", agrees: bool = True, **address: str) -> AppTest:
    """Return a page after its first run.

    Args:
        agrees: click on "Open it" where the page asks whether to open a model.
    """
    app = AppTest.from_file(MAIN, default_timeout=120)
    for key, value in address.items():
        app.query_params[key] = value
    if page != FRONT_PAGE:
        app._page_hash = calc_hash(page)  # `switch_page` can do it only after a run of the front page
    app.run()
    while agrees and questions(app):
        questions(app)[0].click().run()
    return app


def questions(app: AppTest) -> list[Button]:
    """Return the buttons that open a model which the reader has not agreed to."""
    return [button for button in app.button if button.label == "Open it"]


def choose(app: AppTest, **parameters: str) -> AppTest:
    """The page after its address has changed: what the toolbar's browser does, which no test runner has."""
    app.session_state["address"] = dict(app.session_state["address"]) | parameters
    return app.run()


def looks_at(app: AppTest) -> View:
    """What the views of attention show."""
    view = app.session_state[view_state.KEY].view
    assert isinstance(view, View)
    return view


def said(app: AppTest) -> str:
    """All the text on the page."""
    parts = (app.title, app.subheader, app.markdown, app.caption, app.text, app.warning)
    return "\n".join(element.value for part in parts for element in part)


def page_inputs(app: AppTest) -> str:
    """Return the fields of the form that the page shows: "texts model", "model" or ""."""
    (inputs,) = re.findall('data-inputs="(.*?)"', "".join(element.proto.body for element in app.get("html")))
    return inputs


def refusal(app: AppTest) -> str:
    """The sentence of a refusal; empty if there is none."""
    return "\n".join(element.value for element in app.text)


def address_of(app: AppTest) -> dict[str, str]:
    """What stands in the address; the runner gives some of it as lists."""
    return {name: "".join(value) for name, value in app.query_params.items()}


def asked_by(app: AppTest, kind: type[Asked]) -> Asked:
    """The question that the page's address asks the built-in model."""
    return kind.from_address(address_of(app), shared_cache.open_checkpoint("", "").description)


def table_of_both_codes(app: AppTest, capfdbinary: pytest.CaptureFixture[bytes]) -> Any:
    """The table that the export menu's line of Python makes; its shell line must print the same."""
    python, shell = (code.value for code in app.get("code")[:2])
    before, _, last = python.rpartition("\n")
    scope: dict[str, Any] = {}
    with opened_once():
        exec(before, scope)
        frame = eval(last, scope)
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(shell.splitlines()[-1])[1:])
    assert ended.value.code == 0
    assert capfdbinary.readouterr().out == files.to_bytes(frame, "csv")
    return frame
