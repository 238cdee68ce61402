"""Lines from token to token, for any number of heads and any length.

What travels is the layer's queries and keys, or its weights where those are fewer numbers. The browser
computes a row of attention when somebody looks at it, so a hover costs no server trip and is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from bert_probe.analyses.attention.attention import Attention, AttentionResult, Head
from bert_probe.analyses.attention.measures import AttentionMeasure
from bert_probe.analyses.attention.measures import measure as measure_named
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace
from bert_probe.text.words import Unit, word_lens
from bert_probe.views.page import CAVEAT, Page
from bert_probe.views.payload import packed
from bert_probe.views.text import shown as in_short
from bert_probe.views.toolbar import ToolbarOptions
from bert_probe.views.view import Place, VersionedView, View, described, digest, units_of

LABELLED: Final = 1024
"""Tokens up to which heads are labelled: measuring all of them takes about as long as the model itself."""

OFF: Final = 2.5e-5
"""By how much a number may be off in a page that is to be small: a quarter of the last decimal shown."""

Ask: TypeAlias = Callable[[Callable[[Trace], AttentionResult], Trace], AttentionResult]
"""How a question's ``of`` is asked of a trace: by somebody who may know the answer already."""


@dataclass(frozen=True)
class HeadReason:
    """Why a head is shown that nobody chose.

    Attributes:
        layer: from 1.
        head: from 0.
        text: what it does on this text.
    """

    layer: int
    head: int
    text: str

    @property
    def place(self) -> Place:
        """As a view has them."""
        return self.layer, (self.head,)


@dataclass(frozen=True, eq=False)
class HeadViewData:
    """Everything that is drawn, but for the choice of the reader.

    Attributes:
        trace: whose attention.
        measure, words, residual: see `Attention`.
        labels: [layer][head], a word for what a head does, or ""; none where they arrive later, or never.
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

    @classmethod
    def of(cls, trace: Trace, view: View, caption: str = "") -> HeadViewData:
        """What a view shows of a trace; its labels arrive later."""
        return cls(trace, view.measure, view.words, view.residual, caption=caption)

    def at(self, view: View) -> VersionedView:
        """The first that is shown of it: this view, of these numbers."""
        own = replace(view, measure=self.measure, words=self.words, residual=self.residual)
        return VersionedView(0, digest(self.trace.tokens), own)

    @property
    def what(self) -> AttentionMeasure:
        """The measure itself."""
        return measure_named(self.measure)

    def asked(self, layer: int, head: Head) -> Attention:
        """What is asked of a layer and head, from 0."""
        return Attention(layer, head, self.measure, self.words, residual=self.residual)

    @property
    def units(self) -> tuple[Token | Unit, ...]:
        """The tokens, or words, of the text."""
        return units_of(self.trace, self.words)


def _asked(of: Callable[[Trace], AttentionResult], trace: Trace) -> AttentionResult:
    return of(trace)


def payload(
    picture: HeadViewData,
    layer: int,
    *,
    key: str,
    announced: Mapping[str, Any] | None = None,
    ask: Ask = _asked,
    exact: bool = True,
    multiplied: bool = False,
    both: bool = False,
) -> bytes:
    """One layer as the browser gets it.

    Args:
        layer: from 0.
        announced: what is to be shown of it, see there; by default the numbers come alone.
        ask: what asks for a measure of the layer as a whole, for rollout goes through all layers below.
        exact: False rounds queries and keys so far that no number that follows is off by more than `OFF`:
            they deflate to two thirds.
        multiplied: send numbers, and no queries and keys, to where nobody looks at another row.
        both: send tokens and words, of which a browser shows one or the other; numbers are of tokens then,
            and it merges them itself.

    Raises:
        SelectionError, UnavailableError: see `Attention.of`.
    """
    trace, what, units = picture.trace, picture.what, picture.units
    other = replace(picture, words=not picture.words)
    sent = replace(picture, words=False) if both else picture
    vectors = None if multiplied else _vectors(sent, layer)
    maps: Array | None = None
    if vectors is None:
        maps = _maps(sent, layer, ask)
        arrays = {"weights": _floats(maps)}
    else:
        arrays = vectors if exact else {**vectors, **_rounded(sent, layer, vectors, both)}
        if not what.shared_out(trace):
            maps = _maps(sent, layer, ask)
    head = {
        **(announced or {}),
        "key": key,
        "layer": layer + 1,
        "layers": trace.layers,
        "layerNumbers": list(picture.numbers) or None,
        "heads": [0] if what.of_heads is None else list(range(trace.heads)),
        "rolled": what.of_heads is None,
        "tokenCount": len(trace.tokens),
        "words": picture.words,
        "texts": _texts(units),
        "other": {"texts": _texts(other.units), "full": _full(other, sent, maps)} if both else None,
        "scaling": 1.0 if trace.scaling is None else trace.scaling[layer],
        "full": _full(picture, sent, maps),
        "labels": list(picture.labels),
        "title": what.title,
        "valueName": what.value,
        "total": what.total,
        "caption": picture.caption,
        "fileName": f"head-view-layer{layer + 1}",
    }
    others = _places(other.units, "other.") if both else {}
    return packed(head, {**_places(units), **others, **arrays})


def _texts(units: Sequence[Token | Unit]) -> list[str]:
    return [in_short(unit.display) for unit in units]


def _places(units: Sequence[Token | Unit], of: str = "") -> dict[str, Array]:
    """Where units are and what they are, under names that begin with ``of``."""
    return {
        f"{of}firsts": np.array([unit.position for unit in units], np.dtype("<u2")),
        f"{of}segments": np.array([unit.segment for unit in units], np.uint8),
        f"{of}specials": np.array([unit.special for unit in units], np.uint8),
    }


MORE: Final = ("several", "layout", "direction", "fit", "lines")
"""The rare options of this view."""


def announced(
    trace: Trace,
    shown: VersionedView,
    *,
    offer: ToolbarOptions | None = None,
    source: str = "",
    reason: HeadReason | None = None,
) -> dict[str, Any]:
    """What is to be shown, without its numbers.

    Args:
        offer: what a reader can choose; by default what needs nothing but layers, which hold `both`.
        source: address of the layers, but for their number.
        reason: why a head is shown.
    """
    pieced = len(units_of(trace, words=True)) < len(trace.tokens)
    offered = offer or ToolbarOptions.of(trace, shown.view, MORE, several=True, words=pieced)
    return {
        "shown": described(shown),
        "offer": asdict(offered),
        "source": source,
        "reason": None if reason is None else asdict(reason),
    }


def _maps(picture: HeadViewData, layer: int, ask: Ask) -> Array:
    """The numbers themselves, [head, query, key]; of a measure without single heads, the layer's alone."""
    if picture.what.of_heads is None:
        return ask(picture.asked(layer, "mean").of, picture.trace).weights[None]
    heads = range(picture.trace.heads)
    return np.stack([picture.asked(layer, head).of(picture.trace).weights for head in heads])


def _full(picture: HeadViewData, sent: HeadViewData, maps: Array | None) -> float:
    """What the strongest line of a picture stands for: 1 for shares, else the largest number there is.

    Args:
        maps: the numbers of what is sent; needed where they are no shares.
    """
    if maps is None or picture.what.shared_out(picture.trace):
        return 1.0
    seen = word_lens(picture.trace).merge(maps) if picture.words and not sent.words else maps
    return float(seen.max()) or 1.0


def _vectors(picture: HeadViewData, layer: int) -> dict[str, Array] | None:
    """What the browser computes numbers of: queries, keys, the mask's bits, and lengths to multiply weights
    with; None where the numbers are fewer, or all there is."""
    trace, what = picture.trace, picture.what
    if what.of_heads is None or (what.lengths is None and what.name != "weights"):
        return None
    if trace.queries is None or trace.keys is None or trace.masks is None or trace.scaling is None:
        return None
    query, key, mask = trace.queries[layer], trace.keys[layer], trace.masks[layer]
    few = len(picture.units) ** 2 <= 2 * len(trace.tokens) * query.shape[-1]
    if few or (mask is not None and not _is_plain(mask)):
        return None
    arrays = {"queries": _floats(query), "keys": _floats(key)}
    if mask is not None:
        arrays["mask"] = np.packbits(mask, axis=1)
    if what.lengths is not None:
        arrays["lengths"] = _floats(what.lengths(trace, layer))
    return arrays


def _rounded(picture: HeadViewData, layer: int, arrays: Mapping[str, Array], both: bool) -> dict[str, Array]:
    """Queries and keys as multiples of a power of two, the largest that keeps all numbers within `OFF`."""
    trace = picture.trace
    lens = word_lens(trace) if both or picture.words else None

    def numbers(vectors: Mapping[str, Array]) -> list[Array]:
        queries, keys = list(trace.queries or ()), list(trace.keys or ())
        queries[layer], keys[layer] = vectors["queries"], vectors["keys"]
        changed = replace(trace, queries=tuple(queries), keys=tuple(keys))
        found = picture.what.single_heads()(changed, layer, slice(None))
        pieces = [] if picture.words else [found]
        return pieces if lens is None else [*pieces, lens.merge(found)]

    wanted = numbers(arrays)
    for bits in range(12, 20):
        step = np.float32(2.0**-bits)
        tried = {name: np.rint(arrays[name] / step) * step for name in ("queries", "keys")}
        if all(
            np.abs(number - exact).max() <= OFF for number, exact in zip(numbers(tried), wanted, strict=True)
        ):
            return tried
    return {}


def _is_plain(mask: Array) -> bool:
    """Whether every head has the same keys to look at, or not to: a bit for each."""
    return mask.dtype == np.bool_ and mask.ndim == 2


def _floats(array: Array) -> Array:
    return np.ascontiguousarray(array, dtype=np.dtype("<f4"))


def page(picture: HeadViewData, view: View, ask: Ask = _asked, exact: bool = True) -> Page:
    """A web page that opens from a disk without a network and does all that the component does.

    It holds every layer, so that a reader can step through them, and tokens as well as words; `exact`: see
    `payload`.
    """
    first = announced(picture.trace, picture.at(view))
    layers = range(picture.trace.layers)
    return Page(
        "head_view",
        [
            payload(picture, layer, key="page", announced=first, ask=ask, exact=exact, both=True)
            for layer in layers
        ],
        picture.caption,
        f"{CAVEAT} {picture.trace.caveat}".strip(),
        start=view.layer,
        still=lambda: [
            payload(picture, view.layer - 1, key="page", announced=first, ask=ask, multiplied=True)
        ],
    )
