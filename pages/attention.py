"""Attention: who looks at whom, in any layer and head."""

import streamlit as st

from bert_probe.analyses.measures import measures
from bert_probe.web import blocks, state, workbench
from bert_probe.web.attention import bertviz, grid, head, model, reach, shared

VIEWS = {
    "heads": "Head view",
    "model": "Model view",
    "heatmap": "Heatmap",
    "table": "Table",
    "reach": "Reach",
    "head-view": "BertViz head view",
    "model-view": "BertViz model view",
}

ALL = list(measures().values())
OF_HEADS = [one for one in ALL if one.of_heads is not None]

blocks.heading(
    "Attention",
    "Every layer lets each token look at all tokens, in several ways at once: its heads. A token that looks "
    "(the query) spreads a weight of 1 over all tokens (the keys).",
)
study = workbench.study()
with st.container(horizontal=True, gap="medium"):
    view = state.pick("show", "View", VIEWS, "heads")
    trace = workbench.chosen_text(study)
blocks.truncation_notice(trace)

if view == "heads":
    head.part(shared.choose(trace, ALL))
elif view == "model":
    model.part(shared.choose(trace, OF_HEADS))
elif view == "reach":
    reach.part(trace)
elif view == "head-view":
    bertviz.head_view(trace)
elif view == "model-view":
    bertviz.model_view(trace)
else:
    drawn = shared.choose(trace, ALL)
    grid.part(drawn, as_table=view == "table")
