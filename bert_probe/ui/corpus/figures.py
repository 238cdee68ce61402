"""A measure of one head over all rows, and contexts on a plane, as Plotly figures.

Nothing here knows Streamlit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bert_probe.corpus.context_clusters import ContextClusters
from bert_probe.model.trace import Array
from bert_probe.ui.corpus.lines import ContextLine
from bert_probe.ui.figures import ACCENT, SECOND, as_text

_TICKS = 8


def histogram(
    counts: Array,
    edges: Array,
    name: str,
    quantiles: Sequence[float] = (),
    chosen: int | None = None,
) -> Any:
    """A bar for each bin that holds rows, and what lies between.

    Bins are drawn equally wide: those of distances grow, as most of them are small.

    Args:
        counts: rows in each bin.
        edges: where the bins begin and end.
        quantiles: what is marked by a line.
        chosen: a bin that is marked, from 0.
    """
    held = np.flatnonzero(counts)
    first, last = (int(held[0]), int(held[-1]) + 1) if len(held) else (0, 1)
    places = np.arange(first, last)
    told = [f"{edges[place]:.4g} to {edges[place + 1]:.4g}" for place in places]
    figure = go.Figure(
        go.Bar(
            x=places + 0.5,
            y=counts[first:last],
            width=1,
            customdata=told,
            marker={
                "color": [SECOND if place == chosen else ACCENT for place in places],
                "line": {"width": 0},
            },
            selected={"marker": {"opacity": 1}},
            unselected={"marker": {"opacity": 1}},
            hovertemplate="%{customdata}: %{y:,} rows<extra></extra>",
        )
    )
    for value in quantiles:
        place = float(np.interp(value, edges, np.arange(len(edges))))
        figure.add_vline(x=place, line={"color": SECOND, "width": 1, "dash": "dot"})
    ticks = np.unique(np.linspace(first, last, _TICKS).round().astype(int))
    figure.update_layout(
        height=260,
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        bargap=0.04,
        xaxis={
            "title": name,
            "tickvals": ticks,
            "ticktext": [f"{edges[tick]:.3g}" for tick in ticks],
            "range": [first - 0.1, last + 0.1],
            "zeroline": False,
        },
        yaxis={"title": "rows", "zeroline": False},
        showlegend=False,
        dragmode=False,
    )
    return figure


def contexts(
    placed: ContextClusters,
    lines: Sequence[ContextLine],
    names: Sequence[str],
    colours: Mapping[str, str],
    chosen: int,
) -> Any:
    """Contexts as points, in the colours of what surrounds them, with their words on hover."""
    figure = go.Figure()
    for name in sorted(set(names), key=lambda one: (-names.count(one), one)):
        some = [place for place, one in enumerate(names) if one == name]
        figure.add_scatter(
            x=placed.points[some, 0],
            y=placed.points[some, 1],
            mode="markers",
            name=as_text(name),
            customdata=[
                (place, as_text(f"{lines[place].left[-40:]} [{lines[place].word}] {lines[place].right[:40]}"))
                for place in some
            ],
            hovertemplate="%{customdata[1]}<extra></extra>",
            marker={
                "color": colours[name],
                "size": [16 if place == chosen else 10 for place in some],
                "line": {"width": 1, "color": "rgba(128,128,128,0.5)"},
            },
            unselected={"marker": {"opacity": 0.6}},
        )
    axes = [
        {"title": f"component {number}, {share:.0%} of the variance", "zeroline": False}
        for number, share in enumerate(placed.explained, 1)
    ]
    figure.update_layout(
        height=420,
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        xaxis=axes[0],
        yaxis={**axes[1], "scaleanchor": "x"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        dragmode="pan",
    )
    return figure
