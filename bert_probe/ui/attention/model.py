"""All heads of all layers at once."""

from __future__ import annotations

import streamlit as st

from bert_probe.analyses.attention.heads import Heads
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui.attention import shared, shown
from bert_probe.ui.attention.shared import OF_HEADS, ViewModel
from bert_probe.ui.components.model_view import model_view
from bert_probe.ui.export import export
from bert_probe.views.model_view import HeadThumbnail, of_trace, page
from bert_probe.views.toolbar import ToolbarOptions

KEY = "model_view"


def part(trace: Trace) -> None:
    """Draw them; a click opens one in the head view."""
    drawn = ViewModel.now(trace, OF_HEADS)
    view = drawn.view
    shared.choose(
        drawn, ToolbarOptions.of(trace, view, (), OF_HEADS, several=True, specials=False, words=True)
    )
    profiles = shared_cache.answers.of(Heads(view.words).of, trace)
    data = of_trace(
        trace, profiles, key=KEY, words=view.words, measure=view.measure, chosen=(view.layer, view.series)
    )
    if model_view(data, (trace.layers, trace.heads), key=KEY, on_open=_open):
        st.rerun()  # all of the page: it is another part of it that is shown now

    def as_page(_csv_safe: bool) -> bytes:
        return page(trace, profiles, words=view.words, measure=view.measure).html().encode()

    with shared.foot(
        drawn,
        "A small square is one head: rows are queries, columns are keys. In longer texts a point stands for "
        "several tokens and has the largest of their weights. Labels say where a head looks on this text, "
        "not what it is for. The export holds the measures that heads can be sorted by; all weights are "
        "exported from the heatmap.",
    ):
        export(
            profiles,
            "heads",
            [("Interactive page, HTML", "model-view.html", as_page)],
            drawn=shared.as_drawn(view, "model"),
        )


def _open(chosen: HeadThumbnail) -> None:
    """Show a head in the head view, before the script runs."""
    st.session_state["show"] = "heads"
    shown.look_at(chosen.layer + 1, (chosen.head,))
