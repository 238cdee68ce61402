"""Test the selection in the attention views: the latest change is kept, and the URL contains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import streamlit as st

from bert_probe.analyses.attention.heads import first_look
from bert_probe.runtime import shared_cache
from bert_probe.ui import components, selection_state
from bert_probe.views.selection import Options, Pins, Selection, VersionedSelection, selection_to_json
from tests.helpers.pages import change_url, displayed_view, open_page, page_text, url_params

TEXT = "we left the ground"


class Browser:
    """Simulates the toolbar in a browser: records what is sent, and reports what a test sets."""

    def __init__(self) -> None:
        self.sent: Any = None
        self.report: VersionedSelection | None = None

    def mounted(self, *, key: str, data: Any, on_selection_change: Callable[[], None]) -> None:
        self.sent = data["selection"]
        if self.report is not None:
            st.session_state[key] = {"selection": selection_to_json(self.report)}
            self.report = None
            on_selection_change()


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Browser:
    fake = Browser()
    monkeypatch.setattr(components, "_toolbar", fake.mounted)
    return fake


def test_later_change_wins(browser: Browser) -> None:
    app = open_page(a=TEXT, show="table", layer="3", head="2")
    first = app.session_state[selection_state.KEY]
    assert browser.sent == selection_to_json(first)
    assert first.value == Selection(3, (1,))
    view = Selection(4, (1, 5), Options(specials=False), Pins("key", (2,)))
    browser.report = VersionedSelection(first.revision + 2, first.of, view)
    app.run().run()
    assert browser.sent == selection_to_json(VersionedSelection(first.revision + 2, first.of, view)), (
        "as reported"
    )
    spelled = {"layer": "4", "head": "2", "heads": "2.6", "specials": "0", "pins": "key.2"}
    assert url_params(app) == {"a": TEXT, "show": "table", **spelled}
    browser.report = VersionedSelection(first.revision + 1, first.of, Selection(1, "mean"))
    app.run().run()
    assert displayed_view(app) == view, "the earlier report arrived later"
    change_url(app, layer="2")
    stored = app.session_state[selection_state.KEY]
    assert stored == VersionedSelection(first.revision + 3, first.of, replace(view, layer=2)), (
        "selected on another page"
    )
    browser.report = replace(stored, value=replace(stored.value, layer=5))
    app.run().run()
    assert displayed_view(app).layer == 5, "the user's own choice wins a tie"


def test_pins_are_reset_with_text_and_other_options_are_kept(browser: Browser) -> None:
    app = open_page(a=TEXT, show="table", layer="3", head="2", pins="query.1", specials="0")
    before = app.session_state[selection_state.KEY]
    assert before.value.pins == Pins("query", (1,))
    browser.report = replace(before, revision=before.revision + 9, value=Selection(1, "mean"))
    app.text_area(key="draft_a").set_value("another text")
    next(button for button in app.button if button.label == "Run").click().run()
    after = app.session_state[selection_state.KEY]
    assert after.of != before.of
    assert after.value == Selection(3, (1,), Options(specials=False)), (
        "a report about the previous text is ignored"
    )
    assert after.revision == before.revision + 1
    assert "pins" not in url_params(app)


def test_default_view_shows_most_unusual_head() -> None:
    app = open_page(a=TEXT, show="table")
    look = first_look(shared_cache.open_checkpoint("", "").trace(TEXT))
    assert look.measure
    assert (displayed_view(app).layer, displayed_view(app).series) == (look.layer + 1, (look.head,))
    assert f"Layer {look.layer + 1}, head {int(look.head) + 1} stands out: it {look.reason}." in page_text(
        app
    )
    assert url_params(app) == {"a": TEXT, "show": "table"}, "so another text has its own"
    change_url(app, words="1")
    assert "layer" not in url_params(app)
    change_url(app, layer="6")
    assert displayed_view(app).series == "mean"
    assert "stands out" not in page_text(app)
    app.switch_page("../../pages/steps.py").run()
    app.switch_page("../../pages/attention.py").run()
    assert (displayed_view(app).layer, displayed_view(app).series) == (6, "mean"), (
        "Steps does not store its default layer"
    )
