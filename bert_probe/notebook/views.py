"""The views of the pages, as outputs of a cell."""

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
from bert_probe.views.asking import asked_picture
from bert_probe.views.matrix import Heatmap

MOST_BYTES = 64_000_000
"""Largest page: a notebook holds it as text, and every editor reads it whole."""


_MAP_HEIGHT = 760
_MOST_HEIGHT = 900
"""Of a frame: as high as a window, so that it is scrolled within where it holds more."""


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
    """Attention as lines from token to token, with every layer and head to go through.

    Hover over a token, click to pin it; arrow keys move between tokens, square brackets between layers,
    comma and full stop between heads. What is shown can be read and
    set while a kernel runs: `view.layer`, `view.heads`, `view.words`, `view.pins`.

    Args:
        trace: whose attention.
        layer: shown first, from 0; negative ones count from the end.
        heads: shown first: one, several, or the mean over all of them; from 0.
        measure, words, residual: see `Attention`.
        layout: two columns, or the direction of reading.
        specials: whether special tokens are shown at first.
        pins: positions, from 0, of tokens (or words) that are pinned at first; their attention is added up.
        side: whether these are pinned as those that look ("query") or that are looked at ("key").
        exact: whether every bit of queries and keys is kept. Otherwise they are rounded so far that no
            number is off by more than 0.000025, a quarter of the last decimal shown, which makes the notebook
            a third smaller.
        height: of the frame, in CSS pixels.

    Raises:
        SelectionError: a layer, head, measure or pin that is not there.
        UnavailableError: a measure that this model or attention does not have.
        TooLongError: the page would be larger than `MOST_BYTES`.
    """
    picture, shown = asked_picture(
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
    most = trace.layers * len(head_views.payload(picture, shown.layer - 1, key="page", both=True))
    if most > MOST_BYTES:
        raise TooLongError(
            f"{trace.layers} layers over {len(trace.tokens):,} tokens make a page of {most / 1e6:,.0f} MB, "
            f"and a notebook takes up to {MOST_BYTES / 1e6:.0f}. Give a shorter text, or use the app, which "
            "sends a layer when it is looked at."
        )
    return HeadView(picture, shown, exact, height)


def model_view(trace: Trace, *, measure: str = "weights", words: bool = False, height: int = 640) -> Frame:
    """All heads of all layers at once, small: sort them by what they do, hover over one to see it larger.

    Args:
        trace: whose attention.
        measure, words: see `Attention`.
        height: of the frame, in CSS pixels.

    Raises:
        SelectionError: no such measure, or one of a layer as a whole.
        UnavailableError: a measure that this model or attention does not have.
    """
    return Frame(model_views.page(trace, Heads(words).of(trace), words=words, measure=measure), height)


def show(result: Result) -> Frame:
    """The pictures of a result, as its page has them: heatmaps of attention, similarity, steps, …, or a map.

    Raises:
        UnavailableError: there is no picture of it.
    """
    if isinstance(result, TokenMapResult):
        return Frame(pictures.page(result), _MAP_HEIGHT)
    drawn = pictures.heatmaps_of(result)
    return Frame(pictures.page(result, drawn), min(90 + sum(map(_height, drawn)), _MOST_HEIGHT))


def _height(drawn: Heatmap) -> int:
    """About what a heatmap takes, with its labels, readout and legend; what is more is scrolled."""
    pitch = min(max(800 / len(drawn.columns), 18), 30)
    return 240 + round(pitch * len(drawn.rows))
