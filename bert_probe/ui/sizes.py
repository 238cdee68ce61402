"""The Sizes page: the sizes of several models, computed from their configs without loading weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.weights.parameters import MEMORY, ModelSizes, ModelSizesResult
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.config import PUBLISHED, ModelConfig, open_config
from bert_probe.runtime import permissions, shared_cache
from bert_probe.ui import blocks, figures, model_choice, state, workbench
from bert_probe.ui.export import export
from bert_probe.ui.figures import GRAY, named_rows
from bert_probe.ui.parameters import PART_COLOURS

OPEN = "this"
"""URL value that represents the model selected in the sidebar."""
_KEY = "sizes"
"""URL parameter and widget key of the list of models."""
_HUB_CONFIGS = "configs of the hub"
"""Session key of the cached model configs from the Hub."""
_MAX_LETTERS = 28
"""Maximum length of a model name in the bar chart, in characters. Longer names are truncated."""
_FIRST_COLUMNS = ("name", "layers", "heads", "hidden_size", "parameters")


def render() -> None:
    """Draw the Sizes page."""
    blocks.heading(
        "Sizes",
        "Compare the number of parameters, the layers and the memory of models. Only their configs are read, "
        "so models are not downloaded.",
    )
    models = choose_models(workbench.checkpoint())
    if not models:
        st.info("Choose a model above.")
        return
    result = shared_cache.answers.of(ModelSizes().of, *models)
    with st.container(key="finding"):
        st.markdown(state.escape(result.finding, 1000))
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        scales = {"numbers": "Numbers", "shares": "Shares"}
        scale = state.segmented_control("bars", "Bars", scales, "numbers")
        export(result, "sizes")
    blocks.chart(bars(result, scale == "shares"), "Stacked bar chart: parameters of each model by module")
    blocks.caveat(
        "The counts include the encoder and its pooler, but no task head; tied weights are counted "
        "once. Each layer consists of attention (queries, keys and values), attention output and "
        "feed-forward, with biases and layer normalization. The number of parameters does not show how "
        "good a model is."
    )
    st.header("Side by side", anchor=False)
    counts = {name: st.column_config.NumberColumn(format="localized") for name in result.frame().columns}
    memory = {
        f"bytes_{dtype}": st.column_config.NumberColumn(
            "float16, bfloat16" if dtype == "float16" else dtype, format="bytes"
        )
        for dtype in MEMORY
    }
    blocks.table(
        result.table(),
        "Layers, heads, dimensions, parameters by module, and memory use of each model",
        column_order=list(dict.fromkeys([*_FIRST_COLUMNS, *memory, *counts])),
        column_config={
            **counts,
            "name": st.column_config.TextColumn("name", pinned=True),
            "family": st.column_config.TextColumn("family"),
            "hidden_size": st.column_config.NumberColumn("dimensions", format="localized"),
            "vocabulary_size": st.column_config.NumberColumn("vocabulary", format="localized"),
            **memory,
        },
    )
    blocks.caveat(
        "The memory is stated for the weights only; inference needs more, and training needs several times "
        f"as much. Sources of the configs: {_sources(result)}."
    )


def choose_models(checkpoint: Checkpoint) -> list[ModelConfig | Checkpoint]:
    """Draw the selector for models and return the selected configs.

    Draw a warning for each config that cannot be read. Ask for consent before reading configs that the URL
    names.
    """
    is_public = permissions.current().is_public
    names = state.multiselect(
        _KEY,
        "Models",
        {**{name: name for name in PUBLISHED}, OPEN: f"{checkpoint.description.name} · current model"},
        [*PUBLISHED, OPEN],
        "Choose a model" if is_public else "Choose a model, or type a Hub ID or the path of a folder",
        "Sizes are computed from the published configs."
        if is_public
        else "You can also type the path of a config.json or of a folder on this machine, or a Hub ID. Only "
        "config.json is downloaded from the Hub.",
        accept_new_options=not is_public,
        on_change=_on_change,
    )
    unknown = [name for name in names if name not in (*PUBLISHED, OPEN) and not model_choice.is_agreed(name)]
    if unknown:
        model_choice.ask(
            [(name, "") for name in unknown],
            "sizes",
            "Read the configs of these models?" if len(unknown) > 1 else "Read the config of this model?",
            "The model names come from the URL of this page. Only config.json is downloaded from the Hub.",
            cancel=("Skip", partial(_leave_out, unknown)),
        )
    models: list[ModelConfig | Checkpoint] = []
    for name in names:
        if name in unknown:
            continue
        try:
            models.append(checkpoint if name == OPEN else _config(name))
        except ProbeError as error:
            st.warning(state.escape(str(error), 600))
    return models


def _on_change() -> None:
    """Record that the user agreed to read the configs of the models that they added.

    Models that were already in the URL are skipped, because they may come from a link.
    """
    before = state.url_parameters().get(_KEY, "").split(",")
    model_choice.agree((name, "") for name in st.session_state[_KEY] if name not in before)


def _leave_out(names: list[str]) -> None:
    st.session_state[_KEY] = [name for name in st.session_state[_KEY] if name not in names]


def _config(name: str) -> ModelConfig:
    """Return the config of a model. A config from the Hub is downloaded once per session.

    Raises:
        ProbeError: the config cannot be read.
    """
    configs: dict[str, ModelConfig] = st.session_state.setdefault(_HUB_CONFIGS, {})
    if name in configs:
        return configs[name]
    with st.spinner(f"Reading {state.escape(name)} …", show_time=False):
        config = open_config(name)
    if config.origin == "hub":
        configs[name] = config
    return config


def bars(result: ModelSizesResult, is_shares: bool) -> Any:
    """Return a bar chart of the parameters by module, with a stacked bar for each model.

    Args:
        is_shares: whether to draw shares of the model's parameters instead of counts.
    """
    figure, rows = go.Figure(), list(range(len(result.sizes)))
    for part in result.part_names:
        counts = [size.parts.get(part, 0) for size in result.sizes]
        shares = [count / size.parameters for count, size in zip(counts, result.sizes, strict=True)]
        figure.add_bar(
            x=shares if is_shares else counts,
            y=rows,
            orientation="h",
            name=part,
            customdata=[[f"{count:,}", f"{share:.1%}"] for count, share in zip(counts, shares, strict=True)],
            marker={"color": PART_COLOURS.get(part, GRAY), "line": {"width": 0}},
            hovertemplate=f"{part}: %{{customdata[0]}}<br>%{{customdata[1]}} of the model<extra></extra>",
        )
    names = [
        size.name if len(size.name) <= _MAX_LETTERS else f"…{size.name[1 - _MAX_LETTERS :]}"
        for size in result.sizes
    ]
    figures.apply_layout(
        figure,
        110 + 40 * len(rows),
        right=16,
        legend="above",
        barmode="stack",
        bargap=0.3,
        xaxis={
            "title": "share of the model" if is_shares else "parameters",
            "tickformat": ".0%" if is_shares else "~s",
            "range": [0, 1] if is_shares else None,
        },
        yaxis=named_rows(names),
    )
    return figure


def _sources(result: ModelSizesResult) -> str:
    """Return the sources of the model configs as Markdown text."""
    models: dict[str, list[str]] = {}
    for config in result.inputs.configs:
        source = config["source"] if config["origin"] == "published" else config["origin"]
        models.setdefault(source, []).append(config["model"])
    return state.escape("; ".join(f"{source}: {', '.join(names)}" for source, names in models.items()), 2_000)
