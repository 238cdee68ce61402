"""All heads of a model in one picture: a thumbnail each, layers below one another, sorted as a reader likes.

What is drawn travels as one byte a cell, an entry of the colour table. What is written as a number travels as
float64. Sorting and hovering cost no server trip.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bert_probe.analyses.attention.heads import HeadsResult
from bert_probe.analyses.attention.measures import measure as measure_named
from bert_probe.analyses.attention.thumbnails import Thumbnails, thumbnails
from bert_probe.model.trace import Trace
from bert_probe.views.measures import MEASURES
from bert_probe.views.page import CAVEAT, Page, caption_of
from bert_probe.views.payload import packed
from bert_probe.views.scale import Scale
from bert_probe.views.view import Place

SHARES: Final = Scale("sequential", 0.0, 1.0, "sqrt")
"""The scale of attention weights."""


class HeadThumbnail(NamedTuple):
    """One head; layer and head count from 0."""

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
    chosen: Place | None = None,
) -> bytes:
    """What the browser draws of every head.

    `labels` [layer][head] say in a word what a head does, "" where nothing stands out. `measures` are what
    heads can be sorted by, name → [layer, head], largest first. `source` says in saved files which text and
    model these are. `chosen` are a layer, from 1, and heads of it that are shown elsewhere. Raises ValueError
    if the shapes do not fit together, or for a diverging scale.
    """
    numbers = _checked(labels, measures, (thumbs.layers, thumbs.heads))
    names = list(dict.fromkeys(label for row in labels for label in row))
    described = {
        "key": key,
        "layerCount": thumbs.layers,
        "headCount": thumbs.heads,
        "side": thumbs.side,
        "block": thumbs.block,
        "unit": "words" if thumbs.words else "tokens",
        "unitCount": len(thumbs.units),
        # Few are different: each is sent once.
        "labels": names,
        "marked": True,
        "axes": "query ↓ · key →",
        "measures": list(measures),
        "caption": caption,
        "source": source,
        "valueName": value_name,
        "fileName": file_name,
        "scale": scale.described(),
        "chosen": _chosen(chosen),
        "above": bool(thumbs.weights.max() > scale.high + scale.slack),
    }
    labelled = np.array([[names.index(label) for label in row] for row in labels], np.dtype("<u2"))
    entries = colour_entries(thumbs.weights, scale)
    arrays: dict[str, NDArray[Any]] = {**scale.tables(), "labelled": labelled, "entries": entries}
    if measures:
        arrays["numbers"] = numbers
    return packed(described, arrays)


def of_trace(
    trace: Trace,
    profiles: HeadsResult,
    *,
    key: str,
    words: bool = False,
    measure: str = "weights",
    chosen: Place | None = None,
) -> bytes:
    """The payload of a trace, labelled and sorted by what its heads do.

    Raises:
        SelectionError, UnavailableError: see `thumbnails`.
    """
    what = measure_named(measure)
    thumbs = thumbnails(trace, words=words, measure=measure)
    end = 1.0 if what.shared_out(trace) else Scale.from_zero(thumbs.weights, 0.0).high
    return payload(
        thumbs,
        profiles.labels,
        {one.name: profiles.values[name] for name, one in MEASURES.items()},
        key=key,
        caption=f"{what.title} of all heads",
        source=caption_of(trace),
        value_name=what.value,
        scale=Scale("sequential", 0, end, "sqrt"),
        chosen=chosen,
    )


def page(trace: Trace, profiles: HeadsResult, *, words: bool = False, measure: str = "weights") -> Page:
    """A web page of all heads, which opens from a disk without a network."""
    data = of_trace(trace, profiles, key="page", words=words, measure=measure)
    return Page("model_view", [data], caption_of(trace), f"{CAVEAT} {trace.caveat}".strip())


def colour_entries(weights: NDArray[np.float32], scale: Scale) -> NDArray[np.uint8]:
    """Entry of the colour table, 0 to 255, for each number; those beyond the scale get its end's.

    Raises ValueError for a diverging scale.
    """
    if scale.kind != "sequential":
        raise ValueError("Thumbnails are drawn on a sequential scale; give Scale('sequential', …).")
    share = (weights - np.float32(scale.low)) * np.float32(1 / (scale.high - scale.low))
    np.clip(share, 0, 1, out=share)
    if scale.curve == "sqrt":
        np.sqrt(share, out=share)
    share *= 255
    share += 0.5  # so that cutting off decimals rounds to the nearest entry
    return share.astype(np.uint8)


def _chosen(place: Place | None) -> list[dict[str, int]]:
    layer, series = place or (1, "mean")
    return [] if series == "mean" else [{"layer": layer - 1, "head": head} for head in series]


def _checked(
    labels: Sequence[Sequence[str]], measures: Mapping[str, ArrayLike], shape: tuple[int, int]
) -> NDArray[np.float64]:
    """The measures, [measure, layer, head]."""
    layers, heads = shape
    if len(labels) != layers or any(len(row) != heads for row in labels):
        raise ValueError(f"labels must have {layers} rows of {heads}, a label for each head.")
    numbers = np.empty((len(measures), layers, heads), dtype=np.dtype("<f8"))
    for index, (name, values) in enumerate(measures.items()):
        array = np.asarray(values, dtype=np.float64)
        if array.shape != shape or not np.isfinite(array).all():
            raise ValueError(
                f"The measure {name} must be {layers} × {heads} finite numbers, one for each head."
            )
        numbers[index] = array
    return numbers


def opened(result: Any, shape: tuple[int, int]) -> HeadThumbnail | None:
    """The head in what a browser reports; None if there is none or it is none of these."""
    held = result.get("opened") if isinstance(result, Mapping) else None
    if not isinstance(held, Mapping):
        return None
    layer, head = held.get("layer"), held.get("head")
    if type(layer) is not int or type(head) is not int:
        return None
    return HeadThumbnail(layer, head) if 0 <= layer < shape[0] and 0 <= head < shape[1] else None
