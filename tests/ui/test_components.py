"""Test payloads of the components, refused arguments, and validation of browser reports."""

import json
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from bert_probe.ui import components
from bert_probe.ui.components import matrix, strip
from bert_probe.views import palette
from bert_probe.views.matrix import Cell, digest, pinned_cell
from bert_probe.views.palette import Scale
from bert_probe.views.text import StripToken, selected_position
from tests.helpers.payloads import read_payload

UNIT = Scale("sequential", 0, 1)
HOSTILE = "</script><img src=x onerror=alert(1)>\ud800\x00"


def draw(values: Any, rows: list[str], columns: list[str], **more: Any) -> Cell | None:
    defaults = {"row_axis": "query", "column_axis": "key", "value_name": "weight", "caption": "A matrix"}
    return matrix(values, rows, columns, **{"key": "m", "scale": UNIT, **defaults, **more})


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the payloads that the components would have sent to the browser, in order."""
    payloads: list[Any] = []

    def mounted(**options: Any) -> dict[str, Any]:
        payloads.append(options["data"])
        return {}

    monkeypatch.setattr(components, "_matrix", mounted)
    monkeypatch.setattr(components, "_strip", mounted)
    return payloads


def test_values_are_sent_exactly(sent: list[Any]) -> None:
    values = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    values[1, 2] = np.nan
    draw(values, list("abc"), list("vwxyz"), scale=Scale("diverging", -2, 2))
    header, arrays = read_payload(sent[0])
    np.testing.assert_array_equal(arrays["values"], values)
    assert arrays["light"].tobytes() == palette.lut_bytes("diverging", False)
    assert arrays["dark"].tobytes() == palette.lut_bytes("diverging", True)
    assert header["rows"] == list("abc")
    assert header["columns"] == list("vwxyz")
    assert header["missing"] is True


def test_transposed_array_is_sent_in_row_order(sent: list[Any]) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3).T / 10
    draw(values, list("abc"), list("xy"))
    np.testing.assert_array_equal(read_payload(sent[0])[1]["values"], values)


def test_hostile_labels_are_sent_unchanged(sent: list[Any]) -> None:
    draw([[0.5]], [HOSTILE], [HOSTILE], caption=HOSTILE)
    header = read_payload(sent[0])[0]
    assert header["rows"] == [HOSTILE]
    assert header["columns"] is None, "equal labels are sent once"
    assert header["caption"] == HOSTILE


@pytest.mark.parametrize(
    ("values", "below", "above"),
    [([[0.0, 1.0]], False, False), ([[-0.1, 1.0]], True, False), ([[0.0, 1.1]], False, True)],
)
def test_values_outside_scale_are_flagged(
    sent: list[Any], values: list[list[float]], below: bool, above: bool
) -> None:
    draw(values, ["a"], ["x", "y"])
    header = read_payload(sent[0])[0]
    assert (header["below"], header["above"]) == (below, above)


def test_rounding_at_scale_limit_is_not_flagged(sent: list[Any]) -> None:
    draw([[np.nextafter(np.float32(1), np.float32(2))]], ["a"], ["x"])
    assert read_payload(sent[0])[0]["above"] is False


def test_matrix_of_missing_values_is_drawn(sent: list[Any]) -> None:
    draw([[np.nan]], ["a"], ["x"])
    header = read_payload(sent[0])[0]
    assert (header["min"], header["max"], header["missing"]) == (0, 0, True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"values": [[0.1, 0.2]]}, r"shape \[1, 2\], but there are 1 row labels"),
        ({"values": [0.1]}, r"shape \[1\]"),
        ({"values": np.zeros((0, 0)), "rows": [], "columns": []}, "at least one row"),
        ({"values": [[np.inf]]}, "infinity"),
        ({"row_positions": [1, 2]}, "row_positions has 2 entries for 1 labels"),
        ({"column_positions": []}, "column_positions has 0 entries"),
        ({"decimals": 12}, "not 12"),
    ],
)
def test_inconsistent_arguments_raise_error(sent: list[Any], more: dict[str, Any], message: str) -> None:
    arguments = {"values": [[0.1]], "rows": ["a"], "columns": ["x"], **more}
    with pytest.raises(ValueError, match=message):
        draw(arguments.pop("values"), arguments.pop("rows"), arguments.pop("columns"), **arguments)
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
def test_invalid_scale_raises_error(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scale(*arguments)


def test_stale_or_foreign_selection_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: dict[str, Any] = {}
    monkeypatch.setattr("bert_probe.ui.components.st.session_state", session)
    first, report = components.latest_choice("m", "cell", "labels")
    assert report is None
    session["m"] = {"cell": {"row": 1, "column": 0, "of": "labels", "revision": first + 1}}
    assert components.latest_choice("m", "cell", "labels") == (first + 1, session["m"]["cell"])
    assert components.latest_choice("m", "cell", "other labels") == (first, None)
    for revision in (first, first - 1, None, True, "9", 2**60):
        session["m"] = {"cell": {"row": 1, "column": 0, "of": "labels", "revision": revision}}
        assert components.latest_choice("m", "cell", "labels") == (first, None), (
            "the state of an earlier page view"
        )


def test_redrawn_component_overrides_browser_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: dict[str, Any] = {}
    clock = iter((5_000_000, 9_000_000))
    monkeypatch.setattr("bert_probe.ui.components.st.session_state", session)
    monkeypatch.setattr("bert_probe.ui.components.time.time_ns", lambda: next(clock))
    assert components.initial_revision("m") == 5
    session["m"] = {}
    assert components.initial_revision("m") == 5, "drawn in the previous run"
    del session["m"]
    assert components.initial_revision("m") == 9


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
def test_pin_outside_matrix_is_ignored(cell: Any) -> None:
    assert pinned_cell(cell, (2, 1)) is None


def test_digest_distinguishes_row_and_column_labels() -> None:
    assert digest(["a", "b"], ["c"]) != digest(["a"], ["b", "c"])


def test_strip_sends_displayed_tokens(sent: list[Any]) -> None:
    pieces = [
        StripToken("[CLS]", 0, 0, True, False, "id 101"),
        StripToken(HOSTILE, 1, 0, False, False, ""),
        StripToken("ing", 2, 1, False, True, "id 7", "changed"),
    ]
    assert strip(pieces, key="s", label="Tokens", selectable="one", selected=2) == 2
    assert strip(pieces, key="s", label="Tokens", selected=2) is None, "nothing can be selected"
    first = sent[0]
    assert [piece["kind"] for piece in first["pieces"]] == ["special", "A", "B"]
    assert first["pieces"][1]["text"] == HOSTILE
    assert [piece["mark"] for piece in first["pieces"]] == ["", "", "changed"]
    assert first["selected"] == 2
    assert json.loads(json.dumps(first)) == first


def test_strip_accepts_missing_positions(sent: list[Any]) -> None:
    draw([[0.25, 0.75]], ["a"], ["x", "rest"], column_positions=[4, None])
    assert read_payload(sent[0])[0]["columnPositions"] == [4, None]


def test_strip_with_invalid_positions_raises_error(sent: list[Any]) -> None:
    piece = StripToken("a", 4, 0, False, False, "")
    with pytest.raises(ValueError, match="same position"):
        strip([piece, piece], key="s", label="Tokens")
    with pytest.raises(ValueError, match="selected must be the position of one of the 1 tokens, not 0"):
        strip([piece], key="s", label="Tokens", selectable="one", selected=0)
    assert sent == []


def test_selection_stays_on_token_with_its_position() -> None:
    tokens = [StripToken(name, place, 0, False, False, "") for place, name in enumerate(("a", "b", "c", "d"))]
    words = [tokens[0], tokens[1], tokens[3]]
    assert selected_position({"position": 2}, tokens, 0) == 2
    assert selected_position({"position": 2}, words, 0) == 1, "b and c are one word"
    assert selected_position({"position": 3}, words, 0) == 3
    assert selected_position({"position": -1}, words, 0) == 0
    assert selected_position({"position": "3"}, tokens, 1) == 1
    assert selected_position(None, tokens, None) is None


def test_components_mount_in_app() -> None:
    def page() -> None:
        import streamlit as st

        from bert_probe.ui.components import matrix, strip
        from bert_probe.views.palette import Scale
        from bert_probe.views.text import StripToken

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
        selection = strip(
            [StripToken("a", 5, 0, False, False, "")], key="s", label="One", selectable="one", selected=5
        )
        st.write(f"{cell} {selection}")

    app = AppTest.from_function(page).run()
    assert not app.exception
    assert app.markdown[0].value == "None 5"
    assert not app.run().exception, "a rerun finds the components registered"
