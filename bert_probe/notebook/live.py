"""The head view in a cell, which a kernel may read and change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_probe.model.trace import resolve
from bert_probe.notebook.frame import Frame, bridged
from bert_probe.views.asking import series_of
from bert_probe.views.head_view import HeadViewData, page
from bert_probe.views.page import Page
from bert_probe.views.view import Pins, Series, View, read

if TYPE_CHECKING:
    from bert_probe.notebook.bridge import Bridge


class HeadView:
    """A head view whose layer, heads, words and pins can be read and set while it is shown.

    What is shown is HTML in a frame, which needs no kernel and stays in the saved notebook. Beside it, in
    JupyterLab and Notebook 7 and where anywidget is installed, a bridge without a picture takes messages
    between the frame and the kernel. Elsewhere what is set is there when the view is displayed next.

    Attributes:
        trace: whose attention.
        height: of the frame, in CSS pixels.
    """

    def __init__(self, picture: HeadViewData, shown: View, exact: bool, height: int) -> None:
        self.trace, self.height = picture.trace, height
        self._picture, self._shown, self._exact = picture, shown, exact
        self._turn = 0
        self._bridge: Bridge | None = None

    def numbered(self, layers: Sequence[int]) -> HeadView:
        """The same, its layers called by these numbers, from 1, which they have in their model."""
        return HeadView(replace(self._picture, numbers=layers), self._shown, self._exact, self.height)

    @property
    def layer(self) -> int:
        """The layer shown, from 0."""
        return self._shown.layer - 1

    @layer.setter
    def layer(self, layer: int) -> None:
        self._show(replace(self._shown, layer=resolve(layer, self.trace.layers, "layer") + 1))

    @property
    def heads(self) -> Series:
        """The heads shown, from 0, or "mean"; one alone may be set as a number."""
        return self._shown.series

    @heads.setter
    def heads(self, heads: int | Sequence[int] | str) -> None:
        series = series_of(heads, self.trace.heads)
        if series != "mean":
            self._picture.what.single_heads()
        self._show(replace(self._shown, series=series))

    @property
    def words(self) -> bool:
        """Whether pieces are merged into words; to change it lets go of what is pinned."""
        return self._shown.words

    @words.setter
    def words(self, words: bool) -> None:
        if words != self.words:
            self._show(replace(self._shown, words=bool(words), pins=Pins()))

    @property
    def pins(self) -> tuple[int, ...]:
        """Positions, from 0, of the tokens or words that are pinned, on the side of `side`."""
        return self._shown.pins.units

    @pins.setter
    def pins(self, pins: Sequence[int]) -> None:
        units = tuple(resolve(pin, len(self._picture.units), "pin") for pin in pins)
        self._show(replace(self._shown, pins=replace(self._shown.pins, units=units)))

    @property
    def side(self) -> str:
        """Whether the pinned ones look ("query") or are looked at ("key")."""
        return self._shown.pins.side

    @property
    def page(self) -> Page:
        """What is shown now, as a web page."""
        return page(self._picture, self._shown, exact=self._exact)

    def _repr_html_(self) -> str:
        self._bridge = self._bridge or bridged(self._told)
        key = "" if self._bridge is None else self._bridge.key
        return Frame(replace(self.page, key=key), self.height)._repr_html_()

    def save(self, path: str | Path, overwrite: bool = True) -> Path:
        """Write what is shown to a file: .html, .svg or .png; see `Page.save`.

        Raises:
            ExportError: another ending, a place that cannot be written, or, not to be overwritten, taken.
        """
        return self.page.save(path, overwrite)

    def _hold(self, shown: View) -> None:
        self._shown = shown
        self._picture = replace(self._picture, words=shown.words)

    def _show(self, shown: View) -> None:
        self._hold(shown)
        if self._bridge is None:
            return
        self._turn += 1
        pins = {"side": shown.pins.side, "units": list(shown.pins.units)}
        heads = ["mean"] if shown.series == "mean" else list(shown.series)
        said = {"layer": shown.layer, "heads": heads, "words": shown.words, "pins": pins}
        self._bridge.wish = {"turn": self._turn, **said}

    def _told(self, told: Any) -> None:
        """What the frame reports, which anything in the notebook might have sent."""
        found = read(told, self.trace)
        if found is not None:
            self._hold(found.view)
