"""What the components send to the browser, what they refuse, and what they make of an answer."""

import json
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from bert_probe.ui.components import choices
from bert_probe.ui.components import matrix as matrices
from bert_probe.ui.components import strip as strips
from bert_probe.ui.components.matrix import matrix
from bert_probe.ui.components.strip import strip
from bert_probe.views import palette
from bert_probe.views.matrix import Cell, digest, pinned_cell
from bert_probe.views.scale import Scale
from bert_probe.views.strip import StripToken, selected_position
from tests.helpers.payloads import opened

UNIT = Scale("sequential", 0, 1)
HOSTILE = "</script><img src=x onerror=alert(1)>\ud800\x00"


def draw(values: Any, rows: list[str], columns: list[str], **more: Any) -> Cell | None:
    named = {"row_axis": "query", "column_axis": "key", "value_name": "weight", "caption": "A matrix"}
    return matrix(values, rows, columns, **{"key": "m", "scale": UNIT, **named, **more})


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the components would have sent to the browser, in order."""
    payloads: list[Any] = []

    def mounted(**options: Any) -> dict[str, Any]:
        payloads.append(options["data"])
        return {}

    monkeypatch.setattr(matrices, "_component", mounted)
    monkeypatch.setattr(strips, "_component", mounted)
    return payloads


def test_values_arrive_exactly_as_they_were(sent: list[Any]) -> None:
    values = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    values[1, 2] = np.nan
    draw(values, list("abc"), list("vwxyz"), scale=Scale("diverging", -2, 2))
    header, arrays = opened(sent[0])
    np.testing.assert_array_equal(arrays["values"], values)
    assert arrays["light"].tobytes() == palette.lut_bytes("diverging", False)
    assert arrays["dark"].tobytes() == palette.lut_bytes("diverging", True)
    assert header["rows"] == list("abc")
    assert header["columns"] == list("vwxyz")
    assert header["missing"] is True


def test_a_transposed_view_is_sent_in_the_order_of_its_rows(sent: list[Any]) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3).T / 10
    draw(values, list("abc"), list("xy"))
    np.testing.assert_array_equal(opened(sent[0])[1]["values"], values)


def test_hostile_labels_survive_unchanged(sent: list[Any]) -> None:
    draw([[0.5]], [HOSTILE], [HOSTILE], caption=HOSTILE)
    header = opened(sent[0])[0]
    assert header["rows"] == [HOSTILE]
    assert header["columns"] is None, "the same labels go once"
    assert header["caption"] == HOSTILE


@pytest.mark.parametrize(
    ("values", "below", "above"),
    [([[0.0, 1.0]], False, False), ([[-0.1, 1.0]], True, False), ([[0.0, 1.1]], False, True)],
)
def test_the_legend_is_told_of_values_beyond_the_scale(
    sent: list[Any], values: list[list[float]], below: bool, above: bool
) -> None:
    draw(values, ["a"], ["x", "y"])
    header = opened(sent[0])[0]
    assert (header["below"], header["above"]) == (below, above)


def test_rounding_at_the_end_of_the_scale_is_not_a_value_beyond_it(sent: list[Any]) -> None:
    draw([[np.nextafter(np.float32(1), np.float32(2))]], ["a"], ["x"])
    assert opened(sent[0])[0]["above"] is False


def test_a_matrix_of_nothing_but_missing_values_is_drawn(sent: list[Any]) -> None:
    draw([[np.nan]], ["a"], ["x"])
    header = opened(sent[0])[0]
    assert (header["least"], header["most"], header["missing"]) == (0, 0, True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"values": [[0.1, 0.2]]}, r"shape \[1, 2\], but there are 1 row labels"),
        ({"values": [0.1]}, r"shape \[1\]"),
        ({"values": np.zeros((0, 0)), "rows": [], "columns": []}, "at least one row"),
        ({"values": [[np.inf]]}, "infinity"),
        ({"row_positions": [1, 2]}, "row_positions has 2 entries for 1 labels"),
        ({"column_positions": []}, "column_positions has 0 entries"),
        ({"decimals": 12}, "decimals is 12"),
    ],
)
def test_what_does_not_fit_is_refused(sent: list[Any], more: dict[str, Any], message: str) -> None:
    given = {"values": [[0.1]], "rows": ["a"], "columns": ["x"], **more}
    with pytest.raises(ValueError, match=message):
        draw(given.pop("values"), given.pop("rows"), given.pop("columns"), **given)
    assert sent == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rainbow", 0, 1), "sequential"),
        (("sequential", 0, 1, "log"), "sqrt"),
        (("sequential", 1, 1), "low < high"),
        (("sequential", 0, float("nan")), "both ends must be finite"),
        (("diverging", -1, 2), "must be centered on 0"),
    ],
)
def test_a_scale_that_cannot_be_drawn_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scale(*arguments)


def test_a_choice_counts_for_what_it_is_about_and_after_the_component_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: dict[str, Any] = {}
    monkeypatch.setattr("bert_probe.ui.components.choices.st.session_state", session)
    first, report = choices.latest("m", "cell", "labels")
    assert report is None
    session["m"] = {"cell": {"row": 1, "column": 0, "of": "labels", "revision": first + 1}}
    assert choices.latest("m", "cell", "labels") == (first + 1, session["m"]["cell"])
    assert choices.latest("m", "cell", "other labels") == (first, None)
    for revision in (first, first - 1, None, True, "9", 2**60):
        session["m"] = {"cell": {"row": 1, "column": 0, "of": "labels", "revision": revision}}
        assert choices.latest("m", "cell", "labels") == (first, None), "what an earlier page view knew"


def test_a_component_that_is_drawn_again_outranks_what_the_browser_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: dict[str, Any] = {}
    clock = iter((5_000_000, 9_000_000))
    monkeypatch.setattr("bert_probe.ui.components.choices.st.session_state", session)
    monkeypatch.setattr("bert_probe.ui.components.choices.time.time_ns", lambda: next(clock))
    assert choices.start("m") == 5
    session["m"] = {}
    assert choices.start("m") == 5, "it was drawn in the run before"
    del session["m"]
    assert choices.start("m") == 9


@pytest.mark.parametrize(
    "cell",
    [
        None,
        {},
        {"row": None, "column": None},
        {"row": 2, "column": 0},
        {"row": -1, "column": 0},
        {"row": True, "column": 0},
        {"row": "0"},
    ],
)
def test_a_pin_that_is_no_cell_is_ignored(cell: Any) -> None:
    assert pinned_cell(cell, (2, 1)) is None


def test_labels_cannot_trade_places_unnoticed() -> None:
    assert digest(["a", "b"], ["c"]) != digest(["a"], ["b", "c"])


def test_a_strip_sends_what_is_shown(sent: list[Any]) -> None:
    pieces = [
        StripToken("[CLS]", 0, 0, True, False, "id 101"),
        StripToken(HOSTILE, 1, 0, False, False, ""),
        StripToken("ing", 2, 1, False, True, "id 7", "changed"),
    ]
    assert strip(pieces, key="s", label="Tokens", selectable="one", selected=2) == 2
    assert strip(pieces, key="s", label="Tokens", selected=2) is None, "nothing can be chosen"
    first = sent[0]
    assert [piece["kind"] for piece in first["pieces"]] == ["special", "A", "B"]
    assert first["pieces"][1]["text"] == HOSTILE
    assert [piece["mark"] for piece in first["pieces"]] == ["", "", "changed"]
    assert first["selected"] == 2
    assert json.loads(json.dumps(first)) == first


def test_a_position_may_be_missing(sent: list[Any]) -> None:
    draw([[0.25, 0.75]], ["a"], ["x", "rest"], column_positions=[4, None])
    assert opened(sent[0])[0]["columnPositions"] == [4, None]


def test_a_strip_refuses_positions_that_do_not_fit(sent: list[Any]) -> None:
    piece = StripToken("a", 4, 0, False, False, "")
    with pytest.raises(ValueError, match="same position"):
        strip([piece, piece], key="s", label="Tokens")
    with pytest.raises(ValueError, match="selected is 0"):
        strip([piece], key="s", label="Tokens", selectable="one", selected=0)
    assert sent == []


def test_a_choice_stays_on_the_piece_that_holds_its_position() -> None:
    tokens = [StripToken(name, place, 0, False, False, "") for place, name in enumerate(("a", "b", "c", "d"))]
    words = [tokens[0], tokens[1], tokens[3]]
    assert selected_position({"position": 2}, tokens, 0) == 2
    assert selected_position({"position": 2}, words, 0) == 1, "b and c are one word"
    assert selected_position({"position": 3}, words, 0) == 3
    assert selected_position({"position": -1}, words, 0) == 0
    assert selected_position({"position": "3"}, tokens, 1) == 1
    assert selected_position(None, tokens, None) is None


def test_both_components_mount_in_an_app() -> None:
    def page() -> None:
        import streamlit as st

        from bert_probe.ui.components.matrix import matrix
        from bert_probe.ui.components.strip import strip
        from bert_probe.views.scale import Scale
        from bert_probe.views.strip import StripToken

        cell = matrix(
            [[0.25]],
            ["a"],
            ["x"],
            key="m",
            scale=Scale("sequential", 0, 1),
            row_axis="query",
            column_axis="key",
            value_name="weight",
            caption="One cell",
        )
        chosen = strip(
            [StripToken("a", 5, 0, False, False, "")], key="s", label="One", selectable="one", selected=5
        )
        st.write(f"{cell} {chosen}")

    at = AppTest.from_function(page).run()
    assert not at.exception
    assert at.markdown[0].value == "None 5"
    assert not at.run().exception, "a rerun finds the components registered"
