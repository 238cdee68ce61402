"""A page with a slow script, every component, and controls that replace the data of the components."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import streamlit as st

from bert_probe.analyses.attention.attention import make_thumbnails
from bert_probe.analyses.attention.heads import Heads
from bert_probe.analyses.vectors.token_map import TokenMap, TokenMapResult
from bert_probe.model.trace import Trace
from bert_probe.ui import attention, selection_state, state, token_map
from bert_probe.ui.attention import ViewModel
from bert_probe.ui.components import head_view, matrix, model_view, strip
from bert_probe.views import head_view as head_views
from bert_probe.views.head_view import ToolbarOptions, initial_state
from bert_probe.views.model_view import HeadThumbnail, payload
from bert_probe.views.palette import Scale
from bert_probe.views.text import StripToken
from tests.helpers.traces import random_trace

COUNT = 9
# This name is not a URL parameter, because `view_state` deletes the session keys of URL parameters.
HEAD_VIEW = "head view"
NAMES = [f"token{position}" for position in range(COUNT)]


@cache
def demo_trace() -> Trace:
    random = np.random.default_rng(0)
    states = tuple(random.normal(size=(COUNT, 4)).astype(np.float32) for _ in range(5))
    described = {"model": "demo", "architecture": "by hand"}
    return replace(random_trace(NAMES, 4, 6), states=states, provenance=described)


@cache
def demo_map() -> TokenMapResult:
    return TokenMap().of(demo_trace())


@cache
def demo_thumbnails(numbers: bool) -> bytes:
    trace = demo_trace()
    values = Heads().of(trace).values
    labels = [[""] * trace.heads for _ in range(trace.layers)]
    caption = f"Attention of all heads, {numbers}"
    return payload(
        make_thumbnails(trace), labels, {"Entropy": values["entropy_bits"]}, key="grid", caption=caption
    )


@contextmanager
def slowly(name: str, place: bool) -> Iterator[None]:
    """Pause, so that a click can interrupt the run, then open a container for a component.

    Args:
        name: name of the component.
        place: part of the container's key. A change of `place` remounts the component.
    """
    for _ in range(3):
        time.sleep(0.002)
        st.empty()
    with st.container(key=f"{name} {place}"):
        yield


def open_head(thumbnail: HeadThumbnail) -> None:
    st.session_state["opened"] = thumbnail


def main() -> None:
    trace = demo_trace()
    if st.query_params.get("show") == "heads":
        report(view=of_view(heads(trace)))
        return
    with st.container(horizontal=True):
        place = st.toggle("Other place")
        default = st.toggle("Other default")
        numbers = st.toggle("Other numbers")
    with slowly("native", place):
        native = state.segmented_control("native", "Native", {name: name for name in "abcdef"}, "a")
    with slowly("strip", place):
        pieces = [StripToken(name, i, 0, False, False, "") for i, name in enumerate(NAMES)]
        token = strip(pieces, key="strip", label="Tokens", selectable="one", selected=int(default))
    with slowly("matrix", place):
        cell = matrix(
            trace.weights[0][int(numbers)],
            NAMES,
            NAMES,
            key="matrix",
            scale=Scale("sequential", 0, 1),
            row_axis="query",
            column_axis="key",
            value_name="weight",
            caption="Attention",
            row_positions=range(COUNT),
            column_positions=range(COUNT),
        )
    with slowly("map", place):
        marks, looks = token_map.draw_map(demo_map())
    with slowly("bar", place):
        view = ViewModel.current(trace)
        attention.draw_toolbar(view, ToolbarOptions.of(trace, view.selection, (), several=True))
    with slowly("grid", place):
        model_view(demo_thumbnails(numbers), (trace.layers, trace.heads), key="grid", on_open=open_head)
    pinned = marks["pinned"]
    report(
        native=native,
        strip=token,
        matrix=None if cell is None else f"{cell.row} {cell.column}",
        map=looks["layer"],
        mark=None if pinned is None else NAMES[demo_map().marks[pinned].position],
        view=of_view(view),
        grid=" ".join(str(number + 1) for number in st.session_state.get("opened", ())),
    )


def heads(trace: Trace) -> ViewModel:
    """Draw the head view like `ui/attention`, and return its view model."""
    place = st.toggle("Other place")
    view = ViewModel.current(trace)
    state = initial_state(
        trace,
        view.versioned,
        key=selection_state.KEY,
        options=ToolbarOptions.of(trace, view.selection, (), several=True),
        source=attention.layer_link(view).address,
        reason=None,
    )
    data = head_views.payload(view.data, view.selection.layer - 1, key=selection_state.KEY, state=state)
    with slowly("heads", place):
        head_view(data, key=HEAD_VIEW, on_change=lambda: selection_state.receive_report(HEAD_VIEW, trace))
    return view


def of_view(view: ViewModel) -> str:
    series = view.selection.series
    heads = series if series == "mean" else ".".join(str(head + 1) for head in series)
    return f"{view.selection.layer} {heads}"


def report(**choices: Any) -> None:
    """Write each selection that the page has received. Called at the end of a run."""
    for name, choice in choices.items():
        st.text(f"{name} = {choice}")
    counts = st.session_state.setdefault("counts", {"done": 0})
    if st.button("Done"):
        counts["done"] += 1
    st.text(f"done = {counts['done']}")


if __name__ == "__main__":
    # Streamlit runs this file again each time, but the imported module keeps its cached data.
    from tests.browser import demo_clicks

    demo_clicks.main()
