"""Plotly figures of cosine similarity by layer. This module does not depend on Streamlit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bert_probe.analyses.vectors.similarity import CosineDistribution, SimilarityBaselineResult
from bert_probe.analyses.vectors.word_in_context import WordInContextResult
from bert_probe.model.trace import Array
from bert_probe.ui import figures
from bert_probe.ui.figures import ACCENT, GRAY, SECOND, as_text
from bert_probe.views.palette import HEADS

_DASHES = ("solid", "dash", "dot", "dashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
"""Markers that distinguish the curves for users with color blindness."""

_SAME = "18,124,180"
"""RGB color of the baseline for occurrences of the same word."""


@dataclass(frozen=True)
class PairCurve:
    """Cosine similarity of one pair of tokens by layer, from layer 0."""

    name: str
    cosines: Array


def layer_curves(baseline: SimilarityBaselineResult, layer: int, pair: PairCurve | None) -> Any:
    """Return a figure of the baseline of unrelated tokens and a pair's curve, with `layer` marked."""
    figure = go.Figure()
    _add_unrelated(figure, baseline, None)
    if pair is not None:
        _add_curve(figure, as_text(pair.name), pair.cosines, {"color": ACCENT, "width": 3})
    low = min([*baseline.unrelated.p5, *(pair.cosines if pair else [])])
    _set_layout(figure, layer, baseline.layers + 1, low, "cosine")
    return figure


def context_curves(result: WordInContextResult, layer: int, pairs: Sequence[int], is_corrected: bool) -> Any:
    """Return a figure of the cosine similarity of word pairs by layer, with the baselines.

    Args:
        pairs: indices into ``result.pairs``; the color of a pair does not depend on the other pairs.
        is_corrected: whether to subtract the mean similarity of unrelated tokens.
    """
    baseline = result.baseline
    subtracted = baseline if is_corrected else None
    figure = go.Figure()
    if baseline.same_word is not None:
        same = baseline.same_word
        _add_band(figure, same, subtracted, f"rgba({_SAME},0.16)", "same word: middle 90%")
        _add_curve(
            figure,
            "same word: mean",
            _correct(same.mean, subtracted),
            {"color": f"rgb({_SAME})", "dash": "dot"},
        )
    _add_unrelated(figure, baseline, subtracted)
    curves = baseline.corrected(result.curves) if is_corrected else result.curves
    for pair in pairs:
        first, second = (result.names[index] for index in result.pairs[pair])
        line = {"color": HEADS[pair % len(HEADS)], "dash": _DASHES[pair // len(HEADS) % 4], "width": 2.5}
        _add_curve(figure, as_text(f"{first} – {second}"), curves[:, pair].tolist(), line)
        figure.data[-1].marker = {"symbol": _SYMBOLS[pair % len(_SYMBOLS)], "size": 8}
    low = min(_correct(baseline.unrelated.p5, subtracted).min(), curves[:, list(pairs)].min(initial=1))
    _set_layout(
        figure, layer, len(curves), low, "cosine − mean of unrelated tokens" if is_corrected else "cosine"
    )
    return figure.update_layout(
        height=380, legend={"orientation": "v", "x": 1.01, "y": 1, "tracegroupgap": 0}
    )


def _add_unrelated(
    figure: Any, baseline: SimilarityBaselineResult, subtracted: SimilarityBaselineResult | None
) -> None:
    unrelated = baseline.unrelated
    _add_band(figure, unrelated, subtracted, "rgba(138,135,151,0.22)", "unrelated tokens: middle 90%")
    mean = _correct(unrelated.mean, subtracted)
    _add_curve(figure, "unrelated tokens: mean", mean, {"color": GRAY, "dash": "dot"}, "lines")


def _correct(values: Sequence[float], subtracted: SimilarityBaselineResult | None) -> Array:
    array = np.array(values)
    return array if subtracted is None else subtracted.corrected(array)


def _add_band(
    figure: Any,
    distribution: CosineDistribution,
    subtracted: SimilarityBaselineResult | None,
    colour: str,
    name: str,
) -> None:
    layers = list(range(len(distribution.mean)))
    figure.add_scatter(
        x=layers + layers[::-1],
        y=[*_correct(distribution.p95, subtracted), *_correct(distribution.p5, subtracted)[::-1]],
        fill="toself",
        fillcolor=colour,
        mode="lines",
        line={"width": 0},
        hoverinfo="skip",
        name=name,
    )


def _add_curve(
    figure: Any, name: str, values: Sequence[float] | Array, line: dict[str, Any], mode: str = "lines+markers"
) -> None:
    figure.add_scatter(
        x=list(range(len(values))),
        y=values,
        mode=mode,
        line=line,
        name=name,
        hovertemplate=f"layer %{{x}}: %{{y:.4f}}<extra>{name}</extra>",
    )


def _set_layout(figure: Any, layer: int, layers: int, low: float, title: str) -> None:
    """Mark the selected layer, and set the axes.

    The y axis has one of two fixed ranges, chosen by the lowest cosine, so that figures of different texts
    can be compared.
    """
    figure.add_scatter(
        x=[layer, layer],
        y=[-1.02, 1.02],
        mode="lines",
        line={"color": SECOND, "width": 1},
        hoverinfo="skip",
        name=f"selected layer: {layer}",
    )
    figures.apply_layout(
        figure,
        340,
        legend="below",
        xaxis={
            "title": "layer",
            "dtick": max(1, layers // 12),
            "range": [-0.3, layers - 0.7],
            "zeroline": False,
        },
        yaxis={"title": title, "range": [-1.02 if low < -0.3 else -0.3, 1.02]},
    )
