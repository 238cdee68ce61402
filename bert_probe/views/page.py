"""A view as a web page of its own, which needs nothing else: no network, no server, no package."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from bert_probe.core.writing import write
from bert_probe.errors import ExportError
from bert_probe.model.trace import Trace
from bert_probe.views import built, palette
from bert_probe.views.palette import ThemeColors
from bert_probe.views.payload import as_text

CAVEAT: Final = (
    "Attention says where a head reads from, not what the model's output depends on: it is not an "
    "explanation by itself (Jain and Wallace 2019)."
)
"""What stands beside every picture of attention."""


def caption_of(trace: Trace) -> str:
    """Text and model, as a saved picture names them."""
    texts = [trace.encoding.text, trace.encoding.pair]
    said = " + ".join(f"“{text}”" for text in texts if text)
    return f"{trace.provenance['model']} · {said if len(said) <= 300 else said[:299] + '…'}"


@dataclass(frozen=True)
class Page:
    """A view as a web page.

    Attributes:
        component: one of the `built.COMPONENTS`.
        payloads: what it draws; for a view of one layer at a time one for each layer.
        title: text and model.
        caveat: what has to stand beside the picture.
        start: which payload is shown first, from 1.
        key: names the view to a notebook around the page, with which it then exchanges what is shown.
        still: makes what is drawn in a file where nothing moves; None for all payloads.
        theme: what the reader's system has, or one of the two.
    """

    component: str
    payloads: Sequence[bytes] = field(repr=False)
    title: str
    caveat: str = ""
    start: int = 1
    theme: Literal["system", "light", "dark"] = "system"
    key: str = ""
    still: Callable[[], Sequence[bytes]] | None = field(default=None, compare=False, repr=False)

    def html(self, framed: bool = False) -> str:
        """The page; in a frame of another page without its title and margins."""
        held = [as_text(payload) for payload in self.payloads]
        fields = {
            "title": html.escape(self.title),
            "place": "framed" if framed else "alone",
            "class": CLASSES.get(self.component, self.component),
            "caveat": html.escape(self.caveat),
            "style": theme(self.theme) + built.style(self.component),
            "script": built.script(f"{self.component}_page"),
            # Numbers, and an alphabet without any sign that HTML or JSON knows.
            "payload": json.dumps({"start": self.start, "payloads": held, "key": self.key}),
        }
        made = _TEMPLATE.read_text(encoding="utf-8")
        for name, text in fields.items():
            made = made.replace(f"<!--{name}-->", text)
        return made

    def svg(self) -> str:
        """The picture as the page's own button saves it, in light colours unless the page is dark.

        Raises:
            ExportError: too large for an SVG.
        """
        from bert_probe.views import drawing

        return drawing.svg(self.component, self._still, self._paints)

    def png(self) -> bytes:
        """The same as pixels."""
        from bert_probe.views import drawing

        return drawing.png(self.component, self._still, self._paints)

    @property
    def _still(self) -> Sequence[bytes]:
        return self.payloads if self.still is None else self.still()

    @property
    def _paints(self) -> ThemeColors:
        return _DARK if self.theme == "dark" else _LIGHT

    def save(self, path: str | Path, overwrite: bool = True) -> Path:
        """Write it to a file: .html, which any browser opens from a disk with all that the view can do, or
        .svg or .png, the picture alone.

        Raises:
            ExportError: another ending, a place that cannot be written, or, not to be overwritten, taken; a
                picture that is too large for an SVG.
        """
        file = Path(path)
        if not is_picture(file):
            raise ExportError(
                f"{file.name} does not end in {', '.join(ENDINGS)}. Choose one of these endings."
            )
        made = {".svg": lambda: self.svg().encode(), ".png": self.png}
        write({file: made.get(file.suffix.lower(), lambda: self.html().encode())()}, overwrite)
        return file


def is_picture(file: Path) -> bool:
    """Whether its ending is that of a page or of a picture."""
    return file.suffix.lower() in ENDINGS


ENDINGS: Final = (".html", ".htm", ".svg", ".png")
"""Of files that hold a view."""

_TEMPLATE = Path(__file__).with_name("page.html")

CLASSES: Final = {"head_view": "head-view", "model_view": "matrix model-view", "layer_map": "layer-map"}
"""Of the element that a component is mounted in, where it is not the component's name."""


_FONT = "system-ui, sans-serif"
_LIGHT = ThemeColors(palette.PAPER_LIGHT, palette.INK_LIGHT, palette.ACCENT_LIGHT, _FONT)
_DARK = ThemeColors(palette.PAPER_DARK, palette.INK_DARK, palette.ACCENT_DARK, _FONT)


def theme(name: Literal["system", "light", "dark"]) -> str:
    """What Streamlit would bring, as a style sheet."""
    light, dark = _variables(_LIGHT), _variables(_DARK)
    if name == "system":
        told = f":root[data-theme=light] {{{light}}} :root[data-theme=dark] {{{dark}}} "
        return f":root {{{light}}} @media (prefers-color-scheme: dark) {{:root {{{dark}}}}} {told}"
    return f":root {{{dark if name == 'dark' else light}}} "


def _variables(paints: ThemeColors) -> str:
    paper, ink, accent, font = paints
    return (
        f"--st-background-color: {paper}; --st-text-color: {ink}; --st-primary-color: {accent};"
        f"--st-secondary-background-color: color-mix(in srgb, {ink} 8%, {paper});"
        f"--st-font: {font};"
    )
