"""Lines from token to token, for any number of heads and any length.

What travels is the layer's queries and keys, or its weights where those are fewer numbers. The browser
computes a row of attention when somebody looks at it, so a hover costs no server trip and is exact.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from streamlit.components.v2 import component

from bert_probe.analyses.attention import Attention, Head
from bert_probe.analyses.measures import Measure
from bert_probe.analyses.measures import measure as measure_named
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace
from bert_probe.text.words import Unit, word_lens
from bert_probe.web import palette, store
from bert_probe.web.components import head_view_script
from bert_probe.web.components.text import shown

_FOLDER: Final = Path(__file__).parent
STEPS: Final = (0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Thresholds that lines can be drawn from, as a share of the strongest possible."""

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
    """

    trace: Trace
    measure: str = "weights"
    words: bool = False
    residual: float = 0.5
    labels: Sequence[Sequence[str]] = ()
    caption: str = ""

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


def payload(
    picture: Picture, layer: int, *, key: str, wish: Mapping[str, Any] | None = None, source: str = ""
) -> bytes:
    """One layer as the browser gets it.

    Args:
        layer: from 0.
        wish: what to show at first; by default the mean over the heads.
        source: address of the other layers, but for their number.

    Raises:
        SelectionError, UnavailableError: see `Attention.of`.
    """
    trace = picture.trace
    units = picture.units
    kind, heads, arrays, described = _numbers(picture, layer, len(units))
    header = {
        "key": key,
        "digest": picture.digest,
        "source": source,
        "kind": kind,
        "layer": layer + 1,
        "layers": trace.layers,
        "heads": heads,
        "rolled": picture.what.of_heads is None,
        "tokenCount": len(trace.tokens),
        # In columns, for at 512 tokens every letter counts.
        "texts": [shown(unit.display) for unit in units],
        "firsts": [unit.position for unit in units],
        "segments": [unit.segment for unit in units],
        "specials": [int(unit.special) for unit in units],
        "headLabels": list(picture.labels[layer]) if picture.labels else [""] * len(heads),
        "colours": palette.HEADS,
        "second": [palette.SECOND_TEXT.light, palette.SECOND_TEXT.dark],
        "title": picture.what.title,
        "valueName": picture.what.value,
        "total": picture.what.total,
        "caption": picture.caption,
        "fileName": f"head-view-layer{layer + 1}",
        "wish": wish or wished(View(layer + 1, "mean"), 0),
        **described,
    }
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 4)
    return len(text).to_bytes(4, "little") + text + b"".join(array.tobytes() for array in arrays)


def wished(view: View, turn: int) -> dict[str, Any]:
    """What the browser is to show when it sees this turn for the first time."""
    return {
        "turn": turn,
        "heads": ["mean"] if view.series == "mean" else list(view.series),
        "options": asdict(view.options),
        "pins": {"side": view.pins.side, "units": list(view.pins.units)},
    }


def _numbers(
    picture: Picture, layer: int, count: int
) -> tuple[Literal["vectors", "weights"], list[int], list[Array], dict[str, Any]]:
    """Kind of numbers, heads they are of, arrays to send, and what the header says of them."""
    trace, what = picture.trace, picture.what
    plain = {"dim": 0, "scaling": 1.0, "weighted": False, "maskRows": 0, "full": 1.0}
    if what.of_heads is None:
        # Kept, for rollout goes through the attention of all layers below.
        whole = store.answers.of(picture.asked(layer, "mean").of, trace).weights
        return "weights", [0], [_floats(whole)], plain | {"full": _full(picture, [whole])}
    heads = list(range(trace.heads))
    # The browser multiplies q and k itself, and the weights with lengths; any other measure is sent as it is.
    derived = what.lengths is not None or what.name == "weights"
    vectors = _vectors(trace, layer, count) if derived else None
    if vectors is None:
        maps = [_map(picture, layer, head) for head in heads]
        return "weights", heads, [_floats(one) for one in maps], plain | {"full": _full(picture, maps)}
    arrays, described = vectors
    if what.lengths is not None:
        arrays.insert(2, _floats(what.lengths(trace, layer)))
        full = _full(picture, [_map(picture, layer, head) for head in heads])
        described |= {"weighted": True, "full": full}
    return "vectors", heads, arrays, plain | described


def _full(picture: Picture, maps: Sequence[Array]) -> float:
    """What the strongest line stands for: 1 for shares, else the largest number there is."""
    return 1.0 if picture.what.shared_out(picture.trace) else max(float(one.max()) for one in maps) or 1.0


def _map(picture: Picture, layer: int, head: int) -> Array:
    return picture.asked(layer, head).of(picture.trace).weights


def _vectors(trace: Trace, layer: int, count: int) -> tuple[list[Array], dict[str, Any]] | None:
    """Queries, keys and the mask's bits; None where the weights are fewer numbers, or all there is."""
    if trace.queries is None or trace.keys is None or trace.masks is None or trace.scaling is None:
        return None
    query, key, mask = trace.queries[layer], trace.keys[layer], trace.masks[layer]
    dim = query.shape[-1]
    if count**2 <= 2 * len(trace.tokens) * dim or (mask is not None and not _is_plain(mask)):
        return None
    arrays = [_floats(query), _floats(key)]
    if mask is not None:
        arrays.append(np.packbits(mask, axis=1))
    rows = 0 if mask is None else len(mask)
    return arrays, {"dim": dim, "scaling": trace.scaling[layer], "maskRows": rows}


def _is_plain(mask: Array) -> bool:
    """Whether every head has the same keys to look at, or not to: a bit for each."""
    return mask.dtype == np.bool_ and mask.ndim == 2


def _floats(array: Array) -> Array:
    return np.ascontiguousarray(array, dtype=np.dtype("<f4"))


def head_view(data: bytes, *, key: str, on_change: Callable[[], None]) -> None:
    """Draw a `payload`; ``on_change`` runs when a reader looks elsewhere, see `reported`."""
    _component(key=key, data=data, on_view_change=on_change)


def reported(state: Any, picture: Picture) -> View | None:
    """What a reader looks at, from the component's state; None if that is of another text or no view."""
    held = state.get("view") if isinstance(state, Mapping) else None
    if not isinstance(held, Mapping) or held.get("digest") != picture.digest:
        return None
    layer, series = held.get("layer"), held.get("series")
    if type(layer) is not int or not 1 <= layer <= picture.trace.layers or not isinstance(series, Sequence):
        return None
    heads = tuple(head for head in series if type(head) is int and 0 <= head < picture.trace.heads)
    return View(
        layer,
        heads or "mean",
        options_from(held.get("options")),
        pins_from(held.get("pins"), len(picture.units)),
    )


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


def page(picture: Picture, view: View, title: str) -> bytes:
    """A web page that opens from a disk without a network and does all that the component does.

    It holds every layer, so that a reader can step through them.
    """
    layers = range(picture.trace.layers)
    data = [payload(picture, layer, key="page", wish=wished(view, 0)) for layer in layers]
    fields = {
        "title": html.escape(title),
        "style": _page_style(),
        "script": head_view_script.SCRIPT,
        "start": str(view.layer),
        "data": json.dumps([base64.b64encode(one).decode("ascii") for one in data]),
    }
    made = (_FOLDER / "head_view.html").read_text(encoding="utf-8")
    for name, text in fields.items():
        made = made.replace(f"<!--{name}-->", text)
    return made.encode()


def _page_style() -> str:
    """The component's style, with the theme that Streamlit would bring."""
    light = (palette.PAPER_LIGHT, palette.INK_LIGHT, palette.ACCENT_LIGHT)
    dark = (palette.PAPER_DARK, palette.INK_DARK, palette.ACCENT_DARK)
    themes = f":root {{{_variables(*light)}}}"
    themes += f" @media (prefers-color-scheme: dark) {{:root {{{_variables(*dark)}}}}}"
    return f"{themes} {_STYLE}"


def _variables(paper: str, ink: str, accent: str) -> str:
    return (
        f"--st-background-color: {paper}; --st-text-color: {ink}; --st-primary-color: {accent};"
        f"--st-secondary-background-color: color-mix(in srgb, {ink} 8%, {paper});"
        "--st-font: system-ui, sans-serif;"
    )


_STYLE: Final = (_FOLDER / "head_view.css").read_text(encoding="utf-8")

_ADDRESS: Final = head_view_script.ROUTE.path

_component = component(
    "bert_probe.head_view",
    html='<section class="head-view"></section>',
    css=_STYLE,
    # In two lines, as Streamlit takes a single one for the path of a file.
    js=f"const script = await import(`${{location.origin}}{_ADDRESS}`);\nexport default script.default;",
)
