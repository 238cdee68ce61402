"""Small pictures as SVG of a kilobyte or two, to stand beside a sentence that says what they show."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator
from typing import Final

import numpy as np

from bert_probe.analyses.highlights.thumbnails import Bars, Curves, Grid, Picture, TextSegments
from bert_probe.views import palette
from bert_probe.views.constants import CONSTANTS

WIDTH, HEIGHT = 168, 104
"""CSS pixels of a picture, so that they stand in a column; pieces may need less height."""

_LEVELS: Final = 16
"""Colours of a grid: so many can be told apart in cells of two pixels, and each is one path."""
_ROW: Final = 26
"""Pixels from one row of pieces to the next."""
_FOOT: Final = 14
"""Pixels beneath curves for the first and the last layer."""
_EM: Final = 12
"""Of letters; a narrow one is 0.6 of it wide in any monospaced font."""
_NO_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def svg(picture: Picture, dark: bool) -> str:
    """The picture in the colours of a theme."""
    height = float(HEIGHT)
    if isinstance(picture, Grid):
        drawn = [*_grid(picture, dark)]
    elif isinstance(picture, Curves):
        drawn = [*_curves(picture, dark)]
    elif isinstance(picture, Bars):
        drawn = [*_bars(picture, dark)]
    else:
        drawn, height = _pieces(picture, dark)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH} {height:g}">{"".join(drawn)}</svg>'
    )


def described(picture: Picture) -> str:
    """What it is, for those who cannot see it; the numbers are in the sentence beside it."""
    if isinstance(picture, Grid):
        rows, columns = picture.cells.shape
        marked = "" if picture.mark is None else ", one of them marked"
        return f"Picture: {rows} × {columns} cells, darker for larger numbers{marked}"
    if isinstance(picture, Curves):
        return f"Picture: a curve over layers 0 to {len(picture.values) - 1}, layer {picture.mark} marked"
    if isinstance(picture, Bars):
        return f"Picture: {len(picture.values)} bars, number {picture.mark + 1} marked"
    return f"Picture: {len(picture.texts)} tokens"


def _grid(picture: Grid, dark: bool) -> Iterator[str]:
    """One path for each colour, of as many squares as have it."""
    rows, columns = picture.cells.shape
    side = min(WIDTH / columns, HEIGHT / rows)
    share = np.clip(np.nan_to_num(picture.cells) / picture.most, 0, 1)
    levels = np.rint(np.sqrt(share) * (_LEVELS - 1)).astype(int)
    colours = palette.sequential(dark)
    yield f'<g transform="scale({side:.4f})" shape-rendering="crispEdges">'
    yield f'<path fill="{_faint(dark)}" d="M0 0h{columns}v{rows}h{-columns}z"/>'
    for level in range(1, _LEVELS):
        cells = np.argwhere(levels == level)
        if len(cells):
            colour = colours[round(level / (_LEVELS - 1) * (palette.STEPS - 1))]
            squares = "".join(f"M{column} {row}h1v1h-1z" for row, column in cells)
            yield f'<path fill="{colour}" d="{squares}"/>'
    yield "</g>"
    if picture.mark is not None:
        row, column = (place * side for place in picture.mark)
        # Around the cell, and large enough to be seen around one of two pixels.
        room = min(max(side + 3, 9.0), HEIGHT - 2.0)
        x = _within(column + side / 2, room, WIDTH)
        y = _within(row + side / 2, room, HEIGHT)
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{room:.1f}" height="{room:.1f}" rx="2" fill="none" '
            f'stroke="{_second(dark)}" stroke-width="2"/>'
        )


def _within(middle: float, size: float, most: float) -> float:
    """Where something of a size around a middle begins, so that its outline is not cut off."""
    return min(max(middle - size / 2, 1), most - size - 1)


def _curves(picture: Curves, dark: bool) -> Iterator[str]:
    last = len(picture.values) - 1
    low = min(0.0, *picture.values, *picture.others)

    def place(layer: int, value: float) -> str:
        return f"{_across(layer, last):.1f},{4 + (1 - value) / (1 - low) * (HEIGHT - _FOOT - 8):.1f}"

    x, ground = _across(picture.mark, last), HEIGHT - _FOOT
    yield _line(f"M{x:.1f} 2V{ground}", _second(dark), ' stroke-dasharray="3 3"')
    yield _line(f"M4 {place(0, 0).partition(',')[2]}H{WIDTH - 4}", _faint(dark))
    for values, colour in ((picture.others, _gray(dark)), (picture.values, _accent(dark))):
        points = " ".join(place(layer, value) for layer, value in enumerate(values))
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
    dot = place(picture.mark, picture.values[picture.mark]).split(",")
    yield f'<circle cx="{dot[0]}" cy="{dot[1]}" r="3.5" fill="{_accent(dark)}"/>'
    for layer in sorted({0, picture.mark, last}):
        anchor = "start" if layer == 0 else "end" if layer == last else "middle"
        said = str(layer) if layer else "layer 0"
        yield _text(said, _across(layer, last), HEIGHT - 2, dark, anchor)


def _across(layer: int, last: int) -> float:
    return 4 + layer / max(last, 1) * (WIDTH - 8)


def _bars(picture: Bars, dark: bool) -> Iterator[str]:
    values = picture.values
    most, least = max(0.0, *values), min(0.0, *values)
    step = WIDTH / len(values)
    scale = (HEIGHT - 4) / ((most - least) or 1.0)
    ground = 2 + most * scale
    for number, value in enumerate(values):
        height = max(abs(value) * scale, 0.5)
        colour = _accent(dark) if number == picture.mark else _gray(dark)
        x, y = number * step, ground - (height if value > 0 else 0)
        width = min(step * 0.8, 40.0)
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="{min(2.0, width / 4):.1f}" fill="{colour}"/>'
        )
    yield _line(f"M0 {ground:.1f}H{WIDTH}", _faint(dark))


def _pieces(picture: TextSegments, dark: bool) -> tuple[list[str], float]:
    """As pills that flow like words, and how high they are; what does not fit is told by an ellipsis."""
    drawn: list[str] = []
    x, y, gap = 0.0, 2.0, 6
    for text in picture.texts:
        shown = text if _width(text) <= WIDTH - 2 * gap else f"{text[:16]}…"
        width = min(_width(shown) + 2 * gap, WIDTH)
        if x and x + width > WIDTH:
            x, y = 0.0, y + _ROW
        if y + _ROW > HEIGHT + 2:
            return [*drawn, _text("…", WIDTH - 10, HEIGHT - 1, dark)], HEIGHT
        drawn.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_ROW - 4}" rx="5" '
            f'fill="{_tint(dark)}"/>'
        )
        drawn.append(_text(shown, x + width / 2, y + 15, dark, "middle", "monospace"))
        x += width + 3
    return drawn, min(y + _ROW, HEIGHT)


def _width(text: str) -> float:
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return _EM * (0.6 * (len(text) - wide) + wide)


def _text(text: str, x: float, y: float, dark: bool, anchor: str = "start", font: str = "sans-serif") -> str:
    ink = palette.INK_DARK if dark else palette.INK_LIGHT
    written = html.escape(_NO_XML.sub("\ufffd", text))
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="{font}" font-size="{_EM - 1}" fill="{ink}" '
        f'text-anchor="{anchor}">{written}</text>'
    )


def _line(path: str, colour: str, more: str = "") -> str:
    return f'<path d="{path}" stroke="{colour}"{more}/>'


def _accent(dark: bool) -> str:
    return palette.ACCENT_DARK if dark else palette.ACCENT_LIGHT


def _second(dark: bool) -> str:
    second: str = CONSTANTS["secondText"]["dark" if dark else "light"]
    return second


def _tint(dark: bool) -> str:
    tint = palette.SEGMENTS["A"]
    return tint.dark if dark else tint.light


def _gray(dark: bool) -> str:
    """What is to be compared with: beside the accent, not above it."""
    return "#6F6C80" if dark else "#B3AFC0"


def _faint(dark: bool) -> str:
    """Where nothing is: the ground of a grid, and the line at 0."""
    return "#2A2A35" if dark else "#EBE7DE"
