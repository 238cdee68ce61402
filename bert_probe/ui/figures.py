"""Plotly figures that several pages use. This module does not depend on Streamlit."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import plotly.graph_objects as go

from bert_probe.analyses.retrieval.calibration import histogram_range
from bert_probe.analyses.vectors.sentences import SentenceMapResult
from bert_probe.analyses.vectors.similarity import CosineDistribution, SimilarityBaselineResult
from bert_probe.analyses.vectors.word_in_context import WordInContextResult
from bert_probe.model.trace import Array
from bert_probe.text.words import truncate_text
from bert_probe.views.palette import HEADS, Scale

CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"]}

MAP_CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["autoScale2d"]}
"""Plotly configuration of figures in which points can be selected."""

MAX_NUMBERED = 40
"""Maximum number of points that are labeled with numbers; more labels would overlap."""

ACCENT, SECOND, GRAY = "#635BE4", "#C2601A", "#8A8797"
"""Colors that are readable in the light and the dark theme."""


_LEGENDS: Final = {
    "above": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    "below": {"orientation": "h", "x": 0, "y": -0.28},
    "right": {"orientation": "v", "x": 1.01, "y": 1},
}


def apply_layout(
    figure: Any,
    height: int,
    *,
    right: int = 0,
    legend: Literal["above", "below", "right"] | None = None,
    **options: Any,
) -> Any:
    """Set the layout that all figures share and return the figure.

    Args:
        figure: the figure, which is changed in place.
        height: height in pixels.
        right: margin on the right, in pixels, for labels at the ends of bars.
        legend: position of the legend; None for no legend.
        options: other properties of Plotly's ``layout``, which take precedence.
    """
    layout = {
        "height": height,
        "margin": {"l": 0, "r": right, "t": 8, "b": 0},
        "showlegend": legend is not None,
        "legend": _LEGENDS[legend] if legend else None,
        "hovermode": "closest",
    }
    return figure.update_layout({**layout, **options})


def ink(dark: bool) -> str:
    """Return the text color of figures in the dark or the light theme."""
    return "#ECEBF2" if dark else "#1C1B22"


def largest_columns(values: Array, count: int, required: set[int]) -> list[int]:
    """Return the sorted indices of the ``required`` columns and of the columns with the largest maxima.

    The result has at most ``count`` indices, unless more columns are required.
    """
    by_size = np.argsort(-values.max(axis=0), kind="stable").tolist()
    return sorted(list(dict.fromkeys([*sorted(required), *by_size]))[: max(count, len(required))])


def token_bars(tokens: list[str], values: Array, name: str) -> Any:
    """Return a bar chart of non-negative values, one bar per token; `name` is the title of the value axis."""
    positions = list(range(len(tokens)))
    labels = [as_text(token) for token in tokens]
    figure = go.Figure(
        go.Bar(
            x=positions,
            y=values,
            customdata=labels,
            marker={"color": ACCENT},
            hovertemplate=f"%{{customdata}} (%{{x}}): %{{y:.4f}}<extra>{name}</extra>",
        )
    )
    # Label at most 24 tokens, which fit on a narrow page. The hover text names every token.
    step = math.ceil(len(tokens) / 24)
    apply_layout(
        figure,
        320,
        bargap=0.25,
        xaxis={
            "title": "token",
            "tickvals": positions[::step],
            "ticktext": [as_text(truncate_text(token, 16)) for token in tokens[::step]],
            "tickangle": -45 if len(tokens) > 8 else 0,
            "zeroline": False,
        },
        yaxis={"title": name, "range": [0, Scale.from_zero(values, 0.0).high * 1.02]},
    )
    return figure


def signed_bars(tokens: list[str], values: Array, name: str) -> Any:
    """Return a bar chart of signed values with one bar per token, and a gap where a value is NaN."""
    figure = token_bars(tokens, np.nan_to_num(values), name)
    ends = [float(np.nanmin(values, initial=0.0)), float(np.nanmax(values, initial=0.0))]
    room = 0.05 * (ends[1] - ends[0] or 1.0)
    figure.update_traces(marker={"color": [SECOND if value < 0 else ACCENT for value in values]})
    figure.update_yaxes(range=[ends[0] - room * (ends[0] < 0), ends[1] + room], zeroline=True)
    return figure


def class_bars(
    names: Sequence[str], values: Array, logits: Array, name: str, maximum: float | None = 1.0
) -> Any:
    """Return a horizontal bar chart with one bar per class, with the first class at the top.

    Args:
        names: names of the classes.
        values: length of each bar, such as a probability.
        logits: logit of each class, shown in the hover text.
        name: title of the value axis.
        maximum: end of the value axis; None to fit the axis to the values.
    """
    labels = [as_text(name) for name in names]
    figure = go.Figure(
        go.Bar(
            x=values,
            y=list(range(len(names))),
            orientation="h",
            customdata=np.array([labels, [f"{logit:.4f}" for logit in logits]]).T,
            marker={"color": ACCENT},
            text=[f"{value:.4f}" if abs(value) >= 0.001 else f"{value:.1e}" for value in values],
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"%{{customdata[0]}}: %{{x:.6f}}<br>logit %{{customdata[1]}}<extra>{name}</extra>",
        )
    )
    apply_layout(
        figure,
        56 + 32 * len(names),
        right=56,
        bargap=0.3,
        xaxis={"title": name, "range": None if maximum is None else [0, maximum]},
        yaxis=named_rows([truncate_text(name, 24) for name in names]),
    )
    return figure


def named_rows(names: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a y axis that labels each row with a name, with the first row at the top."""
    return {
        "tickvals": list(range(len(names))),
        "ticktext": [as_text(name) for name in names],
        "autorange": "reversed",
        "zeroline": False,
    }


def as_text(text: str) -> str:
    """Escape text for a Plotly label, because labels interpret some HTML and templates."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "%\u200b{")


def sentence_map(
    plane: SentenceMapResult, names: Sequence[str] = (), groups: Sequence[str] | None = None
) -> Any:
    """Return a 2-D scatter plot of sentences, with the name or the text of each sentence on hover.

    The points are numbered if there are at most `MAX_NUMBERED`.

    Args:
        plane: the coordinates of the sentences.
        names: names to show instead of the sentences.
        groups: name of the group of each sentence, such as its label; "" for none. Each of the largest groups
            has its own color and marker.
    """
    sentences, layout = names or plane.sentences, plane.layout
    few = len(sentences) <= MAX_NUMBERED
    colors, symbols, legend = _group_markers(groups, len(sentences))
    figure = go.Figure()
    figure.add_scatter(
        x=layout.points[:, 0],
        y=layout.points[:, 1],
        mode="markers+text" if few else "markers",
        text=[str(number) for number in range(1, len(sentences) + 1)] if few else None,
        textposition="top center",
        customdata=[f"{number} · {_wrapped(sentence)}" for number, sentence in enumerate(sentences, start=1)],
        hovertemplate="%{customdata}<extra></extra>",
        marker={
            "color": colors,
            "symbol": symbols,
            "size": 10 if few or legend else 6,
            "opacity": 1 if few else 0.75 if legend else 0.6,
        },
        selected={"marker": {"opacity": 1} if legend else {"color": SECOND, "opacity": 1}},
        unselected={"marker": {"opacity": 0.2 if legend else 0.35}},
        showlegend=False,
    )
    # All sentences are in one trace, because a selection contains indices into one trace. The traces below
    # have no points and only add the groups to the legend.
    for name, (color, symbol) in legend.items():
        marker = {"color": color, "symbol": symbol, "size": 9}
        figure.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=as_text(name))
    axes = [{"title": "", "showticklabels": False}] * 2
    if layout.explained is not None:
        shares = zip(("First", "Second"), layout.explained, strict=True)
        axes = [{"title": f"{name} component, {share:.1%} of the variance"} for name, share in shares]
    apply_layout(
        figure,
        520,
        xaxis={**axes[0], "zeroline": False},
        yaxis={**axes[1], "zeroline": False, "scaleanchor": "x"},
        dragmode="lasso",
        legend="below" if legend else None,
    )
    return figure


def _group_markers(
    groups: Sequence[str] | None, count: int
) -> tuple[list[str], list[str], dict[str, tuple[str, str]]]:
    """Return the color and the symbol of each point, and the legend: group name → (color, symbol)."""
    if groups is None:
        return [ACCENT] * count, ["circle"] * count, {}
    sizes = Counter(filter(None, groups))
    markers = zip(HEADS, itertools.cycle(_SYMBOLS), strict=False)
    legend = {name: marker for (name, _), marker in zip(sizes.most_common(), markers, strict=False)}
    other = (GRAY, "circle-open")
    points = [legend.get(name, other) for name in groups]
    if any(name not in legend for name in groups):
        legend["others" if len(sizes) > len(legend) else "none"] = other
    return [color for color, _ in points], [symbol for _, symbol in points], legend


def _wrapped(sentence: str) -> str:
    """Break a sentence into lines for a hover label."""
    short = textwrap.shorten(sentence, 400, placeholder=" …")
    return "<br>".join(as_text(line) for line in textwrap.wrap(short, 60))


def score_histogram(
    values: Array,
    marks: Mapping[str, float],
    name: str,
    pairs: str = "random pairs of your documents",
    unit: str = "pairs",
) -> Any:
    """Return a histogram of the scores of pairs or rows, with a vertical line for each marked score.

    Args:
        values: sorted scores.
        marks: label of each vertical line → its score. NaN draws no line.
        name: name of the score.
        pairs: legend label of the pairs or rows.
        unit: plural name of the scored items.
    """
    marks = {label: value for label, value in marks.items() if not math.isnan(value)}
    low, high = histogram_range([*values[[0, -1]], *marks.values()])
    margin = 0.01 * (high - low)  # margin that prevents a line at the end of the axis from being cut in half
    bins = min(48, max(8, math.isqrt(len(values))))
    counts, edges = np.histogram(values, bins=bins, range=(low, high))
    share = 100 * counts / counts.sum()
    figure = go.Figure(
        go.Bar(
            x=(edges[:-1] + edges[1:]) / 2,
            y=share,
            width=np.diff(edges),
            marker={"color": GRAY, "opacity": 0.55, "line": {"width": 0}},
            name=pairs,
            hovertemplate=f"{name} %{{x:.2f}}: %{{y:.1f}}% of the {unit}<extra></extra>",
        )
    )
    colors = (ACCENT, SECOND)
    for (label, value), color in zip(marks.items(), colors, strict=False):
        figure.add_scatter(
            x=[value, value],
            y=[0, 1.08 * share.max()],
            mode="lines",
            line={"color": color, "width": 3},
            name=as_text(truncate_text(label, 32)),
            hovertemplate=f"{value:.4f}<extra></extra>",
        )
    return apply_layout(
        figure,
        220,
        legend="above",
        bargap=0,
        xaxis={"title": name, "zeroline": False, "range": [low - margin, high + margin]},
        yaxis={"title": f"% of the {unit}", "zeroline": False},
    )


def length_histogram(lengths: Array, limit: int) -> Any:
    """Return a histogram of document lengths in tokens, with a line at the limit and orange bars beyond it.

    Args:
        lengths: number of tokens of each document.
        limit: number of tokens after which documents are truncated.
    """
    highest = max(int(lengths.max()), limit)
    width = max(1, math.ceil(highest / 48))
    # The limit is a bin edge, so that no bar contains documents on both sides of the limit.
    first = limit % width + 1 - width
    edges = np.arange(first, highest + width + 1, width)
    counts, edges = np.histogram(lengths, bins=edges)
    figure = go.Figure()
    for name, color, selected in (
        ("read completely", GRAY, edges[:-1] <= limit),
        ("truncated", SECOND, edges[:-1] > limit),
    ):
        figure.add_bar(
            x=(edges[:-1] + edges[1:] - 1)[selected] / 2,
            y=counts[selected],
            width=width,
            marker={"color": color, "opacity": 0.6, "line": {"width": 0}},
            name=name,
            customdata=np.stack([edges[:-1], edges[1:] - 1], axis=1)[selected],
            hovertemplate="%{customdata[0]} to %{customdata[1]} tokens: %{y} documents<extra></extra>",
        )
    mark_limit(figure, limit, (0, 1.08 * counts.max()), f"limit: {limit:,} tokens")
    return apply_layout(
        figure,
        240,
        legend="above",
        bargap=0,
        barmode="overlay",
        xaxis={"title": "tokens", "zeroline": False, "range": [0, 1.02 * (highest + width)]},
        yaxis={"title": "documents", "zeroline": False},
    )


def mark_limit(figure: Any, limit: int, ends: tuple[float, float], name: str) -> None:
    """Draw a vertical line at ``limit + 0.5`` on a histogram of integers.

    Args:
        figure: the histogram, which is changed in place.
        limit: the last integer to the left of the line.
        ends: lower and upper end of the line.
        name: label of the line in the legend.
    """
    figure.add_scatter(
        x=[limit + 0.5] * 2,
        y=ends,
        mode="lines",
        line={"color": ACCENT, "width": 3},
        name=name,
        hoverinfo="skip",
    )


def position_curve(curve: Any, name: str) -> Any:
    """Return a figure of the mean change of a score by position in the document, with 95% intervals.

    Args:
        curve: the table of `PositionEffectResult.curve`.
        name: name of the score.
    """
    rows = curve.dropna()
    middles = 50 * (rows["position_from"] + rows["position_to"])
    figure = go.Figure(
        go.Scatter(
            x=middles,
            y=rows["change"],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": rows["high"] - rows["change"],
                "arrayminus": rows["change"] - rows["low"],
                "color": GRAY,
                "thickness": 1.5,
            },
            mode="lines+markers",
            line={"color": ACCENT, "width": 2},
            marker={"size": 7},
            customdata=rows[["low", "high", "documents"]],
            hovertemplate="%{y:+.4f} (95% interval %{customdata[0]:+.4f} to %{customdata[1]:+.4f}, "
            "%{customdata[2]} documents)<extra></extra>",
        )
    )
    return apply_layout(
        figure,
        280,
        xaxis={"title": "position in the document, %", "range": [0, 100], "zeroline": False},
        yaxis={"title": f"change of the {name}", "zeroline": True, "zerolinecolor": GRAY},
    )


def threshold_histograms(
    scores: Array, positive: Array, threshold: float, interval: tuple[float, float], name: str
) -> Any:
    """Return histograms of the scores of pairs that match and of pairs that do not, with the threshold.

    Args:
        scores: score of each pair.
        positive: whether each pair matches.
        threshold: the threshold, drawn as a vertical line.
        interval: bounds of the threshold's 95% interval, drawn as a band unless they are NaN.
        name: name of the score.
    """
    low, high = histogram_range([scores.min(), scores.max()])
    bins = min(48, max(8, math.isqrt(len(scores))))
    figure = go.Figure()
    peak = 0.0
    for label, kind, color in (("do not match", ~positive, SECOND), ("match", positive, ACCENT)):
        counts, edges = np.histogram(scores[kind], bins=bins, range=(low, high))
        share = 100 * counts / counts.sum()
        peak = max(peak, float(share.max()))
        figure.add_bar(
            x=(edges[:-1] + edges[1:]) / 2,
            y=share,
            width=np.diff(edges),
            marker={"color": color, "opacity": 0.55, "line": {"width": 0}},
            name=f"pairs that {label}",
            hovertemplate=f"{name} %{{x:.2f}}: %{{y:.1f}}% of the pairs that {label}<extra></extra>",
        )
    if not any(map(math.isnan, interval)):
        figure.add_vrect(*interval, fillcolor=GRAY, opacity=0.18, line_width=0, layer="below")
    figure.add_scatter(
        x=[threshold, threshold],
        y=[0, 1.08 * peak],
        mode="lines",
        line={"color": GRAY, "width": 3, "dash": "dash"},
        name="threshold with 95% interval",
        hovertemplate=f"{threshold:.4f}<extra></extra>",
    )
    return apply_layout(
        figure,
        260,
        legend="above",
        barmode="overlay",
        bargap=0,
        xaxis={"title": name, "zeroline": False},
        yaxis={"title": "% of the pairs of each class", "zeroline": False},
    )


_DASHES = ("solid", "dash", "dot", "dashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
"""Line and marker styles that distinguish curves and groups for users with color blindness."""

_SAME = "18,124,180"
"""RGB color of the curve and band for pairs of occurrences of the same word."""


@dataclass(frozen=True)
class PairCurve:
    """Cosine similarity of one pair of tokens by layer, from layer 0."""

    name: str
    cosines: Array


def layer_curves(baseline: SimilarityBaselineResult, layer: int, pair: PairCurve | None) -> Any:
    """Return a figure of cosine similarity by layer: a token pair and the baseline of unrelated tokens.

    Args:
        baseline: cosine similarity of unrelated tokens by layer.
        layer: layer to mark with a vertical line.
        pair: curve of the token pair; None to draw only the baseline.
    """
    figure = go.Figure()
    _add_unrelated(figure, baseline, None)
    if pair is not None:
        _add_curve(figure, as_text(pair.name), pair.cosines, {"color": ACCENT, "width": 3})
    low = min([*baseline.unrelated.p5, *(pair.cosines if pair else [])])
    _set_layout(figure, layer, baseline.layers + 1, low, "cosine")
    return figure


def context_curves(result: WordInContextResult, layer: int, pairs: Sequence[int], is_corrected: bool) -> Any:
    """Return a figure of the cosine similarity of word pairs by layer.

    The figure includes the baselines: unrelated tokens and, if available, occurrences of the same word.

    Args:
        result: the similarities of the word pairs and the baselines.
        layer: layer to mark with a vertical line.
        pairs: indices into ``result.pairs``. An index determines the color and the line style of its pair.
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
    # The legend is below the curves, because a phone screen is too narrow for a legend next to them.
    rows = math.ceil(len(figure.data) / 2)
    return figure.update_layout(height=360 + 20 * rows, legend={**_LEGENDS["below"], "tracegroupgap": 0})


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
    """Mark the selected layer and set the axes.

    The y axis starts at -0.3, or at -1.02 if `low`, the lowest value, is below -0.3. The range is fixed so
    that figures of different texts can be compared.
    """
    figure.add_scatter(
        x=[layer, layer],
        y=[-1.02, 1.02],
        mode="lines",
        line={"color": SECOND, "width": 1},
        hoverinfo="skip",
        name=f"selected layer: {layer}",
    )
    apply_layout(
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
