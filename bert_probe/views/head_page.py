"""The head view of a trace as a page of its own, asked for as people write Python: from 0, by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bert_probe.analyses.heads import Heads
from bert_probe.errors import SelectionError, TooLongError
from bert_probe.model.trace import Trace, resolve
from bert_probe.views.head_view import LABELLED, Options, Picture, Pins, Series, View, page, payload
from bert_probe.views.page import Page, caption_of


def head_page(
    trace: Trace,
    layer: int = -1,
    heads: int | Sequence[int] | str = "mean",
    *,
    measure: str = "weights",
    words: bool = False,
    residual: float = 0.5,
    layout: str = "columns",
    specials: bool = True,
    pins: Sequence[int] = (),
    side: str = "query",
    exact: bool = True,
    most: int | None = None,
) -> Page:
    """Every layer and head; see `notebook.head_view`.

    Args:
        most: bytes that the page is to hold at most.

    Raises:
        SelectionError: a layer, head, measure or pin that is not there.
        UnavailableError: a measure that this model or attention does not have.
        TooLongError: it would hold more.
    """
    layer = resolve(layer, trace.layers, "layer")
    labels = Heads().of(trace).labels if len(trace.tokens) <= LABELLED else ()
    picture = Picture(trace, measure, words, residual, labels, caption_of(trace))
    series = _series(heads, trace.heads)
    if series != "mean":
        picture.what.single_heads()
    _check_choice("layout", layout, ("columns", "reading"))
    _check_choice("side", side, ("query", "key"))
    pinned = tuple(resolve(pin, len(picture.units), "pin") for pin in pins)
    options = Options(layout, specials=specials)  # type: ignore[arg-type]  # checked above
    shown = View(layer + 1, series, options, Pins(side, pinned))  # type: ignore[arg-type]
    if most is not None:
        _check_size(picture, layer, most)
    return page(picture, shown, exact=exact)


def _check_size(picture: Picture, layer: int, most: int) -> None:
    trace = picture.trace
    found = trace.layers * len(payload(picture, layer, key="page"))
    if found > most:
        raise TooLongError(
            f"{trace.layers} layers over {len(trace.tokens):,} tokens make a page of {found / 1e6:,.0f} MB, "
            f"and a notebook takes up to {most / 1e6:.0f}. Give a shorter text, or use the app, which sends "
            "a layer when it is looked at."
        )


def _series(heads: int | Sequence[int] | str, count: int) -> Series:
    if isinstance(heads, str):
        if heads != "mean":
            raise SelectionError(f"heads must be indices from 0, or 'mean', not {heads!r}.")
        return "mean"
    several = [heads] if isinstance(heads, int | np.integer) else heads
    return tuple(dict.fromkeys(resolve(head, count, "head") for head in several)) or "mean"


def _check_choice(name: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise SelectionError(f"There is no {name} {given!r}; use {' or '.join(known)}.")
