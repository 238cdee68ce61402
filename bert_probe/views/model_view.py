"""The model view: a sortable grid with one row per layer and a thumbnail of attention for each head.

Instead of attention, the thumbnails can show histograms of a measure over many sentences, with the same axes
for all heads. The browser receives an index into the color table for each cell (one byte), and the measures
as float64, so that sorting and tooltips need no request.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bert_probe.analyses.attention.attention import Thumbnails, make_thumbnails
from bert_probe.analyses.attention.heads import HeadsResult
from bert_probe.analyses.attention.measures import get_measure as measure_named
from bert_probe.model.trace import Trace
from bert_probe.views.measures import MEASURES
from bert_probe.views.page import CAVEAT, Page, caption_of
from bert_probe.views.palette import Scale
from bert_probe.views.payload import pack
from bert_probe.views.selection import LayerAndHeads

SHARES: Final = Scale("sequential", 0.0, 1.0, "sqrt")
"""The color scale of attention weights."""
HISTOGRAM_SIDE: Final = 48
"""Minimum width and height of a histogram in pixels. Fewer pixels would make bar heights too coarse."""

_TOPS: Final = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
"""Possible maxima of the vertical axis of a histogram, as shares of the sentences."""
_FITTING: Final = 0.9
"""Minimum share of heads whose bars fit into the histogram without clipping."""


class HeadThumbnail(NamedTuple):
    """The layer and head of a thumbnail, counted from 0."""

    layer: int
    head: int


def payload(
    thumbs: Thumbnails,
    labels: Sequence[Sequence[str]],
    measures: Mapping[str, ArrayLike],
    *,
    key: str,
    caption: str,
    source: str = "",
    value_name: str = "attention weight",
    scale: Scale = SHARES,
    file_name: str = "model-view",
    chosen: LayerAndHeads | None = None,
) -> bytes:
    """Return the model view in the binary format that the browser reads; see `pack`.

    Args:
        thumbs: The thumbnails of all heads.
        labels: Label of each head, indexed by layer and head; "" for a head without a label.
        measures: Name → values, shape [layer, head], by which the user can sort heads in descending order.
        key: Key of the component.
        caption: Title of the view.
        source: Text and name of the model, for saved files.
        value_name: Name of the values.
        scale: Sequential color scale.
        file_name: Name of saved files, without extension.
        chosen: The selected layer, from 1, and its selected heads, from 0.

    Raises:
        ValueError: The shapes do not match, or the scale is diverging.
    """
    numbers = _checked(labels, measures, (thumbs.layers, thumbs.heads))
    names = list(dict.fromkeys(label for row in labels for label in row))
    header = {
        "key": key,
        "layerCount": thumbs.layers,
        "headCount": thumbs.heads,
        "side": thumbs.side,
        "block": thumbs.block,
        "unit": "words" if thumbs.words else "tokens",
        "unitCount": len(thumbs.units),
        # Each distinct label is sent once.
        "labels": names,
        "marked": True,
        "axes": "query ↓ · key →",
        "measures": list(measures),
        "caption": caption,
        "source": source,
        "valueName": value_name,
        "fileName": file_name,
        "scale": scale.to_json(),
        "selected": _chosen(chosen),
        "above": bool(thumbs.weights.max() > scale.high + scale.slack),
    }
    labeled = np.array([[names.index(label) for label in row] for row in labels], np.dtype("<u2"))
    entries = color_indices(thumbs.weights, scale)
    arrays: dict[str, NDArray[Any]] = {**scale.tables(), "labeled": labeled, "entries": entries}
    if measures:
        arrays["numbers"] = numbers
    return pack(header, arrays)


def trace_payload(
    trace: Trace,
    profiles: HeadsResult,
    *,
    key: str,
    words: bool = False,
    measure: str = "weights",
    chosen: LayerAndHeads | None = None,
) -> bytes:
    """Return the model view of a trace in the binary format that the browser reads; see `pack`.

    Args:
        trace: the model's forward pass over the text.
        profiles: measures and labels of all heads.
        key: key of the component.
        words: whether to show words instead of tokens.
        measure: name of the attention measure.
        chosen: selected layer, from 1, and its heads, from 0.

    Raises:
        SelectionError: See `make_thumbnails`.
        UnavailableError: See `make_thumbnails`.
    """
    attention_measure = measure_named(measure)
    thumbs = make_thumbnails(trace, words=words, measure=measure)
    end = 1.0 if attention_measure.sums_to_one(trace) else Scale.from_zero(thumbs.weights, 0.0).high
    return payload(
        thumbs,
        profiles.labels,
        {head_measure.name: profiles.values[name] for name, head_measure in MEASURES.items()},
        key=key,
        caption=f"{attention_measure.title} of all heads",
        source=caption_of(trace),
        value_name=attention_measure.value,
        scale=Scale("sequential", 0, end, "sqrt"),
        chosen=chosen,
    )


def page(trace: Trace, profiles: HeadsResult, *, words: bool = False, measure: str = "weights") -> Page:
    """Return a self-contained HTML page of the model view."""
    data = trace_payload(trace, profiles, key="page", words=words, measure=measure)
    return Page("model_view", [data], caption_of(trace), f"{CAVEAT} {trace.note}".strip())


def color_indices(weights: NDArray[np.float32], scale: Scale) -> NDArray[np.uint8]:
    """Return the index of each weight in the color table, from 0 to 255. Weights are clipped to the scale.

    Raises:
        ValueError: The scale is diverging.
    """
    if scale.kind != "sequential":
        raise ValueError("Thumbnails need a sequential scale, not a diverging one.")
    share = (weights - np.float32(scale.low)) * np.float32(1 / (scale.high - scale.low))
    np.clip(share, 0, 1, out=share)
    if scale.curve == "sqrt":
        np.sqrt(share, out=share)
    share *= 255
    share += 0.5  # round to the nearest integer, because astype truncates
    return share.astype(np.uint8)


def _chosen(place: LayerAndHeads | None) -> list[dict[str, int]]:
    layer, series = place or (1, "mean")
    return [] if series == "mean" else [{"layer": layer - 1, "head": head} for head in series]


def _checked(
    labels: Sequence[Sequence[str]], measures: Mapping[str, ArrayLike], shape: tuple[int, int]
) -> NDArray[np.float64]:
    """Validate labels and measures, and return the measures as an array of shape [measure, layer, head]."""
    layers, heads = shape
    if len(labels) != layers or any(len(row) != heads for row in labels):
        raise ValueError(f"labels must have {layers} rows of {heads} labels, one for each head.")
    numbers = np.empty((len(measures), layers, heads), dtype=np.dtype("<f8"))
    for index, (name, values) in enumerate(measures.items()):
        array = np.asarray(values, dtype=np.float64)
        if array.shape != shape or not np.isfinite(array).all():
            raise ValueError(
                f"The measure {name} must be {layers} × {heads} finite numbers, one for each head."
            )
        numbers[index] = array
    return numbers


def read_opened_head(result: Any, shape: tuple[int, int]) -> HeadThumbnail | None:
    """Return the head that the browser reports as opened, or None if there is none or it is out of range."""
    report = result.get("opened") if isinstance(result, Mapping) else None
    if not isinstance(report, Mapping):
        return None
    layer, head = report.get("layer"), report.get("head")
    if type(layer) is not int or type(head) is not int:
        return None
    return HeadThumbnail(layer, head) if 0 <= layer < shape[0] and 0 <= head < shape[1] else None


def histogram_span(counts: NDArray[Any], from_zero: bool) -> slice:
    """Return the range of bins to draw: from the first to the last bin that is filled for at least one head.

    Args:
        counts: Number of sentences, shape [layer, head, bin].
        from_zero: Whether to start at the first bin even if it is empty.
    """
    filled = np.flatnonzero(counts.any(axis=(0, 1)))
    return slice(
        0 if from_zero or not len(filled) else int(filled[0]), int(filled[-1]) + 1 if len(filled) else 1
    )


def histogram_top(shares: NDArray[Any]) -> float:
    """Return the share of sentences that corresponds to a bar of full height.

    The share is a round number. For at least 90% of the heads (`_FITTING`), no bar exceeds it.
    """
    highest = np.sort(shares.max(axis=-1).ravel())
    target = highest[int(np.ceil(_FITTING * len(highest))) - 1]
    return next(share for share in _TOPS if share >= target - 1e-9)


def histogram_payload(
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
    """Return the histograms in the binary format that the browser reads; see `pack`.

    Args:
        counts: Number of sentences in each bin, shape [layer, head, bin].
        edges: Edges of the bins, shape [bin + 1].
        numbers: Name → values, shape [layer, head], by which the user can sort heads. The first entry labels
            the heads.
        key: Key of the component.
        caption: Title of the view.
        source: Name of the corpus, for saved files.
        axis: Title of the horizontal axis.
        from_zero: Whether the first bin is drawn even if it is empty.
        chosen: (layer, head) of the selected head, counted from 0; None if no head is selected.
    """
    layers, heads, _ = counts.shape
    bins = histogram_span(counts, from_zero)
    shares = counts[..., bins] / np.maximum(counts.sum(axis=-1, keepdims=True), 1)
    scale = Scale("sequential", 0.0, histogram_top(shares), "sqrt")
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
        "valueName": "Height and color show the share of the rows in a bin",
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
    """Return one image per head as color table indices, shape [layer, head, row, column]."""
    bins = shares.shape[-1]
    bar_width = -(-HISTOGRAM_SIDE // bins)
    side = bar_width * bins
    colors = color_indices(shares.astype(np.float32), scale)
    # Round up, so that small bars remain visible.
    heights = np.ceil(np.clip(shares / scale.high, 0, 1) * side).astype(int)
    is_filled = np.arange(side, 0, -1)[:, None] <= heights[..., None, :]
    images = np.where(is_filled, colors[..., None, :], 0).astype(np.uint8)
    return np.ascontiguousarray(np.repeat(images, bar_width, axis=-1))
