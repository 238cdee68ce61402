"""Test labels of Plotly figures, which render some HTML."""

from __future__ import annotations

import numpy as np
import pytest

from bert_probe.analyses.vectors.sentences import SentenceMap
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.ui import figures

HOSTILE = "<" * 30
"""A label that is longer than allowed, and four times as long after escaping."""


@pytest.mark.parametrize(("axis", "letters"), [("xaxis", 16), ("yaxis", 24)])
def test_long_label_is_truncated_before_escaping(axis: str, letters: int) -> None:
    values = np.array([0.5, 0.25])
    label = (
        figures.token_bars([HOSTILE, "a & b"], values, "weight")
        if axis == "xaxis"
        else figures.class_bars([HOSTILE, "a & b"], values, values, "probability")
    )
    assert list(label.layout[axis].ticktext) == ["&lt;" * (letters - 1) + "…", "a &amp; b"]


def test_first_named_row_is_at_the_top() -> None:
    axis = figures.named_rows(["one", "two"])
    assert (axis["tickvals"], axis["ticktext"], axis["autorange"]) == ([0, 1], ["one", "two"], "reversed")


def test_points_of_few_sentences_are_numbered_from_1(minilm: Checkpoint) -> None:
    plane = SentenceMap().of(minilm, ["one boat", "two boats", "a map"])
    assert list(figures.sentence_map(plane).data[0].text) == ["1", "2", "3"]


def test_groups_of_a_map_have_their_own_markers(minilm: Checkpoint) -> None:
    plane = SentenceMap().of(minilm, ["one boat", "two boats", "a map", "a plan"])
    figure = figures.sentence_map(plane, groups=["sea", "sea", "<b>", ""])
    marker = figure.data[0].marker
    assert marker.color[0] == marker.color[1] != marker.color[2]
    assert marker.symbol[0] != marker.symbol[2]
    assert marker.color[3] == figures.GRAY
    assert [trace.name for trace in figure.data[1:]] == ["sea", "&lt;b&gt;", "none"]
    many = figures.sentence_map(plane, groups=list("abcd"))
    assert (
        len(
            {
                (color, symbol)
                for color, symbol in zip(many.data[0].marker.color, many.data[0].marker.symbol, strict=True)
            }
        )
        == 4
    )
