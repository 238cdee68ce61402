"""Test texts too long for a URL: they are stored, restored after a reload, and never mixed up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote_plus, urlencode

import pytest
from streamlit.runtime.state.query_params_proxy import QueryParamsProxy
from streamlit.testing.v1 import AppTest

from bert_probe.reports.view_files import TextInput, ViewFile
from bert_probe.runtime import shared_cache
from bert_probe.server import sessions
from bert_probe.ui import state, url_texts, view_files
from tests.helpers.pages import error_text, follow_link, open_page

LONG = "we left the ground " * 4_000
CHINESE = "東京" * 400


@pytest.fixture(autouse=True)
def no_stored_texts() -> None:
    shared_cache.open_checkpoint("", "")  # finish the imports now, so that pages do not wait for them
    sessions._texts.clear()


def test_back_keeps_unsubmitted_text_unless_a_text_changes() -> None:
    app = open_page("sentences", sentences_part="nearest")
    (field,) = [area for area in app.text_area if area.label == "Sentences, one per line"]
    field.set_value("A draft.").run()
    for number, (name, value, expected) in enumerate(
        [("sentences_part", "map", "A draft."), ("sentences", "One.\nTwo.", "One.\nTwo.")]
    ):
        app.query_params[name] = value
        app.query_params["went"] = str(number)
        app.run()
        (field,) = [area for area in app.text_area if area.label == "Sentences, one per line"]
        assert field.value == expected
        assert app.session_state["sentences_part"] == "map"


def type_texts_on_pages() -> AppTest:
    """Submit documents and sentences, and type other ones without submitting them."""
    app = open_page("sentences", a="One bank.")
    set_text(app, "Sentences", "First.\nSecond.")
    click(app, "Compare")
    set_text(app, "Sentences", "A draft.")
    follow_link(app, "context")
    set_text(app, "Add sentences", "The bank.\nThe river bank.")
    click(app, "Add")
    set_text(app, "Add sentences", "A context.")
    follow_link(app, "search")
    set_text(app, "Documents", "One document.\n\nAnother.")
    click(app, "Search")
    app.text_input(key="search_query").set_value("My query").run()
    return app


def set_text(app: AppTest, label: str, text: str) -> None:
    next(area for area in app.text_area if area.label.startswith(label)).set_value(text).run()


def texts_on_pages(app: AppTest) -> dict[str, str]:
    texts: dict[str, str] = {}
    for page in ("sentences", "context", "search"):
        follow_link(app, page)
        texts |= {
            area.label: area.value or "" for area in app.text_area if not area.label.startswith("Sentence ")
        }
    submitted = {name: app.session_state["address"].get(name, "") for name in ("sentences", "context")}
    return texts | submitted | {"Query": app.text_input(key="search_query").value}


def test_link_to_another_text_keeps_the_texts_of_other_pages() -> None:
    app = type_texts_on_pages()
    before = texts_on_pages(app)
    assert (before["Sentences, one per line"], before["sentences"]) == ("A draft.", "First.\nSecond.")
    assert before["context"].endswith("\nThe river bank.")
    follow_link(app, "attention", a="One document.", layer="3")
    assert app.text_area(key="draft_a").value == "One document."
    assert texts_on_pages(app) == before
    follow_link(app, "tokens", a="Again.", sentences="Linked.")
    linked = {"sentences": "Linked.", "Sentences, one per line": "Linked."}
    assert texts_on_pages(app) == before | linked


def test_back_across_a_text_keeps_drafts_of_other_texts() -> None:
    app = type_texts_on_pages()
    before = texts_on_pages(app)
    earlier = address(app)
    app.text_area(key="draft_a").set_value("Two banks.")
    click(app, "Run")
    for name, value in (earlier | {"went": "1"}).items():
        app.query_params[name] = value
    app.run()
    assert app.text_area(key="draft_a").value == "One bank."
    assert texts_on_pages(app) == before


def test_view_file_replaces_texts_but_not_drafts_of_other_pages() -> None:
    app = type_texts_on_pages()
    app.session_state[view_files._PENDING] = ViewFile(
        "Tokens", texts=(TextInput("Viewed."),), page="tokens", address={"a": "Viewed."}
    )
    app.run()
    assert texts_on_pages(app)["Sentences, one per line"] == "A draft."


def test_texts_have_their_own_parameters() -> None:
    """A control with the key of a text would replace the text on another page."""
    pattern = re.compile(r'state\.(?:segmented_control|toggle|select|slider|number)\w*\(\s*"(\w+)"')
    files = Path(url_texts.__file__).parent.glob("*.py")
    controls = {name for file in files for name in pattern.findall(file.read_text("utf-8"))}
    assert {"show", "batch", "sentences_source"} <= controls
    assert controls.isdisjoint(state.TEXTS)


def address(app: AppTest) -> dict[str, str]:
    return {key: value if isinstance(value, str) else value[0] for key, value in app.query_params.items()}


def click(app: AppTest, label: str) -> None:
    next(button for button in app.button if button.label == label).click().run()


def ran(a: str, b: str = "", page: str = "tokens") -> AppTest:
    app = open_page(page)
    app.text_area(key="draft_a").set_value(a)
    app.text_area(key="draft_b").set_value(b)
    app.toggle(key="draft_truncate").set_value(True)
    click(app, "Run")
    return app


def test_column_of_long_word_has_limited_width() -> None:
    app = open_page("attention", a=f"we saw {'y' * 3_000} there", show="table", words="1")
    columns = json.loads(app.dataframe[0].proto.columns)
    assert [name[:3] for name, column in columns.items() if column.get("width")] == ["3 y"]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("text", "printed", "files"),
    [
        ("we left", ["import", "bert-probe", "curl"], []),
        (LONG, [], ["Python code", "Command line", "HTTP request"]),
        (LONG * 2, ["#", "#"], ["Python code"]),
    ],
    ids=["short", "long", "longest"],
)
def test_long_snippet_is_a_download(text: str, printed: list[str], files: list[str]) -> None:
    app = ran(text)
    assert [code.value.split()[0] for code in app.get("code")] == printed
    labels = [element.proto.label for element in app.get("download_button")]
    assert [label.partition(",")[0] for label in labels if label.endswith(" characters")] == files


@pytest.mark.parametrize(("text", "tokens"), [(LONG, 512), (CHINESE, 512)])
def test_too_long_text_for_url_survives_reload(text: str, tokens: int) -> None:
    app = ran(text, text)
    query = address(app)
    assert {"a", "b"} & set(query) == set()
    assert len(urlencode(query)) < 1_000
    again = open_page("tokens", **query)
    assert not again.exception
    assert error_text(again) == ""
    assert (again.text_area(key="draft_a").value, again.text_area(key="draft_b").value) == (text, text)
    assert len(again.dataframe[-1].value) == tokens
    assert address(again) == query


def test_short_text_is_in_url() -> None:
    assert address(ran("東京" * 70))["a"] == "東京" * 70
    query = address(ran(LONG))
    app = open_page("tokens", **query)
    app.text_area(key="draft_a").set_value("short")
    click(app, "Run")
    assert address(app)["a"] == "short"
    assert "a_kept" not in address(app)


def test_texts_share_length_limit_of_link() -> None:
    app = ran("x" * 900, "y" * 900)
    assert (address(app)["a"], "b_kept" in address(app)) == ("x" * 900, True)
    app.text_area(key="draft_a").set_value("short")
    click(app, "Run")
    assert (address(app)["a"], address(app)["b"]) == ("short", "y" * 900)


def test_url_of_maximum_length_is_a_link() -> None:
    room = url_texts.MAX_URL - len("a=")
    for text, fits in (("x" * room, True), ("x" * (room + 1), False), ("京" * (room // 9 + 1), False)):
        assert ("a" in address(open_page("parameters", a=text))) == fits
    assert url_texts.MAX_URL <= url_texts.MAX_LINK - 400, "room for the host name and options"
    assert url_texts.length({"a": "京 b", "c": "&"}) == len("a=%E4%BA%AC+b&c=%26")


@pytest.mark.parametrize(("a", "b"), [(LONG, ""), ("we left", LONG)])
def test_missing_text_is_reported_and_not_replaced(a: str, b: str) -> None:
    query = address(ran(a, b))
    sessions._texts.clear()  # clear the texts, as after a restart of the server
    app = open_page("tokens", **query)
    assert not app.exception
    assert "is no longer stored" in error_text(app)
    assert len(app.dataframe) == 0
    assert address(app) == query, "another reload reports it again"
    app.text_area(key="draft_a").set_value("we left")
    app.text_area(key="draft_b").set_value("")
    click(app, "Run")
    assert error_text(app) == ""
    assert not {"a_kept", "b_kept"} & set(address(app))


def test_text_over_limit_is_refused_and_kept() -> None:
    app = ran("word " * 60_000)
    assert error_text(app) == (
        "The text has 300,000 characters, but at most 250,000 are allowed, even with truncation. "
        "Shorten the text."
    )
    again = open_page("tokens", **address(app))
    assert error_text(again) == error_text(app)


def test_unknown_text_name_is_refused() -> None:
    ran(LONG)
    (name,) = sessions._texts
    other = ("0" if name[0] != "0" else "1") + name[1:]
    assert "is no longer stored" in error_text(open_page("tokens", a_kept=other))


def test_stored_texts_are_bounded() -> None:
    for number in range(3):
        ran(f"{number} {LONG}")
        assert sessions._texts.currsize <= sessions.CAPACITY_BYTES
    assert sessions.store_text("x" * sessions.CAPACITY_BYTES) not in sessions._texts


def test_sentences_survive_reload_or_are_reported_missing() -> None:
    app = open_page("sentences")
    many = "\n".join(f"sentence number {number} of many" for number in range(300))
    app.text_area(key="sentences_draft").set_value(many)
    click(app, "Compare")
    query = address(app)
    assert "sentences" not in query
    again = open_page("sentences", **query)
    assert again.text_area(key="sentences_draft").value == many
    sessions._texts.clear()
    gone = open_page("sentences", **query)
    assert "is no longer stored" in error_text(gone)
    assert gone.text_area(key="sentences_draft").value == ""
    assert address(gone)["sentences_kept"] == query["sentences_kept"]


@pytest.mark.prove
def test_context_sentences_survive_reload_or_are_reported_missing() -> None:
    texts = [f"we left the bank number {number} {'and the river ' * 10}" for number in range(45)]
    app = open_page("context")
    click(app, "Clear all")
    app.text_area(key="context_draft").set_value("\n".join(texts))
    click(app, "Add")
    query = address(app)
    assert "context" not in query
    again = open_page("context", **query)
    assert [line.text for line in again.session_state["context_lines"]] == [text.strip() for text in texts]
    sessions._texts.clear()
    gone = open_page("context", **query)
    assert "is no longer stored" in error_text(gone)
    assert gone.session_state["context_lines"] == ()
    assert address(gone)["context_kept"] == query["context_kept"]


def test_longest_parameters_are_omitted_without_encoding_all(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = state.MAX_QUERY_STRING
    others = {"layer": "2", "b": "é & ü"}
    size = limit - len(urlencode({"a": ""} | others))
    assert not state._too_long({"a": "x" * size} | others)
    assert state._too_long({"a": "x" * (size + 1)} | others) == {"a"}
    encoded: list[str] = []

    def recording(text: str) -> str:
        encoded.append(text)
        return quote_plus(text)

    monkeypatch.setattr(state, "quote_plus", recording)
    parameters = {f"key{number}": "漢" * 2_000 for number in range(490)}
    assert len(state._too_long(parameters)) == 490
    assert len("".join(encoded)) < limit
    assert state._too_long(parameters | {"layer": "2"}) == parameters.keys()


@pytest.mark.parametrize("name", ["embed", "Embed_Options"])
def test_parameters_of_streamlit_are_not_set(name: str) -> None:
    """A view file can contain any names, but Streamlit raises an exception for its own."""

    def script(name: str) -> None:
        from bert_probe.ui import state

        state.remember(name, "true")
        state.remember("layer", "2")
        state.publish()

    page = AppTest.from_function(script, args=(name,)).run()
    assert not page.exception
    assert {key: list(value) for key, value in page.query_params.items()} == {"layer": ["2"]}


def test_url_is_sent_again_if_the_browser_had_not_received_the_previous_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two quick clicks there and back: the second is sent with the URL from before the first."""

    def script() -> None:
        import streamlit as st

        from bert_probe.ui import state

        state.remember("layer", "3" if st.checkbox("There") else "2")
        state.publish()

    sent: list[dict[str, str]] = []
    page = AppTest.from_function(script)
    page.query_params["layer"] = "2"
    page.run()
    monkeypatch.setattr(QueryParamsProxy, "from_dict", lambda _, parameters: sent.append(dict(parameters)))
    page.checkbox[0].check().run()
    page.checkbox[0].uncheck().run()
    assert sent == [{"layer": "3"}, {"layer": "2"}]
    page.run()
    assert len(sent) == 2, "an unchanged URL is not sent again"
