"""All heads of all layers at once."""

from __future__ import annotations

import streamlit as st

from bert_probe.analyses.heads import Heads
from bert_probe.analyses.thumbnails import thumbnails
from bert_probe.views.model_view import Head
from bert_probe.views.scale import Scale
from bert_probe.web import blocks, figures, store
from bert_probe.web.attention import head
from bert_probe.web.attention.shared import Drawn
from bert_probe.web.components.model_view import model_view
from bert_probe.web.export import export
from bert_probe.web.measures import MEASURES


def part(drawn: Drawn) -> None:
    """Draw them; a click opens one in the head view."""
    trace, what = drawn.trace, drawn.what
    profiles = store.answers.of(Heads(drawn.words).of, trace)
    thumbs = thumbnails(trace, words=drawn.words, measure=drawn.measure)
    end = 1.0 if what.shared_out(trace) else figures.from_zero_scale(thumbs.weights, 0.0).high
    model_view(
        thumbs,
        profiles.labels,
        {one.name: profiles.values[name] for name, one in MEASURES.items()},
        key="model_view",
        caption=f"{what.title} of all heads",
        source=head.caption(trace),
        value_name=what.value,
        scale=Scale("sequential", 0, end, "sqrt"),
        on_open=_open,
    )
    export(profiles, "heads")
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
