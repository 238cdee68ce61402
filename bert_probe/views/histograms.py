"""Histograms of a measure over many sentences, one for each head, with the same axes.

The model view draws them as thumbnails and can sort, label, enlarge and save them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bert_probe.views.model_view import color_indices
from bert_probe.views.palette import Scale
from bert_probe.views.payload import pack

SIDE: Final = 48
"""Minimum width and height of a histogram in pixels, so that bar heights are fine-grained even with few
bins."""

_TOPS: Final = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
_FITTING: Final = 0.9
"""Minimum share of heads whose bars are not clipped."""


def span(counts: NDArray[Any], from_zero: bool) -> slice:
    """Return the range from the first to the last bin that contains a sentence for any head.

    Args:
        counts: Number of sentences, shape [layer, head, bin].
        from_zero: Whether to start at the first bin even if it is empty.
    """
    filled = np.flatnonzero(counts.any(axis=(0, 1)))
    return slice(
        0 if from_zero or not len(filled) else int(filled[0]), int(filled[-1]) + 1 if len(filled) else 1
    )


def top(shares: NDArray[Any]) -> float:
    """Return the share of sentences that corresponds to a bar of full height.

    It is a round number that the highest bars of most heads do not exceed.
    """
    highest = np.sort(shares.max(axis=-1).ravel())
    target = highest[int(np.ceil(_FITTING * len(highest))) - 1]
    return next(share for share in _TOPS if share >= target - 1e-9)


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
    """Return the payload of the histograms.

    Args:
        counts: Number of sentences in each bin, shape [layer, head, bin].
        edges: Edges of the bins, shape [bin + 1].
        numbers: Sort keys by name, each of shape [layer, head]; the first key labels the heads.
        key: Key of the component.
        caption: Title.
        source: Name of the corpus, for saved files.
        axis: Title of the horizontal axis.
        from_zero: Whether the first bin is always visible.
        chosen: Layer and index of the selected head, both from 0.
    """
    layers, heads, _ = counts.shape
    bins = span(counts, from_zero)
    shares = counts[..., bins] / np.maximum(counts.sum(axis=-1, keepdims=True), 1)
    scale = Scale("sequential", 0.0, top(shares), "sqrt")
    first = next(iter(numbers))
    labels = [f"{first} {value:.4g}" for value in numbers[first].ravel()]
    names = list(dict.fromkeys(labels))
    entries = _pictures(shares, scale)
    low, high = edges[bins.start], edges[bins.stop]
    header = {
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
        "caption": caption,
        "source": f"{source}. Horizontal axis: {low:.3g} to {high:.3g}; vertical axis: share of rows",
        "valueName": "Height and color: share of the rows in a bin",
        "fileName": "corpus-heads",
        "scale": scale.to_json(),
        "selected": [] if chosen is None else [{"layer": chosen[0], "head": chosen[1]}],
        "above": bool(shares.max(initial=0.0) > scale.high + scale.slack),
    }
    index = {name: number for number, name in enumerate(names)}
    arrays: dict[str, NDArray[Any]] = {
        **scale.tables(),
        "labeled": np.array([index[label] for label in labels], np.dtype("<u2")).reshape(layers, heads),
        "entries": entries,
        "numbers": np.stack([np.asarray(number, np.dtype("<f8")) for number in numbers.values()]),
    }
    return pack(header, arrays)


def _pictures(shares: NDArray[Any], scale: Scale) -> NDArray[np.uint8]:
    """Return one image per head, whose pixels are color table indices; shape [layer, head, row, column]."""
    bins = shares.shape[-1]
    bar_width = -(-SIDE // bins)
    side = bar_width * bins
    colors = color_indices(shares.astype(np.float32), scale)
    # Small bars must remain visible.
    heights = np.ceil(np.clip(shares / scale.high, 0, 1) * side).astype(int)
    is_filled = np.arange(side, 0, -1)[:, None] <= heights[..., None, :]
    images = np.where(is_filled, colors[..., None, :], 0).astype(np.uint8)
    return np.ascontiguousarray(np.repeat(images, bar_width, axis=-1))
