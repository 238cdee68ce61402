"""The head view: attention as lines between tokens, for any number of heads and any text length.

The browser receives the queries and keys of a layer, and computes the attention row of a token without a
request when the user hovers over the token. It receives the attention weights instead if they need fewer
bytes, or if queries and keys do not determine them, as for rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from bert_probe.analyses.attention.attention import Attention, Head
from bert_probe.analyses.attention.heads import Heads, Labels
from bert_probe.analyses.attention.measures import AttentionMeasure
from bert_probe.analyses.attention.measures import get_measure as measure_named
from bert_probe.errors import SelectionError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, resolve_index
from bert_probe.text.words import Unit, word_lens
from bert_probe.views.page import CAVEAT, Page, caption_of
from bert_probe.views.payload import pack
from bert_probe.views.selection import (
    RESIDUALS,
    LayerAndHeads,
    Options,
    Pins,
    Selection,
    Series,
    VersionedSelection,
    digest,
    selection_to_json,
    units_of,
)
from bert_probe.views.text import shorten as shorten

MAX_LABELED_TOKENS: Final = 1024
"""Maximum number of tokens for which heads are labeled. Labeling takes as long as a forward pass."""

TOLERANCE: Final = 2.5e-5
"""Maximum error of an attention weight computed from rounded queries and keys: a quarter of 0.0001."""

AnswerFn: TypeAlias = Callable[[Callable[[Trace], Any], Trace], Any]
"""Function that calls the ``of`` method of a question with a trace and may cache the result."""


@dataclass(frozen=True)
class HeadReason:
    """The head that the app selects by default, and the reason why it was selected."""

    layer: int  # from 1
    head: int  # from 0
    text: str  # description of the head's attention on this text

    @property
    def place(self) -> LayerAndHeads:
        """The layer and the head as in `Selection`: (layer, (head,))."""
        return self.layer, (self.head,)


@dataclass(frozen=True, eq=False)
class HeadViewData:
    """The data of a head view, without the user's selection.

    Attributes:
        trace: The text and its attention.
        measure: Name of the attention measure. `words` and `residual` are options of `Attention`.
        labels: Labels of the heads, indexed by layer and head; "" for a head without a label. Empty if the
            browser requests the labels from the server, or if they are unavailable.
        caption: Name of the model and text, for saved files.
        numbers: Layer numbers, from 1, if the trace has only some layers of the model; otherwise empty.
    """

    trace: Trace
    measure: str = "weights"
    words: bool = False
    residual: float = 0.5
    labels: Sequence[Sequence[str]] = ()
    caption: str = ""
    numbers: Sequence[int] = ()

    @classmethod
    def of(cls, trace: Trace, selection: Selection, labels: Labels = ()) -> HeadViewData:
        """Return the data of the head view for a selection. `compute_labels` returns the labels."""
        measure, words, residual = selection.measure, selection.words, selection.residual
        return cls(trace, measure, words, residual, labels, caption_of(trace))

    def at(self, selection: Selection) -> VersionedSelection:
        """Return a selection as the initial state of the view, with the measure and options of this data."""
        own = replace(selection, measure=self.measure, words=self.words, residual=self.residual)
        return VersionedSelection(0, digest(self.trace.tokens), own)

    @property
    def what(self) -> AttentionMeasure:
        """The attention measure with the name `measure`."""
        return measure_named(self.measure)

    def question(self, layer: int, head: Head) -> Attention:
        """Return the `Attention` question for a layer and a head, both counted from 0."""
        return Attention(layer, head, self.measure, self.words, residual=self.residual)

    @property
    def units(self) -> tuple[Token | Unit, ...]:
        """The tokens or words of the text."""
        return units_of(self.trace, self.words)


def call_method(method: Callable[[Trace], Any], trace: Trace) -> Any:
    """Call the ``of`` method of a question with a trace, without a cache."""
    return method(trace)


def compute_labels(trace: Trace, ask: AnswerFn = call_method) -> Labels:
    """Return one-word labels for the heads of each layer, or () if the text has too many tokens."""
    return ask(Heads().of, trace).labels if len(trace.tokens) <= MAX_LABELED_TOKENS else ()


def payload(
    data: HeadViewData,
    layer: int,
    *,
    key: str,
    state: Mapping[str, Any] | None = None,
    ask: AnswerFn = call_method,
    exact: bool = True,
    multiplied: bool = False,
    both: bool = False,
) -> bytes:
    """Return the attention of a layer in the binary format that the browser reads; see `pack`.

    Args:
        data: The data of the view.
        layer: Index of the layer, from 0.
        key: Key of the component.
        state: Initial state as returned by `initial_state`; None to send only the layer.
        ask: Function that computes measures such as rollout. It should cache results, because rollout
            depends on all lower layers.
        exact: Whether to send queries and keys without rounding. Rounding changes attention weights by at
            most `TOLERANCE` and reduces the compressed size by a third.
        multiplied: Whether to send weights instead of queries and keys, for static files.
        both: Whether to send both tokens and words. The weights are then between tokens, and the browser
            merges them into words.

    Raises:
        SelectionError: See `Attention.of`.
        UnavailableError: See `Attention.of`.
    """
    trace, measure, units = data.trace, data.what, data.units
    other = replace(data, words=not data.words)
    sent = replace(data, words=False) if both else data
    vectors = None if multiplied else _vectors(sent, layer)
    maps: Array | None = None
    if vectors is None:
        maps = _maps(sent, layer, ask)
        arrays = {"weights": _floats(maps)}
    else:
        arrays = vectors if exact else {**vectors, **_rounded(sent, layer, vectors, both)}
        if not measure.sums_to_one(trace):
            maps = _maps(sent, layer, ask)
    head = {
        **(state or {}),
        "key": key,
        "layer": layer + 1,
        "layers": trace.layers,
        "layerNumbers": list(data.numbers) or None,
        "heads": [0] if measure.of_heads is None else list(range(trace.heads)),
        "rolled": measure.of_heads is None,
        "tokenCount": len(trace.tokens),
        "words": data.words,
        "texts": _texts(units),
        "other": {"texts": _texts(other.units), "full": _full(other, sent, maps)} if both else None,
        "scaling": 1.0 if trace.scaling is None else trace.scaling[layer],
        "full": _full(data, sent, maps),
        "labels": list(data.labels),
        "title": measure.title,
        "valueName": measure.value,
        "total": measure.total,
        "caption": data.caption,
        "fileName": f"head-view-layer{layer + 1}",
    }
    other_arrays = _unit_arrays(other.units, "other.") if both else {}
    return pack(head, {**_unit_arrays(units), **other_arrays, **arrays})


def _texts(units: Sequence[Token | Unit]) -> list[str]:
    return [shorten(unit.display) for unit in units]


def _unit_arrays(units: Sequence[Token | Unit], prefix: str = "") -> dict[str, Array]:
    """Return the properties of tokens or words as arrays, by name.

    The arrays contain the positions, the segments, whether a token is special and, for proteins, the residue
    numbers.
    """
    arrays: dict[str, Array] = {
        f"{prefix}firsts": np.array([unit.position for unit in units], np.dtype("<u2")),
        f"{prefix}segments": np.array([unit.segment for unit in units], np.uint8),
        f"{prefix}specials": np.array([unit.special for unit in units], np.uint8),
    }
    if any(unit.residue is not None for unit in units):
        arrays[f"{prefix}residues"] = np.array([unit.residue or 0 for unit in units], np.dtype("<u2"))
    return arrays


OVERFLOW_OPTIONS: Final = ("several", "layout", "direction", "fit", "lines")
"""Options in the overflow menu of the toolbar."""


def initial_state(
    trace: Trace,
    versioned: VersionedSelection,
    *,
    key: str,
    options: ToolbarOptions | None = None,
    source: str = "",
    reason: HeadReason | None = None,
) -> dict[str, Any]:
    """Return the initial state of a head view, or of a separate toolbar, as JSON data without attention.

    Args:
        trace: The text and its attention.
        versioned: The initial selection.
        key: Key of the component.
        options: Options of the toolbar; by default, the options that work without a server.
        source: URL prefix of requests for layers and for the labels of the heads.
        reason: The head selected by default, with the reason.
    """
    has_pieces = len(units_of(trace, words=True)) < len(trace.tokens)
    options = options or ToolbarOptions.of(
        trace, versioned.value, OVERFLOW_OPTIONS, several=True, words=has_pieces
    )
    return {
        "key": key,
        "selection": selection_to_json(versioned),
        "offer": asdict(options),
        "source": source,
        "reason": None if reason is None else asdict(reason),
    }


def _maps(data: HeadViewData, layer: int, ask: AnswerFn) -> Array:
    """Return attention maps of a layer, shape [head, query, key]; one map if the measure has no heads.

    Args:
        data: The data of the view.
        layer: Index of the layer, from 0.
        ask: Function that computes a measure without heads, such as rollout, and may cache it.
    """
    if data.what.of_heads is None:
        rolled: Array = ask(data.question(layer, "mean").of, data.trace).weights[None]
        return rolled
    heads = range(data.trace.heads)
    return np.stack([data.question(layer, head).of(data.trace).weights for head in heads])


def _full(data: HeadViewData, sent: HeadViewData, maps: Array | None) -> float:
    """Return the value that is drawn as a fully opaque line: 1 if rows sum to 1, otherwise the maximum.

    Args:
        data: The data of the view.
        sent: The data that is sent; it may have tokens where `data` has words.
        maps: The attention of `sent`; None is allowed if rows sum to 1.
    """
    if maps is None or data.what.sums_to_one(data.trace):
        return 1.0
    visible = word_lens(data.trace).merge(maps) if data.words and not sent.words else maps
    return float(visible.max()) or 1.0


def _vectors(data: HeadViewData, layer: int) -> dict[str, Array] | None:
    """Return the arrays from which the browser computes weights: queries, keys, mask bits and value norms.

    Return None if the weights need fewer bytes, or cannot be computed from queries and keys.
    """
    trace, measure = data.trace, data.what
    if measure.of_heads is None or (measure.lengths is None and measure.name != "weights"):
        return None
    if trace.queries is None or trace.keys is None or trace.masks is None or trace.scaling is None:
        return None
    # The browser computes softmax(q · k × scaling + mask) and does not implement a soft cap.
    if trace.softcap(layer) is not None:
        return None
    query, key, mask = trace.queries[layer], trace.keys[layer], trace.masks[layer]
    has_fewer_weights = len(data.units) ** 2 <= 2 * len(trace.tokens) * query.shape[-1]
    # A mask is sent as one bit per query and key, so it must be boolean and the same for all heads.
    if has_fewer_weights or (mask is not None and not (mask.dtype == np.bool_ and mask.ndim == 2)):
        return None
    arrays = {"queries": _floats(query), "keys": _floats(key)}
    if mask is not None:
        arrays["mask"] = np.packbits(mask, axis=1)
    if measure.lengths is not None:
        arrays["lengths"] = _floats(measure.lengths(trace, layer))
    return arrays


def attention_of_vectors(arrays: Mapping[str, Array], scaling: float, head: int, queries: slice) -> Array:
    """Return numbers that the browser computes from the arrays of `_vectors`, float64 of shape [query, key].

    Args:
        arrays: The queries and keys, the bits of the mask, and the value norms, if the measure uses them.
        scaling: Factor of the scores.
        head: Index of the head, from 0.
        queries: The queries to compute.
    """
    scores = np.asarray(arrays["queries"][head, queries], np.float64) @ arrays["keys"][head].T * scaling
    if "mask" in arrays:
        is_visible = np.unpackbits(arrays["mask"][queries], axis=1, count=scores.shape[-1])
        scores = np.where(is_visible, scores, -np.inf)
    with np.errstate(invalid="ignore"):  # A query without keys has no weights.
        exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights: Array = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return weights * arrays["lengths"][head] if "lengths" in arrays else weights


def _rounded(data: HeadViewData, layer: int, arrays: Mapping[str, Array], both: bool) -> dict[str, Array]:
    """Return queries and keys, rounded to the coarsest step for which weights change by at most `TOLERANCE`.

    Return {} if no step is fine enough.

    Args:
        data: The data of the view.
        layer: Index of the layer, from 0.
        arrays: Arrays with the names "queries" and "keys".
        both: Whether the weights between tokens and the weights between words must be within `TOLERANCE`.
    """
    trace = data.trace
    lens = word_lens(trace) if both or data.words else None

    def weights(vectors: Mapping[str, Array]) -> list[Array]:
        queries, keys = list(trace.queries or ()), list(trace.keys or ())
        queries[layer], keys[layer] = vectors["queries"], vectors["keys"]
        changed = replace(trace, queries=tuple(queries), keys=tuple(keys))
        by_token = data.what.require_heads()(changed, layer, slice(None))
        maps = [] if data.words else [by_token]
        return maps if lens is None else [*maps, lens.merge(by_token)]

    expected = weights(arrays)
    for bits in range(12, 20):
        step = np.float32(2.0**-bits)
        rounded = {name: np.rint(arrays[name] / step) * step for name in ("queries", "keys")}
        if all(
            np.abs(actual - exact).max() <= TOLERANCE
            for actual, exact in zip(weights(rounded), expected, strict=True)
        ):
            return rounded
    return {}


def _floats(array: Array) -> Array:
    return np.ascontiguousarray(array, dtype=np.dtype("<f4"))


def page(data: HeadViewData, selection: Selection, ask: AnswerFn = call_method, exact: bool = True) -> Page:
    """Return a self-contained HTML page of the head view with all layers, tokens and words.

    Args:
        data: The data of the view.
        selection: The initial selection.
        ask: See `payload`.
        exact: See `payload`.
    """
    state = initial_state(data.trace, data.at(selection), key="page")
    layers = range(data.trace.layers)
    return Page(
        "head_view",
        [payload(data, layer, key="page", state=state, ask=ask, exact=exact, both=True) for layer in layers],
        data.caption,
        f"{CAVEAT} {data.trace.note}".strip(),
        start=selection.layer,
        still=lambda: [payload(data, selection.layer - 1, key="page", state=state, ask=ask, multiplied=True)],
    )


class MeasureOption(NamedTuple):
    """An attention measure that the user can select in the toolbar."""

    name: str
    label: str
    meaning: str


@dataclass(frozen=True)
class ToolbarOptions:
    """The options that the toolbar offers."""

    layers: int  # number of layers
    heads: int  # number of heads per layer
    several: bool  # whether several heads can be visible at once
    rolled: bool  # whether the measure is defined per layer and not per head
    specials: bool  # whether there are special tokens that can be hidden
    pair: bool  # whether the text has a second segment
    measures: tuple[MeasureOption, ...]  # empty if the measure cannot be changed
    words: bool  # whether tokens can be merged into words
    more: tuple[str, ...]  # options in the overflow menu: field names of `Options`, and "residual"
    residuals: tuple[float, ...]  # selectable shares of the residual connection in rollout
    shares: bool  # whether the rows of the measure sum to 1

    @classmethod
    def of(
        cls,
        trace: Trace,
        selection: Selection,
        more: Sequence[str],
        measures: Sequence[AttentionMeasure] = (),
        *,
        several: bool = False,
        specials: bool = True,
        words: bool = False,
    ) -> ToolbarOptions:
        """Return the toolbar options for a trace and a selection.

        Args:
            trace: The text and its attention.
            selection: The selection, which determines the measure.
            more: Options in the overflow menu.
            measures: Measures that the user can select.
            several: Whether several heads can be visible at once.
            specials: Whether special tokens can be hidden.
            words: Whether tokens can be merged into words.
        """
        measure = measure_named(selection.measure)
        pair = any(token.segment for token in trace.tokens)
        residual = ("residual",) if measure.rolled and measures else ()
        return cls(
            layers=trace.layers,
            heads=trace.heads,
            several=several,
            rolled=measure.of_heads is None,
            specials=specials and any(token.special for token in trace.tokens),
            pair=pair,
            measures=tuple(MeasureOption(option.name, option.label, option.meaning) for option in measures),
            words=words,
            more=(*(name for name in more if name != "direction" or pair), *residual),
            residuals=RESIDUALS if residual else (),
            shares=measure.sums_to_one(trace),
        )


def create_selection(
    trace: Trace,
    layer: int = -1,
    heads: int | Sequence[int] | str = "mean",
    *,
    measure: str = "weights",
    words: bool = False,
    residual: float = 0.5,
    layout: Literal["columns", "reading"] = "columns",
    specials: bool = True,
    pins: Sequence[int] = (),
    side: Literal["query", "key"] = "query",
) -> Selection:
    """Return the initial selection of a head view; see `notebook.head_view` for the arguments.

    Raises:
        SelectionError: A layer, head, measure or pin does not exist.
        UnavailableError: The measure is not available for this model or its attention.
    """
    series = parse_heads(heads, trace.heads)
    if series != "mean":
        measure_named(measure).require_heads()
    _check_choice("layout", layout, ("columns", "reading"))
    _check_choice("side", side, ("query", "key"))
    units = parse_pins(pins, len(units_of(trace, words)))
    number = resolve_index(layer, trace.layers, "layer") + 1
    options = Options(layout, specials=specials)
    return Selection(number, series, options, Pins(side, units), measure, words, residual)


def parse_heads(heads: int | Sequence[int] | str, count: int) -> Series:
    """Return the indices of heads without duplicates; "mean" if `heads` is "mean" or empty.

    Args:
        heads: One index or several, which count from 0 or, if negative, from the end; or "mean".
        count: Number of heads per layer.

    Raises:
        SelectionError: A head does not exist.
    """
    if isinstance(heads, str):
        if heads != "mean":
            raise SelectionError(f"heads must be 'mean' or head indices, which count from 0, not {heads!r}.")
        return "mean"
    indices = [heads] if isinstance(heads, int | np.integer) else heads
    return tuple(dict.fromkeys(resolve_index(head, count, "head") for head in indices)) or "mean"


def parse_pins(pins: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the indices of pinned tokens or words without duplicates, because their attention is added.

    Args:
        pins: Indices from 0; negative indices count from the end.
        count: Number of tokens or words.

    Raises:
        SelectionError: A token or word does not exist.
    """
    return tuple(dict.fromkeys(resolve_index(pin, count, "pin") for pin in pins))


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SelectionError(f"{name} must be {' or '.join(allowed)}, not {value!r}.")
