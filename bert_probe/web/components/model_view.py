"""All heads of a model in one picture: a thumbnail each, layers below one another, sorted as a reader likes.

What is drawn travels as one byte a cell, an entry of the colour table. What is written as a number travels as
float64. Sorting and hovering cost no server trip.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import streamlit as st
from numpy.typing import ArrayLike, NDArray
from streamlit.components.v2 import component

from bert_probe.analyses.thumbnails import Thumbnails
from bert_probe.web import palette
from bert_probe.web.components.matrix import Scale

_FOLDER: Final = Path(__file__).parent
# One ES module in several files; theme, legend and saving are the matrix's own.
_SCRIPTS: Final = (
    "visible_text.js",
    "matrix_model.js",
    "matrix_layout.js",
    "matrix_paint.js",
    "matrix_save.js",
    "matrix_parts.js",
    "model_view_grid.js",
    "model_view_paint.js",
    "model_view_save.js",
    "model_view_parts.js",
    "model_view.js",
)

_SHARES: Final = Scale("sequential", 0.0, 1.0, "sqrt")


class Head(NamedTuple):
    """One head; layer and head count from 0."""

    layer: int
    head: int


def model_view(
    thumbs: Thumbnails,
    labels: Sequence[Sequence[str]],
    measures: Mapping[str, ArrayLike],
    *,
    key: str,
    caption: str,
    source: str = "",
    value_name: str = "attention weight",
    scale: Scale = _SHARES,
    file_name: str = "model-view",
    on_open: Callable[[Head], None] | None = None,
) -> Head | None:
    """Draw every head and return the one that was just clicked; a click is told once.

    `labels` [layer][head] say in a word what a head does, "" where nothing stands out. `measures` are what
    heads can be sorted by, name → [layer, head], largest first. `source` says in saved files which text and
    model these are. `on_open` is told of a click before the script runs again, and so may still set other
    widgets. Raises ValueError if the shapes do not fit together, or for a diverging scale.
    """
    shape = (thumbs.layers, thumbs.heads)
    numbers = _checked(labels, measures, shape)
    header = {
        "key": key,
        "layerCount": thumbs.layers,
        "headCount": thumbs.heads,
        "side": thumbs.side,
        "block": thumbs.block,
        "unit": "words" if thumbs.words else "tokens",
        "unitCount": len(thumbs.units),
        "labels": [list(row) for row in labels],
        "measures": list(measures),
        "caption": caption,
        "source": source,
        "valueName": value_name,
        "fileName": file_name,
        "scale": {"kind": scale.kind, "low": scale.low, "high": scale.high, "curve": scale.curve},
        "above": bool(thumbs.weights.max() > scale.high + 1e-6 * (scale.high - scale.low)),
    }
    data = _packed(header, numbers, colour_entries(thumbs.weights, scale))

    def tell() -> None:
        head = _opened(st.session_state.get(key), shape)
        if head is not None and on_open is not None:
            on_open(head)

    # Streamlit lists a trigger in the result only if it has a callback.
    result = _component(key=key, data=data, on_opened_change=tell)
    return _opened(result, shape)


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


def _packed(header: Mapping[str, object], numbers: NDArray[np.float64], entries: NDArray[np.uint8]) -> bytes:
    """Header length, header, both themes' colour tables, measures, colour entries: one piece of raw bytes."""
    text = json.dumps(header).encode("ascii")
    tables = palette.lut_bytes("sequential", dark=False) + palette.lut_bytes("sequential", dark=True)
    return len(text).to_bytes(4, "little") + text + tables + numbers.tobytes() + entries.tobytes()


def _opened(result: Any, shape: tuple[int, int]) -> Head | None:
    """The head in a component's answer; None if there is none or it is none of these."""
    held = result.get("opened") if isinstance(result, Mapping) else None
    if not isinstance(held, Mapping):
        return None
    layer, head = held.get("layer"), held.get("head")
    if type(layer) is not int or type(head) is not int:
        return None
    return Head(layer, head) if 0 <= layer < shape[0] and 0 <= head < shape[1] else None


_component = component(
    "bert_probe.model_view",
    html='<section class="matrix model-view"></section>',
    css="\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in ("matrix.css", "model_view.css")),
    js="\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS),
)
