"""How far one token reaches in the rollout, layer by layer."""

from __future__ import annotations

from typing import cast

import streamlit as st

from bert_probe.analyses.attention import MEASURE_MEANINGS
from bert_probe.analyses.flow import Direction, Reach, reach
from bert_probe.model.trace import Trace
from bert_probe.results.tables import reach_table
from bert_probe.web import blocks, state
from bert_probe.web.attention import shared
from bert_probe.web.components.head_view import VALUE_NAMES
from bert_probe.web.components.matrix import Scale, matrix
from bert_probe.web.workbench import Study

DIRECTIONS = {"from": "Out of this token", "into": "Into this token"}


def part(study: Study, trace: Trace) -> None:
    """Draw it for a token that is clicked."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        direction = cast(Direction, state.pick("direction_of", "Direction", DIRECTIONS, "from"))
        residual = shared.residual_share()
        menu = st.container(horizontal=True, horizontal_alignment="right")
    usual = min(1, len(trace.tokens) - 1)
    chosen = blocks.token_strip(trace, "reach_token", "The token to follow", usual)
    reached = reach(trace, usual if chosen is None else chosen, direction, residual=residual)
    _draw(reached)
    with menu:
        _exports(study, trace, reached)
    blocks.caveat(
        f"{MEASURE_MEANINGS['rollout']} "
        + (
            "Each cell is the share of a token, after a layer, that came from the one chosen; a layer's "
            "cells do not sum to 1."
            if direction == "from"
            else "Each row is what the chosen token is made of after a layer, and sums to 1."
        )
    )


def _draw(reached: Reach) -> None:
    name = f"{reached.units[reached.chosen].display} ({reached.units[reached.chosen].position})"
    what = {
        "from": f"How much of {name} is in each token, layer by layer",
        "into": f"How much of each token is in {name}, layer by layer",
    }
    matrix(
        reached.values,
        [str(layer + 1) for layer in range(len(reached.values))],
        blocks.labels(reached.units),
        key="reach",
        scale=Scale("sequential", 0, 1, "sqrt"),
        row_axis="layer",
        column_axis="token",
        value_name=VALUE_NAMES["rollout"],
        caption=what[reached.direction],
        square=False,
        column_positions=blocks.positions(reached.units),
        file_name="reach",
    )


def _exports(study: Study, trace: Trace, reached: Reach) -> None:
    request, token = study.request, reached.units[reached.chosen]
    options = f"{reached.chosen}, {reached.direction!r}, residual={reached.residual}"
    blocks.exports(
        reach_table(reached, trace),
        "reach",
        blocks.python_code(
            request,
            blocks.trace_code(request, trace),
            f"bert_probe.reach_table(bert_probe.reach(trace, {options}), trace)",
        ),
        blocks.command_line(
            request,
            "rollout",
            *("--token", str(token), "--direction", reached.direction),
            *("--residual", f"{reached.residual:g}"),
            trace=trace,
            note="Names a word; one of several pieces is followed as a whole with --words:",
        ),
    )
