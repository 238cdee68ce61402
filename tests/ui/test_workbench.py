"""Test that the form shows the texts that the server sets."""

from __future__ import annotations

import html
import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from streamlit.testing.v1 import AppTest

from bert_probe.model.sources import BUILT_IN
from bert_probe.runtime import permissions, shared_cache
from bert_probe.runtime.permissions import Permissions
from bert_probe.server import paths
from tests.helpers.pages import HOSTILE, open_page, page_inputs


def page() -> None:
    from dataclasses import replace

    import streamlit as st

    from bert_probe.ui import workbench

    def ask() -> None:
        workbench.submit(replace(workbench.request(), a="set by a button"))

    def arrive() -> None:
        # Set the session state like a request's widget states, which the test runner does not send for forms.
        st.session_state["draft_a"] = "from the address"

    def ask_model() -> None:
        workbench.submit(replace(workbench.request(), model="another/model"))

    st.button("Set", on_click=ask)
    st.button("Another model", on_click=ask_model)
    st.button("Built-in model", on_click=workbench._use_built_in)
    st.button("Outdated request", on_click=arrive)
    st.button("Another request")
    workbench.draw_sidebar()
    workbench.draw_model_line()
    st.text(workbench.request().a)
    workbench.confirm_drafts()


def click(app: AppTest, label: str) -> str:
    """Click a button and return the text in the form."""
    next(button for button in app.button if button.label == label).click().run()
    return str(app.text_area(key="draft_a").value)


def test_stale_request_does_not_undo_form_update() -> None:
    app = AppTest.from_function(page)
    app.query_params["a"] = "from the address"
    app.run()
    assert app.text_area(key="draft_a").value == "from the address"
    assert click(app, "Set") == app.text[0].value == "set by a button"
    assert click(app, "Outdated request") == "set by a button"
    assert click(app, "Outdated request") == "set by a button"
    assert click(app, "Another request") == "set by a button"
    assert click(app, "Outdated request") == "from the address", "the browser had confirmed the update"


def test_value_that_the_browser_has_received_is_not_sent_again() -> None:
    """Sending the value again would overwrite text that the user has typed since."""
    app = AppTest.from_function(page)
    app.query_params["a"] = "from the address"
    assert app.run().text_area(key="draft_a").proto.set_value
    click(app, "Another request")
    assert not app.text_area(key="draft_a").proto.set_value
    click(app, "Set")
    assert app.text_area(key="draft_a").proto.set_value


def test_immediately_submitted_text_replaces_update() -> None:
    app = AppTest.from_function(page)
    app.query_params["a"] = "from the address"
    app.run()
    click(app, "Set")
    app.text_area(key="draft_a").set_value("from the address")
    assert click(app, "Run") == app.text[0].value == "from the address"


def test_built_in_model_replaces_model_set_before() -> None:
    app = AppTest.from_function(page)
    app.run()
    click(app, "Another model")
    assert app.selectbox(key="draft_model").value == "another/model"
    click(app, "Built-in model")
    assert app.selectbox(key="draft_model").value == BUILT_IN
    click(app, "Another request")
    assert app.selectbox(key="draft_model").value == BUILT_IN


def test_text_beyond_the_size_limit_is_not_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions, "_current", Permissions(max_file_bytes=1_000_000))
    app = AppTest.from_function(page)
    app.query_params["a"] = "A boat."
    app.run()
    app.text_area(key="draft_a").set_value("a" * 1_000_001)
    click(app, "Run")
    assert [error.value for error in app.error] == [
        "Sentence A is larger than 1 MB. Split the file, or use the command line."
    ]
    assert app.text[0].value == "A boat."
    assert not app.run().error


def submitted_values(app: AppTest) -> dict[str, str]:
    """Return the submitted values, with which the browser compares the fields of the form."""
    bodies = "".join(element.proto.body for element in app.get("html"))
    (values,) = re.findall('data-submitted="(.*?)"', bodies)
    assert not set("<>").intersection(html.unescape(values)), "the sanitizer would remove the attribute"
    return json.loads(html.unescape(values))


TEXTS, MODEL = (
    ["draft_a", "draft_b", "draft_relation"],
    ["draft_model", "draft_revision", "draft_dtype", "draft_truncate"],
)


@pytest.mark.parametrize(
    ("name", "parameters", "inputs"),
    [
        ("overview", {}, "texts model"),
        ("changes", {}, "texts model"),
        ("corpus", {}, "model"),
        ("train", {}, "model"),
        ("sizes", {}, "model"),
        ("probes", {}, "model"),
        ("probes", {"probes_part": "structural_probe"}, "texts model"),
        ("heads", {}, "texts model"),
        ("heads", {"heads_part": "many"}, "model"),
        ("vocabulary", {}, "model"),
        ("vocabulary", {"vocabulary_part": "text"}, "texts model"),
        ("map", {"map_from": "file"}, "model"),
        ("report", {}, ""),
    ],
)
def test_form_shows_the_fields_that_the_page_reads(
    name: str, parameters: dict[str, str], inputs: str
) -> None:
    shared_cache.open_checkpoint("", "")
    app = AppTest.from_function(page)
    app.session_state["page shown"] = name
    app.query_params.update(parameters)
    app.run()
    assert not app.exception
    assert page_inputs(app) == inputs
    expected = [*(TEXTS if "texts" in inputs else []), *(MODEL if "model" in inputs else [])]
    assert list(submitted_values(app)) == expected
    note = "".join(element.proto.body for element in app.get("html"))
    assert ("Sentences A and B remain available on the other pages." in note) == ("texts" not in inputs)
    assert bool(app.sidebar.caption) == ("model" in inputs), "the size of the model"


def test_browser_compares_the_fields_with_what_was_run() -> None:
    app = AppTest.from_function(page)
    text = f"{HOSTILE} --> </textarea> \\ 'x' \n"
    app.query_params.update({"a": text + "\r\n.", "relation": "pair", "truncate": "1"})
    app.run()
    assert submitted_values(app) == {
        "draft_a": text + "\n.",
        "draft_b": "",
        "draft_relation": "Second segment",
        "draft_model": BUILT_IN,
        "draft_revision": "",
        "draft_dtype": "float32",
        "draft_truncate": "on",
    }
    app.text_area(key="draft_a").set_value("typed")
    click(app, "Run")
    assert submitted_values(app)["draft_a"] == "typed"


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(("dtype", "used"), [("bfloat16", "bfloat16"), ("int8", "float32")])
def test_data_type_of_the_url_is_used(dtype: str, used: str) -> None:
    app = open_page("attention", a="Mehdi loves AI", dtype=dtype)
    assert not app.exception
    assert app.selectbox(key="draft_dtype").value == used
    captions = [caption.value for caption in app.main.caption]
    assert any("The model runs in bfloat16" in caption for caption in captions) == (used != "float32")
    opened = shared_cache.cached_checkpoint("", "", used)
    assert opened is not None
    assert opened.description.dtype == used
    assert opened.cache_key != shared_cache.open_checkpoint("", "", dtype="float64").cache_key


PLAYGROUND = "https://example.org/site/playground/"


def playground_links(app: AppTest) -> list[str]:
    return [link.proto.url for link in app.get("link_button")]


@pytest.mark.parametrize(
    ("name", "address", "view"),
    [
        ("tokens", {}, "tokens"),
        ("attention", {"show": "model"}, "model"),
        ("heads", {"heads_part": "find"}, "find"),
        ("similarity", {"b": "x"}, "similarity"),
    ],
)
def test_playground_link_contains_the_texts_after_the_number_sign(
    monkeypatch: pytest.MonkeyPatch, name: str, address: dict[str, str], view: str
) -> None:
    monkeypatch.setenv(paths.PLAYGROUND_VARIABLE, PLAYGROUND)
    [url] = playground_links(open_page(name, a=HOSTILE, **address))
    assert url.startswith(f"{PLAYGROUND}#")
    texts = {"a": [HOSTILE]} | ({"b": ["x"]} if "b" in address else {})
    assert parse_qs(urlsplit(url).fragment) == texts | {"view": [view]}


def test_playground_link_is_missing_where_the_playground_shows_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert playground_links(open_page("tokens", a="a boat")) == [], "no playground is configured"
    monkeypatch.setenv(paths.PLAYGROUND_VARIABLE, PLAYGROUND)
    pair = {"a": "a boat", "b": "a ferry", "relation": "pair"}
    assert playground_links(open_page("similarity", **pair)) == [], "the playground compares separate texts"
    assert "&of=joined" in playground_links(open_page("tokens", **pair))[0]
    assert playground_links(open_page("heads", a="a boat")) == []
    assert playground_links(open_page("steps", a="a boat")) == []
