"""Test the table of figures: all interfaces use it, and every figure in it exists."""

from __future__ import annotations

import pytest

import bert_probe
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.views import built, pictures
from bert_probe.views.page import CAVEAT
from bert_probe.views.selection import Selection

TEXT = "The old man the boats."


def test_each_type_of_result_has_one_kind_of_figure() -> None:
    for result_type, picture in pictures.PICTURES.items():
        assert (picture.heatmaps is None) != (picture.page is None), result_type.__name__


def test_result_without_figure_is_not_drawn(minilm: Checkpoint) -> None:
    result = bert_probe.Tokens().of(minilm.trace(TEXT))
    assert not pictures.is_drawn(result)
    for draw in (pictures.heatmaps_of, pictures.page):
        with pytest.raises(UnavailableError, match="Tokens has no visualization"):
            draw(result)


def test_figure_can_depend_on_result(minilm: Checkpoint) -> None:
    curve = bert_probe.Positions(show="distance").of(minilm)
    assert type(curve) in pictures.PICTURES
    assert not pictures.is_drawn(curve)
    assert pictures.is_drawn(bert_probe.Positions(show="cosines").of(minilm))


def test_only_figures_of_attention_have_its_caveat(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    assert pictures.page(bert_probe.Attention(0, 0).of(trace)).caveat == CAVEAT
    assert pictures.page(bert_probe.Similarity().of(trace)).caveat == ""


def test_attention_views_are_figures_with_the_selection(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    for kind, component in zip(pictures.ATTENTION_PICTURES, ("head_view", "model_view"), strict=True):
        page = pictures.attention_page(kind, trace, Selection(2, (1,), words=True))
        assert component in built.FIGURES
        assert page.component == component
        assert page.start == (2 if kind == "lines" else 1)
