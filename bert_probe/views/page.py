"""Self-contained web pages that show a view and need neither a network nor a server."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from bert_probe.core import extras
from bert_probe.core.writing import write
from bert_probe.errors import ExportError
from bert_probe.model.trace import Trace
from bert_probe.views import built, palette
from bert_probe.views.palette import ThemeColors
from bert_probe.views.payload import encode_text

CAVEAT: Final = (
    "Attention shows which tokens a head reads from, not what the model's output depends on: it is not an "
    "explanation by itself (Jain and Wallace 2019)."
)
"""Caveat below every attention view."""


def caption_of(trace: Trace) -> str:
    """Return a caption for saved files: the model, and the text shortened to 300 characters."""
    texts = [trace.encoding.text, trace.encoding.pair]
    quoted = " + ".join(f"“{text}”" for text in texts if text)
    return f"{trace.provenance['model']} · {quoted if len(quoted) <= 300 else quoted[:299] + '…'}"


@dataclass(frozen=True)
class Page:
    """A view as a web page.

    Attributes:
        component: One of `built.COMPONENTS`.
        payloads: The data of the component; for the head view, one payload per layer.
        title: Model and text.
        caveat: Note below the view.
        start: Number of the payload shown first, from 1.
        theme: Color theme; "system" follows the browser.
        key: Key for messages between the page and a notebook; "" for no messages.
        still: Function that returns the payloads for static files (SVG, PNG). If None, `payloads` is used.
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
        """Return the HTML of the page, without title and margins if it is displayed in a frame."""
        encoded = [encode_text(payload) for payload in self.payloads]
        fields = {
            "title": html.escape(self.title),
            "place": "framed" if framed else "alone",
            "class": built.COMPONENTS[self.component],
            "caveat": html.escape(self.caveat),
            "style": theme_style(self.theme) + built.style(self.component),
            "script": built.script(f"{self.component}_page"),
            # `encode_text` uses no characters that are special in HTML or JSON, so no escaping is needed.
            "payload": json.dumps({"start": self.start, "payloads": encoded, "key": self.key}),
        }
        document = _TEMPLATE.read_text(encoding="utf-8")
        for name, text in fields.items():
            document = document.replace(f"<!--{name}-->", text)
        return document

    def svg(self) -> str:
        """Return the view as an SVG image, in light colors unless `theme` is "dark".

        Raises:
            ExportError: The image is too large for an SVG.
        """
        with extras.explain_missing():
            from bert_probe.views import drawing

        return drawing.svg(self.component, self._still, self._paints)

    def png(self) -> bytes:
        """Return the view as a PNG image, in light colors unless `theme` is "dark"."""
        with extras.explain_missing():
            from bert_probe.views import drawing

        return drawing.png(self.component, self._still, self._paints)

    @property
    def _still(self) -> Sequence[bytes]:
        return self.payloads if self.still is None else self.still()

    @property
    def _paints(self) -> ThemeColors:
        return _DARK if self.theme == "dark" else _LIGHT

    def save(self, path: str | Path, overwrite: bool = True) -> Path:
        """Write the view to a file, as an interactive page (.html) or an image (.svg, .png).

        Args:
            path: Path of the file to write.
            overwrite: Whether to replace an existing file.

        Returns:
            The path of the file.

        Raises:
            ExportError: The extension is unknown, the file cannot be written or exists already, or the image
                is too large for an SVG.
        """
        file = Path(path)
        if not is_view_file(file):
            raise ExportError(f"{file.name} must end in {', '.join(EXTENSIONS[:-1])} or {EXTENSIONS[-1]}.")
        renderers = {".svg": lambda: self.svg().encode(), ".png": self.png}
        write({file: renderers.get(file.suffix.lower(), lambda: self.html().encode())()}, overwrite)
        return file


def is_view_file(file: Path) -> bool:
    """Return whether the extension of a file is one of `EXTENSIONS`."""
    return file.suffix.lower() in EXTENSIONS


EXTENSIONS: Final = (".html", ".htm", ".svg", ".png")
"""File extensions with which a view can be saved."""

_TEMPLATE = Path(__file__).with_name("page.html")


_FONT = "system-ui, sans-serif"
_LIGHT = ThemeColors(palette.PAPER_LIGHT, palette.INK_LIGHT, palette.ACCENT_LIGHT, _FONT)
_DARK = ThemeColors(palette.PAPER_DARK, palette.INK_DARK, palette.ACCENT_DARK, _FONT)


def theme_style(name: Literal["system", "light", "dark"]) -> str:
    """Return a style sheet with the CSS variables that Streamlit would set."""
    light, dark = _variables(_LIGHT), _variables(_DARK)
    if name == "system":
        explicit = f":root[data-theme=light] {{{light}}} :root[data-theme=dark] {{{dark}}} "
        return f":root {{{light}}} @media (prefers-color-scheme: dark) {{:root {{{dark}}}}} {explicit}"
    return f":root {{{dark if name == 'dark' else light}}} "


def _variables(paints: ThemeColors) -> str:
    paper, ink, accent, font = paints
    return (
        f"--st-background-color: {paper}; --st-text-color: {ink}; --st-primary-color: {accent};"
        f"--st-secondary-background-color: color-mix(in srgb, {ink} 8%, {paper});"
        f"--st-font: {font};"
    )
