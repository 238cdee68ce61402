"""The head view of a trace, asked for as people write Python: from 0, and by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from bert_probe.analyses.attention.heads import Heads
from bert_probe.errors import SelectionError
from bert_probe.model.trace import Trace, resolve
from bert_probe.views.head_view import LABELLED, HeadViewData
from bert_probe.views.page import caption_of
from bert_probe.views.view import Options, Pins, Series, View


def asked_picture(
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
) -> tuple[HeadViewData, View]:
    """The picture and what is shown of it at first; see `notebook.head_view`.

    Raises:
        SelectionError: a layer, head, measure or pin that is not there.
        UnavailableError: a measure that this model or attention does not have.
    """
    labels = Heads().of(trace).labels if len(trace.tokens) <= LABELLED else ()
    picture = HeadViewData(trace, measure, words, residual, labels, caption_of(trace))
    series = series_of(heads, trace.heads)
    if series != "mean":
        picture.what.single_heads()
    _check_choice("layout", layout, ("columns", "reading"))
    _check_choice("side", side, ("query", "key"))
    pinned = tuple(resolve(pin, len(picture.units), "pin") for pin in pins)
    shown = resolve(layer, trace.layers, "layer") + 1
    options, chosen = Options(layout, specials=specials), Pins(side, pinned)
    return picture, View(shown, series, options, chosen, measure, words, residual)


def series_of(heads: int | Sequence[int] | str, count: int) -> Series:
    """Heads as people write them in Python: one, several, or "mean".

    Raises:
        SelectionError: one that there is not.
    """
    if isinstance(heads, str):
        if heads != "mean":
            raise SelectionError(f"heads must be indices from 0, or 'mean', not {heads!r}.")
        return "mean"
    several = [heads] if isinstance(heads, int | np.integer) else heads
    return tuple(dict.fromkeys(resolve(head, count, "head") for head in several)) or "mean"


def _check_choice(name: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise SelectionError(f"There is no {name} {given!r}; use {' or '.join(known)}.")
