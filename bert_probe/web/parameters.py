"""A model's parameters as a Plotly figure and as small tables. Nothing here knows Streamlit."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from bert_probe.analyses.parameters import Inventory
from bert_probe.web.figures import GRAY

_CLEAR = "rgba(0,0,0,0)"

_PART_COLOURS = {
    "embeddings": "#5D57A6",
    "attention": "#635BE4",
    "attention output": "#928CEE",
    "feed-forward": "#B3652B",
    "pooler": "#5F6B7A",
}
"""A part has one colour in every layer, with white writing of at least 4:1 on the large ones."""


def treemap(found: Inventory, dark: bool) -> Any:
    """Area by count: group, then part, then tensor."""
    ground, ink = ("#2D2C38", "#ECEBF2") if dark else ("#E6E1D6", "#1C1B22")
    inks = {_CLEAR: ink, ground: ink, _PART_COLOURS["attention output"]: "#1C1B22"}
    # Id, label, id of what it lies in, count, colour.
    areas = [("model", "model", "", found.total, _CLEAR)]
    groups = found.by_group()
    for (group, part), count in found.by_part().items():
        if group in groups:
            areas.append((group, group, "model", groups.pop(group), _PART_COLOURS.get(group, ground)))
        if part != group:
            areas.append((f"{group}/{part}", part, group, count, _PART_COLOURS.get(part, ground)))
    for row in found.rows:
        if row.count:
            within = row.group if row.part == row.group else f"{row.group}/{row.part}"
            label = row.name.removesuffix(".weight")
            areas.append((row.name, label, within, row.count, _PART_COLOURS.get(row.part, GRAY)))
    ids, labels, parents, values, colours = zip(*areas, strict=True)
    figure = go.Figure(
        go.Treemap(
            ids=ids,
            labels=labels,
            parents=parents,
            values=values,
            branchvalues="total",
            maxdepth=3,
            texttemplate="%{label}<br>%{value:,}",
            hovertemplate="%{label}<br>%{value:,} parameters<br>"
            "%{percentRoot:.2%} of the model<extra></extra>",
            marker={"colors": colours, "line": {"width": 0}},
            tiling={"pad": 2, "packing": "binary"},
            textfont={"color": [inks.get(colour, "#FFFFFF") for colour in colours]},
            pathbar={"visible": True, "textfont": {"color": ink}},
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
