"""Render a page as SVG or PNG without a browser: the JavaScript of the views runs in an embedded engine.

This module provides what the engine lacks: text widths, images as data URLs and, for PNG, rasterization. Text
is measured and drawn in DejaVu Sans, which is part of matplotlib; a system font replaces missing characters.
"""

from __future__ import annotations

import base64
import io
import json
import unicodedata
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import quickjs
import resvg_py
from PIL import Image, ImageFont

from bert_probe.core import extras
from bert_probe.errors import ExportError
from bert_probe.views import built
from bert_probe.views.palette import ThemeColors

_FAMILY: Final = "DejaVu Sans"
_EM: Final = 1000
"""Font size at which texts are measured, so large that rounding to pixels does not matter."""


def svg(component: str, payloads: Sequence[bytes], paints: ThemeColors) -> str:
    """Return the SVG that the browser would save, with one view per payload, stacked vertically.

    Raises:
        ExportError: The image is too large for an SVG.
    """
    return str(_render(component, payloads, paints, "svg")["svg"])


def png(component: str, payloads: Sequence[bytes], paints: ThemeColors) -> bytes:
    """Return a PNG with two pixels per CSS pixel, or fewer if it would be too large."""
    output = _render(component, payloads, paints, "png")
    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=output["svg"],
            zoom=output["ratio"],
            font_files=[str(_font_file(bold)) for bold in (False, True)],
            font_family=_FAMILY,
            sans_serif_family=_FAMILY,
        )
    )


def _render(
    component: str, payloads: Sequence[bytes], paints: ThemeColors, kind: Literal["svg", "png"]
) -> dict[str, Any]:
    # Check this first, because an error in a callback of the engine would lose its message.
    extras.require("matplotlib")
    engine = quickjs.Context()
    engine.add_callable("width", _width)
    engine.add_callable("address", _data_url)
    engine.eval(built.script("files"))
    render = engine.eval(
        "(kind, component, paints, ...payloads) => files.renderFile(payloads, "
        "{ kind, component, paints: JSON.parse(paints), measure: width, encodeImage: address })"
    )
    try:
        # The JavaScript engine does not accept bytes, so payloads are passed as base64.
        encoded = [base64.b64encode(payload).decode("ascii") for payload in payloads]
        output: dict[str, Any] = json.loads(render(kind, component, json.dumps(paints._asdict()), *encoded))
    except quickjs.JSException as error:
        message = str(error).partition("\n")[0]
        if message.startswith("RangeError: "):
            raise ExportError(message.removeprefix("RangeError: ")) from None
        raise
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
    buffer = io.BytesIO()
    size = int(width), int(height)
    Image.frombytes("RGBA", size, base64.b64decode(pixels)).convert("RGB").save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


@cache
def _font(bold: bool) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(_font_file(bold)), _EM, layout_engine=ImageFont.Layout.BASIC)


def _font_file(bold: bool) -> Path:
    spec = find_spec("matplotlib")
    assert spec is not None
    assert spec.origin is not None  # not None, because only namespace packages have no origin
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return Path(spec.origin).with_name("mpl-data") / "fonts" / "ttf" / name
