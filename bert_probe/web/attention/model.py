"""All heads of all layers at once."""

from __future__ import annotations

import streamlit as st

from bert_probe.analyses.heads import Heads
from bert_probe.views.model_view import Head, of_trace, page
from bert_probe.web import blocks, store
from bert_probe.web.attention import head
from bert_probe.web.attention.shared import Drawn
from bert_probe.web.components.model_view import model_view
from bert_probe.web.export import export

KEY = "model_view"


def part(drawn: Drawn) -> None:
    """Draw them; a click opens one in the head view."""
    trace = drawn.trace
    profiles = store.answers.of(Heads(drawn.words).of, trace)
    data = of_trace(trace, profiles, key=KEY, words=drawn.words, measure=drawn.measure)

    def as_page(_csv_safe: bool) -> bytes:
        return page(trace, profiles, words=drawn.words, measure=drawn.measure).html().encode()

    model_view(data, (trace.layers, trace.heads), key=KEY, on_open=_open)
    export(profiles, "heads", [("Interactive page, HTML", "model-view.html", as_page)])
    blocks.caveat(
        "A small square is one head: rows are queries, columns are keys. In longer texts a point stands for "
        "several tokens and has the largest of their weights. Labels say where a head looks on this text, "
        "not what it is for. The export holds the measures that heads can be sorted by; all weights are "
        "exported from the heatmap."
    )


def _open(chosen: Head) -> None:
    """Show a head in the head view, before the script runs."""
    st.session_state["show"] = "heads"
    st.session_state["layer"] = chosen.layer + 1
    head.choose_heads((chosen.head,))
