"""Cosines by layer as Plotly figures. Nothing here knows Streamlit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bert_probe.analyses.vectors.similarity_baseline import CosineDistribution, SimilarityBaselineResult
from bert_probe.analyses.vectors.word_in_context import WordInContextResult
from bert_probe.model.trace import Array
from bert_probe.ui.figures import ACCENT, GRAY, SECOND, as_text
from bert_probe.views.palette import HEADS

_DASHES = ("solid", "dash", "dot", "dashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
"""Curves differ in their marks too, for those who see few colours."""

_SAME = "18,124,180"
"""Red, green and blue of what a word reaches with itself."""


@dataclass(frozen=True)
class PairCurve:
    """Cosine of one pair of tokens at every layer from 0."""

    name: str
    cosines: Array


def layer_curves(baseline: SimilarityBaselineResult, layer: int, pair: PairCurve | None) -> Any:
    """Cosine of unrelated tokens by layer, the present layer marked, and a chosen pair on top."""
    figure = go.Figure()
    _unrelated(figure, baseline, None)
    if pair is not None:
        _curve(figure, as_text(pair.name), pair.cosines, {"color": ACCENT, "width": 3})
    low = min([*baseline.unrelated.p5, *(pair.cosines if pair else [])])
    _finish(figure, layer, baseline.layers + 1, low, "cosine")
    return figure


def context_curves(found: WordInContextResult, layer: int, pairs: Sequence[int], less_mean: bool) -> Any:
    """Cosine of pairs of words by layer, over what unrelated and same words reach.

    Args:
        pairs: which of ``found.pairs``; each keeps its colour whatever others are drawn.
        less_mean: all less the mean of unrelated tokens.
    """
    baseline = found.baseline
    base = baseline if less_mean else None
    figure = go.Figure()
    if baseline.same_word is not None:
        same = baseline.same_word
        _band(figure, same, base, f"rgba({_SAME},0.16)", "same word elsewhere: middle 90%")
        _curve(
            figure,
            "same word elsewhere: mean",
            _less(same.mean, base),
            {"color": f"rgb({_SAME})", "dash": "dot"},
        )
    _unrelated(figure, baseline, base)
    curves = baseline.corrected(found.curves) if less_mean else found.curves
    for pair in pairs:
        first, second = (found.names[one] for one in found.pairs[pair])
        line = {"color": HEADS[pair % len(HEADS)], "dash": _DASHES[pair // len(HEADS) % 4], "width": 2.5}
        _curve(figure, as_text(f"{first} – {second}"), curves[:, pair].tolist(), line)
        figure.data[-1].marker = {"symbol": _SYMBOLS[pair % len(_SYMBOLS)], "size": 8}
    low = min(_less(baseline.unrelated.p5, base).min(), curves[:, list(pairs)].min(initial=1))
    _finish(figure, layer, len(curves), low, "cosine − mean of unrelated" if less_mean else "cosine")
    beside = {"orientation": "v", "x": 1.01, "y": 1, "tracegroupgap": 0}
    return figure.update_layout(height=380, legend=beside)


def _unrelated(
    figure: Any, baseline: SimilarityBaselineResult, base: SimilarityBaselineResult | None
) -> None:
    unrelated = baseline.unrelated
    _band(figure, unrelated, base, "rgba(138,135,151,0.22)", "unrelated: middle 90%")
    _curve(figure, "unrelated: mean", _less(unrelated.mean, base), {"color": GRAY, "dash": "dot"}, "lines")


def _less(values: Sequence[float], base: SimilarityBaselineResult | None) -> Array:
    array = np.array(values)
    return array if base is None else base.corrected(array)


def _band(
    figure: Any, spread: CosineDistribution, base: SimilarityBaselineResult | None, colour: str, name: str
) -> None:
    layers = list(range(len(spread.mean)))
    figure.add_scatter(
        x=layers + layers[::-1],
        y=[*_less(spread.p95, base), *_less(spread.p5, base)[::-1]],
        fill="toself",
        fillcolor=colour,
        mode="lines",
        line={"width": 0},
        hoverinfo="skip",
        name=name,
    )


def _curve(
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


def _finish(figure: Any, layer: int, layers: int, low: float, title: str) -> None:
    """The present layer as a line, and one range of cosines for all texts: two where some are negative."""
    figure.add_scatter(
        x=[layer, layer],
        y=[-1.02, 1.02],
        mode="lines",
        line={"color": SECOND, "width": 1},
        hoverinfo="skip",
        name=f"layer {layer}, shown",
    )
    figure.update_layout(
        height=340,
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        legend={"orientation": "h", "y": -0.26, "x": 0},
        xaxis={
            "title": "layer",
            "dtick": max(1, layers // 12),
            "range": [-0.3, layers - 0.7],
            "zeroline": False,
        },
        yaxis={"title": title, "range": [-1.02 if low < -0.3 else -0.3, 1.02]},
        hovermode="closest",
    )
