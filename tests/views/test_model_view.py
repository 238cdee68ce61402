"""Test histograms of all heads: bar heights, clipping and common bins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bert_probe.model.trace import Array
from bert_probe.views import model_view
from tests.helpers.payloads import read_payload

EDGES = np.linspace(0, 1, 9)


def drawn(counts: Array, **more: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    means = np.zeros(counts.shape[:2])
    return read_payload(
        model_view.histogram_payload(
            counts, EDGES, {"mean": means}, key="k", caption="c", source="s", axis="a", **more
        )
    )


def test_bar_height_is_the_clipped_share() -> None:
    counts = np.zeros((1, 20, 8), int)
    # 70 of 100 rows are in one bin, so the scale ends at 0.75
    counts[..., 1], counts[..., 2], counts[..., 3] = 10, 20, 70
    counts[0, 0] = [0, 0, 0, 100, 0, 0, 0, 0]
    header, arrays = drawn(counts)
    assert (header["scale"]["high"], header["above"]) == (0.75, True)
    assert "0 → 0.5" in header["axes"], "no head has values above"
    assert (header["caption"], header["source"]) == (
        "c",
        "s. Horizontal axis: 0 to 0.5; vertical axis: share of rows",
    )
    side = header["side"]
    pictures = arrays["entries"].reshape(20, side, side)
    assert side % 4 == 0, "four bins wide"
    for head, shares in ((0, [0, 0, 0, 1]), (1, [0, 0.1, 0.2, 0.7])):
        heights = (pictures[head] > 0).sum(axis=0).reshape(4, -1)
        expected = np.ceil(np.minimum(np.array(shares) / 0.75, 1) * side)
        np.testing.assert_array_equal(heights, np.repeat(expected[:, None], side // 4, axis=1))
    assert (pictures[1][-1] > 0).any(), "bars start at the baseline"
    assert (pictures[1, -1, [20, 30, 40]].astype(int) > 0).tolist() == [True, True, True]


def test_empty_and_selected_heads_are_marked() -> None:
    header, arrays = drawn(np.zeros((2, 2, 8), int), chosen=(1, 0))
    assert not arrays["entries"].any()
    assert header["selected"] == [{"layer": 1, "head": 0}]
    assert header["marked"] is False


@pytest.mark.parametrize(("from_zero", "first"), [(True, 0), (False, 3)])
def test_bins_that_are_empty_for_all_heads_are_omitted(from_zero: bool, first: int) -> None:
    counts = np.zeros((1, 2, 8), int)
    counts[0, 0, 3] = counts[0, 1, 5] = 1
    assert model_view.histogram_span(counts, from_zero) == slice(first, 6)
