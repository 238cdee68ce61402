"""The Similarity page: cosine similarity of each pair of tokens, at any layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.vectors.similarity import Similarity, SimilarityResult
from bert_probe.analyses.vectors.similarity_baseline import (
    CosineDistribution,
    SimilarityBaseline,
    SimilarityBaselineResult,
)
from bert_probe.analyses.vectors.word_in_context import WordInContextResult
from bert_probe.model.trace import Array
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, figures, state, workbench
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export
from bert_probe.ui.figures import ACCENT, GRAY, SECOND, as_text
from bert_probe.views.heatmaps import similarity_heatmap
from bert_probe.views.matrix import Cell, HeatmapSpec
from bert_probe.views.palette import HEADS
from bert_probe.views.text import shorten


def render() -> None:
    """Draw the page."""
    blocks.heading(
        "Similarity",
        "The cosine similarity of each pair of token vectors at a layer: 1 for the same direction, 0 for "
        "orthogonal, −1 for opposite vectors. The baseline shows which values are high.",
    )
    traced = workbench.trace_request()
    for trace in filter(None, (traced.a, traced.b)):
        blocks.truncation_notice(trace)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=240):
            layer = state.select_layer(
                "vector_layer",
                0,
                traced.a.layers,
                "0 is the output of the embeddings, before any attention.",
            )
        views = {"heatmap": "Heatmap", "table": "Table"}
        view = state.segmented_control("similarity_show", "View", views, "heatmap")
        specials = state.toggle("similarity_specials", "Special tokens", False, "Include [CLS] and [SEP].")
        question = Similarity(layer, specials)
        result = question.of(traced.a) if traced.b is None else question.of(traced.a, traced.b)
        st.space("stretch")
        export(result, f"similarity-layer{layer}")
    data = similarity_heatmap(result)
    with st.container(key="judged"):
        left, right = st.columns([3, 2], gap="large")
    with left:
        pinned = None
        if view == "table":
            _table(result, data.drawing)
        else:
            pinned = heatmap(data, key="similarity_matrix")
        if traced.b is None and traced.a.encoding.pair is None:
            blocks.caveat("The text is compared with itself. Write sentence B to compare two texts.")
    with right:
        _baseline(result, shared_cache.answers.of(SimilarityBaseline().of, traced.checkpoint), pinned)


def _table(result: SimilarityResult, drawing: HeatmapSpec) -> None:
    title = drawing["caption"]
    st.caption(title)
    columns = blocks.unique_names(result.columns)
    axes = f"{drawing['row_axis']} ↓ · {drawing['column_axis']} →"
    rows = pd.Index(blocks.unique_names(result.rows), name=axes)
    frame = pd.DataFrame(result.cosines, index=rows, columns=columns)
    blocks.table(
        frame,
        title,
        max_height=640,
        show_index=True,
        column_config={name: st.column_config.NumberColumn(format="%.4f") for name in columns},
    )


def _baseline(result: SimilarityResult, baseline: SimilarityBaselineResult, cell: Cell | None) -> None:
    """Draw the cosine of unrelated tokens by layer, with the pinned pair."""
    layer, unrelated = result.question.layer, baseline.unrelated
    st.header("Baseline: unrelated tokens", anchor=False)
    st.markdown(
        f"At layer {layer}, two **unrelated** tokens of this model have a mean cosine of "
        f"**{unrelated.mean[layer]:.2f}**, and 5% of the pairs reach **{unrelated.p95[layer]:.2f}** or more. "
        "Compare a value with these."
    )
    pair = None
    if cell is not None:
        name = f"{shorten(result.rows[cell.row].display)} – {shorten(result.columns[cell.column].display)}"
        pair = PairCurve(name, result.curve(cell.row, cell.column))
    blocks.chart(
        layer_curves(baseline, layer, pair),
        "Cosine of unrelated tokens by layer: mean and the middle 90 percent",
    )
    blocks.caveat(
        f"Measured on {unrelated.pairs:,} pairs of different tokens from {baseline.sentences} unrelated "
        "English reference sentences. Contextual vectors share a common direction, so even unrelated ones "
        "are similar, often more so in upper layers (Ethayarajh 2019). "
        + ("" if cell else "Click a cell of the heatmap to see that pair at every layer.")
    )


_DASHES = ("solid", "dash", "dot", "dashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
"""Markers that distinguish the curves for color-blind users."""

_SAME = "18,124,180"
"""Color of the baseline for the same word: red, green, blue."""


@dataclass(frozen=True)
class PairCurve:
    """Cosine similarity of a pair of tokens by layer, from layer 0."""

    name: str
    cosines: Array


def layer_curves(baseline: SimilarityBaselineResult, layer: int, pair: PairCurve | None) -> Any:
    """Return curves by layer: the baseline of unrelated tokens and a pair of tokens; `layer` is marked."""
    figure = go.Figure()
    _add_unrelated(figure, baseline, None)
    if pair is not None:
        _add_curve(figure, as_text(pair.name), pair.cosines, {"color": ACCENT, "width": 3})
    low = min([*baseline.unrelated.p5, *(pair.cosines if pair else [])])
    _set_layout(figure, layer, baseline.layers + 1, low, "cosine")
    return figure


def context_curves(result: WordInContextResult, layer: int, pairs: Sequence[int], is_corrected: bool) -> Any:
    """Return the cosine similarity of pairs of words by layer, with the baselines.

    Args:
        pairs: indices into ``result.pairs``. The color of a pair does not depend on the other pairs.
        is_corrected: whether to subtract the mean cosine of unrelated tokens.
    """
    baseline = result.baseline
    subtracted = baseline if is_corrected else None
    figure = go.Figure()
    if baseline.same_word is not None:
        same = baseline.same_word
        _add_band(figure, same, subtracted, f"rgba({_SAME},0.16)", "same word elsewhere: middle 90%")
        _add_curve(
            figure,
            "same word elsewhere: mean",
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
    _set_layout(figure, layer, len(curves), low, "cosine − mean of unrelated" if is_corrected else "cosine")
    return figure.update_layout(
        height=380, legend={"orientation": "v", "x": 1.01, "y": 1, "tracegroupgap": 0}
    )


def _add_unrelated(
    figure: Any, baseline: SimilarityBaselineResult, subtracted: SimilarityBaselineResult | None
) -> None:
    unrelated = baseline.unrelated
    _add_band(figure, unrelated, subtracted, "rgba(138,135,151,0.22)", "unrelated: middle 90%")
    mean = _correct(unrelated.mean, subtracted)
    _add_curve(figure, "unrelated: mean", mean, {"color": GRAY, "dash": "dot"}, "lines")


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
    """Mark the selected layer, and set one of two y ranges, which depends on whether cosines are negative."""
    figure.add_scatter(
        x=[layer, layer],
        y=[-1.02, 1.02],
        mode="lines",
        line={"color": SECOND, "width": 1},
        hoverinfo="skip",
        name=f"layer {layer}, selected",
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
