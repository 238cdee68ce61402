"""The Parameters page: all parameters of the model as a treemap and as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.comparison.model_change import ParameterChangeResult
from bert_probe.analyses.weights.parameters import Inventory, Parameter, Parameters
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import FILL_MASK, Checkpoint
from bert_probe.model.layers import module_tree
from bert_probe.runtime import permissions
from bert_probe.training.models import TASKS, TrainableParameters, count_by_scope, trainable_parameters
from bert_probe.ui import blocks, figures, state, train_data, workbench
from bert_probe.ui.blocks import TASK_LABELS
from bert_probe.ui.export import export
from bert_probe.ui.figures import GRAY, ink
from bert_probe.views import palette
from bert_probe.views.palette import Scale

_TRANSPARENT = "rgba(0,0,0,0)"
_MAX_LABELS = 1_000

PART_COLOURS = {
    "embeddings": "#5D57A6",
    "attention": "#635BE4",
    "attention output": "#928CEE",
    "feed-forward": "#B3652B",
    "pooler": "#5F6B7A",
}
"""Module type → color. White text on the colors of large areas has a contrast of at least 4:1."""


def render() -> None:
    """Draw the Parameters page."""
    blocks.heading(
        "Parameters",
        "This page shows all learned parameters of the model by layer and module. The parameters do not "
        "depend on the text.",
    )
    checkpoint = workbench.checkpoint()
    model = checkpoint.description
    result = Parameters().of(checkpoint)
    inventory = result.inventory
    _totals(inventory, checkpoint)
    trainable = _choose_trainable(checkpoint)
    dark = blocks.is_dark()
    blocks.chart(
        treemap(inventory, dark) if trainable is None else trainable_treemap(trainable, dark),
        "Treemap of the parameters: embeddings, layers with their modules, and pooler"
        + ("" if trainable is None else "; trainable parameters in color"),
    )
    if trainable is not None:
        blocks.caveat(
            f"Colored blocks contain the {trainable.count():,} parameters that training updates. In "
            "hatched blocks, some parameters are updated, as with LoRA, which adds low-rank matrices to "
            "the model's own matrices. Blocks without color are frozen. More trainable parameters need "
            "more memory and time, and do not always give a better model."
        )
    blocks.caveat(
        "The area shows the number of parameters, not their importance. Each layer consists of feed-forward, "
        "attention (queries, keys and values) and attention output (lightest color). Click a block to zoom "
        "in, or its title to zoom out."
    )
    table = result.table()
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("All tensors", anchor=False)
        export(result, "parameters")
    blocks.table(
        table if inventory.tied else table.drop(columns="tied_to"),
        "All parameters with group, shape and count",
        max_height=480,
        column_config={
            "count": st.column_config.NumberColumn("count", format="localized"),
            "bytes": st.column_config.NumberColumn("bytes", format="localized"),
            "share": st.column_config.ProgressColumn("share", format="percent", min_value=0, max_value=1),
            "name": st.column_config.TextColumn(
                "name", help="Name in the checkpoint, where layers count from 0."
            ),
            "part": st.column_config.TextColumn("part", width=128),
            "kind": st.column_config.TextColumn("kind", help="Type of the module that uses the parameter."),
        },
    )
    left, right = st.columns(2, gap="large")
    with left:
        st.header("By group", anchor=False)
        blocks.table(subtotals(inventory.by_group(), inventory.total), "Parameters by group")
    with right:
        st.header("By module type", anchor=False)
        blocks.table(subtotals(inventory.by_kind(), inventory.total), "Parameters by module type")
    with st.expander("Module tree"):
        st.code(
            "\n".join(
                f"{'  ' * depth}{name + ': ' if name else ''}{kind}" + (f"  ({count:,})" if count else "")
                for depth, name, kind, count in module_tree(checkpoint.model)
            ),
            language=None,
        )
    st.caption(f"{model.architecture} · SHA-256 of the weights {model.weights_sha256}")


def _totals(inventory: Inventory, checkpoint: Checkpoint) -> None:
    model = checkpoint.description
    with st.container(horizontal=True, gap="large"):
        st.metric(
            "Parameters",
            f"{inventory.total:,}",
            help="Number of weights of the model; tied weights are counted once.",
        )
        st.metric("Tensors", f"{len(inventory.rows):,}", help="Number of parameter tensors.")
        st.metric(
            "Memory", f"{inventory.megabytes:,.1f} MB", help=f"Memory that the weights need in {model.dtype}."
        )
        st.metric(
            "Layers × heads", f"{model.layers} × {model.heads}", help="Number of attention heads per layer."
        )
        st.metric("Vocabulary", f"{model.vocabulary_size:,}", help="Number of tokens in the vocabulary.")
    if inventory.tied:
        are_tied = "tensor is tied" if inventory.tied == 1 else "tensors are tied"
        st.caption(f"Counted once: {inventory.tied:,} {are_tied} to another tensor.")


def _choose_trainable(checkpoint: Checkpoint) -> TrainableParameters | None:
    """Draw widgets that choose a task and an update method, such as LoRA.

    Return the parameters that training would update, or None if the toggle is off or training is unavailable.
    """
    if not permissions.current().can_train or not state.toggle(
        "training",
        "Mark trainable parameters",
        False,
        "Show which parameters training on the Train page would update. The counts then include a task head.",
    ):
        return None
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        labels = {task: TASK_LABELS[task] for task in TASKS}
        task = state.segmented_control("head_for", "Head", labels, TASKS[0], "The task of the trained head.")
        label_count = 2
        if task != FILL_MASK:
            with st.container(width=150):
                label_count = train_data.number("head_labels", "Number of labels", 2, 1, _MAX_LABELS)
    try:
        update = train_data.choose_update([*count_by_scope(checkpoint, task, label_count)])
        return trainable_parameters(checkpoint, task, update, label_count)
    except UnavailableError as error:
        st.info(state.escape(str(error), 600))
        return None


# ---------------------------------------------------------------- treemaps


@dataclass(frozen=True)
class TreemapArea:
    """A rectangle of the treemap: the model, a group, a module, or a tensor.

    Attributes:
        id, label: unique id and displayed text.
        within: id of the parent area; "" for the model.
        count: number of parameters in the area.
        part: group or module type, which determines the color.
        contains: function that returns whether a parameter belongs to the area.
    """

    id: str
    label: str
    within: str
    count: int
    part: str
    contains: Callable[[Parameter], bool]


def areas(inventory: Inventory) -> list[TreemapArea]:
    """Return the treemap areas of the model, its groups (such as layers), their modules, and the tensors."""
    result = [TreemapArea("model", "model", "", inventory.total, "", lambda _: True)]
    groups = inventory.by_group()
    for (group, part), count in inventory.by_part().items():
        if group in groups:
            result.append(TreemapArea(group, group, "model", groups.pop(group), group, _in(group)))
        if part != group:
            result.append(TreemapArea(f"{group}/{part}", part, group, count, part, _in(group, part)))
    for row in inventory.rows:
        if row.count:
            within = row.group if row.part == row.group else f"{row.group}/{row.part}"
            label = row.name.removesuffix(".weight")
            result.append(TreemapArea(row.name, label, within, row.count, row.part, _has_name(row.name)))
    return result


def _has_name(name: str) -> Callable[[Parameter], bool]:
    return lambda row: row.name == name


def _in(group: str, part: str | None = None) -> Callable[[Parameter], bool]:
    return lambda row: row.group == group and part in (None, row.part)


def treemap(inventory: Inventory, dark: bool) -> Any:
    """Return a treemap of the number of parameters by group, module and tensor."""
    background, text = _neutral_colours(dark)
    text_colours = {_TRANSPARENT: text, background: text, PART_COLOURS["attention output"]: "#1C1B22"}
    model_areas = areas(inventory)
    tensors = {row.name for row in inventory.rows}

    def colour(area: TreemapArea) -> str:
        if area.id == "model":
            return _TRANSPARENT
        return PART_COLOURS.get(area.part, GRAY if area.id in tensors else background)

    colours = [colour(area) for area in model_areas]
    return _figure(
        model_areas,
        dark,
        marker={"colors": colours, "line": {"width": 0}},
        textfont={"color": [text_colours.get(colour, "#FFFFFF") for colour in colours]},
    )


def trainable_treemap(trainable: TrainableParameters, dark: bool) -> Any:
    """Return a treemap of a model with a task head that marks the trainable parameters.

    Trainable areas are colored, partly trainable areas are hatched, and frozen areas have a neutral color.
    """
    background, text = _neutral_colours(dark)
    model_areas = areas(trainable.inventory)
    updates = [trainable.count(area.contains) for area in model_areas]
    tensors = {row.name for row in trainable.inventory.rows}
    is_full = [count == area.count for area, count in zip(model_areas, updates, strict=True)]
    # Draw hatching only in areas of modules. The area of a layer contains the areas of its modules, which are
    # visible, but the area of a module does not show its tensors.
    is_partial = [
        0 < count < area.count and area.part in PART_COLOURS and area.id not in tensors
        for area, count in zip(model_areas, updates, strict=True)
    ]
    part_colours = [PART_COLOURS.get(area.part, GRAY) for area in model_areas]
    colours = [colour if full else background for colour, full in zip(part_colours, is_full, strict=True)]
    return _figure(
        model_areas,
        dark,
        customdata=[f"{count:,} trainable" for count in updates],
        hovertemplate="%{label}<br>%{value:,} parameters<br>%{customdata}<extra></extra>",
        marker={
            "colors": [_TRANSPARENT, *colours[1:]],
            "pattern": {
                "shape": ["/" if partial else "" for partial in is_partial],
                "fgcolor": part_colours,
                "fgopacity": 0.45,
                "solidity": 0.35,
                "size": 8,
            },
            "line": {"width": 0},
        },
        textfont={
            "color": [
                text,
                *(text if colour == background else _text_colour(colour) for colour in colours[1:]),
            ]
        },
    )


def changed_treemap(change: ParameterChangeResult, dark: bool) -> Any:
    """Return a treemap of the parameters of models A and B, colored by relative change ‖B − A‖ ÷ ‖A‖.

    Tensors that only A or only B has are uncolored.
    """
    background, text = _neutral_colours(dark)
    model_areas = areas(change.inventory)
    changes = np.array([change.relative(area.contains) for area in model_areas])
    inner = [value for area, value in zip(model_areas, changes, strict=True) if area.within]
    high = Scale.from_zero(np.nan_to_num(np.array(inner)), 0.0).high
    scale = palette.sequential(dark)

    def colour(value: float) -> str:
        if np.isnan(value):
            return background
        return scale[round(min(value / high, 1.0) * (len(scale) - 1))]

    colours = [colour(value) for value in changes]
    figure = _figure(
        model_areas,
        dark,
        customdata=[
            "not present in both models" if np.isnan(value) else f"changed by {value:.3%}"
            for value in changes
        ],
        hovertemplate="%{label}<br>%{value:,} parameters<br>%{customdata}<extra></extra>",
        marker={"colors": [_TRANSPARENT, *colours[1:]], "line": {"width": 1, "color": background}},
        textfont={"color": [text, *map(_text_colour, colours[1:])]},
    )
    # A treemap with explicit colors has no color bar, so an invisible scatter point provides it.
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        hoverinfo="skip",
        marker={
            "color": [0],
            "cmin": 0,
            "cmax": high,
            "colorscale": [[step / 8, scale[round(step / 8 * (len(scale) - 1))]] for step in range(9)],
            "showscale": True,
            "colorbar": {"tickformat": "~%", "thickness": 12, "title": {"text": "changed"}},
        },
    )
    return figure.update_layout(xaxis={"visible": False}, yaxis={"visible": False})


def _neutral_colours(dark: bool) -> tuple[str, str]:
    """Return the background color of areas without a module color, and the color of text on it."""
    return "#2D2C38" if dark else "#E6E1D6", ink(dark)


def _text_colour(colour: str) -> str:
    """Return the text color, dark or light, that is more readable on a background color."""
    red, green, blue = (int(colour[index : index + 2], 16) for index in (1, 3, 5))
    return "#1C1B22" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#FFFFFF"


def _figure(model_areas: Sequence[TreemapArea], dark: bool, **style: Any) -> Any:
    figure = go.Figure(
        go.Treemap(
            ids=[area.id for area in model_areas],
            labels=[area.label for area in model_areas],
            parents=[area.within for area in model_areas],
            values=[area.count for area in model_areas],
            branchvalues="total",
            maxdepth=3,
            texttemplate="%{label}<br>%{value:,}",
            tiling={"pad": 2, "packing": "binary"},
            pathbar={"visible": True, "textfont": {"color": _neutral_colours(dark)[1]}},
            **{
                "hovertemplate": "%{label}<br>%{value:,} parameters<br>"
                "%{percentRoot:.2%} of the model<extra></extra>",
                **style,
            },
        )
    )
    figures.apply_layout(
        figure,
        460,
        margin={"l": 0, "r": 0, "t": 24, "b": 0},
        uniformtext={"minsize": 11, "mode": "hide"},
    )
    return figure


def subtotals(sums: dict[str, int], total: int) -> pd.DataFrame:
    """Return a table of parameter counts and their shares of the total, as formatted text.

    Args:
        sums: name of a group or module type → number of its parameters.
        total: number of parameters of the model.
    """
    return pd.DataFrame(
        {
            "": list(sums),
            "parameters": [f"{count:,}" for count in sums.values()],
            "share": [f"{count / total:.1%}" for count in sums.values()],
        }
    )
