"""The token map: a 2-D projection of the token vectors of every layer."""

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
from bert_probe.views.payload import pack
from bert_probe.views.text import shorten

MAX_TOKENS: Final = 50_000
"""Maximum number of tokens in a map. Animations between layers are smooth with up to 20,000 tokens."""

CAVEAT: Final = (
    "Two principal components show only part of the variance: points that are close on this plane may "
    "be far apart in a dimension that is not shown. Check the similarity of two points before you treat "
    "the points as neighbors."
)
"""Caveat below every token map."""

MODES: Final = ("layer", "all", "each")
COLORINGS: Final = ("word", "layer", "part")


class MapView(TypedDict):
    """The view state of a token map."""

    mode: Literal["layer", "all", "each"]  # one layer, all layers in one plot, or one plot per layer
    layer: int
    by: Literal["word", "layer", "part"]  # the property by which points are colored


def payload(result: TokenMapResult, *, key: str, start: MapView | None = None, began: int = 0) -> bytes:
    """Return a token map in the binary format that the browser reads; see `pack`.

    Args:
        result: The projection.
        key: Key of the component.
        start: The initial view state; by default that of `default_view`.
        began: The revision with which the component was mounted; see `ui/components`.

    Raises:
        TextError: There are more tokens than `MAX_TOKENS`.
    """
    unit = "words" if result.question.words else "tokens"
    if len(result.marks) > MAX_TOKENS:
        raise TextError(
            f"{len(result.marks):,} {unit}, but a map shows at most {MAX_TOKENS:,} {unit}. Use fewer "
            "texts, or export the table with the command line."
        )
    shares = result.planes.by_layer.sum(axis=1)
    names = list(dict.fromkeys(mark.display for mark in result.marks))
    index = {name: number for number, name in enumerate(names)}
    header = {
        "key": key,
        "of": digest(result),
        "names": [shorten(name) for name in names],
        "parts": [shorten(part) for part in result.part_names],
        "textCount": len(result.texts),
        "what": unit,
        "caption": caption(result),
        "variance": variance(result),
        "explained": result.planes.explained,
        "shares": [None if np.isnan(share) else share for share in shares.tolist()],
        "joined": result.question.basis != "own",
        "fileName": "map",
        "start": start or default_view(result),
        "began": began,
    }
    columns = {
        "name": [index[mark.display] for mark in result.marks],
        "text": [mark.text for mark in result.marks],
        "position": [mark.position for mark in result.marks],
        "part": [mark.part for mark in result.marks],
    }
    arrays: dict[str, NDArray[Any]] = {name: np.array(column, np.uint16) for name, column in columns.items()}
    ramps = {name: palette.lut_bytes("sequential", name == "dark") for name in ("light", "dark")}
    arrays |= {name: np.frombuffer(ramp, np.uint8) for name, ramp in ramps.items()}
    return pack(header, {"points": result.planes.points, **arrays})


def default_view(result: TokenMapResult) -> MapView:
    """Return the default view state: the last layer, colored by text label or segment, or else by word."""
    return {"mode": "layer", "layer": result.layers, "by": "part" if result.part_names else "word"}


def digest(result: TokenMapResult) -> str:
    """Return a hash that identifies a map. A selection reported with another hash is stale."""
    sha = hashlib.sha256(result.planes.points.tobytes())
    sha.update(repr((result.question, result.texts)).encode("utf-8", "surrogatepass"))
    return sha.hexdigest()[:16]


def caption(result: TokenMapResult) -> str:
    """Return the title of the map: number of tokens, texts and layers."""
    units = f"{len(result.marks):,} {'words' if result.question.words else 'tokens'}"
    texts = f" of {len(result.texts):,} texts" if len(result.texts) > 1 else ""
    return f"{units}{texts}, from the embeddings (layer 0) to layer {result.layers}"


def variance(result: TokenMapResult) -> str:
    """Return a text that states how much of the variance the two dimensions of the map explain."""
    explained, basis = result.planes.explained, result.question.basis
    if explained is None:
        return (
            "Each layer has its own two principal components, so positions in different layers cannot be "
            "compared. The explained variance of each layer is above its plot."
        )
    mean = "the mean of each layer" if basis == "centred" else "the mean of all layers"
    both = explained[0] + explained[1]
    return (
        f"Principal components 1 (horizontal, {explained[0]:.1%} of the variance) and 2 (vertical, "
        f"{explained[1]:.1%}) of all layers together, after subtracting {mean}. {1 - both:.0%} of "
        "the variance is not visible."
    )


def page(result: TokenMapResult, title: str) -> Page:
    """Return a token map as a self-contained HTML page.

    Images that are saved from the page (SVG, PNG) show one plot per layer.
    """
    each: MapView = {**default_view(result), "mode": "each"}
    still = payload(result, key="page", start=each)
    return Page("layer_map", [payload(result, key="page")], title, CAVEAT, still=lambda: [still])


class MapSelection(TypedDict):
    """The tokens that the user selected in a map, as indices."""

    pinned: int | None  # the token whose trajectory is drawn
    selected: list[int]  # the tokens selected with the lasso or the search field


def read_selection(state: object, map_digest: str, count: int) -> MapSelection:
    """Return the selection that the browser reports, or an empty selection if the report is invalid or stale.

    Args:
        state: The report of the browser, which is validated.
        map_digest: `digest` of the current map.
        count: Number of tokens.
    """
    report = state.get("selection") if isinstance(state, Mapping) else None
    if not isinstance(report, Mapping) or report.get("of") != map_digest:
        return {"pinned": None, "selected": []}
    pinned, selected = report.get("pinned"), report.get("selected")
    marks = selected if isinstance(selected, list) else []
    return {
        "pinned": pinned if _is_mark(pinned, count) else None,
        "selected": sorted({mark for mark in marks if _is_mark(mark, count)}),
    }


def read_view(state: object, map_digest: str, layers: int) -> MapView | None:
    """Return the view state that the browser reports, or None if the report is invalid or stale."""
    report = state.get("display") if isinstance(state, Mapping) else None
    if not isinstance(report, Mapping) or report.get("of") != map_digest:
        return None
    mode, layer, by = report.get("mode"), report.get("layer"), report.get("by")
    if mode not in MODES or by not in COLORINGS or type(layer) is not int or not 0 <= layer <= layers:
        return None
    return {"mode": mode, "layer": layer, "by": by}


def _is_mark(value: object, count: int) -> bool:
    return type(value) is int and 0 <= value < count
