"""A vocabulary as Plotly figures. Nothing here knows Streamlit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bert_probe.analyses.vocabulary.neighbors import NeighborsResult
from bert_probe.ui.figures import ACCENT, GRAY, SECOND, as_text, named_rows

_BINS = 60


def counted_bars(counts: Mapping[str, int], of: int) -> Any:
    """A bar for each name, with its count and its share of all."""
    shares = [count / max(1, of) for count in counts.values()]
    figure = go.Figure(
        go.Bar(
            x=[*counts.values()],
            y=list(range(len(counts))),
            orientation="h",
            customdata=[as_text(name) for name in counts],
            marker={"color": ACCENT},
            text=[
                f"{count:,} · {_percent(share)}" for count, share in zip(counts.values(), shares, strict=True)
            ],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{customdata}: %{x:,}<extra></extra>",
        )
    )
    figure.update_layout(
        height=24 + 30 * len(counts),
        margin={"l": 0, "r": 104, "t": 8, "b": 0},
        bargap=0.35,
        xaxis={"visible": False, "rangemode": "tozero"},
        yaxis=named_rows([*counts]),
        showlegend=False,
    )
    return figure


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 or share == 0 else "under 0.1%"


def beside_random(found: NeighborsResult) -> Any:
    """The cosines of random pairs as a histogram, and each neighbour's as a mark upon it."""
    low = min(-0.1, float(found.unrelated[0]))
    counts, edges = np.histogram(found.unrelated, bins=_BINS, range=(low, 1.0))
    figure = go.Figure()
    figure.add_bar(
        x=(edges[:-1] + edges[1:]) / 2,
        y=counts / len(found.unrelated),
        width=edges[1] - edges[0],
        marker={"color": GRAY, "line": {"width": 0}},
        name="two random pieces",
        hovertemplate="cosine about %{x:.2f}: %{y:.1%} of the pairs<extra></extra>",
    )
    names = [as_text(name) for name in found.names()]
    figure.add_scatter(
        x=found.cosines,
        y=np.zeros(len(names)),
        mode="markers",
        marker={"symbol": "line-ns", "size": 16, "line": {"width": 2, "color": ACCENT}},
        customdata=names,
        name="neighbours",
        hovertemplate="%{customdata}: %{x:.4f}<extra></extra>",
    )
    figure.add_vline(x=found.percentile(0.95), line={"color": SECOND, "width": 1, "dash": "dot"}, opacity=0.9)
    figure.update_layout(
        height=190,
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        bargap=0,
        xaxis={"title": "cosine", "range": [low, 1.02], "zeroline": False},
        yaxis={"tickformat": ".0%", "rangemode": "tozero", "nticks": 4, "zeroline": False},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hovermode="closest",
    )
    return figure
