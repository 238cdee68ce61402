"""Names and descriptions of the head measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bert_probe.views.model_view import color_indices
from bert_probe.views.payload import pack
from bert_probe.views.scale import Scale


@dataclass(frozen=True)
class HeadMeasure:
    """The texts for a head measure."""

    group: str
    name: str  # short, for a table column
    meaning: str  # a sentence

    @property
    def title(self) -> str:
        """The title of a heatmap of all heads."""
        return f"{self.name[0].upper()}{self.name[1:]}, by head"


MEASURES = {
    "previous": HeadMeasure("Position", "previous token", "Share of attention on the previous token."),
    "next": HeadMeasure("Position", "next token", "Share of attention on the next token."),
    "self": HeadMeasure("Position", "same token", "Share of attention of a token on itself."),
    "mean_distance": HeadMeasure(
        "Position", "distance", "Mean distance of the attended tokens: Σ weight × |query − key|."
    ),
    "first": HeadMeasure(
        "Special tokens",
        "first token",
        "Share of attention on the first token, [CLS] or <s>; heads often attend to it when nothing else is "
        "relevant.",
    ),
    "separator": HeadMeasure(
        "Special tokens",
        "separator",
        "Share of attention on [SEP] or the model's separator; often attended to when nothing else is "
        "relevant.",
    ),
    "same_word": HeadMeasure(
        "Words", "same word", "Share of attention on the other tokens of the same word."
    ),
    "same_token": HeadMeasure(
        "Words", "repeated token", "Share of attention on the same token at other positions."
    ),
    "punctuation": HeadMeasure("Words", "punctuation", "Share of attention on punctuation marks."),
    "other_segment": HeadMeasure(
        "Words", "other segment", "Share of attention on the other sentence of a pair; 0 without a pair."
    ),
    "entropy_bits": HeadMeasure(
        "Spread",
        "entropy",
        "Entropy of a row in bits: 0 for a single key, log₂ of the number of keys for equal weights.",
    ),
    "relative_entropy": HeadMeasure(
        "Spread",
        "relative entropy",
        "Entropy divided by that of a uniform row: 0 for a single key, 1 for equal weights.",
    ),
    "difference_from_mean": HeadMeasure(
        "Spread",
        "unlike its layer",
        "Total variation distance of a head's rows from the mean of its layer, 0 to 1.",
    ),
}
LABELLING = (
    "A head gets a label if a share is at least one half, or the label “broad” if its relative entropy is at "
    "least 0.85."
)

CHANGES = {
    "total_variation": HeadMeasure(
        "Change",
        "Total variation",
        "The share of its attention that an aligned token moves to other keys, "
        "averaged over the aligned tokens: 0 for equal rows, 1 for disjoint rows.",
    ),
    "jensen_shannon": HeadMeasure(
        "Change",
        "Jensen–Shannon",
        "The square root of the Jensen–Shannon divergence (base 2) between a token's rows, "
        "averaged over the aligned tokens: 0 for equal rows, 1 for disjoint rows.",
    ),
}
"""The measures of how much a head differs between two texts."""


SIDE: Final = 48
"""Minimum size of a histogram in cells, so that bar heights are fine-grained even with few bins."""

_TOPS: Final = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)
_FITTING: Final = 0.9
"""Minimum share of heads whose bars are not clipped."""


def span(counts: NDArray[Any], from_zero: bool) -> slice:
    """Return the range of bins that are not empty for all heads.

    Args:
        counts: Number of sentences, [layer, head, bin].
        from_zero: Whether to start at the first bin in any case.
    """
    filled = np.flatnonzero(counts.any(axis=(0, 1)))
    return slice(
        0 if from_zero or not len(filled) else int(filled[0]), int(filled[-1]) + 1 if len(filled) else 1
    )


def top(shares: NDArray[Any]) -> float:
    """Return the share at full height: a round number above the highest bars of most heads."""
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
        counts: Number of sentences in each bin, [layer, head, bin].
        edges: Edges of the bins, [bin + 1].
        numbers: Sort keys of the heads, name -> [layer, head]; the first one is the label of each head.
        key: Key of the component.
        caption: Title.
        source: Name of the corpus, for saved files.
        axis: Title of the horizontal axis.
        from_zero: Whether the first bin is always visible.
        chosen: The selected head, layer and head from 0.
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
        "caption": f"{caption}: horizontal axis {low:.3g} to {high:.3g}, vertical axis share of rows",
        "source": source,
        "valueName": "Height and color: share of the rows in a bin",
        "fileName": "corpus-heads",
        "scale": scale.to_json(),
        "selected": [] if chosen is None else [{"layer": chosen[0], "head": chosen[1]}],
        "above": bool(shares.max(initial=0.0) > scale.high + scale.slack),
    }
    index = {name: number for number, name in enumerate(names)}
    arrays: dict[str, NDArray[Any]] = {
        **scale.tables(),
        "labelled": np.array([index[label] for label in labels], np.dtype("<u2")).reshape(layers, heads),
        "entries": entries,
        "numbers": np.stack([np.asarray(number, np.dtype("<f8")) for number in numbers.values()]),
    }
    return pack(header, arrays)


def _pictures(shares: NDArray[Any], scale: Scale) -> NDArray[np.uint8]:
    """Return histograms as images of color table indices, [layer, head, row, column]."""
    bins = shares.shape[-1]
    bar_width = -(-SIDE // bins)
    side = bar_width * bins
    colors = color_indices(shares.astype(np.float32), scale)
    heights = np.ceil(np.clip(shares / scale.high, 0, 1) * side).astype(int)  # rounded up: no bar vanishes
    is_filled = np.arange(side, 0, -1)[:, None] <= heights[..., None, :]
    images = np.where(is_filled, colors[..., None, :], 0).astype(np.uint8)
    return np.ascontiguousarray(np.repeat(images, bar_width, axis=-1))
