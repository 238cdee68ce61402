"""What a model has for positions as Plotly figures, and in a sentence. Nothing here knows Streamlit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bert_probe.analyses.weights.position_encodings import DistanceBias, Rotary
from bert_probe.analyses.weights.positions import PositionsResult, directions
from bert_probe.model.trace import Array
from bert_probe.ui.figures import ACCENT, GRAY, SECOND
from bert_probe.views.palette import HEADS

_COLOURS = (ACCENT, SECOND, GRAY)
_DASHES = ("solid", "dash", "dot", "dashdot")
_EXACT = 1e-6
"""A table this near to the sinusoids holds them: it was rounded to float32."""


def has(found: PositionsResult) -> str:
    """What the model has, in a sentence or two."""
    said = []
    if found.learned is not None:
        count, size = found.learned.vectors.shape
        learned = f"This model adds a vector of {size:,} numbers for each of {count:,} positions. "
        if found.learned.off_sinusoids <= _EXACT:
            said.append(f"{learned}They are the sinusoids of Vaswani et al. 2017 themselves.")
        else:
            said.append(
                f"{learned}They were **learned**; nothing in the model says which positions are neighbours. "
                "The **sinusoids** of Vaswani et al. 2017 are computed here for the same size, to compare: "
                "this model does not use them."
            )
    if found.rotary:
        said.append(
            "This model turns pairs of dimensions of queries and keys by an angle that grows with the "
            "position (**rotary**; Su et al. 2021), in every layer, so that their product depends on the "
            "distance."
        )
    if found.bias is not None:
        said.append(
            "It adds a **bias** to each score that depends on the distance of query and key, in all layers."
        )
    if found.relative is not None:
        said.append(
            f"It has {len(found.relative.vectors):,} learned vectors for **distances** of query and key, "
            "which every layer multiplies with its queries and keys (He et al. 2021)."
        )
    return " ".join(said)


def of_distance(found: PositionsResult) -> str:
    """What the curves by distance say of neighbours."""
    parts = [
        f"{name}: **{values[1]:.2f}** next to each other, **{values[near]:.2f}** at a distance of {near}"
        for name, values in found.by_distance.items()
        if (near := min(10, len(values) - 1)) > 1
    ]
    return "Mean cosine, " + "; ".join(parts) + "." if parts else ""


def of_spectrum(found: PositionsResult) -> str:
    """In how many directions most of the variance lies."""
    learned, fixed = (directions(one) for one in found.spectra)
    size = found.table_of_positions.vectors.shape[1]
    return (
        f"90% of the variance over positions lies in **{learned}** of {size:,} directions for what was "
        f"learned, in **{fixed}** for the sinusoids."
    )


def distance_curves(found: PositionsResult) -> Any:
    """Mean cosine by distance."""
    return _curves(
        {name: (np.arange(len(values)), values) for name, values in found.by_distance.items()},
        {"title": "distance of two positions"},
        {"title": "mean cosine"},
        "distance %{x}: %{y:.4f}",
    )


def spectrum_curves(found: PositionsResult) -> Any:
    """The share of the variance by direction, and how the shares add up."""
    learned, fixed = found.spectra
    drawn = {
        name: (np.arange(1, len(shares) + 1), np.cumsum(shares))
        for name, shares in (("learned", learned), ("sinusoids", fixed))
    }
    return _curves(
        drawn,
        {"title": "principal directions, the largest first", "type": "log"},
        {"title": "share of the variance up to it", "range": [0, 1.02], "tickformat": ".0%"},
        "%{x} directions: %{y:.1%}",
    )


def wavelength_curves(rotary: tuple[Rotary, ...], longest: int) -> Any:
    """Wavelength by pair of dimensions, and the longest text."""
    most = max(len(one.frequencies) for one in rotary)
    drawn = {one.name: (np.arange(len(one.wavelengths)), one.wavelengths) for one in rotary}
    figure = _curves(
        drawn,
        {"title": "pair of dimensions", "rangemode": "tozero", "dtick": max(1, most // 12)},
        {"title": "wavelength in positions", "type": "log", "exponentformat": "power", "dtick": 1},
        "pair %{x}: once round in %{y:,.1f} positions",
        mode="lines+markers",
    )
    figure.add_scatter(
        x=[0, most - 1],
        y=[longest, longest],
        mode="lines",
        name=f"longest text, {longest:,}",
        line={"color": GRAY, "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )
    return figure


def bias_curves(bias: DistanceBias) -> Any:
    """What each head adds to a score, by distance."""
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
    return _laid_out(
        figure, {"title": "key's position − query's"}, {"title": "added to the score"}, height=420
    )


def _curves(
    drawn: Mapping[str, tuple[Array, Array]],
    xaxis: dict[str, Any],
    yaxis: dict[str, Any],
    hover: str,
    mode: str = "lines",
) -> Any:
    figure = go.Figure()
    for number, (name, (x, y)) in enumerate(drawn.items()):
        figure.add_scatter(
            x=x,
            y=y,
            mode=mode,
            name=name,
            line={"color": _COLOURS[number % 3], "width": 2.5, "dash": _DASHES[number % 4]},
            hovertemplate=f"{hover}<extra>{name}</extra>",
        )
    return _laid_out(figure, xaxis, yaxis)


def _laid_out(figure: Any, xaxis: dict[str, Any], yaxis: dict[str, Any], height: int = 380) -> Any:
    return figure.update_layout(
        height=height,
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        xaxis={"zeroline": False, **xaxis},
        yaxis={"zeroline": False, **yaxis},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        showlegend=True,
        hovermode="closest",
    )
