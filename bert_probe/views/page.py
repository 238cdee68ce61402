"""Self-contained web pages that show a view and need neither a network nor a server.

A page can also be saved as SVG or PNG without a browser: an embedded JavaScript engine runs the code of the
view. This module provides what the engine lacks: text widths, images as data URLs and, for PNG,
rasterization. Text is measured and drawn in DejaVu Sans, which is part of matplotlib; a system font replaces
missing characters.
"""

from __future__ import annotations

import base64
import html
import json
import struct
import unicodedata
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from bert_probe.core import extras
from bert_probe.core.writing import write
from bert_probe.errors import ExportError
from bert_probe.model.trace import Trace
from bert_probe.views import built, palette
from bert_probe.views.palette import ThemeColors
from bert_probe.views.payload import encode_text

if TYPE_CHECKING:
    from PIL import ImageFont

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
        return str(_render(self, "svg")["svg"])

    def png(self) -> bytes:
        """Return the view as a PNG image, in light colors unless `theme` is "dark".

        The image has two pixels per CSS pixel, or fewer if it would be too large.
        """
        with extras.explain_missing():
            import resvg_py

        output = _render(self, "png")
        return bytes(
            resvg_py.svg_to_bytes(
                svg_string=output["svg"],
                zoom=output["ratio"],
                font_files=[str(_font_file(bold)) for bold in (False, True)],
                font_family=_PICTURE_FONT,
                sans_serif_family=_PICTURE_FONT,
            )
        )

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


_PICTURE_FONT: Final = "DejaVu Sans"
_EM: Final = 1000
"""Font size at which texts are measured, so large that rounding to pixels does not matter."""


def _render(page: Page, kind: Literal["svg", "png"]) -> dict[str, Any]:
    """Run the JavaScript of a view, and return its SVG and the number of pixels per CSS pixel for a PNG.

    The views of several payloads are stacked vertically.

    Raises:
        ExportError: the picture is too large.
        ValueError: a payload is not valid.
    """
    with extras.explain_missing():
        import quickjs
    # Check these packages before the engine starts, because an error in its callbacks would lose its message.
    extras.require("PIL")
    extras.require("matplotlib")
    engine = quickjs.Context()
    engine.add_callable("width", _width)
    engine.add_callable("address", _data_url)
    engine.eval(built.script("files"))
    render = engine.eval(
        "(kind, component, paints, ...payloads) => files.renderFile(payloads, "
        "{ kind, component, paints: JSON.parse(paints), measure: width, encodeImage: address })"
    )
    paints = _DARK if page.theme == "dark" else _LIGHT
    payloads = page.payloads if page.still is None else page.still()
    try:
        # The JavaScript engine does not accept bytes, so payloads are passed as base64.
        encoded = [base64.b64encode(payload).decode("ascii") for payload in payloads]
        output: dict[str, Any] = json.loads(
            render(kind, page.component, json.dumps(paints._asdict()), *encoded)
        )
    except quickjs.JSException as error:
        message = str(error).partition("\n")[0]
        if message.startswith("RangeError: "):
            raise ExportError(message.removeprefix("RangeError: ")) from None
        raise ValueError(f"the payload cannot be drawn: {message}") from error
    return output


def _width(text: str, size: float, weight: float = 400) -> float:
    """Return the width of a text in CSS pixels."""
    font = _font(weight > 500)
    # The font lacks East Asian wide characters, which are as wide as the font size in every font.
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    narrow = "".join(letter for letter in text if unicodedata.east_asian_width(letter) not in "WF")
    return size * (font.getlength(narrow) / _EM + wide)


def _data_url(width: float, height: float, pixels: str) -> str:
    """Convert base64-encoded RGBA pixels to the data URL of a PNG."""
    png = _png(int(width), int(height), base64.b64decode(pixels))
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def _png(width: int, height: int, rgba: bytes) -> bytes:
    """Write RGBA pixels as a PNG without transparency, so that equal pixels give equal bytes everywhere.

    Its pixels are not compressed, because the result of a compression depends on the version of zlib.
    """
    pixels = np.frombuffer(rgba, np.uint8).reshape(height * width, 4)[:, :3]
    codes, first, indices = np.unique(
        pixels @ np.array([1 << 16, 1 << 8, 1]), return_index=True, return_inverse=True
    )
    has_palette = len(codes) <= 256
    values = indices.astype(np.uint8)[:, None] if has_palette else pixels
    rows = values.reshape(height, width * values.shape[1])
    content = np.pad(rows, ((0, 0), (1, 0))).tobytes()  # each row begins with 0: it is not filtered
    blocks = [content[start : start + _MAX_BLOCK] for start in range(0, len(content), _MAX_BLOCK)]
    stored = b"".join(
        struct.pack("<BHH", number == len(blocks), len(block), len(block) ^ _MAX_BLOCK) + block
        for number, block in enumerate(blocks, 1)
    )
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">LL5B", width, height, 8, 3 if has_palette else 2, 0, 0, 0)),
            _chunk(b"PLTE", pixels[first].tobytes()) if has_palette else b"",
            _chunk(b"IDAT", b"\x78\x01" + stored + struct.pack(">L", zlib.adler32(content))),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">L", len(content)) + name + content + struct.pack(">L", zlib.crc32(name + content))


_MAX_BLOCK: Final = 0xFFFF
"""Maximum length of a block that is not compressed."""


@cache
def _font(bold: bool) -> ImageFont.FreeTypeFont:
    from PIL import ImageFont

    return ImageFont.truetype(str(_font_file(bold)), _EM, layout_engine=ImageFont.Layout.BASIC)


def _font_file(bold: bool) -> Path:
    spec = find_spec("matplotlib")
    assert spec is not None
    assert spec.origin is not None  # matplotlib has an origin, because it is not a namespace package
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return Path(spec.origin).with_name("mpl-data") / "fonts" / "ttf" / name
