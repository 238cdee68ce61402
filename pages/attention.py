"""Attention: who looks at whom, in any layer and head."""

from collections.abc import Callable
from functools import partial

import streamlit as st

from bert_probe.errors import ProbeError
from bert_probe.model.trace import Trace
from bert_probe.ui import blocks, state, workbench
from bert_probe.ui.attention import bertviz, grid, head, model, rollout

VIEWS = {
    "heads": "Head view",
    "model": "Model view",
    "heatmap": "Heatmap",
    "table": "Table",
    "reach": "Reach",
    "head-view": "BertViz head view",
    "model-view": "BertViz model view",
}
PARTS: dict[str, Callable[[Trace], None]] = {
    "heads": head.part,
    "model": model.part,
    "heatmap": partial(grid.part, as_table=False),
    "table": partial(grid.part, as_table=True),
    "reach": rollout.part,
    "head-view": bertviz.head_view,
    "model-view": bertviz.model_view,
}


@st.fragment
def draw(view: str, trace: Trace) -> None:
    """One of the views; a choice in it runs this alone."""
    try:
        PARTS[view](trace)
    except ProbeError as error:
        blocks.refusal(error)
    state.publish()


row = blocks.compact_heading(
    "Attention",
    "Every layer lets each token look at all tokens, in several ways at once: its heads. A token that looks "
    "(the query) spreads a weight of 1 over all tokens (the keys).",
)
study = workbench.study()
with row:
    view = state.pick("show", "View", VIEWS, "heads")
    trace = workbench.chosen_text(study)
blocks.truncation_notice(trace)
draw(view, trace)
