"""The head view in a notebook, whose state can be read and set from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_probe.model.trace import resolve_index
from bert_probe.notebook.frame import Frame, create_bridge
from bert_probe.views.head_view import HeadViewData, page, parse_heads
from bert_probe.views.page import Page
from bert_probe.views.selection import Pins, Selection, Series, selection_from_json

if TYPE_CHECKING:
    from bert_probe.notebook.bridge import Bridge


class HeadView:
    """A head view whose layer, heads, words and pins can be read and set while it is displayed.

    The view is HTML in a frame, which needs no kernel and is saved with the notebook. In JupyterLab and
    Notebook 7 with anywidget installed, an invisible widget passes messages between the frame and the kernel.
    Elsewhere a new state takes effect when the view is displayed again.

    Attributes:
        trace: The text and its attention.
        height: Height of the frame in CSS pixels.
    """

    def __init__(self, data: HeadViewData, selection: Selection, exact: bool, height: int) -> None:
        self.trace, self.height = data.trace, height
        self._data, self._selection, self._exact = data, selection, exact
        self._turn = 0
        self._bridge: Bridge | None = None

    def numbered(self, layers: Sequence[int]) -> HeadView:
        """Return a copy with these layer numbers, from 1, for a trace of a subset of layers."""
        return HeadView(replace(self._data, numbers=layers), self._selection, self._exact, self.height)

    @property
    def layer(self) -> int:
        """The visible layer, from 0."""
        return self._selection.layer - 1

    @layer.setter
    def layer(self, layer: int) -> None:
        self._show(replace(self._selection, layer=resolve_index(layer, self.trace.layers, "layer") + 1))

    @property
    def heads(self) -> Series:
        """The visible heads, from 0, or "mean". A single head can be set as an integer."""
        return self._selection.series

    @heads.setter
    def heads(self, heads: int | Sequence[int] | str) -> None:
        series = parse_heads(heads, self.trace.heads)
        if series != "mean":
            self._data.what.require_heads()
        self._show(replace(self._selection, series=series))

    @property
    def words(self) -> bool:
        """Whether tokens are merged into words. Changing it removes all pins."""
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
        units = tuple(resolve_index(pin, len(self._data.units), "pin") for pin in pins)
        self._show(replace(self._selection, pins=replace(self._selection.pins, units=units)))

    @property
    def side(self) -> str:
        """Whether the pinned tokens are queries ("query") or keys ("key")."""
        return self._selection.pins.side

    @property
    def page(self) -> Page:
        """The current state as a web page."""
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
        """Store a reported view if it is valid; any code in the notebook can send a report."""
        versioned = selection_from_json(report, self.trace)
        if versioned is not None:
            self._store(versioned.value)
