"""The Heads page: its sections, and the Profiles section with the measures of all heads on one text."""

from __future__ import annotations

import streamlit as st

from bert_probe.analyses.attention.heads import Heads
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, state, workbench
from bert_probe.ui.export import export
from bert_probe.ui.heads import ablation, find, shared
from bert_probe.views.heatmaps import head_grid
from bert_probe.views.measures import LABELLING, MEASURES
from bert_probe.views.scale import Scale

_PARTS = {
    "profiles": "Profiles",
    "find": "Find a head",
    "ablation": "Ablation",
    "many": "Many sentences",
}


def render() -> None:
    """Draw the page."""
    blocks.heading(
        "Heads",
        "Compare all attention heads: what each head attends to, which head attends from one word to "
        "another, and what changes when heads are ablated.",
    )
    bar = st.container(horizontal=True, gap="medium")
    with bar:
        part = state.segmented_control("heads_part", "Part", _PARTS, "profiles")
    if part == "many":
        shared.many_texts_part(workbench.request(), workbench.checkpoint())
        return
    traced = workbench.trace_request()
    with bar:
        trace = workbench.choose_trace(traced)
    blocks.truncation_notice(trace)
    {"profiles": profiles, "find": find.part, "ablation": ablation.part}[part](trace)


def profiles(trace: Trace) -> None:
    """Draw the values of a measure for all heads as a heatmap and as a table."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        measure, description = shared.choose_measure()
        words = state.toggle("words", "Whole words", False, shared.WORDS_HELP)
        result = shared_cache.answers.of(Heads(words).of, trace)
        st.space("stretch")
        export(result, "heads")
    st.markdown(f":gray[{state.escape(description.meaning)}]")
    with st.container(key="judged"):
        picture, numbers = st.columns([1, 1], gap="large")
    with picture:
        values = result.values[measure]
        heatmap = head_grid(
            values, description.name, description.title, Scale.from_zero(values), "head_profiles"
        )
        head = shared.head_heatmap(heatmap, "head_profiles")
        if head is None:
            blocks.caveat(shared.CLICK_HINT)
        else:
            shared.open_in_attention(*head, result.labels[head[0] - 1][head[1] - 1])
    with numbers:
        first = ["layer", "head", measure, "label"]
        further = [name for name in MEASURES if name != measure]
        shared.head_table(
            result.table()[[*first, *further]].sort_values(measure, ascending=False),
            {name: column.name for name, column in MEASURES.items()},
            f"Heads by {description.name}",
        )
    blocks.caveat(
        "Means over all queries of this text (after Clark et al. 2019). "
        + LABELLING
        + " A label describes where a head attends on this text, not its function."
    )
