"""The colour scale that a picture is drawn in."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from bert_probe.views import palette


@dataclass(frozen=True)
class Scale:
    """The fixed range that colours stand for, stated to the reader beside the picture.

    A diverging scale is centred on 0 and so needs `low == -high`. With the curve `sqrt` small values get
    more of the colours; the legend's ticks move accordingly. Raises ValueError for a range that cannot be
    drawn.
    """

    kind: Literal["sequential", "diverging"]
    low: float
    high: float
    curve: Literal["linear", "sqrt"] = "linear"

    def __post_init__(self) -> None:
        if self.kind not in ("sequential", "diverging"):
            raise ValueError(f"kind is {self.kind!r}; it must be 'sequential' or 'diverging'.")
        if self.curve not in ("linear", "sqrt"):
            raise ValueError(f"curve is {self.curve!r}; it must be 'linear' or 'sqrt'.")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(
                f"The range {self.low} to {self.high} needs two finite ends, the lower one first."
            )
        if self.kind == "diverging" and self.low != -self.high:
            raise ValueError(
                f"The range {self.low} to {self.high} is not centred on 0, as a diverging scale must be."
            )

    @classmethod
    def from_zero(cls, values: NDArray[Any], at_least: float = 1.0) -> Self:
        """A sequential scale from 0 to `at_least`, or to the next round number where the values go beyond."""
        largest = float(values.max())
        if largest <= at_least or largest <= 0:
            return cls("sequential", 0, at_least or 1.0)
        digit = 10.0 ** math.floor(math.log10(largest))
        return cls("sequential", 0, round(math.ceil(largest / digit) * digit, 10))

    @classmethod
    def around_zero(cls, *arrays: NDArray[Any]) -> Self:
        """A diverging scale for all the arrays, its end rounded up to two digits.

        It covers 99.5 % of the values: a few dimensions are so large that the others would be blank beside
        them. Those keep the colour of the end, which the legend says.
        """
        sizes = np.abs(np.concatenate([array.ravel() for array in arrays]))
        largest = float(np.quantile(sizes, 0.995)) or float(sizes.max()) or 1.0
        digit = 10.0 ** (math.floor(math.log10(largest)) - 1)
        end = round(math.ceil(largest / digit) * digit, 10)
        return cls("diverging", -end, end)

    @property
    def slack(self) -> float:
        """What may be rounding: float32 puts exact ends a hair off, e.g. a cosine of 1.0000001."""
        return 1e-6 * (self.high - self.low)

    def described(self) -> dict[str, Any]:
        """What the browser is told of it."""
        return asdict(self)

    def tables(self) -> dict[str, NDArray[np.uint8]]:
        """Its colours on light and dark pages, [entry, channel]."""
        return {
            name: np.frombuffer(palette.lut_bytes(self.kind, dark=dark), np.uint8).reshape(palette.STEPS, 3)
            for name, dark in (("light", False), ("dark", True))
        }


SHARES: Final = Scale("sequential", 0, 1, "sqrt")
"""Of what is shared out, such as attention weights."""
