"""A training as Plotly figures. Nothing here knows Streamlit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from bert_probe.training.training_loop import EvaluationPoint as Reached
from bert_probe.ui.figures import ACCENT, GRAY, SECOND, as_text, named_rows


def course(reached: Sequence[Reached], measure: str, steps: int, kept: Reached | None = None) -> Any:
    """Loss and the held-out measure by step, the two on scales of their own.

    Args:
        steps: where the axis ends.
        kept: the evaluation whose weights are kept, which is marked.
    """
    figure = go.Figure()
    at = [one.step for one in reached]
    lines = (
        ("loss", [one.loss for one in reached], {"color": GRAY, "width": 2}, "y"),
        (
            "loss, held out",
            [one.held_out_loss for one in reached],
            {"color": SECOND, "width": 2, "dash": "dot"},
            "y",
        ),
        (f"{measure}, held out", [one.measure for one in reached], {"color": ACCENT, "width": 3}, "y2"),
    )
    for name, values, line, axis in lines:
        figure.add_scatter(
            x=at,
            y=values,
            mode="lines+markers",
            name=name,
            line=line,
            yaxis=axis,
            hovertemplate=f"step %{{x}}: %{{y:.4f}}<extra>{name}</extra>",
        )
    if kept is not None:
        figure.add_scatter(
            x=[kept.step],
            y=[kept.measure],
            mode="markers",
            marker={"color": ACCENT, "size": 14, "symbol": "circle-open", "line": {"width": 2}},
            yaxis="y2",
            name="kept",
            hovertemplate="kept: step %{x}<extra></extra>",
        )
    figure.update_layout(
        height=280,
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        legend={"orientation": "h", "y": -0.28, "x": 0},
        xaxis={"title": "step", "range": [0, steps * 1.02], "zeroline": False},
        yaxis={"title": "loss", "rangemode": "tozero", "zeroline": False},
        yaxis2={
            "title": measure,
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "zeroline": False,
            "tickmode": "auto",
        }
        | ({"range": [0, 1.02]} if measure in ("accuracy", "micro F1") else {}),
        hovermode="x unified",
    )
    return figure


def against(bars: Mapping[str, float], interval: tuple[float, float] | None, measure: str) -> Any:
    """A bar for the model, the first, with its interval; and one for each baseline."""
    names, values = [*bars], [*bars.values()]
    figure = go.Figure(
        go.Bar(
            x=values,
            y=list(range(len(names))),
            orientation="h",
            marker={"color": [ACCENT, *[GRAY] * (len(names) - 1)]},
            customdata=[as_text(name) for name in names],
            hovertemplate="%{customdata}: %{x:.4f}<extra></extra>",
        )
    )
    if interval is not None:
        low, high = interval
        figure.add_scatter(
            x=[values[0]],
            y=[0],
            mode="markers",
            marker={"color": SECOND, "size": 1},
            error_x={
                "array": [high - values[0]],
                "arrayminus": [values[0] - low],
                "color": SECOND,
                "width": 6,
            },
            hovertemplate=f"95% interval: {low:.4f} to {high:.4f}<extra></extra>",
        )
    figure.update_layout(
        height=52 + 34 * len(names),
        margin={"l": 0, "r": 16, "t": 8, "b": 0},
        bargap=0.35,
        xaxis={"title": measure, "range": None if measure == "mse" else [0, 1.005]},
        yaxis=named_rows(names),
        showlegend=False,
    )
    return figure
