"""How a measure is spread over many sentences: a small histogram of every head, all on the same scales.

They are thumbnails of the model view, so that it sorts them, names them, opens them and saves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bert_probe.views.model_view import colour_entries
from bert_probe.views.payload import packed
from bert_probe.views.scale import Scale

SIDE: Final = 48
"""Cells of a picture's side at least, so that bars of few bins differ in height by little steps too."""

_TOPS: Final = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
_FITTING: Final = 0.9
"""Of the heads so many have no bar that is cut off."""


def span(counts: NDArray[Any], from_zero: bool) -> slice:
    """The bins in which any head has anything, which all are drawn over.

    Args:
        counts: [layer, head, bin].
        from_zero: whether the first is drawn in any case.
    """
    held = np.flatnonzero(counts.any(axis=(0, 1)))
    return slice(0 if from_zero or not len(held) else int(held[0]), int(held[-1]) + 1 if len(held) else 1)


def top(shares: NDArray[Any]) -> float:
    """The share at which bars reach the upper edge: a round number above most heads' highest bars."""
    highest = np.sort(shares.max(axis=-1).ravel())
    wanted = highest[int(np.ceil(_FITTING * len(highest))) - 1]
    return next(one for one in _TOPS if one >= wanted - 1e-9)


def payload(
    counts: NDArray[Any],
    edges: NDArray[Any],
    numbers: Mapping[str, NDArray[Any]],
    *,
    key: str,
    caption: str,
    source: str,
    axis: str,
    from_zero: bool = True,
    chosen: tuple[int, int] | None = None,
) -> bytes:
    """What the browser draws.

    Args:
        counts: sentences in each bin, [layer, head, bin].
        edges: where the bins begin and end, [bin + 1].
        numbers: what heads can be sorted by, name → [layer, head]; the first is said of each.
        axis: what the bins are of.
        chosen: a head that is shown elsewhere, layer and head from 0.
    """
    layers, heads, _ = counts.shape
    drawn = span(counts, from_zero)
    shares = counts[..., drawn] / np.maximum(counts.sum(axis=-1, keepdims=True), 1)
    scale = Scale("sequential", 0.0, top(shares), "sqrt")
    first = next(iter(numbers))
    labels = [f"{first} {value:.4g}" for value in numbers[first].ravel()]
    names = list(dict.fromkeys(labels))
    entries = _pictures(shares, scale)
    low, high = edges[drawn.start], edges[drawn.stop]
    described = {
        "key": key,
        "layerCount": layers,
        "headCount": heads,
        "side": entries.shape[-1],
        "block": 1,
        "unit": "",
        "unitCount": 0,
        "labels": names,
        "marked": False,
        "axes": f"{axis}, {low:.3g} → {high:.3g}",
        "measures": list(numbers),
        "caption": f"{caption}: {low:.3g} to {high:.3g} across, share of rows upwards",
        "source": source,
        "valueName": "Height and colour: share of the rows in a bin",
        "fileName": "corpus-heads",
        "scale": scale.described(),
        "chosen": [] if chosen is None else [{"layer": chosen[0], "head": chosen[1]}],
        "above": bool(shares.max(initial=0.0) > scale.high + scale.slack),
    }
    place = {name: number for number, name in enumerate(names)}
    arrays: dict[str, NDArray[Any]] = {
        **scale.tables(),
        "labelled": np.array([place[label] for label in labels], np.dtype("<u2")).reshape(layers, heads),
        "entries": entries,
        "numbers": np.stack([np.asarray(number, np.dtype("<f8")) for number in numbers.values()]),
    }
    return packed(described, arrays)


def _pictures(shares: NDArray[Any], scale: Scale) -> NDArray[np.uint8]:
    """Bars of a bin each as entries of the colour table, [layer, head, row, column]."""
    bins = shares.shape[-1]
    wide = -(-SIDE // bins)
    side = wide * bins
    colours = colour_entries(shares.astype(np.float32), scale)
    heights = np.ceil(np.clip(shares / scale.high, 0, 1) * side).astype(int)  # what is there is seen
    filled = np.arange(side, 0, -1)[:, None] <= heights[..., None, :]
    made = np.where(filled, colours[..., None, :], 0).astype(np.uint8)
    return np.ascontiguousarray(np.repeat(made, wide, axis=-1))
