"""BertViz's own drawings of the same weights, each in a frame of its own."""

from __future__ import annotations

import streamlit as st

from bert_probe.errors import TooLongError
from bert_probe.model.trace import Trace
from bert_probe.web import bertviz_frames, blocks, state
from bert_probe.web.attention import shared


def head_view(trace: Trace) -> None:
    """BertViz's head view."""
    left, right = st.columns([1, 3], gap="medium")
    with left:
        layer = shared.layer_slider(trace)
    with right:
        head = state.head("head", trace.heads)
    heads = None if head == "mean" else [int(head) - 1]
    try:
        frame = bertviz_frames.head_view(trace, layer - 1, heads, blocks.dark())
    except TooLongError as error:
        _too_long(error)
        return
    if head == "mean":
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


def _show(frame: bertviz_frames.Frame) -> None:
    st.iframe(frame.url, height=frame.height, alt=frame.title)
    blocks.caveat(frame.caption)


def _too_long(error: TooLongError) -> None:
    with st.container(border=True):
        st.header("Too long for BertViz", anchor=False)
        st.text(str(error))
