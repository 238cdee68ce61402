"""SVG thumbnails for the highlights on the Overview page, one or two kilobytes each."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator
from typing import Final

import numpy as np

from bert_probe.analyses.highlights.types import Bars, Curves, Grid, Picture, TextSegments
from bert_probe.views import palette
from bert_probe.views.built import CONSTANTS

WIDTH, HEIGHT = 168, 104
"""Width and height of a thumbnail in CSS pixels. Thumbnails of tokens can be lower."""

_LEVELS: Final = 16
"""Number of colors in a grid; each color is drawn as one path. More colors would not be distinguishable."""
_ROW: Final = 26
"""Distance between two rows of tokens, in pixels."""
_FOOT: Final = 14
"""Height of the layer labels below curves, in pixels."""
_EM: Final = 12
"""Font size in pixels. Narrow characters of a monospaced font are 0.6 em wide."""
_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Matches characters that XML does not allow."""


def svg(picture: Picture, dark: bool) -> str:
    """Return a thumbnail as SVG in the colors of the dark or the light theme."""
    height = float(HEIGHT)
    if isinstance(picture, Grid):
        elements = [*_grid(picture, dark)]
    elif isinstance(picture, Curves):
        elements = [*_curves(picture, dark)]
    elif isinstance(picture, Bars):
        elements = [*_bars(picture, dark)]
    else:
        elements, height = _tokens(picture, dark)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH} {height:g}">{"".join(elements)}</svg>'
    )


def alt_text(picture: Picture) -> str:
    """Return the alt text of a thumbnail. It has no values, because the sentence next to it contains them."""
    if isinstance(picture, Grid):
        rows, columns = picture.cells.shape
        marked = "" if picture.mark is None else ", one of them marked"
        return f"Thumbnail: {rows} × {columns} cells, which are darker for larger numbers{marked}"
    if isinstance(picture, Curves):
        return f"Thumbnail: a curve over layers 0 to {len(picture.values) - 1}, layer {picture.mark} marked"
    if isinstance(picture, Bars):
        return f"Thumbnail: {len(picture.values)} bars, bar {picture.mark + 1} marked"
    return f"Thumbnail: {len(picture.texts)} tokens"


def _grid(picture: Grid, dark: bool) -> Iterator[str]:
    """Yield the SVG elements of a grid: one path per color, and an outline around the marked cell."""
    rows, columns = picture.cells.shape
    side = min(WIDTH / columns, HEIGHT / rows)
    share = np.clip(np.nan_to_num(picture.cells) / picture.maximum, 0, 1)
    levels = np.rint(np.sqrt(share) * (_LEVELS - 1)).astype(int)
    colors = palette.sequential(dark)
    yield f'<g transform="scale({side:.4f})" shape-rendering="crispEdges">'
    yield f'<path fill="{_faint(dark)}" d="M0 0h{columns}v{rows}h{-columns}z"/>'
    for level in range(1, _LEVELS):
        cells = np.argwhere(levels == level)
        if len(cells):
            color = colors[round(level / (_LEVELS - 1) * (palette.STEPS - 1))]
            squares = "".join(f"M{column} {row}h1v1h-1z" for row, column in cells)
            yield f'<path fill="{color}" d="{squares}"/>'
    yield "</g>"
    if picture.mark is not None:
        row, column = (index * side for index in picture.mark)
        # The outline has a minimum size, so that it is visible around cells of two pixels.
        outline = min(max(side + 3, 9.0), HEIGHT - 2.0)
        x = _clamp(column + side / 2, outline, WIDTH)
        y = _clamp(row + side / 2, outline, HEIGHT)
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{outline:.1f}" height="{outline:.1f}" rx="2" fill="none" '
            f'stroke="{_second(dark)}" stroke-width="2"/>'
        )


def _clamp(center: float, size: float, limit: float) -> float:
    """Return the start coordinate of an outline around `center`, shifted so that it is not clipped.

    Args:
        center: center of the outlined cell, in pixels.
        size: size of the outline in pixels.
        limit: size of the thumbnail in pixels.
    """
    return min(max(center - size / 2, 1), limit - size - 1)


def _curves(picture: Curves, dark: bool) -> Iterator[str]:
    last = len(picture.values) - 1
    low = min(0.0, *picture.values, *picture.reference)

    def point(layer: int, value: float) -> str:
        return f"{_across(layer, last):.1f},{4 + (1 - value) / (1 - low) * (HEIGHT - _FOOT - 8):.1f}"

    x, baseline = _across(picture.mark, last), HEIGHT - _FOOT
    yield _line(f"M{x:.1f} 2V{baseline}", _second(dark), ' stroke-dasharray="3 3"')
    yield _line(f"M4 {point(0, 0).partition(',')[2]}H{WIDTH - 4}", _faint(dark))
    for values, color in ((picture.reference, _gray(dark)), (picture.values, _accent(dark))):
        points = " ".join(point(layer, value) for layer, value in enumerate(values))
        yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
    dot = point(picture.mark, picture.values[picture.mark]).split(",")
    yield f'<circle cx="{dot[0]}" cy="{dot[1]}" r="3.5" fill="{_accent(dark)}"/>'
    for layer in sorted({0, picture.mark, last}):
        anchor = "start" if layer == 0 else "end" if layer == last else "middle"
        label = str(layer) if layer else "layer 0"
        yield _text(label, _across(layer, last), HEIGHT - 2, dark, anchor)


def _across(layer: int, last: int) -> float:
    return 4 + layer / max(last, 1) * (WIDTH - 8)


def _bars(picture: Bars, dark: bool) -> Iterator[str]:
    values = picture.values
    high, low = max(0.0, *values), min(0.0, *values)
    step = WIDTH / len(values)
    scale = (HEIGHT - 4) / ((high - low) or 1.0)
    baseline = 2 + high * scale
    for number, value in enumerate(values):
        height = max(abs(value) * scale, 0.5)
        color = _accent(dark) if number == picture.mark else _gray(dark)
        x, y = number * step, baseline - (height if value > 0 else 0)
        width = min(step * 0.8, 40.0)
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="{min(2.0, width / 4):.1f}" fill="{color}"/>'
        )
    yield _line(f"M0 {baseline:.1f}H{WIDTH}", _faint(dark))


def _tokens(picture: TextSegments, dark: bool) -> tuple[list[str], float]:
    """Return SVG elements of tokens in wrapped rows, and their height. An ellipsis replaces excess tokens."""
    elements: list[str] = []
    x, y, gap = 0.0, 2.0, 6
    fill = palette.SEGMENTS["A"].dark if dark else palette.SEGMENTS["A"].light
    for text in picture.texts:
        label = text if _width(text) <= WIDTH - 2 * gap else f"{text[:16]}…"
        width = min(_width(label) + 2 * gap, WIDTH)
        if x and x + width > WIDTH:
            x, y = 0.0, y + _ROW
        if y + _ROW > HEIGHT + 2:
            return [*elements, _text("…", WIDTH - 10, HEIGHT - 1, dark)], HEIGHT
        elements.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_ROW - 4}" rx="5" fill="{fill}"/>'
        )
        elements.append(_text(label, x + width / 2, y + 15, dark, "middle", "monospace"))
        x += width + 3
    return elements, min(y + _ROW, HEIGHT)


def _width(text: str) -> float:
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return _EM * (0.6 * (len(text) - wide) + wide)


def _text(text: str, x: float, y: float, dark: bool, anchor: str = "start", font: str = "sans-serif") -> str:
    ink = palette.INK_DARK if dark else palette.INK_LIGHT
    escaped = html.escape(_NO_XML.sub("\ufffd", text))
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="{font}" font-size="{_EM - 1}" fill="{ink}" '
        f'text-anchor="{anchor}">{escaped}</text>'
    )


def _line(path: str, color: str, attributes: str = "") -> str:
    return f'<path d="{path}" stroke="{color}"{attributes}/>'


def _accent(dark: bool) -> str:
    return palette.ACCENT_DARK if dark else palette.ACCENT_LIGHT


def _second(dark: bool) -> str:
    second: str = CONSTANTS["secondText"]["dark" if dark else "light"]
    return second


def _gray(dark: bool) -> str:
    """Return the color of reference values, which is less prominent than the accent color."""
    return "#6F6C80" if dark else "#B3AFC0"


def _faint(dark: bool) -> str:
    """Return the color of empty cells and of zero lines."""
    return "#2A2A35" if dark else "#EBE7DE"
