"""A model's parameters as a Plotly figure and as small tables. Nothing here knows Streamlit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from bert_probe.analyses.comparison.parameter_change import ParameterChangeResult
from bert_probe.analyses.weights.parameters import Inventory, Parameter
from bert_probe.training.trainable_parameters import TrainableParameters
from bert_probe.ui.figures import GRAY, ink
from bert_probe.views import palette
from bert_probe.views.scale import Scale

_CLEAR = "rgba(0,0,0,0)"

PART_COLOURS = {
    "embeddings": "#5D57A6",
    "attention": "#635BE4",
    "attention output": "#928CEE",
    "feed-forward": "#B3652B",
    "pooler": "#5F6B7A",
}
"""A part has one colour in every layer, with white writing of at least 4:1 on the large ones."""


@dataclass(frozen=True)
class TreemapArea:
    """A part of a treemap.

    Attributes:
        id, label, within: its own name, what is written on it, the name of the area that it lies in.
        count: numbers in it.
        part: the part of a model that it is, or that it belongs to.
        of: whether a parameter is one of its own.
    """

    id: str
    label: str
    within: str
    count: int
    part: str
    of: Callable[[Parameter], bool]


def areas(found: Inventory) -> list[TreemapArea]:
    """The model, its groups, their parts, and the tensors of these."""
    made = [TreemapArea("model", "model", "", found.total, "", lambda _: True)]
    groups = found.by_group()
    for (group, part), count in found.by_part().items():
        if group in groups:
            made.append(TreemapArea(group, group, "model", groups.pop(group), group, _in(group)))
        if part != group:
            made.append(TreemapArea(f"{group}/{part}", part, group, count, part, _in(group, part)))
    for row in found.rows:
        if row.count:
            within = row.group if row.part == row.group else f"{row.group}/{row.part}"
            label = row.name.removesuffix(".weight")
            made.append(TreemapArea(row.name, label, within, row.count, row.part, _called(row.name)))
    return made


def _called(name: str) -> Callable[[Parameter], bool]:
    return lambda row: row.name == name


def _in(group: str, part: str | None = None) -> Callable[[Parameter], bool]:
    return lambda row: row.group == group and part in (None, row.part)


def treemap(found: Inventory, dark: bool) -> Any:
    """Area by count: group, then part, then tensor."""
    ground, ink = _ground(dark)
    inks = {_CLEAR: ink, ground: ink, PART_COLOURS["attention output"]: "#1C1B22"}
    made = areas(found)
    named = {row.name for row in found.rows}

    def colour(area: TreemapArea) -> str:
        if area.id == "model":
            return _CLEAR
        return PART_COLOURS.get(area.part, GRAY if area.id in named else ground)

    colours = [colour(area) for area in made]
    return _drawn(
        made,
        dark,
        marker={"colors": colours, "line": {"width": 0}},
        textfont={"color": [inks.get(colour, "#FFFFFF") for colour in colours]},
    )


def updated_treemap(found: TrainableParameters, dark: bool) -> Any:
    """The same areas, with those of a head; what training leaves as it is has no colour, and what it updates
    in part is hatched."""
    ground, writing = _ground(dark)
    made = areas(found.inventory)
    counts = [found.count(area.of) for area in made]
    named = {row.name for row in found.inventory.rows}
    whole = [count == area.count for area, count in zip(made, counts, strict=True)]
    # Of a layer its parts are seen, which are coloured themselves; of a part not what it is made of.
    parted = [
        0 < count < area.count and area.part in PART_COLOURS and area.id not in named
        for area, count in zip(made, counts, strict=True)
    ]
    own = [PART_COLOURS.get(area.part, GRAY) for area in made]
    colours = [colour if all_of_it else ground for colour, all_of_it in zip(own, whole, strict=True)]
    return _drawn(
        made,
        dark,
        customdata=[f"{count:,} of them updated" for count in counts],
        hovertemplate="%{label}<br>%{value:,} parameters<br>%{customdata}<extra></extra>",
        marker={
            "colors": [_CLEAR, *colours[1:]],
            "pattern": {
                "shape": ["/" if part else "" for part in parted],
                "fgcolor": own,
                "fgopacity": 0.45,
                "solidity": 0.35,
                "size": 8,
            },
            "line": {"width": 0},
        },
        textfont={
            "color": [
                writing,
                *(writing if colour == ground else _readable(colour) for colour in colours[1:]),
            ]
        },
    )


def changed_treemap(found: ParameterChangeResult, dark: bool) -> Any:
    """The same areas; the colour is how much of each changed, ‖B − A‖ ÷ ‖A‖, grey where it is not in both."""
    ground, ink = _ground(dark)
    made = areas(found.inventory)
    changes = np.array([found.relative(area.of) for area in made])
    tensors = [change for area, change in zip(made, changes, strict=True) if area.within]
    end = Scale.from_zero(np.nan_to_num(np.array(tensors)), 0.0).high
    scale = palette.sequential(dark)

    def colour(change: float) -> str:
        return ground if np.isnan(change) else scale[round(min(change / end, 1.0) * (len(scale) - 1))]

    colours = [colour(change) for change in changes]
    figure = _drawn(
        made,
        dark,
        customdata=["not in both" if np.isnan(change) else f"changed by {change:.3%}" for change in changes],
        hovertemplate="%{label}<br>%{value:,} parameters<br>%{customdata}<extra></extra>",
        marker={"colors": [_CLEAR, *colours[1:]], "line": {"width": 1, "color": ground}},
        textfont={"color": [ink, *map(_readable, colours[1:])]},
    )
    # A treemap with colours of its own has no scale to show: a point that is not seen bears it.
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        hoverinfo="skip",
        marker={
            "color": [0],
            "cmin": 0,
            "cmax": end,
            "colorscale": [[place / 8, scale[round(place / 8 * (len(scale) - 1))]] for place in range(9)],
            "showscale": True,
            "colorbar": {"tickformat": "~%", "thickness": 12, "title": {"text": "changed"}},
        },
    )
    return figure.update_layout(xaxis={"visible": False}, yaxis={"visible": False})


def _ground(dark: bool) -> tuple[str, str]:
    """Colours of what has none of its own, and of writing."""
    return "#2D2C38" if dark else "#E6E1D6", ink(dark)


def _readable(colour: str) -> str:
    """Ink that can be read on a colour."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#1C1B22" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#FFFFFF"


def _drawn(made: Sequence[TreemapArea], dark: bool, **look: Any) -> Any:
    figure = go.Figure(
        go.Treemap(
            ids=[area.id for area in made],
            labels=[area.label for area in made],
            parents=[area.within for area in made],
            values=[area.count for area in made],
            branchvalues="total",
            maxdepth=3,
            texttemplate="%{label}<br>%{value:,}",
            tiling={"pad": 2, "packing": "binary"},
            pathbar={"visible": True, "textfont": {"color": _ground(dark)[1]}},
            **{
                "hovertemplate": "%{label}<br>%{value:,} parameters<br>"
                "%{percentRoot:.2%} of the model<extra></extra>",
                **look,
            },
        )
    )
    figure.update_layout(
        height=460,
        margin={"l": 0, "r": 0, "t": 24, "b": 0},
        uniformtext={"minsize": 11, "mode": "hide"},
    )
    return figure


def subtotals(sums: dict[str, int], total: int) -> pd.DataFrame:
    """Subtotals with their share of the whole, as text for reading."""
    return pd.DataFrame(
        {
            "": list(sums),
            "parameters": [f"{count:,}" for count in sums.values()],
            "share": [f"{count / total:.1%}" for count in sums.values()],
        }
    )
