"""Profiles: a measure of every head on one text, as a picture and as a table."""

from __future__ import annotations

import streamlit as st

from bert_probe.analyses.attention.heads import Heads
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, state
from bert_probe.ui.export import export
from bert_probe.ui.heads import shared
from bert_probe.views.heatmaps import by_head
from bert_probe.views.measures import LABELLING, MEASURES
from bert_probe.views.scale import Scale


def part(trace: Trace) -> None:
    """Draw it."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        measure, about = shared.choose_measure()
        words = state.switch("words", "Whole words", False, "Merge pieces into words before measuring.")
        profiles = shared_cache.answers.of(Heads(words).of, trace)
        st.space("stretch")
        export(profiles, "heads")
    st.markdown(f":gray[{state.plain(about.meaning)}]")
    with st.container(key="judged"):
        picture, numbers = st.columns([1, 1], gap="large")
    with picture:
        values = profiles.values[measure]
        drawn = by_head(values, about.name, about.title, Scale.from_zero(values), "head_profiles")
        chosen = shared.head_heatmap(drawn, "head_profiles")
        if chosen is None:
            blocks.caveat("Click a cell, or press Enter on it, to choose a head.")
        else:
            shared.open_in_attention(*chosen, profiles.labels[chosen[0] - 1][chosen[1] - 1])
    with numbers:
        first = ["layer", "head", measure, "label"]
        rest = [name for name in MEASURES if name != measure]
        shared.head_table(
            profiles.table()[[*first, *rest]].sort_values(measure, ascending=False),
            {name: one.name for name, one in MEASURES.items()},
            f"Heads by {about.name}",
        )
    blocks.caveat(
        "Averages over all queries of this text (after Clark et al. 2019). "
        + LABELLING
        + " It describes where a head looks on this text, not what the head is for."
    )
