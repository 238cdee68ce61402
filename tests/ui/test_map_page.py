"""Test the token map page: payload, selection, and refused input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from bert_probe import CorpusTokenMap, TokenMap
from bert_probe.errors import TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import shared_cache
from bert_probe.text.labeled_texts import parse_labeled_texts
from bert_probe.ui import token_map
from bert_probe.views import layer_map as views
from tests.helpers.exactness import assert_repeatable
from tests.helpers.pages import HOSTILE, error_text, page_text, question_in_url, table_of_snippets, url_params
from tests.helpers.pages import open_page as page
from tests.helpers.payloads import read_payload

TABLE = b"text,label\nA small boat sinks,calm\nNobody reads a map,storm\nThe river is wide,calm\n"


def open_with_file(name: str, content: bytes, **address: str) -> AppTest:
    app = page("map", map_from="file", **address)
    app.file_uploader(key="map_upload").set_value((name, content, "text/plain"))
    return app.run()


def same_places(frame: Any, expected: Any) -> None:
    assert frame.drop(columns=["x", "y"]).equals(expected.drop(columns=["x", "y"]))
    assert_repeatable(frame[["x", "y"]], expected[["x", "y"]])


def at_layer(app: AppTest) -> Any:
    return app.dataframe[-1].value


def test_text_is_mapped_and_hidden_points_are_reported(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    app = page("map")
    assert not app.exception
    study = app.session_state["request"]
    checkpoint = shared_cache.open_checkpoint("", "")
    result = TokenMap().of(*shared_cache.traces(checkpoint, study.texts, truncate=False))
    same_places(at_layer(app), result.some(range(len(result.marks)), 6))
    assert "neighbors" in page_text(app)
    assert question_in_url(app, TokenMap) == TokenMap()
    same_places(table_of_snippets(app, capfdbinary), result.table())


def test_url_contains_question_and_view() -> None:
    app = page("map", map_words="1", map_basis="centred", map_layer="2", map_view="each", map_colour="layer")
    assert question_in_url(app, TokenMap) == TokenMap(words=True, basis="centred")
    assert at_layer(app)["layer"].unique().tolist() == [2]
    address = url_params(app)
    assert (address["map_view"], address["map_layer"], address["map_colour"]) == ("each", "2", "layer")
    wrong = page("map", map_layer="40", map_view="upside")
    assert "There is no layer 40; showing" in page_text(wrong)
    assert "There is no view upside; showing" in page_text(wrong)
    assert "map_layer" not in url_params(wrong)


def test_labeled_file_is_mapped_and_its_texts_open_on_other_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = page("map", map_from="file")
    assert "Choose a file" in app.info[0].value
    monkeypatch.setattr(
        token_map,
        "layer_map",
        lambda *_a, **_k: ({"pinned": 5, "selected": [1, 5]}, {"mode": "all", "layer": 3, "by": "part"}),
    )
    app = open_with_file("rows.csv", TABLE)
    checkpoint = shared_cache.open_checkpoint("", "")
    expected = CorpusTokenMap().of(checkpoint, parse_labeled_texts(TABLE, "rows.csv"))
    assert "3 texts from rows" in page_text(app)
    same_places(at_layer(app), expected.some([1, 5], 3))
    assert "2 tokens selected, at layer 3" in page_text(app)
    assert "**reads** in text 2, storm, position 2" in page_text(app)
    assert (url_params(app)["map_layer"], url_params(app)["map_view"]) == ("3", "all")
    next(button for button in app.button if button.label.startswith("Show the attention")).click().run()
    assert not app.exception
    assert url_params(app)["a"] == "Nobody reads a map"


def test_file_column_can_be_selected_and_invalid_files_are_reported() -> None:
    app = open_with_file("rows.csv", b"id,text\n1,A boat\n2,Two boats\n")
    assert len(at_layer(app)) == 4
    app = app.selectbox(key="map_column").select("id").run()
    assert at_layer(app)["token"].tolist() == ["1", "2"]
    assert "broken" in error_text(open_with_file("rows.csv", b'text,label\n"A boat,calm\n'))
    assert "is not UTF-8" in error_text(open_with_file("texts.txt", b"\xff\xfe"))
    assert "texts.txt has more than 5,000 sentences" in error_text(
        open_with_file("texts.txt", b"One\n" * 5001)
    )
    hostile = open_with_file("texts.txt", f"{HOSTILE}\nOne".encode())
    assert not hostile.exception
    assert "<img" not in "\n".join(part.value for part in (*hostile.markdown, *hostile.caption))


def test_points_are_sent_exactly_with_unique_names(minilm: Checkpoint) -> None:
    result = TokenMap(words=True).of(minilm.trace("the boat the boat the river"))
    header, arrays = read_payload(views.payload(result, key="m"))
    np.testing.assert_array_equal(arrays["points"], result.planes.points)
    assert header["names"] == ["the", "boat", "river"]
    assert arrays["name"].tolist() == [0, 1, 0, 1, 0, 2]
    assert header["start"] == {"mode": "layer", "layer": 6, "by": "word"}
    explained = result.planes.explained
    assert explained is not None
    assert f"{explained[0]:.1%}" in header["variance"]
    assert f"{1 - sum(explained):.0%} of the variance is not visible" in header["variance"]
    assert (
        header["of"] != read_payload(views.payload(TokenMap().of(minilm.trace("the boat")), key="m"))[0]["of"]
    )


def test_too_many_points_are_refused_and_browser_reports_are_validated(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = TokenMap().of(minilm.trace("the boat"))
    nothing: dict[str, Any] = {"pinned": None, "selected": []}
    selection = {"of": "x", "pinned": 1, "selected": [1, 0, 7, -1, True, "a"]}
    assert views.read_selection({"selection": selection}, "x", 2) == {"pinned": 1, "selected": [0, 1]}
    for state in (None, {}, {"selection": 3}, {"selection": selection | {"of": "y"}}):
        assert views.read_selection(state, "x", 2) == nothing
    view: dict[str, Any] = {"of": "x", "mode": "all", "layer": 2, "by": "part"}
    assert views.read_view({"display": view}, "x", 6) == {"mode": "all", "layer": 2, "by": "part"}
    for change in ({"mode": "upside"}, {"layer": 7}, {"layer": True}, {"by": 3}, {"of": "y"}):
        assert views.read_view({"display": view | change}, "x", 6) is None
    monkeypatch.setattr(views, "MAX_TOKENS", 1)
    with pytest.raises(TextError, match="2 tokens, but a map shows at most 1"):
        views.payload(result, key="m")


def test_map_exports_page_and_picture_per_layer(minilm: Checkpoint) -> None:
    result = TokenMap(words=True).of(minilm.trace("the <b>boat</b> sinks"))
    frame = result.show()
    assert frame.page.component == "layer_map"
    svg = frame.page.svg()
    for layer in range(7):
        assert f">Layer {layer}<" in svg
    assert svg.count("h0") == 7 * len(result.marks), "every point in every layer"
    assert "boat" in svg
    assert "neighbors" in frame.page.html()
