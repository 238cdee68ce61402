"""The Positions page: learned, sinusoidal and rotary position embeddings, and relative position biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.weights import positions as kinds
from bert_probe.analyses.weights.positions import (
    DistanceBias,
    Positions,
    PositionsResult,
    Rotary,
    count_directions,
)
from bert_probe.model.trace import Array
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, figures, state, workbench
from bert_probe.ui.blocks import numbers
from bert_probe.ui.components import heatmap
from bert_probe.ui.export import export
from bert_probe.ui.figures import ACCENT, GRAY, SECOND
from bert_probe.views.heatmaps import position_heatmaps
from bert_probe.views.palette import HEADS

_LABELS = {
    kinds.COSINES: "Cosines",
    kinds.DISTANCE: "By distance",
    kinds.SPECTRUM: "Spectrum",
    kinds.TABLE: "Table",
    kinds.FREQUENCIES: "Frequencies",
    kinds.BIAS: "Bias",
    kinds.RELATIVE: "Relative distances",
}
_CAVEATS = {
    kinds.COSINES: "The cosine of two sinusoids depends on their distance only, so it is constant along each "
    "diagonal. For learned embeddings, the cosine can vary along a diagonal. Embeddings of positions that "
    "few training texts reached may still be near their random initialization.",
    kinds.DISTANCE: "Each value is the mean over all pairs of positions at that distance. For rotary models, "
    "the value is the cosine between a vector and the same vector after a rotation by that distance, "
    "assuming that all pairs of dimensions have the same norm; in a text, the cosine depends on the queries "
    "and keys.",
    kinds.SPECTRUM: "The explained variance of a principal component is its share of the sum of the squared "
    "singular values of the centered table. If a few components explain most of the variance, the "
    "embeddings lie close to a subspace with few dimensions. A sinusoid with a wavelength much longer than "
    "the table hardly varies within the table and contributes little.",
    kinds.TABLE: "Each heatmap has one row per position and one column per dimension, and its own color "
    "range. The order of learned dimensions has no meaning. Sinusoids are sorted from short "
    "wavelengths on the left to long ones on the right.",
    kinds.FREQUENCIES: "Pairs of dimensions with a short wavelength distinguish adjacent positions; pairs "
    "with a long wavelength distinguish distant positions. A wavelength longer than any text never completes "
    "a rotation.",
    kinds.BIAS: "At positive distances, the key comes after the query. The bias is the same in all "
    "layers, and large distances share a value. The bias is added to the score before the softmax "
    "and does not depend on the words.",
    kinds.RELATIVE: "The heatmap has one row per distance, or per bucket of large distances; a minus "
    "sign means that the key is before the query. The contribution of a distance to a score also "
    "depends on the words, so it cannot be shown as a bias that depends on the distance only.",
}
_COLOURS = (ACCENT, SECOND, GRAY)
_DASHES = ("solid", "dash", "dot", "dashdot")
_TOLERANCE = 1e-6
"""Maximum absolute difference at which stored position embeddings are described as sinusoidal."""


def render() -> None:
    """Draw the Positions page."""
    blocks.heading(
        "Positions",
        "Attention alone ignores the order of the tokens, so a model needs additional information about "
        "their positions. This page shows how the model encodes positions.",
    )
    checkpoint = workbench.checkpoint()
    result = shared_cache.answers.of(Positions().of, checkpoint)
    st.markdown(_summary(result, checkpoint.description.layers))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        options = {name: _LABELS[name] for name in result.available}
        view = state.segmented_control("positions_show", "View", options, result.available[0])
        st.space("stretch")
        result = result.showing(show=view)
        export(result, f"positions-{view}")
    _draw(result)
    blocks.caveat(_CAVEATS[view])


def _draw(result: PositionsResult) -> None:
    """Draw the selected view of the position embeddings."""
    view = result.question.show
    if view == kinds.DISTANCE:
        st.markdown(_distance_summary(result))
        figure, alt = distance_curves(result), "Mean cosine of two positions by their distance"
    elif view == kinds.SPECTRUM:
        st.markdown(_spectrum_summary(result))
        figure, alt = (
            spectrum_curves(result),
            "Cumulative explained variance by number of principal components",
        )
    elif view == kinds.FREQUENCIES:
        figure = wavelength_curves(result.rotary, result.positions)
        alt = "Wavelength of each pair of dimensions"
    elif view == kinds.BIAS and result.bias is not None:
        figure, alt = (
            bias_curves(result.bias),
            "Bias that each head adds to the attention scores, by distance",
        )
    else:
        heatmaps = position_heatmaps(result)
        columns = st.columns(len(heatmaps), gap="large")
        for number, (column, data) in enumerate(zip(columns, heatmaps, strict=True)):
            with column:
                heatmap(data, key=f"positions_{view}_{number}")
        return
    blocks.chart(figure, alt)
    numbers(result.frame())


def _summary(result: PositionsResult, layers: int) -> str:
    """Return Markdown text that explains how the model encodes positions."""
    sentences = []
    if result.learned is not None:
        count, size = result.learned.vectors.shape
        table = (
            f"This model adds one of {count:,} position embeddings with {size:,} dimensions to each token. "
        )
        if result.learned.sinusoid_difference <= _TOLERANCE:
            sentences.append(f"{table}These embeddings are the sinusoids of Vaswani et al. 2017.")
        else:
            sentences.append(
                f"{table}These embeddings were **learned**; nothing in the model defines which positions "
                "are adjacent. For comparison, the **sinusoids** of Vaswani et al. 2017 are computed in "
                "the same size; this model does not use sinusoids."
            )
    if result.rotary:
        rotated = len({layer for rotary in result.rotary for layer in rotary.layers})
        where = "every layer" if rotated == layers else f"{rotated} of the {layers} layers"
        sentences.append(
            f"This model uses **rotary** position embeddings (Su et al. 2021): in {where}, pairs of "
            "dimensions of queries and keys are rotated by an angle that grows with the position, so that "
            "their dot product depends on the distance."
        )
    if result.bias is not None:
        sentences.append(
            "In all layers, a **bias** that depends on the distance between query and key is added to each "
            "score."
        )
    if result.relative is not None:
        sentences.append(
            f"This model has {len(result.relative.vectors):,} learned embeddings of **distances** between "
            "query and key, which every layer multiplies with its queries and keys (He et al. 2021)."
        )
    return " ".join(sentences)


def _distance_summary(result: PositionsResult) -> str:
    parts = [
        f"{name}: **{values[1]:.2f}** for adjacent positions, **{values[distance]:.2f}** at distance "
        f"{distance}"
        for name, values in result.by_distance.items()
        if (distance := min(10, len(values) - 1)) > 1
    ]
    return "Mean cosine, " + "; ".join(parts) + "." if parts else ""


def _spectrum_summary(result: PositionsResult) -> str:
    """Return a sentence with the number of principal components that explain 90% of the variance."""
    learned, sinusoids = (count_directions(spectrum) for spectrum in result.spectra)
    size = result.position_table.vectors.shape[1]
    return (
        f"Number of principal components that explain 90% of the variance over positions: **{learned}** of "
        f"{size:,} for the learned embeddings, **{sinusoids}** for the sinusoids."
    )


def distance_curves(result: PositionsResult) -> Any:
    """Return a figure of the mean cosine of two position vectors by the distance of the positions."""
    return _curves(
        {name: (np.arange(len(values)), values) for name, values in result.by_distance.items()},
        {"title": "distance between two positions"},
        {"title": "mean cosine"},
        "distance %{x}: %{y:.4f}",
    )


def spectrum_curves(result: PositionsResult) -> Any:
    """Return a figure of the cumulative explained variance by number of principal components."""
    learned, sinusoids = result.spectra
    return _curves(
        {
            name: (np.arange(1, len(shares) + 1), np.cumsum(shares))
            for name, shares in (("learned", learned), ("sinusoids", sinusoids))
        },
        {"title": "number of principal components", "type": "log"},
        {"title": "cumulative explained variance", "range": [0, 1.02], "tickformat": ".0%"},
        "%{x} components: %{y:.1%}",
    )


def wavelength_curves(rotary: tuple[Rotary, ...], max_positions: int) -> Any:
    """Return a figure of the rotary wavelength of each pair of dimensions, and the maximum text length."""
    pairs = max(len(kind.frequencies) for kind in rotary)
    figure = _curves(
        {kind.name: (np.arange(len(kind.wavelengths)), kind.wavelengths) for kind in rotary},
        {"title": "pair of dimensions", "rangemode": "tozero", "dtick": max(1, pairs // 12)},
        {"title": "wavelength in positions", "type": "log", "exponentformat": "power", "dtick": 1},
        "pair %{x}: one full rotation every %{y:,.1f} positions",
        mode="lines+markers",
    )
    figure.add_scatter(
        x=[0, pairs - 1],
        y=[max_positions, max_positions],
        mode="lines",
        name=f"maximum text length, {max_positions:,}",
        line={"color": GRAY, "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )
    return figure


def bias_curves(bias: DistanceBias) -> Any:
    """Return a figure with one curve per head: the bias added to an attention score, by distance."""
    figure = go.Figure()
    for head, values in enumerate(bias.values):
        figure.add_scatter(
            x=bias.distances,
            y=values,
            mode="lines",
            name=f"head {head + 1}",
            line={"color": HEADS[head % len(HEADS)], "width": 1.5, "dash": _DASHES[head // len(HEADS) % 4]},
            hovertemplate=f"distance %{{x}}: %{{y:.4f}}<extra>head {head + 1}</extra>",
        )
    return _set_layout(
        figure, {"title": "key position − query position"}, {"title": "bias, added to the score"}, height=420
    )


def _curves(
    curves: Mapping[str, tuple[Array, Array]],
    xaxis: dict[str, Any],
    yaxis: dict[str, Any],
    hover: str,
    mode: str = "lines",
) -> Any:
    figure = go.Figure()
    for number, (name, (x, y)) in enumerate(curves.items()):
        figure.add_scatter(
            x=x,
            y=y,
            mode=mode,
            name=name,
            line={"color": _COLOURS[number % 3], "width": 2.5, "dash": _DASHES[number % 4]},
            hovertemplate=f"{hover}<extra>{name}</extra>",
        )
    return _set_layout(figure, xaxis, yaxis)


def _set_layout(figure: Any, xaxis: dict[str, Any], yaxis: dict[str, Any], height: int = 380) -> Any:
    return figures.apply_layout(
        figure, height, legend="above", xaxis={"zeroline": False, **xaxis}, yaxis={"zeroline": False, **yaxis}
    )
