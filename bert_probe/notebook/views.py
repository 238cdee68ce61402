"""The views of the app as cell outputs of a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from bert_probe.analyses.attention.heads import Heads
from bert_probe.analyses.vectors.token_map import TokenMapResult
from bert_probe.core.result import Result
from bert_probe.errors import TooLongError
from bert_probe.model.trace import Trace
from bert_probe.notebook.frame import Frame
from bert_probe.notebook.live import HeadView
from bert_probe.views import head_view as head_views
from bert_probe.views import model_view as model_views
from bert_probe.views import pictures
from bert_probe.views.head_view import head_view_data
from bert_probe.views.matrix import Heatmap

MAX_BYTES = 64_000_000
"""Maximum size of a page in bytes. The notebook file contains the page, and editors load the whole file."""


_MAP_HEIGHT = 760
_MAX_HEIGHT = 900
"""Maximum height of a frame in CSS pixels, about the height of a window. Larger content scrolls."""


def head_view(
    trace: Trace,
    layer: int = -1,
    heads: int | Sequence[int] | str = "mean",
    *,
    measure: str = "weights",
    words: bool = False,
    residual: float = 0.5,
    layout: Literal["columns", "reading"] = "columns",
    specials: bool = True,
    pins: Sequence[int] = (),
    side: Literal["query", "key"] = "query",
    exact: bool = False,
    height: int = 640,
) -> HeadView:
    """Return an interactive view of attention as lines between tokens, for all layers and heads.

    Hover over a token to see its attention, click to pin it. Arrow keys move between tokens, square brackets
    between layers, comma and period between heads. While a kernel runs, the state can be read and set:
    `view.layer`, `view.heads`, `view.words`, `view.pins`.

    Args:
        trace: The text and its attention.
        layer: Index of the initial layer; negative ones count from the end.
        heads: Initial heads: an index, several indices, or "mean" for the mean over all heads.
        measure: Name of the attention measure; `words` and `residual` are its options, see `Attention`.
        words: Whether to merge tokens into words.
        residual: Weight of the residual connection for rollout, 0 to 1.
        layout: "columns" shows the tokens in two columns, "reading" shows them once, in reading direction.
        specials: Whether special tokens are initially visible.
        pins: Indices of the initially pinned tokens or words, whose attention is summed.
        side: Whether the pinned tokens are queries ("query") or keys ("key").
        exact: Whether to store queries and keys exactly. Otherwise they are rounded so that no weight is off
            by more than 0.000025, a quarter of the last visible decimal, which makes the notebook a third
            smaller.
        height: Height of the frame in CSS pixels.

    Raises:
        SelectionError: A layer, head, measure or pin does not exist.
        UnavailableError: The measure is not available for this model or its attention.
        TooLongError: The page would be larger than `MAX_BYTES`.
    """
    data, selection = head_view_data(
        trace,
        layer,
        heads,
        measure=measure,
        words=words,
        residual=residual,
        layout=layout,
        specials=specials,
        pins=pins,
        side=side,
    )
    size = trace.layers * len(head_views.payload(data, selection.layer - 1, key="page", both=True))
    if size > MAX_BYTES:
        raise TooLongError(
            f"The page of {trace.layers} layers and {len(trace.tokens):,} tokens would have "
            f"{size / 1e6:,.0f} MB, but the limit is {MAX_BYTES / 1e6:.0f} MB. Shorten the text, or use the "
            "app, which loads one layer at a time."
        )
    return HeadView(data, selection, exact, height)


def model_view(trace: Trace, *, measure: str = "weights", words: bool = False, height: int = 640) -> Frame:
    """Return thumbnails of all heads of all layers, which can be sorted by measures and enlarged by hovering.

    Args:
        trace: The text and its attention.
        measure: Name of the attention measure, see `Attention`.
        words: Whether to merge tokens into words.
        height: Height of the frame in CSS pixels.

    Raises:
        SelectionError: The measure does not exist, or is defined per layer and not per head.
        UnavailableError: The measure is not available for this model or its attention.
    """
    return Frame(model_views.page(trace, Heads(words).of(trace), words=words, measure=measure), height)


def show(result: Result) -> Frame:
    """Return the visualization of a result: its heatmaps or its token map.

    Raises:
        UnavailableError: The result has no visualization.
    """
    if isinstance(result, TokenMapResult):
        return Frame(pictures.page(result), _MAP_HEIGHT)
    heatmaps = pictures.heatmaps_of(result)
    return Frame(pictures.page(result, heatmaps), min(90 + sum(map(_height, heatmaps)), _MAX_HEIGHT))


def _height(heatmap: Heatmap) -> int:
    """Return the approximate height of a heatmap with its labels, readout and legend."""
    cell = min(max(800 / len(heatmap.columns), 18), 30)
    return 240 + round(cell * len(heatmap.rows))
