"""What a reader looks at: one value, for all views of attention, in Python, browser and address.

A `View` is what is shown. A `Shown` is a view with its revision, by which page and browser agree on which of
two is the later one. `described` and `read` go to the browser and back, `to_address` and `from_address` to an
address and back; whatever comes from outside is checked there.
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
from bert_probe.views.addresses import PARAMETERS
from bert_probe.views.constants import CONSTANTS

STEPS: Final[tuple[float, ...]] = tuple(CONSTANTS["steps"])
"""Thresholds that lines can be drawn from, as a share of the strongest possible."""

RESIDUALS: Final[tuple[float, ...]] = tuple(percent / 100 for percent in range(0, 101, 5))
"""Shares that a reader can give to the residual connection."""

LAYOUTS: Final = ("columns", "reading")
DIRECTIONS: Final = ("all", "AA", "AB", "BA", "BB")

Series: TypeAlias = tuple[int, ...] | Literal["mean"]
"""The heads shown, from 0, or the mean over all of them."""


@dataclass(frozen=True)
class Options:
    """How it is drawn.

    Attributes:
        layout: lines in two columns, or in the direction of reading.
        direction: between which of a pair's texts lines go: "all", or from one to the other as in "AB".
        specials: whether special tokens are shown.
        fit: whether the whole text is squeezed into view.
        step: lines are drawn from this threshold on, one of `STEPS`; None draws the strongest ones, as many
            as carry half of the attention.
        renormalise: whether rows of a matrix are divided by their sums.
        root: whether a matrix is coloured by the root of its weights.
    """

    layout: Literal["columns", "reading"] = "columns"
    direction: Literal["all", "AA", "AB", "BA", "BB"] = "all"
    specials: bool = True
    fit: bool = False
    step: float | None = None
    renormalise: bool = False
    root: bool = True


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
    """What a reader looks at.

    Attributes:
        layer: from 1.
        series: the heads shown.
        options, pins: see there.
        measure, words, residual: what is drawn, see `Attention`.

    Raises:
        SelectionError: a layer or head that no model has, a threshold or measure that there is not.
    """

    layer: int
    series: Series
    options: Options = field(default_factory=Options)
    pins: Pins = field(default_factory=Pins)
    measure: str = "weights"
    words: bool = False
    residual: float = 0.5

    def __post_init__(self) -> None:
        if self.layer < 1:
            raise SelectionError(f"There is no layer {self.layer}; they are counted from 1.")
        if self.series != "mean" and (not self.series or min(self.series) < 0):
            raise SelectionError(f"{self.series!r} are no heads; give indices from 0, or 'mean'.")
        if self.options.step not in (None, *STEPS):
            raise SelectionError(f"There is no threshold {self.options.step}; use one of {STEPS}, or None.")
        if self.measure not in measures():
            raise SelectionError(f"There is no measure {self.measure}; use {', '.join(measures())}.")

    @property
    def head(self) -> Head:
        """The head, from 0, or mean of a view that shows one: the first one; of some measures the mean."""
        if self.series == "mean" or measures()[self.measure].of_heads is None:
            return "mean"
        return self.series[0]


@dataclass(frozen=True)
class VersionedView:
    """A view, and the place that it has among all that were shown.

    Attributes:
        revision: grows with each change, on whichever side it is made: of two the higher one is the later. A
            page that runs slowly and sends what a reader has already left sends it with a lower one, and is
            not followed.
        of: names the text, as pins are of one text only.
    """

    revision: int
    of: str
    view: View


def units_of(trace: Trace, words: bool) -> tuple[Token | Unit, ...]:
    """What is drawn of a text: its tokens, or its words."""
    return word_lens(trace).units if words else trace.tokens


def digest(units: Sequence[Token | Unit]) -> str:
    """Names a text by its tokens or words."""
    said = [[str(unit), unit.position] for unit in units]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


# To the browser and back


def described(shown: VersionedView) -> dict[str, Any]:
    """As JSON: layers from 1, heads from 0."""
    view = shown.view
    return {
        "revision": shown.revision,
        "of": shown.of,
        "view": {
            "layer": view.layer,
            "heads": ["mean"] if view.series == "mean" else list(view.series),
            "measure": view.measure,
            "words": view.words,
            "residual": view.residual,
            "options": asdict(view.options),
            "pins": {"side": view.pins.side, "units": list(view.pins.units)},
        },
    }


def read(held: Any, trace: Trace) -> VersionedView | None:
    """What a browser reports; None if it is no view of this text. Wrong parts become the usual ones."""
    if not isinstance(held, Mapping) or held.get("of") != digest(trace.tokens):
        return None
    revision, given = held.get("revision"), held.get("view")
    if type(revision) is not int or not 0 <= revision < 2**53 or not isinstance(given, Mapping):
        return None
    layer, heads = given.get("layer"), given.get("heads")
    if type(layer) is not int or not 1 <= layer <= trace.layers or not isinstance(heads, Sequence):
        return None
    known = tuple(dict.fromkeys(head for head in heads if type(head) is int and 0 <= head < trace.heads))
    words = given.get("words") is True
    view = View(
        layer,
        known or "mean",
        _options(given.get("options")),
        _pins(given.get("pins"), len(units_of(trace, words))),
        _one_of(given.get("measure"), tuple(measures()), View.measure),
        words,
        _one_of(given.get("residual"), RESIDUALS, View.residual),
    )
    return VersionedView(revision, held["of"], view)


def _options(given: Any) -> Options:
    held = given if isinstance(given, Mapping) else {}
    usual = Options()
    return Options(
        layout=_one_of(held.get("layout"), LAYOUTS, usual.layout),
        direction=_one_of(held.get("direction"), DIRECTIONS, usual.direction),
        specials=held.get("specials") is not False,
        fit=held.get("fit") is True,
        step=_one_of(held.get("step"), STEPS, None),
        renormalise=held.get("renormalise") is True,
        root=held.get("root") is not False,
    )


def _pins(given: Any, count: int) -> Pins:
    held = given if isinstance(given, Mapping) else {}
    units = held.get("units")
    kept = tuple(u for u in units if type(u) is int and 0 <= u < count) if isinstance(units, list) else ()
    return (
        Pins("key" if held.get("side") == "key" else "query", tuple(dict.fromkeys(kept))) if kept else Pins()
    )


def _one_of(given: Any, known: Sequence[Any], usual: Any) -> Any:
    """The known value that is given; True is no 1, and 1 is no 1.0 of another kind."""
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        return usual
    return next((one for one in known if one == given), usual)


# To an address and back


class UnknownChoice(NamedTuple):
    """A choice of an address that cannot be had."""

    what: str
    given: str
    shown: str


Place: TypeAlias = tuple[int, Series]
"""A layer, from 1, and heads of it, from 0."""


def to_address(view: View, usual: Place | None = None) -> dict[str, str | None]:
    """A view as parameters; None takes one out.

    Args:
        usual: layer and heads that go without saying.
    """
    options, pins, plain = view.options, ".".join(map(str, view.pins.units)), Options()
    series = () if view.series == "mean" else view.series
    said = (view.layer, view.series) != usual
    return dict.fromkeys(PARAMETERS) | {
        "layer": str(view.layer) if said else None,
        "head": str(series[0] + 1) if said and series else None,
        "heads": ".".join(str(head + 1) for head in series) if said and len(series) > 1 else None,
        "drawn": None if view.measure == View.measure else view.measure,
        "words": "1" if view.words else None,
        "residual": None if view.residual == View.residual else f"{view.residual:g}",
        "layout": None if options.layout == plain.layout else options.layout,
        "direction": None if options.direction == plain.direction else options.direction,
        "specials": None if options.specials else "0",
        "fit": "1" if options.fit else None,
        "lines": None if options.step is None else str(options.step),
        "renormalise": "1" if options.renormalise else None,
        "root": None if options.root else "0",
        "pins": f"{view.pins.side}.{pins}" if pins else None,
    }


def places_itself(given: Mapping[str, str]) -> bool:
    """Whether an address says which layer or heads to show."""
    return not given.keys().isdisjoint(("layer", "head", "heads"))


def from_address(
    given: Mapping[str, str], trace: Trace, usual: Callable[[], Place] | None = None
) -> tuple[View, list[UnknownChoice]]:
    """The view of an address, and what it asks for that cannot be had.

    Args:
        usual: layer and heads of an address that `places_itself` is not true of; without it the mean over the
            heads of the last layer.
    """
    unknown: list[UnknownChoice] = []

    def one(name: str, known: Mapping[str, Any], plain: Any, what: str, said: str = "") -> Any:
        asked = given.get(name)
        if asked is not None and asked not in known:
            unknown.append(UnknownChoice(what, asked, said or str(plain)))
        return plain if asked is None else known.get(asked, plain)

    if usual is None or places_itself(given):
        place: Place = (trace.layers, "mean")
        layers = {str(layer): layer for layer in range(1, trace.layers + 1)}
        heads: dict[str, Any] = {"mean": "mean", **{str(head + 1): head for head in range(trace.heads)}}
        single = one("head", heads, "mean", "head")
        several = tuple(
            dict.fromkeys(heads[name] for name in given.get("heads", "").split(".") if name in heads)
        )
        # Steps and other pages choose a single head: what they say of it counts.
        first = "head" not in given or single == next(iter(several), None)
        whole = first and len(several) > 1 and "mean" not in several
        place = (
            one("layer", layers, trace.layers, "layer"),
            several if whole else "mean" if single == "mean" else (single,),
        )
    else:
        place = usual()
    words = given.get("words") == "1"
    residuals = {f"{share:g}": share for share in RESIDUALS}
    options = Options(
        layout=_one_of(given.get("layout"), LAYOUTS, Options.layout),
        direction=_one_of(given.get("direction"), DIRECTIONS, Options.direction),
        specials=given.get("specials") != "0" and given.get("hide") != "specials",
        fit=given.get("fit") == "1",
        step=next((step for step in STEPS if str(step) == given.get("lines")), None),
        renormalise=given.get("renormalise") == "1",
        root=given.get("root") != "0",
    )
    view = View(
        *place,
        options,
        _pins_of(given.get("pins", ""), len(units_of(trace, words))),
        one("drawn", {name: name for name in measures()}, View.measure, "measure"),
        words,
        one("residual", residuals, View.residual, "residual share"),
    )
    return view, unknown


def _pins_of(written: str, count: int) -> Pins:
    side, *units = written.split(".")
    known = {str(unit): unit for unit in range(count)}
    return _pins({"side": side, "units": [known[unit] for unit in units if unit in known]}, count)
