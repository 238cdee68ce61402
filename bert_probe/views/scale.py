"""Color scales of the views: kind, range and curve."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from bert_probe.views import palette


@dataclass(frozen=True)
class Scale:
    """A color scale with a range of values, which the legend shows.

    Raises:
        ValueError: The kind, the curve or the range is invalid.
    """

    kind: Literal["sequential", "diverging"]  # a diverging scale is centered on 0: low == -high
    low: float
    high: float
    curve: Literal["linear", "sqrt"] = "linear"  # "sqrt" gives small values more of the color range

    def __post_init__(self) -> None:
        if self.kind not in ("sequential", "diverging"):
            raise ValueError(f"kind is {self.kind!r}; it must be 'sequential' or 'diverging'.")
        if self.curve not in ("linear", "sqrt"):
            raise ValueError(f"curve is {self.curve!r}; it must be 'linear' or 'sqrt'.")
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
        """Return a sequential scale from 0 to `at_least`, or to the next round number above the maximum."""
        largest = float(values.max())
        if largest <= at_least or largest <= 0:
            return cls("sequential", 0, at_least or 1.0)
        digit = 10.0 ** math.floor(math.log10(largest))
        return cls("sequential", 0, round(math.ceil(largest / digit) * digit, 10))

    @classmethod
    def around_zero(cls, *arrays: NDArray[Any]) -> Self:
        """Return a diverging scale for all arrays, with its end rounded up to two significant digits.

        It covers 99.5 % of the values, because a few dimensions of hidden states are so large that all other
        dimensions would look blank. Values beyond the scale get the color of its end, as the legend states.
        """
        sizes = np.abs(np.concatenate([array.ravel() for array in arrays]))
        largest = float(np.quantile(sizes, 0.995)) or float(sizes.max()) or 1.0
        digit = 10.0 ** (math.floor(math.log10(largest)) - 1)
        end = round(math.ceil(largest / digit) * digit, 10)
        return cls("diverging", -end, end)

    @property
    def slack(self) -> float:
        """The tolerance for rounding errors of float32, such as a cosine of 1.0000001."""
        return 1e-6 * (self.high - self.low)

    def to_json(self) -> dict[str, Any]:
        """Return the scale as a JSON object for the browser."""
        return asdict(self)

    def tables(self) -> dict[str, NDArray[np.uint8]]:
        """Return the color tables for light and dark pages, each of shape [index, channel]."""
        return {
            name: np.frombuffer(palette.lut_bytes(self.kind, dark=dark), np.uint8).reshape(palette.STEPS, 3)
            for name, dark in (("light", False), ("dark", True))
        }


SHARES: Final = Scale("sequential", 0, 1, "sqrt")
"""The scale of shares, such as attention weights."""
