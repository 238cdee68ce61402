"""The head view: lines from token to token, with a toolbar of its own that asks nobody before it draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from bert_probe.analyses.attention.attention import Head
from bert_probe.model.trace import Trace
from bert_probe.ui.attention import shared, shown
from bert_probe.ui.attention.shared import ALL, ViewModel
from bert_probe.ui.components import head_view
from bert_probe.ui.export import export
from bert_probe.views import head_view as views
from bert_probe.views.toolbar import ToolbarOptions

KEY = "head_view"


def part(trace: Trace) -> None:
    """Draw the view and what belongs to it."""
    drawn = ViewModel.now(trace)
    view, layer = drawn.view, drawn.view.layer - 1
    offer = ToolbarOptions.of(trace, view, views.MORE, ALL, several=True, words=True)
    if drawn.what.takes_long(trace, layer):
        # The picture brings its own toolbar, but it is not there yet.
        shared.choose(drawn, offer, "waiting")
        if not shared.computed(drawn, [layer]):
            return
    said = views.announced(
        trace,
        drawn.shown,
        offer=offer,
        source=shared.link(drawn).address,
        reason=shown.reason(trace, view),
    )
    data = (
        head_view.payload(drawn.picture, layer, key=shown.KEY, announced=said)
        if _is_needed()
        else head_view.announced(said, key=shown.KEY)
    )
    head_view.head_view(data, key=KEY, on_change=lambda: shown.report(KEY, trace))
    with shared.foot(drawn, why=False):
        _exports(drawn)


def _is_needed() -> bool:
    """Whether the layer is sent with what is announced: the browser has none yet, or could not fetch it."""
    held: Any = st.session_state.get(KEY)
    told = held.get(shown.REPORT) if isinstance(held, Mapping) else None
    return held is None or (isinstance(told, Mapping) and told.get("lost") is True)


def _exports(drawn: ViewModel) -> None:
    """The numbers of the heads that are shown, whole rows of them, and the view as a page of its own."""
    view = drawn.view
    several = view.series if view.head != "mean" else "mean"
    heads: list[Head] = ["mean"] if several == "mean" else [*several]
    name = ".".join("mean" if head == "mean" else str(head + 1) for head in heads)
    single = len(heads) == 1
    asked = drawn.one(heads[0], whole=True) if single else drawn.all([view.layer - 1], heads, whole=True)
    export(
        asked.of(drawn.trace),
        f"attention-layer{view.layer}-head{name}",
        [
            (
                "Interactive page, HTML",
                "head-view.html",
                lambda _: head_view.page(shared.labelled(drawn), view),
            )
        ],
        "All weights of the heads shown, at full precision, whatever the picture hides.",
        ready=lambda: shared.computed(drawn, range(drawn.trace.layers), start=False),
        drawn=shared.as_drawn(view, "lines"),
    )
