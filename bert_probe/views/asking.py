"""Build the head view of a trace from Python arguments, which count from 0 and may be names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from bert_probe.analyses.attention.heads import Heads
from bert_probe.errors import SelectionError
from bert_probe.model.trace import Trace, resolve_index
from bert_probe.views.head_view import MAX_LABELED_TOKENS, HeadViewData
from bert_probe.views.page import caption_of
from bert_probe.views.view import Options, Pins, Series, View


def head_view_data(
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
    """Return the data of a head view and its initial state; see `notebook.head_view` for the arguments.

    Raises:
        SelectionError: A layer, head, measure or pin does not exist.
        UnavailableError: This model or its attention does not have the measure.
    """
    labels = Heads().of(trace).labels if len(trace.tokens) <= MAX_LABELED_TOKENS else ()
    picture = HeadViewData(trace, measure, words, residual, labels, caption_of(trace))
    series = parse_heads(heads, trace.heads)
    if series != "mean":
        picture.what.require_heads()
    _check_choice("layout", layout, ("columns", "reading"))
    _check_choice("side", side, ("query", "key"))
    units = tuple(resolve_index(pin, len(picture.units), "pin") for pin in pins)
    number = resolve_index(layer, trace.layers, "layer") + 1
    options = Options(layout, specials=specials)
    return picture, View(number, series, options, Pins(side, units), measure, words, residual)


def parse_heads(heads: int | Sequence[int] | str, count: int) -> Series:
    """Return the head indices for a single head, several heads, or "mean".

    Args:
        heads: Indices from 0; negative ones count from the end.
        count: Number of heads per layer.

    Raises:
        SelectionError: A head does not exist.
    """
    if isinstance(heads, str):
        if heads != "mean":
            raise SelectionError(f"heads must be indices from 0, or 'mean', not {heads!r}.")
        return "mean"
    indices = [heads] if isinstance(heads, int | np.integer) else heads
    return tuple(dict.fromkeys(resolve_index(head, count, "head") for head in indices)) or "mean"


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SelectionError(f"{name} must be {' or '.join(allowed)}, not {value!r}.")
