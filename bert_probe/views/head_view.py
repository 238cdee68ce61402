"""Lines from token to token, for any number of heads and any length.

What travels is the layer's queries and keys, or its weights where those are fewer numbers. The browser
computes a row of attention when somebody looks at it, so a hover costs no server trip and is exact.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from bert_probe.analyses.attention import Attention, AttentionMap, Head
from bert_probe.analyses.measures import Measure
from bert_probe.analyses.measures import measure as measure_named
from bert_probe.errors import SelectionError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, resolve
from bert_probe.text.words import Unit, word_lens
from bert_probe.views.constants import CONSTANTS
from bert_probe.views.page import CAVEAT, Page
from bert_probe.views.payload import packed
from bert_probe.views.text import shown

STEPS: Final[tuple[float, ...]] = tuple(CONSTANTS["steps"])
"""Thresholds that lines can be drawn from, as a share of the strongest possible."""

LABELLED: Final = 1024
"""Tokens up to which heads are labelled: measuring all of them takes about as long as the model itself."""

OFF: Final = 2.5e-5
"""By how much a number may be off in a page that is to be small: a quarter of the last decimal shown."""

Ask: TypeAlias = Callable[[Callable[[Trace], AttentionMap], Trace], AttentionMap]
"""How a question's ``of`` is asked of a trace: by somebody who may know the answer already."""

Series = tuple[int, ...] | Literal["mean"]
"""The heads drawn, from 0, or the mean over all of them."""


@dataclass(frozen=True)
class Options:
    """How the picture is drawn.

    Attributes:
        layout: two columns, or the direction of reading.
        direction: between which of a pair's texts: "all", or from one to the other as in "AB".
        specials: whether special tokens are shown.
        fit: whether the whole text is squeezed into view.
        step: the threshold, one of `STEPS`; None chooses one that leaves a clear picture.
    """

    layout: Literal["columns", "reading"] = "columns"
    direction: Literal["all", "AA", "AB", "BA", "BB"] = "all"
    specials: bool = True
    fit: bool = False
    step: float | None = None


@dataclass(frozen=True)
class Pins:
    """Units of one side whose attention is added up.

    Attributes:
        side: "query" or "key".
        units: places among the units of the text, from 0.
    """

    side: Literal["query", "key"] = "query"
    units: tuple[int, ...] = ()


@dataclass(frozen=True)
class View:
    """What a reader looks at: reported by the browser, and kept in the address."""

    layer: int
    series: Series
    options: Options = field(default_factory=Options)
    pins: Pins = field(default_factory=Pins)


@dataclass(frozen=True, eq=False)
class Picture:
    """Everything that is drawn, but for the choice of the reader.

    Attributes:
        trace: whose attention.
        measure, words, residual: see `Attention`.
        labels: [layer][head], a word for what a head does, or "".
        caption: text and model, for saved pictures.
        numbers: what the layers are called, from 1; empty where they are all of a model's, in their order.
    """

    trace: Trace
    measure: str = "weights"
    words: bool = False
    residual: float = 0.5
    labels: Sequence[Sequence[str]] = ()
    caption: str = ""
    numbers: Sequence[int] = ()

    @property
    def what(self) -> Measure:
        """The measure itself."""
        return measure_named(self.measure)

    def asked(self, layer: int, head: Head) -> Attention:
        """What is asked of a layer and head, from 0."""
        return Attention(layer, head, self.measure, self.words, residual=self.residual)

    @property
    def units(self) -> tuple[Token | Unit, ...]:
        """The tokens, or words, of the text."""
        return word_lens(self.trace).units if self.words else self.trace.tokens

    @property
    def digest(self) -> str:
        """Names the units, so that pins of another text are let go."""
        units = [[str(unit), unit.position] for unit in self.units]
        return hashlib.sha256(json.dumps(units).encode()).hexdigest()[:16]


def _asked(of: Callable[[Trace], AttentionMap], trace: Trace) -> AttentionMap:
    return of(trace)


def payload(
    picture: Picture,
    layer: int,
    *,
    key: str,
    wish: Mapping[str, Any] | None = None,
    source: str = "",
    ask: Ask = _asked,
    exact: bool = True,
    multiplied: bool = False,
) -> bytes:
    """One layer as the browser gets it.

    Args:
        layer: from 0.
        wish: what to show at first; by default the mean over the heads.
        source: address of the other layers, but for their number.
        ask: what asks for a measure of the layer as a whole, for rollout goes through all layers below.
        exact: False rounds queries and keys so far that no number that follows is off by more than `OFF`:
            they deflate to two thirds.
        multiplied: send numbers, and no queries and keys, to where nobody looks at another row.

    Raises:
        SelectionError, UnavailableError: see `Attention.of`.
    """
    trace = picture.trace
    units = picture.units
    heads, arrays, full = _numbers(picture, layer, len(units), ask, multiplied)
    if not exact and "queries" in arrays:
        arrays |= _rounded(picture, layer, arrays)
    described = {
        "key": key,
        "digest": picture.digest,
        "source": source,
        "layer": layer + 1,
        "layers": trace.layers,
        "layerNumbers": list(picture.numbers) or None,
        "heads": heads,
        "rolled": picture.what.of_heads is None,
        "tokenCount": len(trace.tokens),
        "texts": [shown(unit.display) for unit in units],
        "scaling": 1.0 if trace.scaling is None else trace.scaling[layer],
        "full": full,
        "headLabels": list(picture.labels[layer]) if picture.labels else [""] * len(heads),
        "title": picture.what.title,
        "valueName": picture.what.value,
        "total": picture.what.total,
        "caption": picture.caption,
        "fileName": f"head-view-layer{layer + 1}",
        "wish": wish or wished(View(layer + 1, "mean"), 0),
    }
    of_units: dict[str, Array] = {
        "firsts": np.array([unit.position for unit in units], np.dtype("<u2")),
        "segments": np.array([unit.segment for unit in units], np.uint8),
        "specials": np.array([unit.special for unit in units], np.uint8),
    }
    return packed(described, {**of_units, **arrays})


def wished(view: View, turn: int) -> dict[str, Any]:
    """What the browser is to show when it sees this turn for the first time."""
    return {
        "turn": turn,
        "heads": ["mean"] if view.series == "mean" else list(view.series),
        "options": asdict(view.options),
        "pins": {"side": view.pins.side, "units": list(view.pins.units)},
    }


def _numbers(
    picture: Picture, layer: int, count: int, ask: Ask, multiplied: bool
) -> tuple[list[int], dict[str, Array], float]:
    """Heads, the numbers of them that are sent, and what the strongest line stands for."""
    trace, what = picture.trace, picture.what
    if what.of_heads is None:
        whole = ask(picture.asked(layer, "mean").of, trace).weights
        return [0], {"weights": _floats(whole)[None]}, _full(picture, [whole])
    heads = list(range(trace.heads))
    # The browser multiplies q and k itself, and the weights with lengths; any other measure is sent as it is.
    derived = not multiplied and (what.lengths is not None or what.name == "weights")
    vectors = _vectors(trace, layer, count) if derived else None
    if vectors is None:
        maps = [_map(picture, layer, head) for head in heads]
        return heads, {"weights": _floats(np.stack(maps))}, _full(picture, maps)
    if what.lengths is None:
        return heads, vectors, 1.0
    full = _full(picture, [_map(picture, layer, head) for head in heads])
    return heads, {**vectors, "lengths": _floats(what.lengths(trace, layer))}, full


def _full(picture: Picture, maps: Sequence[Array]) -> float:
    """What the strongest line stands for: 1 for shares, else the largest number there is."""
    return 1.0 if picture.what.shared_out(picture.trace) else max(float(one.max()) for one in maps) or 1.0


def _map(picture: Picture, layer: int, head: int) -> Array:
    return picture.asked(layer, head).of(picture.trace).weights


def _vectors(trace: Trace, layer: int, count: int) -> dict[str, Array] | None:
    """Queries, keys and the mask's bits; None where the weights are fewer numbers, or all there is."""
    if trace.queries is None or trace.keys is None or trace.masks is None or trace.scaling is None:
        return None
    query, key, mask = trace.queries[layer], trace.keys[layer], trace.masks[layer]
    dim = query.shape[-1]
    if count**2 <= 2 * len(trace.tokens) * dim or (mask is not None and not _is_plain(mask)):
        return None
    arrays = {"queries": _floats(query), "keys": _floats(key)}
    return arrays if mask is None else {**arrays, "mask": np.packbits(mask, axis=1)}


def _rounded(picture: Picture, layer: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Queries and keys as multiples of a power of two, the largest that keeps all numbers within `OFF`."""

    def numbers(vectors: Mapping[str, Array]) -> Array:
        trace = picture.trace
        queries, keys = list(trace.queries or ()), list(trace.keys or ())
        queries[layer], keys[layer] = vectors["queries"], vectors["keys"]
        changed = replace(trace, queries=tuple(queries), keys=tuple(keys))
        found = picture.what.single_heads()(changed, layer, slice(None))
        return word_lens(trace).merge(found) if picture.words else found

    wanted = numbers(arrays)
    for bits in range(12, 20):
        step = np.float32(2.0**-bits)
        tried = {name: np.rint(arrays[name] / step) * step for name in ("queries", "keys")}
        if np.abs(numbers(tried) - wanted).max() <= OFF:
            return tried
    return {}


def _is_plain(mask: Array) -> bool:
    """Whether every head has the same keys to look at, or not to: a bit for each."""
    return mask.dtype == np.bool_ and mask.ndim == 2


def _floats(array: Array) -> Array:
    return np.ascontiguousarray(array, dtype=np.dtype("<f4"))


def reported(state: Any, picture: Picture) -> View | None:
    """What a reader looks at, from what a browser reports; None if that is of another text or no view."""
    held = state.get("view") if isinstance(state, Mapping) else None
    if not isinstance(held, Mapping) or held.get("digest") != picture.digest:
        return None
    layer, series = held.get("layer"), held.get("series")
    if type(layer) is not int or not 1 <= layer <= picture.trace.layers or not isinstance(series, Sequence):
        return None
    return View(
        layer,
        series_from(series, picture.trace.heads),
        options_from(held.get("options")),
        pins_from(held.get("pins"), len(picture.units)),
    )


def series_from(given: Any, count: int) -> Series:
    """Heads from outside; those that there are none of are left out, and none at all is the mean."""
    held = given if isinstance(given, list) else []
    return tuple(head for head in held if type(head) is int and 0 <= head < count) or "mean"


def series_of(heads: int | Sequence[int] | str, count: int) -> Series:
    """Heads as people write them in Python: one, several, or "mean".

    Raises:
        SelectionError: one that there is not.
    """
    if isinstance(heads, str):
        if heads != "mean":
            raise SelectionError(f"heads must be indices from 0, or 'mean', not {heads!r}.")
        return "mean"
    several = [heads] if isinstance(heads, int | np.integer) else heads
    return tuple(dict.fromkeys(resolve(head, count, "head") for head in several)) or "mean"


def options_from(given: Any) -> Options:
    """Options from outside; what is not one becomes the default."""
    held = given if isinstance(given, Mapping) else {}
    plain = Options()
    step = held.get("step")
    layout, direction = held.get("layout"), held.get("direction")
    return Options(
        layout=layout if layout in ("columns", "reading") else plain.layout,
        direction=direction if direction in ("all", "AA", "AB", "BA", "BB") else plain.direction,
        specials=held.get("specials") is not False,
        fit=held.get("fit") is True,
        step=step if step in STEPS and not isinstance(step, bool) else None,
    )


def pins_from(given: Any, count: int) -> Pins:
    """Pins from outside; units that the text does not have are left out."""
    held = given if isinstance(given, Mapping) else {}
    units = held.get("units")
    kept = tuple(u for u in units if type(u) is int and 0 <= u < count) if isinstance(units, list) else ()
    return Pins("key" if held.get("side") == "key" else "query", kept)


def page(picture: Picture, view: View, ask: Ask = _asked, exact: bool = True) -> Page:
    """A web page that opens from a disk without a network and does all that the component does.

    It holds every layer, so that a reader can step through them; `exact`: see `payload`.
    """
    layers = range(picture.trace.layers)
    return Page(
        "head_view",
        [payload(picture, layer, key="page", wish=wished(view, 0), ask=ask, exact=exact) for layer in layers],
        picture.caption,
        f"{CAVEAT} {picture.trace.caveat}".strip(),
        start=view.layer,
        still=lambda: [
            payload(picture, view.layer - 1, key="page", wish=wished(view, 0), ask=ask, multiplied=True)
        ],
    )
