"""BertViz's own drawings of the same weights, each in a frame of its own."""

from __future__ import annotations

import streamlit as st

from bert_probe.errors import TooLongError
from bert_probe.model.trace import Trace
from bert_probe.server import bertviz_frames
from bert_probe.ui import blocks
from bert_probe.ui.attention import shared
from bert_probe.ui.attention.shared import ALL, ViewModel
from bert_probe.views.toolbar import ToolbarOptions

PLAIN = ALL[:1]
"""It draws weights alone."""


def head_view(trace: Trace) -> None:
    """BertViz's head view."""
    drawn = ViewModel.now(trace, PLAIN)
    view = drawn.view
    shared.choose(drawn, ToolbarOptions.of(trace, view, (), several=True, specials=False))
    heads = None if view.series == "mean" else [*view.series]
    try:
        frame = bertviz_frames.head_view(trace, view.layer - 1, heads, blocks.dark())
    except TooLongError as error:
        _too_long(error)
        return
    if heads is None:
        st.caption("BertViz draws single heads, not their mean: all heads of the layer are switched on.")
    _show(frame)


def model_view(trace: Trace) -> None:
    """BertViz's model view."""
    try:
        frame = bertviz_frames.model_view(trace, blocks.dark())
    except TooLongError as error:
        _too_long(error)
        return
    _show(frame)


def _show(frame: bertviz_frames.BertVizFrame) -> None:
    st.iframe(frame.url, height=frame.height, alt=frame.title)
    blocks.caveat(frame.caption)


def _too_long(error: TooLongError) -> None:
    with st.container(border=True):
        st.header("Too long for BertViz", anchor=False)
        st.text(str(error))
