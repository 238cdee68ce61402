"""Interactive views for notebooks. They work offline and, in saved notebooks, without a kernel."""

from __future__ import annotations

import html
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from bert_probe.analyses.vectors.token_map import TokenMapResult
from bert_probe.core.result import Result
from bert_probe.errors import TooLongError
from bert_probe.model.trace import Trace, resolve_index
from bert_probe.views import built, pictures
from bert_probe.views import head_view as head_views
from bert_probe.views.head_view import (
    HeadViewData,
    compute_labels,
    create_selection,
    page,
    parse_heads,
    parse_pins,
)
from bert_probe.views.matrix import Heatmap
from bert_probe.views.page import Page
from bert_probe.views.selection import Pins, Selection, Series, selection_from_json

MAX_BYTES = 64_000_000
"""Size limit of a page, in bytes. Pages are stored in the notebook file, which editors load as a whole."""


_MAP_HEIGHT = 760
_MAX_HEIGHT = 900
"""Maximum height of a frame in CSS pixels, about the height of a window. Taller content scrolls."""


def head_view(
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
    exact: bool = False,
    height: int = 640,
) -> HeadView:
    """Return an interactive view of all layers and heads that shows attention as lines between tokens.

    Hover over a token to see its attention; click a token to pin it. Arrow keys move between tokens, square
    brackets between layers, comma and period between attention heads. While a kernel runs, you can read and
    set the state: `view.layer`, `view.heads`, `view.words`, `view.pins`.

    Args:
        trace: The text and its attention.
        layer: Index of the initial layer; negative indices count from the end.
        heads: Initial attention heads: an index, several indices, or "mean" for the mean over all heads.
        measure: Name of the attention measure; `words` and `residual` are its options, see `Attention`.
        words: Whether to merge tokens into words.
        residual: Weight of the residual connection for rollout, 0 to 1.
        layout: "columns" shows the tokens in two columns; "reading" shows the tokens once, in reading order.
        specials: Whether special tokens are initially visible.
        pins: Indices of the initially pinned tokens or words. The view shows the sum of their attention.
        side: Whether the pinned tokens are queries ("query") or keys ("key").
        exact: Whether to store queries and keys exactly. If False, they are rounded, which makes the notebook
            a third smaller; the error of a weight is at most 0.000025, a quarter of the last visible decimal.
        height: Height of the frame in CSS pixels.

    Raises:
        SelectionError: A layer, head, measure or pin does not exist.
        UnavailableError: The measure is not available for this model or its attention.
        TooLongError: The page would be larger than `MAX_BYTES`.
    """
    selection = create_selection(
        trace,
        layer,
        heads,
        measure=measure,
        words=words,
        residual=residual,
        layout=layout,
        specials=specials,
        pins=pins,
        side=side,
    )
    data = HeadViewData.of(trace, selection, compute_labels(trace))
    size = trace.layers * len(head_views.payload(data, selection.layer - 1, key="page", both=True))
    if size > MAX_BYTES:
        raise TooLongError(
            f"The page with {trace.layers} layers and {len(trace.tokens):,} tokens would have "
            f"{size / 1e6:,.0f} MB, but the limit is {MAX_BYTES / 1e6:.0f} MB. Shorten the text, or use the "
            "app, which loads one layer at a time."
        )
    return HeadView(data, selection, exact, height)


def model_view(trace: Trace, *, measure: str = "weights", words: bool = False, height: int = 640) -> Frame:
    """Return thumbnails of all attention heads, which users can sort by measures and enlarge by hovering.

    Args:
        trace: The text and its attention.
        measure: Name of the attention measure; see `Attention`.
        words: Whether to merge tokens into words.
        height: Height of the frame in CSS pixels.

    Raises:
        SelectionError: The measure does not exist, or is defined per layer instead of per head.
        UnavailableError: The measure is not available for this model or its attention.
    """
    selection = Selection(1, "mean", measure=measure, words=words)
    return Frame(pictures.attention_page("model", trace, selection), height)


def show(result: Result) -> Frame:
    """Return an iframe with the heatmaps or the token map of a result.

    Raises:
        UnavailableError: The result has no visualization.
    """
    if isinstance(result, TokenMapResult):
        return Frame(pictures.page(result), _MAP_HEIGHT)
    heatmaps = pictures.heatmaps_of(result)
    return Frame(pictures.page(result, heatmaps), min(90 + sum(map(_height, heatmaps)), _MAX_HEIGHT))


def _height(heatmap: Heatmap) -> int:
    """Return the approximate height of a heatmap with its labels, readout and legend, in CSS pixels."""
    cell = min(max(800 / len(heatmap.columns), 18), 30)
    return 240 + round(cell * len(heatmap.rows))


class HeadView:
    """A head view whose layer, heads, words and pins can be read and set while it is displayed.

    The view is HTML in a frame, which needs no kernel and is saved with the notebook. In JupyterLab and
    Notebook 7 with anywidget installed, an invisible widget passes messages between the frame and the kernel.
    In other notebooks, a new state takes effect the next time the view is displayed.

    Attributes:
        trace: The text and its attention.
        height: Height of the frame in CSS pixels.
    """

    def __init__(self, data: HeadViewData, selection: Selection, exact: bool, height: int) -> None:
        self.trace, self.height = data.trace, height
        self._data, self._selection, self._exact = data, selection, exact
        self._turn = 0
        self._bridge: Any = None

    def numbered(self, layers: Sequence[int]) -> HeadView:
        """Return a copy of the view that displays other layer numbers.

        Args:
            layers: Displayed number of each layer of the trace, from 1.
        """
        return HeadView(replace(self._data, numbers=layers), self._selection, self._exact, self.height)

    @property
    def layer(self) -> int:
        """Index of the visible layer, from 0."""
        return self._selection.layer - 1

    @layer.setter
    def layer(self, layer: int) -> None:
        self._show(replace(self._selection, layer=resolve_index(layer, self.trace.layers, "layer") + 1))

    @property
    def heads(self) -> Series:
        """Indices of the visible heads, from 0, or "mean". A single head can be set as an integer."""
        return self._selection.series

    @heads.setter
    def heads(self, heads: int | Sequence[int] | str) -> None:
        series = parse_heads(heads, self.trace.heads)
        if series != "mean":
            self._data.what.require_heads()
        self._show(replace(self._selection, series=series))

    @property
    def words(self) -> bool:
        """Whether tokens are merged into words. Changing this property removes all pins."""
        return self._selection.words

    @words.setter
    def words(self, words: bool) -> None:
        if words != self.words:
            self._show(replace(self._selection, words=bool(words), pins=Pins()))

    @property
    def pins(self) -> tuple[int, ...]:
        """Indices of the pinned tokens or words, which are queries or keys depending on `side`."""
        return self._selection.pins.units

    @pins.setter
    def pins(self, pins: Sequence[int]) -> None:
        units = parse_pins(pins, len(self._data.units))
        self._show(replace(self._selection, pins=replace(self._selection.pins, units=units)))

    @property
    def side(self) -> str:
        """Whether the pinned tokens are queries ("query") or keys ("key")."""
        return self._selection.pins.side

    @property
    def page(self) -> Page:
        """The current state as a self-contained web page."""
        return page(self._data, self._selection, exact=self._exact)

    def _repr_html_(self) -> str:
        self._bridge = self._bridge or create_bridge(self._on_report)
        key = "" if self._bridge is None else self._bridge.key
        return Frame(replace(self.page, key=key), self.height)._repr_html_()

    def save(self, path: str | Path, overwrite: bool = True) -> Path:
        """Write the current state to a file (.html, .svg or .png); see `Page.save`.

        Raises:
            ExportError: The extension is unknown, or the file cannot be written or exists already.
        """
        return self.page.save(path, overwrite)

    def _store(self, selection: Selection) -> None:
        self._selection = selection
        self._data = replace(self._data, words=selection.words)

    def _show(self, selection: Selection) -> None:
        self._store(selection)
        if self._bridge is None:
            return
        self._turn += 1
        pins = {"side": selection.pins.side, "units": list(selection.pins.units)}
        heads = ["mean"] if selection.series == "mean" else list(selection.series)
        wish = {"layer": selection.layer, "heads": heads, "words": selection.words, "pins": pins}
        self._bridge.wish = {"turn": self._turn, **wish}

    def _on_report(self, report: Any) -> None:
        """Store a reported view state if it is valid, because any code in the notebook can send reports."""
        versioned = selection_from_json(report, self.trace)
        if versioned is not None:
            self._store(versioned.value)


# Omit allow-same-origin: it would let frames access the notebook server, which can run code.
_SANDBOX = "allow-scripts allow-downloads"


@dataclass(frozen=True)
class Frame:
    """A view as self-contained HTML, which a notebook displays and saves as the output of a cell.

    The view is HTML instead of a widget, because widgets disappear when a notebook is opened without a
    kernel.

    Attributes:
        page: The web page.
        height: Height of the frame in CSS pixels.
    """

    page: Page
    height: int

    def _repr_html_(self) -> str:
        page = self.page
        if not page.key:  # a page with a key already has a bridge
            bridge = create_bridge(lambda _view: None)
            page = page if bridge is None else replace(page, key=bridge.key)
        # Only & and " need escaping in a double-quoted attribute.
        escaped = page.html(framed=True).replace("&", "&amp;").replace('"', "&quot;")
        return (
            f'<iframe title="{html.escape(self.page.title)}" sandbox="{_SANDBOX}" srcdoc="{escaped}" '
            f'style="width: 100%; height: {self.height}px; border: 0"></iframe>'
        )

    def save(self, path: str | Path, overwrite: bool = True) -> Path:
        """Write the view to a file (.html, .svg or .png); see `Page.save`.

        Raises:
            ExportError: The extension is unknown, or the file cannot be written or exists already.
        """
        return self.page.save(path, overwrite)


def create_bridge(on_view: Callable[[Any], None]) -> Any:
    """Return a bridge that calls `on_view` with each reported view state.

    Return None if no kernel is running or anywidget is not installed. Frames also work without a bridge.
    """
    try:
        from IPython.core.getipython import get_ipython

        if getattr(get_ipython(), "kernel", None) is None:
            return None
        bridge = _bridge_class()(key=uuid.uuid4().hex)
    except ImportError:
        return None
    bridge.observe(lambda change: on_view(change["new"]), "view")
    return bridge


@cache
def _bridge_class() -> Any:
    """Return the class of an invisible widget that passes messages between frames and the kernel.

    `js/notebook/bridge.js` is the widget's code in the browser. The class is defined here, because anywidget
    is optional.

    Raises:
        ImportError: anywidget is not installed.
    """
    import anywidget
    import traitlets

    class Bridge(anywidget.AnyWidget):
        _esm = built.script("bridge")
        key = traitlets.Unicode().tag(sync=True)  # key that the widget shares with its frames
        view = traitlets.Dict().tag(sync=True)  # last view state that a frame reported
        wish = traitlets.Dict(default_value=None, allow_none=True).tag(sync=True)  # view state to display

    return Bridge
