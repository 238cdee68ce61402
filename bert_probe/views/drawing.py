"""A page's picture as SVG or PNG without a browser: the views' own JavaScript in an engine within Python.

What a browser would bring comes from here: the widths of texts, images as addresses, and for PNG the pixels.
Texts are measured and drawn in one font, DejaVu Sans, which comes with matplotlib; scripts that it lacks are
drawn in the machine's own.
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

from bert_probe.errors import ExportError
from bert_probe.views import built
from bert_probe.views.palette import ThemeColors

_FAMILY: Final = "DejaVu Sans"
_EM: Final = 1000
"""Size at which texts are measured: no rounding to pixels is seen any more."""


def svg(component: str, payloads: Sequence[bytes], paints: ThemeColors) -> str:
    """The picture of payloads, one beneath the other, as the browser would save it.

    Raises:
        ExportError: too large for an SVG.
    """
    return str(_drawn(component, payloads, paints, "svg")["svg"])


def png(component: str, payloads: Sequence[bytes], paints: ThemeColors) -> bytes:
    """The same as pixels, two in a CSS pixel where these are not too many."""
    made = _drawn(component, payloads, paints, "png")
    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=made["svg"],
            zoom=made["ratio"],
            font_files=[str(_font_file(bold)) for bold in (False, True)],
            font_family=_FAMILY,
            sans_serif_family=_FAMILY,
        )
    )


def _drawn(
    component: str, payloads: Sequence[bytes], paints: ThemeColors, kind: Literal["svg", "png"]
) -> dict[str, Any]:
    engine = quickjs.Context()
    engine.add_callable("width", _width)
    engine.add_callable("address", _address)
    engine.eval(built.script("files"))
    drawn = engine.eval(
        "(kind, component, paints, ...payloads) => files.drawn(payloads, "
        "{ kind, component, paints: JSON.parse(paints), measure: width, encoded: address })"
    )
    try:
        # The engine takes no bytes.
        written = [base64.b64encode(payload).decode("ascii") for payload in payloads]
        made: dict[str, Any] = json.loads(drawn(kind, component, json.dumps(paints._asdict()), *written))
    except quickjs.JSException as error:
        said = str(error).partition("\n")[0]
        if said.startswith("RangeError: "):
            raise ExportError(said.removeprefix("RangeError: ")) from None
        raise
    return made


def _width(text: str, size: float, weight: float = 400) -> float:
    """Of a text in CSS pixels."""
    font = _font(weight > 500)
    # Wide letters, such as Chinese ones, are not in the font, and as wide as high in any other.
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    narrow = "".join(letter for letter in text if unicodedata.east_asian_width(letter) not in "WF")
    return size * (font.getlength(narrow) / _EM + wide)


def _address(width: float, height: float, pixels: str) -> str:
    """An image as an address that holds its bytes."""
    held = io.BytesIO()
    size = int(width), int(height)
    Image.frombytes("RGBA", size, base64.b64decode(pixels)).convert("RGB").save(held, "PNG")
    return f"data:image/png;base64,{base64.b64encode(held.getvalue()).decode('ascii')}"


@cache
def _font(bold: bool) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(_font_file(bold), _EM, layout_engine=ImageFont.Layout.BASIC)


def _font_file(bold: bool) -> Path:
    found = find_spec("matplotlib")
    if found is None or found.origin is None:
        raise ExportError("Pictures need the font of matplotlib. Install it with pip install matplotlib.")
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return Path(found.origin).with_name("mpl-data") / "fonts" / "ttf" / name
