"""Test the state of attention views: round trips through the URL and through the browser, and validation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_probe.analyses.attention.measures import measures
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.views.built import PARAMETERS
from bert_probe.views.selection import (
    DIRECTIONS,
    LAYOUTS,
    RESIDUALS,
    STEPS,
    Options,
    Pins,
    Selection,
    UnknownChoice,
    VersionedSelection,
    digest,
    from_address,
    has_layer_or_heads,
    selection_from_json,
    selection_to_json,
    to_address,
)

HOSTILE = "</script><img src=x onerror=alert(1)>"
LAYERS, HEADS, TOKENS = 6, 12, 4
USUAL = (2, (7,))


@pytest.fixture(scope="module")
def trace(minilm: Checkpoint) -> Trace:
    trace = minilm.trace("we left")
    assert (trace.layers, trace.heads, len(trace.tokens)) == (LAYERS, HEADS, TOKENS)
    return trace


OPTIONS = st.builds(
    Options,
    layout=st.sampled_from(LAYOUTS),
    direction=st.sampled_from(DIRECTIONS),
    specials=st.booleans(),
    fit=st.booleans(),
    step=st.none() | st.sampled_from(STEPS),
    renormalize=st.booleans(),
    root=st.booleans(),
)
UNITS = st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=TOKENS, unique=True).map(tuple)
PINS = st.just(Pins()) | st.builds(Pins, side=st.sampled_from(["query", "key"]), units=UNITS)
HEADS_SHOWN = st.lists(st.integers(0, HEADS - 1), min_size=1, max_size=HEADS, unique=True).map(tuple)
VIEWS = st.builds(
    Selection,
    layer=st.integers(1, LAYERS),
    series=st.just("mean") | HEADS_SHOWN,
    options=OPTIONS,
    pins=PINS,
    measure=st.sampled_from(sorted(measures())),
    words=st.booleans(),
    residual=st.sampled_from(RESIDUALS),
)


def write_url(view: Selection, default_view: Any = None) -> dict[str, str]:
    """Return the URL parameters of a view."""
    spelled = to_address(view, default_view)
    assert tuple(spelled) == PARAMETERS
    return {name: text for name, text in spelled.items() if text is not None}


@given(view=VIEWS)
def test_view_round_trips_through_url_and_browser(trace: Trace, view: Selection) -> None:
    address = write_url(view)
    assert has_layer_or_heads(address), "layer and head are in the URL for any view"
    assert from_address(address, trace, lambda: USUAL) == (view, [])
    versioned = VersionedSelection(7, digest(trace.tokens), view)
    assert selection_from_json(json.loads(json.dumps(selection_to_json(versioned))), trace) == versioned


@given(view=VIEWS)
def test_default_layer_and_heads_are_not_in_the_url(trace: Trace, view: Selection) -> None:
    default_view = replace(view, layer=USUAL[0], series=USUAL[1])
    address = write_url(default_view, USUAL)
    assert not has_layer_or_heads(address)
    assert from_address(address, trace, lambda: USUAL) == (default_view, [])


@pytest.mark.parametrize(
    ("address", "layer", "series"),
    [
        ({}, 2, (7,)),
        ({"layer": "3"}, 3, "mean"),
        ({"head": "3"}, LAYERS, (2,)),
        ({"head": "mean"}, LAYERS, "mean"),
        ({"layer": "2", "heads": "2.9"}, 2, (1, 8)),
        ({"head": "2", "heads": "2.9"}, LAYERS, (1, 8)),
        # Another page has set only `head`, so `heads`, whose first head differs from `head`, is outdated.
        ({"head": "5", "heads": "2.9"}, LAYERS, (4,)),
        ({"heads": "9.9.0.13.x"}, LAYERS, "mean"),
    ],
)
def test_url_has_layer_and_heads_or_neither(
    trace: Trace, address: dict[str, str], layer: int, series: Any
) -> None:
    view, unknown = from_address(address, trace, lambda: USUAL)
    assert (view.layer, view.series, unknown) == (layer, series, [])


def test_old_urls_are_read(trace: Trace) -> None:
    view, _ = from_address({"layer": "1", "hide": "specials", "lines": "0.05", "fit": "1"}, trace)
    assert view == Selection(1, "mean", Options(specials=False, step=0.05, fit=True))


@pytest.mark.parametrize(
    ("name", "value", "displayed"),
    [
        ("layer", "7", "6"),
        ("layer", "9" * 5000, "6"),
        ("layer", "\u0662", "6"),
        ("head", "0", "mean"),
        ("head", HOSTILE, "mean"),
        ("drawn", "nope", "weights"),
        ("residual", "0.51", "0.5"),
    ],
)
def test_unknown_values_of_a_url_are_reported(trace: Trace, name: str, value: str, displayed: str) -> None:
    field_name = {"drawn": "measure", "residual": "residual share"}.get(name, name)
    view, unknown = from_address({name: value}, trace)
    assert view == Selection(LAYERS, "mean")
    assert unknown == [UnknownChoice(field_name, value, displayed)]


@pytest.mark.parametrize("number", ["9" * 5000, "-1", "1e0", "\u0662", "4"])
def test_invalid_pins_of_a_url_are_ignored(trace: Trace, number: str) -> None:
    view, _ = from_address({"pins": f"key.1.{number}.2.1"}, trace)
    assert view.pins == Pins("key", (1, 2))


def test_pins_are_words_in_a_view_of_words(minilm: Checkpoint) -> None:
    trace = minilm.trace("electroencephalography")
    assert len(trace.tokens) > 3
    for words, remaining in (("0", (0, 3)), ("1", (0,))):
        view, _ = from_address({"pins": "query.0.3", "words": words}, trace)
        assert view.pins.units == remaining


@pytest.mark.parametrize(
    "changes",
    [
        None,
        {},
        {"of": "another"},
        {"revision": "1"},
        {"revision": True},
        {"revision": -1},
        {"revision": 2**53},
        {"value": None},
        {"value": {"layer": 99, "heads": ["mean"]}},
        {"value": {"layer": True, "heads": ["mean"]}},
        {"value": {"layer": 1, "heads": None}},
    ],
)
def test_report_of_another_text_is_none(trace: Trace, changes: Any) -> None:
    report = {"revision": 1, "of": digest(trace.tokens), "value": {"layer": 1, "heads": ["mean"]}}
    assert selection_from_json(report, trace) == VersionedSelection(
        1, digest(trace.tokens), Selection(1, "mean")
    )
    assert selection_from_json(changes and {**report, **changes}, trace) is None


def test_invalid_fields_of_a_report_become_defaults(trace: Trace) -> None:
    options = {"layout": "<b>", "direction": 3, "specials": "no", "fit": 1, "step": 0.3, "root": 0}
    fields = {
        "layer": 2,
        "heads": [99, -1, "x", 3, True, 3],
        "options": options,
        "pins": {"side": HOSTILE, "units": [0, 99, "1", None, 2]},
        "measure": HOSTILE,
        "words": 1,
        "residual": True,
    }
    report = selection_from_json({"revision": 1, "of": digest(trace.tokens), "value": fields}, trace)
    assert report is not None
    assert report.value == Selection(2, (3,), Options(), Pins("query", (0, 2)))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"layer": 0}, "counted from 1"),
        ({"series": ()}, "series must be .mean. or head indices"),
        ({"series": (-1,)}, "series must be .mean. or head indices"),
        ({"options": Options(step=0.3)}, "threshold must be one of .* not 0.3"),
        ({"measure": "nope"}, "no measure nope"),
    ],
)
def test_invalid_view_is_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SelectionError, match=sentence):
        Selection(**{"layer": 1, "series": "mean", **wrong})


def test_measure_of_layers_has_no_single_head() -> None:
    assert Selection(1, (3, 5)).head == 3
    assert Selection(1, (3, 5), measure="rollout").head == "mean"
