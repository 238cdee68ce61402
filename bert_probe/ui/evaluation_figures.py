"""Plotly figures of the Evaluate page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from bert_probe.analyses.evaluation.similarity_evaluation import SimilarityEvaluationResult
from bert_probe.analyses.evaluation.vector_comparison import BINARY, FLOAT32, INT8, VectorComparison
from bert_probe.text.words import truncate_text
from bert_probe.ui.figures import ACCENT, GRAY, SECOND, apply_layout, as_text
from bert_probe.views.palette import HEADS

_MAX_POINTS = 2_000
"""Maximum number of points of a scatter plot."""
_COLORS = {FLOAT32: ACCENT, INT8: SECOND, BINARY: GRAY}
_SYMBOLS = {FLOAT32: "circle", INT8: "square", BINARY: "diamond"}


def score_scatter(result: SimilarityEvaluationResult) -> Any:
    """Return a scatter plot of the scores of the model, or of two models, by the judged scores."""
    rows = np.arange(len(result.labels))
    if len(rows) > _MAX_POINTS:
        rows = np.sort(np.random.default_rng(0).choice(len(rows), _MAX_POINTS, replace=False))
    figure = go.Figure()
    names = ("model", "other model") if result.has_other else (result.models[0].recipe.score_name,)
    lines = np.array([row.line for row in result.pairs.rows])
    for model, name, color, symbol in zip(
        result.models, names, (ACCENT, SECOND), ("circle", "diamond"), strict=False
    ):
        figure.add_scatter(
            x=result.labels[rows],
            y=model.values[1][rows],
            mode="markers",
            marker={"color": color, "symbol": symbol, "size": 5, "opacity": 0.5},
            name=name,
            customdata=lines[rows],
            hovertemplate="line %{customdata}: judged %{x:.2f}, score %{y:.4f}<extra></extra>",
        )
    return apply_layout(
        figure,
        340,
        legend="above" if result.has_other else None,
        xaxis={"title": "judged score", "zeroline": False},
        yaxis={"title": result.models[0].recipe.score_name, "zeroline": False},
    )


def quality_curve(curve: pd.DataFrame, measure: str, title: str) -> Any:
    """Return a measure, with its interval, by the size of a vector in bytes."""
    figure = go.Figure()
    for precision, part in curve.groupby("precision", sort=False):
        figure.add_scatter(
            x=part["bytes_per_vector"],
            y=part[measure],
            error_y={
                "type": "data",
                "array": part["high"] - part[measure],
                "arrayminus": part[measure] - part["low"],
                "thickness": 1,
            },
            mode="lines+markers",
            line={"color": _COLORS[str(precision)]},
            marker={"symbol": _SYMBOLS[str(precision)], "size": 8},
            name=str(precision),
            customdata=part["dimensions"],
            hovertemplate="%{customdata:,} dimensions, %{x:,} bytes: %{y:.4f}",
        )
    sizes = sorted(set(curve["bytes_per_vector"]))
    return apply_layout(
        figure,
        320,
        legend="above",
        xaxis={
            "title": "bytes per vector (logarithmic)",
            "type": "log",
            "tickvals": sizes,
            "ticktext": [f"{size:,}" for size in sizes],
        },
        yaxis={"title": title},
    )


def neighbor_map(comparison: VectorComparison, text: int, is_second: bool) -> Any:
    """Return the texts on the map of a model, with the nearest neighbors of a text by both models.

    Args:
        text: index of the text.
        is_second: whether to draw the map of the second model.
    """
    assert comparison.maps is not None
    layout = comparison.maps[is_second]
    first, second = comparison.first[text], comparison.second[text]
    others = np.setdiff1d(np.arange(len(layout.points)), [text, *first, *second])
    if len(others) > _MAX_POINTS:
        others = np.sort(np.random.default_rng(0).choice(others, _MAX_POINTS, replace=False))
    figure = go.Figure()
    for name, rows, color, symbol, size in (
        ("other texts", others, GRAY, "circle", 5),
        ("neighbor in both models", np.intersect1d(first, second), ACCENT, "circle", 9),
        ("only in the first model", np.setdiff1d(first, second), SECOND, "square", 9),
        ("only in the second model", np.setdiff1d(second, first), HEADS[1], "diamond", 10),
        ("selected text", np.array([text]), ACCENT, "star", 16),
    ):
        figure.add_scatter(
            x=layout.points[rows, 0],
            y=layout.points[rows, 1],
            mode="markers",
            marker={
                "color": color,
                "symbol": symbol,
                "size": size,
                "opacity": 0.35 if color == GRAY else 1,
            },
            name=name,
            customdata=[as_text(truncate_text(comparison.texts[row], 100)) for row in rows],
            hovertemplate="%{customdata}<extra></extra>",
        )
    shares = layout.explained or (0.0, 0.0)
    return apply_layout(
        figure,
        420,
        legend="below",
        xaxis={"title": f"first component, {shares[0]:.1%} of the variance", "zeroline": False},
        yaxis={
            "title": f"second component, {shares[1]:.1%} of the variance",
            "zeroline": False,
            "scaleanchor": "x",
        },
    )


def reliability(bins: pd.DataFrame) -> Any:
    """Return the accuracy by the mean confidence of each bin, next to the diagonal of equal values."""
    filled = bins[bins["texts"] > 0]
    figure = go.Figure()
    figure.add_scatter(
        x=[0, 1], y=[0, 1], mode="lines", line={"color": GRAY, "dash": "dash"}, name="equal", hoverinfo="skip"
    )
    figure.add_scatter(
        x=filled["confidence"],
        y=filled["accuracy"],
        mode="lines+markers",
        line={"color": ACCENT},
        name="logistic regression",
        customdata=filled["texts"],
        hovertemplate="%{customdata:,} texts: confidence %{x:.2f}, accuracy %{y:.2f}<extra></extra>",
    )
    return apply_layout(
        figure,
        320,
        legend="above",
        xaxis={"title": "confidence", "range": [0, 1.02]},
        yaxis={"title": "accuracy", "range": [0, 1.02]},
    )
