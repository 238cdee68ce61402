"""The models whose sizes are compared, and their sizes as a figure."""

from __future__ import annotations

from functools import partial
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.weights.model_sizes import ModelSizesResult
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.config_alone import PUBLISHED, ModelConfig, open_config
from bert_probe.ui import consent, state
from bert_probe.ui.figures import GRAY, named_rows
from bert_probe.ui.parameters import PART_COLOURS

OPEN = "this"
"""Stands for the model of the workbench in the address."""
_KEY = "sizes"
"""Of the address and of the list of models."""
_FETCHED = "configs of the hub"
"""Session key of those that were read: the hub is asked once."""
_LONGEST = 28
"""Letters of a name beside its bar."""


def chosen(checkpoint: Checkpoint) -> list[ModelConfig | Checkpoint]:
    """Let the reader choose; of what cannot be read it is said why, and the rest stays."""
    wanted = state.several(
        _KEY,
        "Models",
        {**{name: name for name in PUBLISHED}, OPEN: f"{checkpoint.description.name} · open here"},
        [*PUBLISHED, OPEN],
        "Choose, or type a config.json, a folder or a hub id",
        "You can also type the path of a config.json or of a folder on this machine, or a hub id, of which "
        "config.json alone is fetched.",
        own=True,
        on_change=_choose,
    )
    unknown = [name for name in wanted if name not in (*PUBLISHED, OPEN) and not consent.is_agreed(name)]
    if unknown:
        consent.question(
            [(name, "") for name in unknown],
            "sizes",
            "Read the sizes of these models?" if len(unknown) > 1 else "Read the sizes of this model?",
            "Named by the address of this page. Of a model on the hub, config.json alone is downloaded.",
            cancel=("Leave out", partial(_leave_out, unknown)),
        )
    found: list[ModelConfig | Checkpoint] = []
    for name in wanted:
        if name in unknown:
            continue
        try:
            found.append(checkpoint if name == OPEN else _config(name))
        except ProbeError as error:
            st.warning(state.plain(str(error), 600))
    return found


def _choose() -> None:
    """Remember the names that the reader added; those before may come from a link."""
    before = state.address().get(_KEY, "").split(",")
    consent.agree((name, "") for name in st.session_state[_KEY] if name not in before)


def _leave_out(names: list[str]) -> None:
    st.session_state[_KEY] = [name for name in st.session_state[_KEY] if name not in names]


def _config(name: str) -> ModelConfig:
    """A config; one of the hub is held, as another look at it would have to wait.

    Raises:
        ProbeError: it cannot be had.
    """
    held: dict[str, ModelConfig] = st.session_state.setdefault(_FETCHED, {})
    if name in held:
        return held[name]
    with st.spinner(f"Reading {state.plain(name)} …", show_time=False):
        found = open_config(name)
    if found.origin == "hub":
        held[name] = found
    return found


def bars(found: ModelSizesResult, shares: bool) -> Any:
    """A bar for each model, the first at the top, made of its parts.

    Args:
        shares: all bars are of one length, and a part is its share of the model.
    """
    figure, places = go.Figure(), list(range(len(found.sizes)))
    for part in found.part_names:
        counts = [size.parts.get(part, 0) for size in found.sizes]
        parted = [count / size.parameters for count, size in zip(counts, found.sizes, strict=True)]
        figure.add_bar(
            x=parted if shares else counts,
            y=places,
            orientation="h",
            name=part,
            customdata=[[f"{count:,}", f"{share:.1%}"] for count, share in zip(counts, parted, strict=True)],
            marker={"color": PART_COLOURS.get(part, GRAY), "line": {"width": 0}},
            hovertemplate=f"{part}: %{{customdata[0]}}<br>%{{customdata[1]}} of the model<extra></extra>",
        )
    names = [
        size.name if len(size.name) <= _LONGEST else f"…{size.name[1 - _LONGEST :]}" for size in found.sizes
    ]
    figure.update_layout(
        barmode="stack",
        height=110 + 40 * len(places),
        margin={"l": 0, "r": 16, "t": 8, "b": 0},
        bargap=0.3,
        xaxis={
            "title": "share of the model" if shares else "parameters",
            "tickformat": ".0%" if shares else "~s",
            "range": [0, 1] if shares else None,
        },
        yaxis=named_rows(names),
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
    )
    return figure


def sources(found: ModelSizesResult) -> str:
    """Where the sizes come from, as Markdown."""
    held: dict[str, list[str]] = {}
    for config in found.inputs.configs:
        where = config["source"] if config["origin"] == "published" else config["origin"]
        held.setdefault(where, []).append(config["model"])
    return state.plain("; ".join(f"{where}: {', '.join(names)}" for where, names in held.items()), 2_000)
