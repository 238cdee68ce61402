"""Tokens on a plane at every layer, as data for a picture: points travel as float32, names once each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from bert_probe.analyses.vectors.token_map import TokenMapResult
from bert_probe.errors import TextError
from bert_probe.views import palette
from bert_probe.views.page import Page
from bert_probe.views.payload import packed
from bert_probe.views.text import shown

MOST: Final = 50_000
"""Tokens that a picture holds; 20,000 of them move smoothly from layer to layer."""

MEANING: Final = (
    "Two components show a part of the variance alone: marks that are near each other here may be far apart "
    "in a direction that is not shown, so look at their similarity before you call them neighbours."
)
"""What stands beside every map."""

MODES: Final = ("layer", "all", "each")
COLOURS: Final = ("word", "layer", "part")


class MapView(TypedDict):
    """What a reader looks at: one layer, all in one picture or each in its own; which; what colours tell."""

    mode: Literal["layer", "all", "each"]
    layer: int
    by: Literal["word", "layer", "part"]


def payload(found: TokenMapResult, *, key: str, start: MapView | None = None, began: int = 0) -> bytes:
    """What the browser draws.

    Args:
        start: what is shown first; the last layer, by words, unless given.
        began: the revision at which the component began, see `ui/components/choices`.

    Raises:
        TextError: more tokens than `MOST`.
    """
    what = "words" if found.question.words else "tokens"
    if len(found.marks) > MOST:
        raise TextError(
            f"{len(found.marks):,} {what}; a picture holds at most {MOST:,}. Give fewer texts, or export the "
            "table with the command line."
        )
    shares = found.planes.by_layer.sum(axis=1)
    names = list(dict.fromkeys(mark.display for mark in found.marks))
    place = {name: number for number, name in enumerate(names)}
    described = {
        "key": key,
        "of": digest(found),
        "names": [shown(name) for name in names],
        "parts": [shown(part) for part in found.part_names],
        "textCount": len(found.texts),
        "what": what,
        "caption": caption(found),
        "variance": variance(found),
        "explained": found.planes.explained,
        "shares": [None if np.isnan(share) else share for share in shares.tolist()],
        "joined": found.question.basis != "own",
        "fileName": "map",
        "start": start or usual(found),
        "began": began,
    }
    columns = {
        "name": [place[mark.display] for mark in found.marks],
        "text": [mark.text for mark in found.marks],
        "position": [mark.position for mark in found.marks],
        "part": [mark.part for mark in found.marks],
    }
    arrays: dict[str, NDArray[Any]] = {name: np.array(one, np.uint16) for name, one in columns.items()}
    ramps = {name: palette.lut_bytes("sequential", name == "dark") for name in ("light", "dark")}
    arrays |= {name: np.frombuffer(ramp, np.uint8) for name, ramp in ramps.items()}
    return packed(described, {"points": found.planes.points, **arrays})


def usual(found: TokenMapResult) -> MapView:
    """What is shown first."""
    return {"mode": "layer", "layer": found.layers, "by": "part" if found.part_names else "word"}


def digest(found: TokenMapResult) -> str:
    """Names what is laid out, so that a choice among other marks is let go."""
    told = hashlib.sha256(found.planes.points.tobytes())
    told.update(repr((found.question, found.texts)).encode("utf-8", "surrogatepass"))
    return told.hexdigest()[:16]


def caption(found: TokenMapResult) -> str:
    """What the picture is of."""
    units = f"{len(found.marks):,} {'words' if found.question.words else 'tokens'}"
    texts = f" of {len(found.texts):,} texts" if len(found.texts) > 1 else ""
    return f"{units}{texts}, from the embeddings (layer 0) to layer {found.layers}"


def variance(found: TokenMapResult) -> str:
    """Which share of the variance is shown, in a sentence."""
    explained, basis = found.planes.explained, found.question.basis
    if explained is None:
        return (
            "Each layer has two principal components of its own, so places in two layers cannot be compared; "
            "above each picture of a layer stands the share of its variance that they hold."
        )
    less = "each layer's own mean" if basis == "centred" else "the mean of all layers"
    both = explained[0] + explained[1]
    return (
        f"Principal components 1 (across, {explained[0]:.1%} of the variance) and 2 (up, {explained[1]:.1%}) "
        f"of all layers together, less {less}: {both:.0%} is shown, {1 - both:.0%} is not."
    )


def page(found: TokenMapResult, title: str) -> Page:
    """The map as a web page of its own; where nothing moves, every layer in a picture of its own."""
    each: MapView = {**usual(found), "mode": "each"}
    still = payload(found, key="page", start=each)
    return Page("layer_map", [payload(found, key="page")], title, MEANING, still=lambda: [still])


class MapSelection(TypedDict):
    """What a reader chose: the mark whose way is drawn, and those that are selected."""

    pinned: int | None
    selected: list[int]


def chosen(state: object, of: str, count: int) -> MapSelection:
    """What a browser reports; nothing, where it is of other marks or no report at all."""
    held = state.get("chosen") if isinstance(state, Mapping) else None
    if not isinstance(held, Mapping) or held.get("of") != of:
        return {"pinned": None, "selected": []}
    pinned, selected = held.get("pinned"), held.get("selected")
    marks = selected if isinstance(selected, list) else []
    return {
        "pinned": pinned if _is_mark(pinned, count) else None,
        "selected": sorted({mark for mark in marks if _is_mark(mark, count)}),
    }


def reported(state: object, of: str, layers: int) -> MapView | None:
    """What a browser says that it shows; None where it says nothing of these marks that can be."""
    held = state.get("shown") if isinstance(state, Mapping) else None
    if not isinstance(held, Mapping) or held.get("of") != of:
        return None
    mode, layer, by = held.get("mode"), held.get("layer"), held.get("by")
    if mode not in MODES or by not in COLOURS or type(layer) is not int or not 0 <= layer <= layers:
        return None
    return {"mode": mode, "layer": layer, "by": by}


def _is_mark(value: object, count: int) -> bool:
    return type(value) is int and 0 <= value < count
