"""How far one token reaches in the rollout, layer by layer."""

from __future__ import annotations

import streamlit as st

from bert_probe.analyses.attention.measures.rollout import MEASURE
from bert_probe.analyses.attention.token_rollout import TokenRollout
from bert_probe.model.trace import Trace
from bert_probe.ui import blocks, state
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export
from bert_probe.views.heatmaps import of_reach
from bert_probe.views.view import RESIDUALS, View

DIRECTIONS = {"from": "Out of this token", "into": "Into this token"}


def part(trace: Trace) -> None:
    """Draw it for a token that is clicked."""
    usual = min(1, len(trace.tokens) - 1)
    with st.container(horizontal=True, horizontal_alignment="distribute", gap="small", key="following"):
        with st.container(width="content"):
            direction = state.pick("direction_of", "Direction", DIRECTIONS, "from")
        with st.container(width="stretch"):
            chosen = blocks.token_strip(trace, "reach_token", "The token to follow", usual, row=True)
        with st.popover("More"):
            residual = _residual_share()
    token = usual if chosen is None else chosen
    reached = TokenRollout(token, direction, residual=residual).of(trace)
    heatmap(of_reach(reached), key="reach")
    with st.container(horizontal=True, gap="medium"):
        export(reached, "reach")
        with st.container():
            _caveat(trace, direction)


def _caveat(trace: Trace, direction: str) -> None:
    blocks.caveat(
        f"{MEASURE.meaning} "
        + (
            "Each cell is the share of a token, after a layer, that came from the one chosen; a layer's "
            "cells do not sum to 1."
            if direction == "from"
            else "Each row is what the chosen token is made of after a layer, and sums to 1."
            if not trace.caveat
            else f"Each row is what reaches the chosen token after a layer. {trace.caveat}"
        )
    )


def _residual_share() -> float:
    """The share that rollout gives to the residual connection."""
    state.prepare("residual", RESIDUALS, View.residual, lambda share: f"{share:g}")
    chosen: float = st.select_slider(
        "Residual share",
        RESIDUALS,
        key="residual",
        persist_state="session",
        help="How much of each token is taken to pass a layer unchanged, through the residual connection. "
        "Abnar and Zuidema take one half.",
    )
    return chosen
