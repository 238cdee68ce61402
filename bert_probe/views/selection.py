"""The selection in attention views: layer, heads, measure, options and pins, as one immutable value.

A `VersionedSelection` adds a revision, which determines whether the selection of the server or of the browser
is newer.

`selection_to_json` and `selection_from_json` convert a selection to JSON for the browser and back.
`to_address` and `from_address` convert a selection to URL parameters and back. JSON from the browser and URL
parameters are validated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from bert_probe.analyses.attention.attention import Head
from bert_probe.analyses.attention.measures import measures
from bert_probe.errors import SelectionError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Trace
from bert_probe.text.words import Unit, word_lens
from bert_probe.views.built import CONSTANTS, PARAMETERS

STEPS: Final[tuple[float, ...]] = tuple(CONSTANTS["steps"])
"""Selectable thresholds for lines, as shares of the maximum weight. Lines with smaller weights are hidden."""

RESIDUALS: Final[tuple[float, ...]] = tuple(percent / 100 for percent in range(0, 101, 5))
"""Selectable shares of the residual connection in rollout."""

LAYOUTS: Final = ("columns", "reading")
DIRECTIONS: Final = ("all", "AA", "AB", "BA", "BB")

Series: TypeAlias = tuple[int, ...] | Literal["mean"]
"""Indices of the visible heads, or "mean" for the mean over all heads."""


@dataclass(frozen=True)
class Options:
    """Drawing options of an attention view.

    Attributes:
        layout: "columns" draws queries and keys in two columns, "reading" draws the tokens once, as a text.
        direction: Visible attention in a text pair: "all", or from one segment to another, such as "AB".
        specials: Whether special tokens are visible.
        fit: Whether the whole text is scaled to fit into the visible area.
        step: Threshold for lines, one of `STEPS`; None to draw the strongest lines that together have half of
            the attention.
        renormalize: Whether the rows of a heatmap are divided by their sums.
        root: Whether a heatmap is colored by the square root of the weights.
    """

    layout: Literal["columns", "reading"] = "columns"
    direction: Literal["all", "AA", "AB", "BA", "BB"] = "all"
    specials: bool = True
    fit: bool = False
    step: float | None = None
    renormalize: bool = False
    root: bool = True


@dataclass(frozen=True)
class Pins:
    """Pinned tokens or words, either queries or keys. Their attention is summed."""

    side: Literal["query", "key"] = "query"
    units: tuple[int, ...] = ()  # indices of the tokens or words


@dataclass(frozen=True)
class Selection:
    """The selection in an attention view.

    Raises:
        SelectionError: The layer is below 1, there is no head, the index of a head is negative, or the
            threshold or the measure does not exist.
    """

    layer: int  # from 1
    series: Series  # indices of the visible heads
    options: Options = field(default_factory=Options)
    pins: Pins = field(default_factory=Pins)
    measure: str = "weights"  # this field and the following fields are described in `Attention`
    words: bool = False
    residual: float = 0.5

    def __post_init__(self) -> None:
        if self.layer < 1:
            raise SelectionError(
                f"There is no layer {self.layer}: layers are counted from 1, so layer must be at least 1."
            )
        if self.series != "mean" and (not self.series or min(self.series) < 0):
            raise SelectionError(
                f"series must be 'mean' or head indices, which count from 0, not {self.series!r}."
            )
        if self.options.step not in (None, *STEPS):
            raise SelectionError(f"The threshold must be one of {STEPS}, or None, not {self.options.step}.")
        if self.measure not in measures():
            available = ", ".join(measures())
            raise SelectionError(f"There is no measure {self.measure}. Available measures: {available}.")

    @property
    def head(self) -> Head:
        """The head of views that show a single head: the first visible head, or "mean"."""
        if self.series == "mean" or measures()[self.measure].of_heads is None:
            return "mean"
        return self.series[0]


@dataclass(frozen=True)
class VersionedSelection:
    """A selection with a revision and the hash of its text.

    Attributes:
        revision: A counter that the server and the browser increase with each change. The highest revision is
            used, so that a slow server cannot overwrite a newer selection of the user.
        of: `digest` of the text, because pins are valid for one text only.
        value: The selection.
    """

    revision: int
    of: str
    value: Selection


def units_of(trace: Trace, words: bool) -> tuple[Token | Unit, ...]:
    """Return the words of a text, or its tokens if `words` is False."""
    return word_lens(trace).units if words else trace.tokens


def digest(units: Sequence[Token | Unit]) -> str:
    """Return a hash of the tokens or words of a text."""
    content = [[str(unit), unit.position] for unit in units]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


# JSON for the browser


def selection_to_json(versioned: VersionedSelection) -> dict[str, Any]:
    """Return a selection as JSON data. Layers count from 1, heads from 0."""
    selection = versioned.value
    return {
        "revision": versioned.revision,
        "of": versioned.of,
        "value": {
            "layer": selection.layer,
            "heads": ["mean"] if selection.series == "mean" else list(selection.series),
            "measure": selection.measure,
            "words": selection.words,
            "residual": selection.residual,
            "options": asdict(selection.options),
            "pins": {"side": selection.pins.side, "units": list(selection.pins.units)},
        },
    }


def selection_from_json(report: Any, trace: Trace) -> VersionedSelection | None:
    """Return the selection that a browser reports, or None if it is invalid or belongs to another text.

    Invalid options are replaced with their defaults.

    Args:
        report: The report of the browser, which is validated.
        trace: The current text.
    """
    if not isinstance(report, Mapping) or report.get("of") != digest(trace.tokens):
        return None
    revision, fields = report.get("revision"), report.get("value")
    if type(revision) is not int or not 0 <= revision < 2**53 or not isinstance(fields, Mapping):
        return None
    layer, heads = fields.get("layer"), fields.get("heads")
    if type(layer) is not int or not 1 <= layer <= trace.layers or not isinstance(heads, Sequence):
        return None
    valid = tuple(dict.fromkeys(head for head in heads if type(head) is int and 0 <= head < trace.heads))
    words = fields.get("words") is True
    selection = Selection(
        layer,
        valid or "mean",
        _options(fields.get("options")),
        _pins(fields.get("pins"), len(units_of(trace, words))),
        _allowed(fields.get("measure"), tuple(measures()), Selection.measure),
        words,
        _allowed(fields.get("residual"), RESIDUALS, Selection.residual),
    )
    return VersionedSelection(revision, report["of"], selection)


def _options(report: Any) -> Options:
    fields = report if isinstance(report, Mapping) else {}
    defaults = Options()
    return Options(
        layout=_allowed(fields.get("layout"), LAYOUTS, defaults.layout),
        direction=_allowed(fields.get("direction"), DIRECTIONS, defaults.direction),
        specials=fields.get("specials") is not False,
        fit=fields.get("fit") is True,
        step=_allowed(fields.get("step"), STEPS, None),
        renormalize=fields.get("renormalize") is True,
        root=fields.get("root") is not False,
    )


def _pins(report: Any, count: int) -> Pins:
    fields = report if isinstance(report, Mapping) else {}
    units = fields.get("units")
    if not isinstance(units, list):
        return Pins()
    valid = tuple(dict.fromkeys(unit for unit in units if type(unit) is int and 0 <= unit < count))
    return Pins("key" if fields.get("side") == "key" else "query", valid) if valid else Pins()


def _allowed(value: Any, allowed: Sequence[Any], default: Any) -> Any:
    """Return the allowed value that equals `value`, or the default. True is not treated as 1."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return default
    return next((candidate for candidate in allowed if candidate == value), default)


# URL parameters


class UnknownChoice(NamedTuple):
    """A URL parameter whose value does not exist for the text and model."""

    parameter: str  # readable name, such as "layer" or "residual share"
    value: str  # the value in the URL
    replacement: str  # the value that is used instead


LayerAndHeads: TypeAlias = tuple[int, Series]
"""A layer, from 1, and its heads, from 0."""


def to_address(selection: Selection, default: LayerAndHeads | None = None) -> dict[str, str | None]:
    """Return a selection as URL parameters. The value None means that the URL omits the parameter.

    Args:
        selection: The selection to convert.
        default: The default layer and heads, which the URL omits.
    """
    options, pins, defaults = selection.options, ".".join(map(str, selection.pins.units)), Options()
    series = () if selection.series == "mean" else selection.series
    has_place = (selection.layer, selection.series) != default
    return dict.fromkeys(PARAMETERS) | {
        "layer": str(selection.layer) if has_place else None,
        "head": str(series[0] + 1) if has_place and series else None,
        "heads": ".".join(str(head + 1) for head in series) if has_place and len(series) > 1 else None,
        "drawn": None if selection.measure == Selection.measure else selection.measure,
        "words": "1" if selection.words else None,
        "residual": None if selection.residual == Selection.residual else f"{selection.residual:g}",
        "layout": None if options.layout == defaults.layout else options.layout,
        "direction": None if options.direction == defaults.direction else options.direction,
        "specials": None if options.specials else "0",
        "fit": "1" if options.fit else None,
        "lines": None if options.step is None else str(options.step),
        "renormalize": "1" if options.renormalize else None,
        "root": None if options.root else "0",
        "pins": f"{selection.pins.side}.{pins}" if pins else None,
    }


def has_layer_or_heads(parameters: Mapping[str, str]) -> bool:
    """Return whether URL parameters determine the layer or the heads."""
    return not parameters.keys().isdisjoint(("layer", "head", "heads"))


def from_address(
    parameters: Mapping[str, str], trace: Trace, default_place: Callable[[], LayerAndHeads] | None = None
) -> tuple[Selection, list[UnknownChoice]]:
    """Return the selection that URL parameters describe, and unknown values that were replaced.

    Only unknown values of the layer, head, measure and residual share are returned. Those of other parameters
    are replaced by the defaults.

    Args:
        parameters: The URL parameters: name → value.
        trace: The text and its attention.
        default_place: Function that returns the layer and heads to use if the parameters do not determine
            them; None for the mean over the heads of the last layer.
    """
    unknown: list[UnknownChoice] = []

    def choose(name: str, allowed: Mapping[str, Any], default: Any, field_name: str) -> Any:
        value = parameters.get(name)
        if value is not None and value not in allowed:
            unknown.append(UnknownChoice(field_name, value, str(default)))
        return default if value is None else allowed.get(value, default)

    if default_place is None or has_layer_or_heads(parameters):
        place: LayerAndHeads = (trace.layers, "mean")
        layers = {str(layer): layer for layer in range(1, trace.layers + 1)}
        heads: dict[str, Any] = {"mean": "mean", **{str(head + 1): head for head in range(trace.heads)}}
        single = choose("head", heads, "mean", "head")
        several = tuple(
            dict.fromkeys(heads[name] for name in parameters.get("heads", "").split(".") if name in heads)
        )
        # Other pages set only "head", so "heads" is outdated if its first head differs from "head".
        agrees = "head" not in parameters or single == next(iter(several), None)
        has_several = agrees and len(several) > 1 and "mean" not in several
        place = (
            choose("layer", layers, trace.layers, "layer"),
            several if has_several else "mean" if single == "mean" else (single,),
        )
    else:
        place = default_place()
    words = parameters.get("words") == "1"
    residuals = {f"{share:g}": share for share in RESIDUALS}
    options = Options(
        layout=_allowed(parameters.get("layout"), LAYOUTS, Options.layout),
        direction=_allowed(parameters.get("direction"), DIRECTIONS, Options.direction),
        specials=parameters.get("specials") != "0" and parameters.get("hide") != "specials",
        fit=parameters.get("fit") == "1",
        step=next((step for step in STEPS if str(step) == parameters.get("lines")), None),
        renormalize=parameters.get("renormalize") == "1",
        root=parameters.get("root") != "0",
    )
    selection = Selection(
        *place,
        options,
        _parse_pins(parameters.get("pins", ""), len(units_of(trace, words))),
        choose("drawn", {name: name for name in measures()}, Selection.measure, "measure"),
        words,
        choose("residual", residuals, Selection.residual, "residual share"),
    )
    return selection, unknown


def _parse_pins(text: str, count: int) -> Pins:
    side, *units = text.split(".")
    indices = {str(unit): unit for unit in range(count)}
    return _pins({"side": side, "units": [indices[unit] for unit in units if unit in indices]}, count)
