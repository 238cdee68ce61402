"""Plotly figures and small tables. Nothing here knows Streamlit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from bert_probe.parameters import Parameters
from bert_probe.similarity import Baseline
from bert_probe.trace import Array
from bert_probe.ui.components.matrix import Scale

CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"]}

_ACCENT, _SECOND, _GRAY = "#635BE4", "#C2601A", "#8A8797"
"""Readable on both themes."""

_CLEAR = "rgba(0,0,0,0)"

_PART_COLOURS = {
    "embeddings": "#5D57A6",
    "attention": "#635BE4",
    "attention output": "#928CEE",
    "feed-forward": "#B3652B",
    "pooler": "#5F6B7A",
}
"""A part has one colour in every layer, with white writing of at least 4:1 on the large ones."""


@dataclass(frozen=True)
class PairCurve:
    """Cosine of one pair of tokens at every layer from 0."""

    name: str
    cosines: list[float]


def symmetric_scale(*arrays: Array) -> Scale:
    """A diverging scale around 0 for all the arrays, its end rounded up to two digits.

    It covers 99.5 % of the values: a few dimensions are so large that the others would be blank beside
    them. Those keep the colour of the end, which the legend says.
    """
    sizes = np.abs(np.concatenate([array.ravel() for array in arrays]))
    largest = float(np.quantile(sizes, 0.995)) or float(sizes.max()) or 1.0
    digit = 10.0 ** (math.floor(math.log10(largest)) - 1)
    end = round(math.ceil(largest / digit) * digit, 10)
    return Scale("diverging", -end, end)


def from_zero_scale(values: Array, at_least: float = 1.0) -> Scale:
    """A sequential scale from 0 to ``at_least``, or to the next round number where the values go beyond."""
    largest = float(values.max())
    if largest <= at_least or largest <= 0:
        return Scale("sequential", 0, at_least or 1.0)
    digit = 10.0 ** math.floor(math.log10(largest))
    return Scale("sequential", 0, round(math.ceil(largest / digit) * digit, 10))


def head_grid(table: pd.DataFrame, column: str) -> Array:
    """A column of a table with a row for each head, float32 [layer, head]."""
    values: Array = table.pivot(index="layer", columns="head", values=column).to_numpy(dtype=np.float32)
    return values


def largest_columns(values: Array, count: int, wanted: set[int]) -> list[int]:
    """At most ``count`` columns in their order: those ``wanted``, then those with the largest values."""
    by_size = np.argsort(-values.max(axis=0), kind="stable").tolist()
    return sorted(list(dict.fromkeys([*sorted(wanted), *by_size]))[: max(count, len(wanted))])


def token_bars(tokens: list[str], values: Array, name: str) -> Any:
    """A bar for each token, from 0; tokens in the order of the text."""
    positions = list(range(len(tokens)))
    shown = [_as_text(token) for token in tokens]
    figure = go.Figure(
        go.Bar(
            x=positions,
            y=values,
            customdata=shown,
            marker={"color": _ACCENT},
            hovertemplate=f"%{{customdata}} (%{{x}}): %{{y:.4f}}<extra>{name}</extra>",
        )
    )
    # So many labels have their own place, even on a narrow page; hovering names every token.
    step = math.ceil(len(tokens) / 24)
    figure.update_layout(
        height=320,
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        bargap=0.25,
        xaxis={
            "title": "token",
            "tickvals": positions[::step],
            "ticktext": [text if len(text) <= 16 else f"{text[:15]}…" for text in shown[::step]],
            "tickangle": -45 if len(tokens) > 8 else 0,
            "zeroline": False,
        },
        yaxis={"title": name, "range": [0, from_zero_scale(values, 0.0).high * 1.02]},
        showlegend=False,
    )
    return figure


def finite(values: Array) -> Array:
    """The values with NaN for infinities, which have no colour and are hatched."""
    return np.where(np.isfinite(values), values, np.nan)


def layer_curves(baseline: Baseline, layer: int, pair: PairCurve | None) -> Any:
    """Cosine of unrelated tokens by layer, the present layer marked, and a chosen pair on top."""
    layers = list(range(len(baseline.mean)))
    figure = go.Figure()
    figure.add_scatter(
        x=layers + layers[::-1],
        y=[*baseline.p95, *baseline.p5[::-1]],
        fill="toself",
        fillcolor="rgba(138,135,151,0.22)",
        mode="lines",
        line={"width": 0},
        hoverinfo="skip",
        name="unrelated: middle 90%",
    )
    figure.add_scatter(
        x=layers,
        y=baseline.mean,
        mode="lines",
        line={"color": _GRAY, "dash": "dot"},
        name="unrelated: mean",
        hovertemplate="layer %{x}: %{y:.4f}<extra>unrelated, mean</extra>",
    )
    if pair is not None:
        name = _as_text(pair.name)
        figure.add_scatter(
            x=layers,
            y=pair.cosines,
            mode="lines+markers",
            line={"color": _ACCENT, "width": 3},
            name=name,
            hovertemplate=f"layer %{{x}}: %{{y:.4f}}<extra>{name}</extra>",
        )
    figure.add_scatter(
        x=[layer, layer],
        y=[-1.02, 1.02],
        mode="lines",
        line={"color": _SECOND, "width": 1},
        hoverinfo="skip",
        name=f"layer {layer}, shown",
    )
    figure.update_layout(
        height=340,
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        legend={"orientation": "h", "y": -0.26, "x": 0},
        xaxis={
            "title": "layer",
            "dtick": max(1, len(layers) // 12),
            "range": [-0.3, len(layers) - 0.7],
            "zeroline": False,
        },
        yaxis={"title": "cosine", "range": [-1.02 if _goes_low(baseline, pair) else -0.3, 1.02]},
        hovermode="closest",
    )
    return figure


def _goes_low(baseline: Baseline, pair: PairCurve | None) -> bool:
    return min([*baseline.p5, *(pair.cosines if pair else [])]) < -0.3


def _as_text(text: str) -> str:
    """Text for a Plotly label, which reads a little HTML and templates."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "%\u200b{")


def parameter_treemap(found: Parameters, dark: bool) -> Any:
    """Area by count: group, then part, then tensor."""
    ground, ink = ("#2D2C38", "#ECEBF2") if dark else ("#E6E1D6", "#1C1B22")
    inks = {_CLEAR: ink, ground: ink, _PART_COLOURS["attention output"]: "#1C1B22"}
    ids, labels, parents, values, colours = ["model"], ["model"], [""], [found.total], [_CLEAR]
    sums: dict[tuple[str, str], int] = {}
    for row in found.rows:
        for key in ((row.group, ""), (row.group, row.part)):
            sums[key] = sums.get(key, 0) + row.count
    for (group, part), count in sums.items():
        if part == group:
            continue
        ids.append(f"{group}/{part}" if part else group)
        labels.append(part or group)
        parents.append(group if part else "model")
        values.append(count)
        colours.append(_PART_COLOURS.get(part or group, ground))
    for row in found.rows:
        if row.count:
            ids.append(row.name)
            labels.append(row.name.removesuffix(".weight"))
            parents.append(row.group if row.part == row.group else f"{row.group}/{row.part}")
            values.append(row.count)
            colours.append(_PART_COLOURS.get(row.part, _GRAY))
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


def subtotals_frame(sums: dict[str, int], total: int) -> pd.DataFrame:
    """Subtotals with their share of the whole, as text for reading."""
    return pd.DataFrame(
        {
            "": list(sums),
            "parameters": [f"{count:,}" for count in sums.values()],
            "share": [f"{count / total:.1%}" for count in sums.values()],
        }
    )
