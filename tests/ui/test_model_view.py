"""Test payloads of the model view, refused arguments, and validation of browser reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from bert_probe.analyses.attention.attention import Thumbnails, make_thumbnails
from bert_probe.ui import components
from bert_probe.ui.components import model_view
from bert_probe.views import palette
from bert_probe.views.model_view import HeadThumbnail, color_indices, payload
from bert_probe.views.model_view import read_opened_head as opened_head
from bert_probe.views.palette import Scale
from tests.helpers.payloads import read_payload
from tests.helpers.traces import HOSTILE_TOKENS, random_trace

LABELS = [["", "previous token"], ["broad", HOSTILE_TOKENS[0]], ["", ""]]
MEASURES = {"Previous": np.arange(6).reshape(3, 2) / 7, "Entropy": np.full((3, 2), np.pi)}


def small(**more: Any) -> Thumbnails:
    return make_thumbnails(random_trace(["a", "b", "c", "d", "e"], 3, 2), **more)


def draw(thumbs: Thumbnails | None = None, labels: Any = LABELS, measures: Any = None, **more: Any) -> Any:
    thumbs = small() if thumbs is None else thumbs
    arguments = {"caption": "All heads", **more}
    data = payload(thumbs, labels, measures or MEASURES, key="m", **arguments)
    return model_view(data, (thumbs.layers, thumbs.heads), key="m")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the payloads that the component would have sent to the browser, in order."""
    payloads: list[bytes] = []

    def mounted(**options: Any) -> dict[str, Any]:
        payloads.append(options["data"])
        return {}

    monkeypatch.setattr(components, "_model_view", mounted)
    return payloads


def test_measures_are_sent_exactly_and_weights_as_colors(sent: list[bytes]) -> None:
    thumbs = small()
    assert draw(thumbs) is None
    header, arrays = read_payload(sent[0])
    np.testing.assert_array_equal(arrays["numbers"], np.stack(list(MEASURES.values())))
    expected = np.round(255 * np.sqrt(thumbs.weights.astype(float)))
    assert np.abs(arrays["entries"] - expected).max() == 0
    assert arrays["light"].tobytes() == palette.lut_bytes("sequential", False)
    assert arrays["dark"].tobytes() == palette.lut_bytes("sequential", True)
    assert header["measures"] == ["Previous", "Entropy"]
    assert np.array(header["labels"])[arrays["labeled"]].tolist() == LABELS, "hostile text is sent unchanged"
    assert (header["side"], header["block"], header["unitCount"]) == (5, 1, 5)
    assert header["above"] is False


def test_block_aggregation_is_sent(sent: list[bytes]) -> None:
    draw(small(size=2))
    header, arrays = read_payload(sent[0])
    assert (header["side"], header["block"], arrays["entries"].shape) == (2, 3, (3, 2, 2, 2))


def test_values_outside_scale_are_flagged(sent: list[bytes]) -> None:
    draw(scale=Scale("sequential", 0, 0.5))
    assert read_payload(sent[0])[0]["above"] is True


@given(
    st.lists(st.floats(-0.5, 3, width=32), min_size=1, max_size=30),
    st.sampled_from(["linear", "sqrt"]),
    st.floats(0.1, 2),
)
def test_larger_weight_never_has_lighter_color(values: list[float], curve: Any, high: float) -> None:
    weights = np.sort(np.array(values, dtype=np.float32))
    entries = color_indices(weights, Scale("sequential", 0, high, curve)).astype(int)
    assert (np.diff(entries) >= 0).all()
    share = np.clip(weights.astype(float) / high, 0, 1)
    exact = 255 * (np.sqrt(share) if curve == "sqrt" else share)
    assert np.abs(entries - exact).max() <= 0.501


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"labels": LABELS[:2]}, "3 rows of 2"),
        ({"labels": [["", "", ""]] * 3}, "3 rows of 2"),
        ({"measures": {"Previous": np.zeros((2, 3))}}, "measure Previous must be 3 × 2 finite"),
        ({"measures": {"Previous": np.full((3, 2), np.nan)}}, "finite numbers"),
        ({"scale": Scale("diverging", -1, 1)}, "sequential scale"),
    ],
)
def test_inconsistent_arguments_raise_error(sent: list[bytes], more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(**more)
    assert sent == []


@pytest.mark.parametrize(
    ("answer", "head"),
    [
        ({"layer": 2, "head": 1}, HeadThumbnail(2, 1)),
        ({"layer": 3, "head": 1}, None),
        ({"layer": 0, "head": -1}, None),
        ({"layer": True, "head": 1}, None),
        ({"layer": "1", "head": 1}, None),
        ({}, None),
        (None, None),
        (7, None),
    ],
)
def test_click_outside_the_model_is_ignored(answer: Any, head: HeadThumbnail | None) -> None:
    assert opened_head({"opened": answer}, (3, 2)) == head


def test_model_view_mounts_in_app() -> None:
    def page() -> None:
        import streamlit as st

        from bert_probe.analyses.attention.attention import make_thumbnails
        from bert_probe.ui.components import model_view
        from bert_probe.views.model_view import payload
        from tests.helpers.traces import random_trace

        trace = random_trace(["a", "b"], 1, 2)
        data = payload(make_thumbnails(trace), [["", "broad"]], {}, key="m", caption="All heads")
        st.write(f"{model_view(data, (1, 2), key='m')}")

    app = AppTest.from_function(page).run()
    assert not app.exception
    assert app.markdown[0].value == "None"
    assert not app.run().exception, "a rerun finds the component registered"
