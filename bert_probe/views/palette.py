"""The colors of themes, tokens and heads, and the color scales of heatmaps.

The color scales are computed in OKLCH (Björn Ottosson 2020), a perceptually uniform color space. Lightness
is linear in the value, chroma grows with the value, and hue changes by only a few degrees. Cells can
therefore be compared on a screen, in print and with any type of color vision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from typing import Any, Final, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bert_probe.views.built import CONSTANTS

STEPS: Final = 256
CENTRE: Final = 128  # index of 0 in the diverging scale

PAPER_LIGHT: Final[str] = CONSTANTS["paper"]["light"]
PAPER_DARK: Final[str] = CONSTANTS["paper"]["dark"]
INK_LIGHT: Final[str] = CONSTANTS["ink"]["light"]
INK_DARK: Final[str] = CONSTANTS["ink"]["dark"]
ACCENT_LIGHT: Final[str] = CONSTANTS["accent"]["light"]
ACCENT_DARK: Final[str] = CONSTANTS["accent"]["dark"]

# Selected by farthest-point search: each color differs as much as possible from all colors before it, also in
# simulated protanopia and deuteranopia. Each color has a contrast of at least 3:1 on both backgrounds. Many
# heads cannot be distinguished by color alone and need labels.
HEADS: Final[tuple[str, ...]] = tuple(CONSTANTS["heads"])

ScaleKind = Literal["sequential", "diverging"]


class ThemeColors(NamedTuple):
    """The colors of a theme as #RRGGBB, and its font family."""

    background: str
    ink: str
    accent: str
    font: str


class ThemeColor(NamedTuple):
    """A color in the light theme and in the dark theme."""

    light: str
    dark: str


# Background colors of tokens by segment. Text on these colors is readable, and color-blind users can
# distinguish the segments.
SEGMENTS: Final[dict[str, ThemeColor]] = {
    name: ThemeColor(**tint) for name, tint in CONSTANTS["segments"].items()
}


class _ColorRamp(NamedTuple):
    """A path through OKLCH from the background color of a page (value 0) to a saturated color (value 1)."""

    paper: str  # background color as #RRGGBB
    lightness: float  # lightness at value 1
    pull: float  # control point of the chroma curve, which determines the chroma at medium values
    chroma: float  # chroma at value 1, before it is reduced to fit into sRGB
    hue_near: float  # hue in degrees near value 0
    hue_far: float  # hue in degrees at value 1


_POSITIVE: Final = {
    False: _ColorRamp(PAPER_LIGHT, 0.34, 0.17, 0.20, 292.0, 276.0),
    True: _ColorRamp(PAPER_DARK, 0.88, 0.25, 0.08, 276.0, 290.0),
}
_NEGATIVE: Final = {
    False: _ColorRamp(PAPER_LIGHT, 0.34, 0.15, 0.115, 62.0, 42.0),
    True: _ColorRamp(PAPER_DARK, 0.88, 0.18, 0.09, 48.0, 72.0),
}


def sequential(dark: bool) -> tuple[str, ...]:
    """Return 256 colors from the background color of the page (low values) to indigo (high values)."""
    return _ramp_colors(_POSITIVE[dark], STEPS)


def diverging(dark: bool) -> tuple[str, ...]:
    """Return 256 colors: rust (negative values), the background color (index 128), and indigo (positive)."""
    below = _ramp_colors(_NEGATIVE[dark], CENTRE + 1)
    above = _ramp_colors(_POSITIVE[dark], STEPS - CENTRE)
    return (*reversed(below[1:]), *above)


def lut_bytes(scale: ScaleKind, dark: bool) -> bytes:
    """Return the color table of a scale as 256 × 3 bytes in RGB order."""
    colors = sequential(dark) if scale == "sequential" else diverging(dark)
    return b"".join(bytes.fromhex(color[1:]) for color in colors)


@cache
def _ramp_colors(ramp: _ColorRamp, steps: int) -> tuple[str, ...]:
    red, green, blue = bytes.fromhex(ramp.paper[1:])
    start, start_a, start_b = _oklab_of((red, green, blue))
    colors = [ramp.paper]
    for step in range(1, steps):
        value = step / (steps - 1)
        lightness = start + (ramp.lightness - start) * value
        hue = math.radians(ramp.hue_near + (ramp.hue_far - ramp.hue_near) * value)
        # Fade out the tint of the background color, so that the scale starts at exactly that color.
        chroma = _fitting_chroma(lightness, _chroma(ramp, value), hue)
        a = chroma * math.cos(hue) + start_a * (1 - value) ** 2
        b = chroma * math.sin(hue) + start_b * (1 - value) ** 2
        colors.append(_nearest_hex(lightness, a, b))
    return tuple(colors)


def _chroma(ramp: _ColorRamp, value: float) -> float:
    """Return the chroma of a value: a quadratic Bézier curve, so that even low values have a visible hue."""
    return 2 * value * (1 - value) * ramp.pull + value**2 * ramp.chroma


def _fitting_chroma(lightness: float, chroma: float, hue: float) -> float:
    """Return the largest chroma, at most `chroma`, that is within sRGB at a lightness and hue."""
    low, high = 0.0, chroma
    if _is_in_srgb(lightness, high, hue):
        return high
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if _is_in_srgb(lightness, middle, hue) else (low, middle)
    return low


def _is_in_srgb(lightness: float, chroma: float, hue: float) -> bool:
    channels = _linear_rgb(lightness, chroma * math.cos(hue), chroma * math.sin(hue))
    return all(-1e-4 <= channel <= 1 + 1e-4 for channel in channels)


def _nearest_hex(lightness: float, a: float, b: float) -> str:
    """Return the 8-bit color closest to a point in OKLab, with the largest weight on lightness."""
    exact = [_encoded(channel) * 255 for channel in _linear_rgb(lightness, a, b)]

    def error(candidate: tuple[int, int, int]) -> float:
        actual = _oklab_of(candidate)
        return 4 * abs(actual[0] - lightness) + math.hypot(actual[1] - a, actual[2] - b)

    red, green, blue = min(_roundings(exact), key=error)
    return f"#{red:02X}{green:02X}{blue:02X}"


def _roundings(channels: list[float]) -> Iterator[tuple[int, int, int]]:
    choices = [sorted({math.floor(channel), math.ceil(channel)}) for channel in channels]
    for red in choices[0]:
        yield from ((red, green, blue) for green, blue in product(choices[1], choices[2]))


def _linear_rgb(lightness: float, a: float, b: float) -> tuple[float, float, float]:
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )


def _oklab_of(channels: tuple[int, int, int]) -> tuple[float, float, float]:
    red, green, blue = (_decoded(channel / 255) for channel in channels)
    long = math.cbrt(0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue)
    medium = math.cbrt(0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue)
    short = math.cbrt(0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


def _encoded(linear: float) -> float:
    clipped = min(max(linear, 0.0), 1.0)
    return 12.92 * clipped if clipped <= 0.0031308 else 1.055 * float(clipped ** (1 / 2.4)) - 0.055


def _decoded(encoded: float) -> float:
    return encoded / 12.92 if encoded <= 0.04045 else float(((encoded + 0.055) / 1.055) ** 2.4)


@dataclass(frozen=True)
class Scale:
    """A color scale with the range of values that it covers.

    Raises:
        ValueError: The kind, the curve or the range is invalid.
    """

    kind: Literal["sequential", "diverging"]  # a diverging scale is centered on 0: low == -high
    low: float
    high: float
    curve: Literal["linear", "sqrt"] = "linear"  # with "sqrt", small values differ more in color

    def __post_init__(self) -> None:
        if self.kind not in ("sequential", "diverging"):
            raise ValueError(f"kind must be 'sequential' or 'diverging', not {self.kind!r}.")
        if self.curve not in ("linear", "sqrt"):
            raise ValueError(f"curve must be 'linear' or 'sqrt', not {self.curve!r}.")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(
                f"The range {self.low} to {self.high} is invalid: both ends must be finite and low < high."
            )
        if self.kind == "diverging" and self.low != -self.high:
            raise ValueError(
                f"A diverging scale must be centered on 0, but its range is {self.low} to {self.high}."
            )

    @classmethod
    def from_zero(cls, values: NDArray[Any], at_least: float = 1.0) -> Self:
        """Return a sequential scale from 0 to `at_least`, or to a round number if the maximum is larger."""
        largest = float(values.max())
        if largest <= at_least or largest <= 0:
            return cls("sequential", 0, at_least or 1.0)
        digit = 10.0 ** math.floor(math.log10(largest))
        return cls("sequential", 0, round(math.ceil(largest / digit) * digit, 10))

    @classmethod
    def around_zero(cls, *arrays: NDArray[Any], coverage: float = 0.995) -> Self:
        """Return a diverging scale for all arrays, with its end rounded up to two significant digits.

        By default, the scale covers 99.5% of the values: a few dimensions of hidden states are so large that
        all other dimensions would look blank otherwise. Values outside the scale get the color of the nearest
        end, as the legend states.

        Args:
            coverage: Share of the values within the scale; 1 for all values.
        """
        sizes = np.abs(np.concatenate([array.ravel() for array in arrays]))
        largest = float(np.quantile(sizes, coverage)) or float(sizes.max()) or 1.0
        digit = 10.0 ** (math.floor(math.log10(largest)) - 1)
        end = round(math.ceil(largest / digit) * digit, 10)
        return cls("diverging", -end, end)

    @property
    def slack(self) -> float:
        """The tolerance for float32 rounding errors at the ends, such as a cosine of 1.0000001."""
        return 1e-6 * (self.high - self.low)

    def to_json(self) -> dict[str, Any]:
        """Return the scale as a JSON object for the browser."""
        return asdict(self)

    def tables(self) -> dict[str, NDArray[np.uint8]]:
        """Return the color tables for light and dark pages, each of shape [index, channel]."""
        return {
            name: np.frombuffer(lut_bytes(self.kind, dark=dark), np.uint8).reshape(STEPS, 3)
            for name, dark in (("light", False), ("dark", True))
        }


SHARES: Final = Scale("sequential", 0, 1, "sqrt")
"""The color scale of shares, such as attention weights."""
