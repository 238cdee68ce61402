"""What changed between two models as Plotly figures. Nothing here knows Streamlit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bert_probe.analyses.comparison.answer_change import AnswerChangeResult
from bert_probe.analyses.comparison.vector_change import VectorChangeResult
from bert_probe.analyses.vectors.similarity_baseline import SimilarityBaselineResult
from bert_probe.model.trace import Array, Trace
from bert_probe.text.common_spans import CommonSpans
from bert_probe.text.truncation import truncate_text
from bert_probe.ui.figures import ACCENT, GRAY, SECOND, as_text, ink, named_rows
from bert_probe.views.scale import Scale
from bert_probe.views.text import shown

MOST_BARS = 16
"""Answers that are drawn; the table has all."""
MOST_SPANS = 200
"""Parts of a text whose tokens are drawn; the table has all."""
_LONGEST, _LETTER, _GAP, _BETWEEN = 24, 8.0, 14.0, 6.0
"""Letters of a token that are drawn; what a letter is wide, what is around a token, and between spans."""
_NEAR = 4
"""Times the largest value that a curve may lie above it."""


def moved_curves(found: VectorChangeResult, baseline: SimilarityBaselineResult) -> Any:
    """How far vectors turned by layer: their mean, the farthest, and, unless these would be a line on the
    ground beside it, what unrelated tokens of A are apart."""
    figure = go.Figure()
    apart = _apart(baseline)
    if apart.min() <= _NEAR * found.most.max():
        _curve(figure, "unrelated tokens of A: mean", apart, {"color": GRAY, "dash": "dot"}, "circle")
    _curve(figure, "the farthest", found.most, {"color": SECOND, "width": 2}, "square")
    _curve(figure, "mean", found.mean, {"color": ACCENT, "width": 3}, "circle")
    figure.update_layout(
        height=300,
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        legend={"orientation": "h", "y": -0.3, "x": 0},
        xaxis={"title": "layer", "dtick": max(1, len(found.moved) // 12), "zeroline": False},
        yaxis={"title": "1 − cosine", "rangemode": "tozero"},
        hovermode="closest",
    )
    return figure


def beside_unrelated(found: VectorChangeResult, baseline: SimilarityBaselineResult) -> str:
    """Where the vectors turned most, beside how far unrelated tokens are apart there."""
    layer = int(np.nan_to_num(found.mean).argmax())
    if not found.most.any():
        return (
            f"Nothing turned. Two unrelated tokens of A are **{_apart(baseline)[-1]:.2f}** apart in the end."
        )
    return (
        f"The mean is largest in layer {layer}: **{found.mean[layer]:.3g}**. Two unrelated tokens of A are "
        f"**{_apart(baseline)[layer]:.2f}** apart there."
    )


def _apart(baseline: SimilarityBaselineResult) -> Array:
    """1 − cosine of unrelated tokens, mean by layer."""
    apart: Array = 1 - np.array(baseline.unrelated.mean)
    return apart


def _curve(figure: Any, name: str, values: Array, line: dict[str, Any], symbol: str) -> None:
    figure.add_scatter(
        x=list(range(len(values))),
        y=values,
        mode="lines+markers",
        name=name,
        line=line,
        marker={"symbol": symbol, "size": 7},
        hovertemplate=f"layer %{{x}}: %{{y:.4f}}<extra>{name}</extra>",
    )


def cuts(spans: CommonSpans, a: Trace, b: Trace, dark: bool) -> Any:
    """The tokens of A above those of B, those of one span in one column; as wide as their letters need."""
    rows = [[_named(a, span.a) for span in spans.spans], [_named(b, span.b) for span in spans.spans]]
    widths = [max(sum(map(_wide, names)) for names in pair) for pair in zip(*rows, strict=True)]
    *starts, end = accumulate((width + _BETWEEN for width in widths), initial=0.0)
    figure, boxes = go.Figure(), []
    for height, side, row in ((1, "A", rows[0]), (0, "B", rows[1])):
        middles: list[float] = []
        for span, names, start, width in zip(spans.spans, row, starts, widths, strict=True):
            colour = GRAY if len(span.a) == len(span.b) == 1 else ACCENT
            spare = (width - sum(map(_wide, names))) / max(len(names), 1)
            for name in names:
                room = _wide(name) + spare
                boxes.append(_box(start, start + room, height, colour))
                middles.append(start + room / 2)
                start += room
        figure.add_scatter(
            x=middles,
            y=[height] * len(middles),
            mode="text",
            text=[as_text(name) for names in row for name in names],
            textfont={"color": ink(dark)},
            hovertemplate=f"%{{text}}<extra>{side}</extra>",
        )
        figure.add_annotation(x=-8, y=height, text=side, showarrow=False, xanchor="right")
    hidden = {"visible": False, "fixedrange": True}
    figure.update_layout(
        width=max(320, round(end) + 40),
        height=112,
        margin={"l": 0, "r": 8, "t": 4, "b": 4},
        xaxis={**hidden, "range": [-24, end]},
        yaxis={**hidden, "range": [-0.5, 1.5]},
        shapes=boxes,
        dragmode=False,
        showlegend=False,
    )
    return figure


def _named(trace: Trace, places: Sequence[int]) -> list[str]:
    """Tokens as they are drawn."""
    return [truncate_text(shown(trace.tokens[place].display), _LONGEST) for place in places]


def _wide(name: str) -> float:
    return _LETTER * len(name) + _GAP


def _box(left: float, right: float, row: int, colour: str) -> dict[str, Any]:
    return {
        "type": "rect",
        "x0": left + 1,
        "x1": right - 1,
        "y0": row - 0.36,
        "y1": row + 0.36,
        "line": {"width": 0},
        "fillcolor": colour,
        "opacity": 0.22,
        "layer": "below",
    }


def answer_bars(found: AnswerChangeResult) -> Any:
    """A pair of bars for each answer, A's above B's."""
    names = [shown(name) for name in found.names[:MOST_BARS]]
    figure = go.Figure()
    for side, values, colour in (("A", found.a, GRAY), ("B", found.b, ACCENT)):
        figure.add_bar(
            x=values[:MOST_BARS],
            y=list(range(len(names))),
            orientation="h",
            name=side,
            customdata=[as_text(name) for name in names],
            marker={"color": colour},
            hovertemplate=f"%{{customdata}}: %{{x:.6f}}<extra>{side}</extra>",
        )
    figure.update_layout(
        barmode="group",
        height=96 + 40 * len(names),
        margin={"l": 0, "r": 24, "t": 8, "b": 0},
        bargap=0.3,
        xaxis={"title": found.kind, "range": _range(found)},
        yaxis=named_rows([truncate_text(name, 28) for name in names]),
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
    )
    return figure


def _range(found: AnswerChangeResult) -> Sequence[float] | None:
    """From 0 to the next round number; of numbers that may be negative whatever fits."""
    both = np.nan_to_num(np.concatenate([found.a, found.b]))
    if found.kind != "probability" and both.min(initial=0.0) < 0:
        return None
    return [0, Scale.from_zero(both, 0.0).high]
