"""Test the head view whose state can be read and set, with and without a bridge."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from bert_probe import notebook
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.notebook import HeadView
from tests.helpers.framed import extract_page, extract_payloads
from tests.helpers.payloads import read_payload

TEXT = "we had left the ground"


@pytest.fixture
def view(minilm: Checkpoint) -> HeadView:
    return minilm.trace(TEXT).head_view(1, 2)


@pytest.fixture
def bridge(view: HeadView, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Display the view in a kernel, and return its bridge."""

    class Shell:
        kernel = object()

    monkeypatch.setattr("IPython.core.getipython.get_ipython", Shell)
    key = re.search(r'"key": "([0-9a-f]{32})"', extract_page(view))
    assert key is not None
    assert view._bridge is not None
    assert view._bridge.key == key[1], "the frame names the bridge that listens to it"
    return view._bridge


def test_state_that_is_set_is_displayed(view: HeadView) -> None:
    assert (view.layer, view.heads, view.pins, view.side) == (1, (2,), (), "query")
    view.layer, view.heads, view.pins = -1, [3, 5], [2, -1, 2, 6]
    assert (view.layer, view.heads, view.pins) == (5, (3, 5), (2, 6))
    page = extract_page(view)
    assert '"start": 6' in page
    assert '"key": ""' in page, "no kernel, no bridge"
    view_state = read_payload(extract_payloads(page)[5])[0]["selection"]["value"]
    assert (view_state["heads"], view_state["pins"]) == ([3, 5], {"side": "query", "units": [2, 6]})
    view.heads = 4
    assert view.heads == (4,)
    view.heads = "mean"
    assert view.heads == "mean"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layer", 6, "no layer 6"),
        ("layer", "2", "must be a whole number"),
        ("heads", [12], "no head 12"),
        ("heads", "all", "which count from 0, not 'all'"),
        ("pins", [7], "no pin 7"),
    ],
)
def test_invalid_state_is_refused(view: HeadView, name: str, value: Any, message: str) -> None:
    with pytest.raises(SelectionError, match=message):
        setattr(view, name, value)
    assert (view.layer, view.heads, view.pins) == (1, (2,), ())


def test_measure_of_whole_layers_has_no_heads_to_set(minilm: Checkpoint) -> None:
    view = minilm.trace(TEXT).head_view(measure="rollout")
    with pytest.raises(SelectionError, match="not for individual heads"):
        view.heads = 2
    assert view.heads == "mean"


def test_state_is_sent_to_the_frame(view: HeadView, bridge: Any) -> None:
    assert bridge.wish is None
    view.layer = 3
    view.pins = [1]
    pins = {"side": "query", "units": [1]}
    assert bridge.wish == {"turn": 2, "layer": 4, "heads": [2], "words": False, "pins": pins}


def test_words_are_set_and_read(minilm: Checkpoint) -> None:
    view = minilm.trace("electroencephalographers left").head_view(1, 2)
    pieces = len(view.trace.tokens)
    view.pins = [pieces - 1]
    view.words = True
    assert (view.words, view.pins) == (True, ()), "the pinned token is not a word"
    with pytest.raises(SelectionError, match="no pin 4"):
        view.pins = [4]
    view.pins = [3]
    described, _ = read_payload(extract_payloads(extract_page(view))[1])
    assert described["texts"] == ["[CLS]", "electroencephalographers", "left", "[SEP]"]
    assert described["selection"]["value"]["words"] is True
    view._on_report(report_of(view, words=False, pins={"side": "query", "units": [pieces - 1]}))
    assert (view.words, view.pins) == (False, (pieces - 1,))
    assert len(read_payload(extract_payloads(extract_page(view))[1])[0]["texts"]) == pieces


def report_of(view: HeadView, **changes: Any) -> dict[str, Any]:
    """Return the message that the frame sends after the user has changed the selection."""
    view_state = read_payload(extract_payloads(extract_page(view))[0])[0]["selection"]
    return {**view_state, "revision": 1, "value": {**view_state["value"], **changes}}


def test_choice_in_the_frame_is_read(view: HeadView, bridge: Any) -> None:
    bridge.view = report_of(view, layer=5, heads=[0, 7], pins={"side": "key", "units": [3]})
    assert (view.layer, view.heads, view.pins, view.side) == (4, (0, 7), (3,), "key")
    assert bridge.wish is None, "no state is sent back"


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    "changes",
    [{"layer": 0}, {"layer": 7, "heads": [1]}, {"layer": "2"}, {"layer": True}, {"layer": 2, "heads": None}],
)
def test_invalid_report_is_ignored(view: HeadView, bridge: Any, changes: dict[str, Any]) -> None:
    for report in (
        changes,
        {"value": changes},
        report_of(view, **changes),
        report_of(view, layer=2) | {"of": "another"},
    ):
        bridge.view = report
    assert (view.layer, view.heads) == (1, (2,))


def test_invalid_heads_and_pins_of_a_report_are_ignored(view: HeadView, bridge: Any) -> None:
    bridge.view = report_of(view, heads=[99, 3, -1, "4"], pins={"side": "value", "units": [99, 2, None]})
    assert (view.heads, view.pins, view.side) == ((3,), (2,), "query")


def test_view_works_without_anywidget(view: HeadView, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shell:
        kernel = object()

    monkeypatch.setattr("IPython.core.getipython.get_ipython", Shell)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    notebook._bridge_class.cache_clear()
    assert notebook.create_bridge(print) is None
    assert '"key": ""' in extract_page(view)
