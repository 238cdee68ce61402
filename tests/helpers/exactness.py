"""How near two numbers must be: worked out for each machine, never chosen for one.

The last digits of float32 depend on the processor: wider registers and more threads add the same numbers
in another order. A tolerance that was chosen on one machine is red on the next. So there are four
questions, each with an answer of its own:

- Is the formula right? Ask in float64, where rounding is a million times smaller than any mistake:
  `assert_exact`.
- Is ours as good as the raw model in float32? As far off as a small factor of what the raw model itself
  is off from its float64 twin, for that text: `as_raw`.
- Is a float32 result the rounding of what float64 gives? `assert_rounded`, by the number of roundings.
- Was a number printed rightly? `assert_printed`, half a unit of its last decimal; `Expected.printed` where
  it was computed in another place, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

EXACT = 1e-10
"""In float64, as a share of the largest value: two orders of the same sums differ by 1e-14 here, and a
mistake by far more."""
ULP = float(np.finfo(np.float32).eps)
"""The distance of float32's neighbours, as a share of the value."""
FACTOR = 8
"""Two float32 ways to one number are each about as far off as the raw model, on either side. Over all
families, short texts and long, three instruction sets and two numbers of threads they were at most 4.6 of
the raw model's own errors apart."""
FLOOR = 32 * ULP
"""Never less, as a share of the largest value: for a text of three tokens the raw model's error can be two
ulps by good luck. The sharpest attention of the tiny families is 30 ulps apart where that happens."""


@dataclass(frozen=True, eq=False)
class Expected:
    """Numbers, and how far ours may be from them, as a share of the largest of them."""

    values: np.ndarray
    share: float

    def check(self, actual: Any, label: str = "") -> None:
        """Fail unless every number of ``actual`` is that near; NaN is near to nothing."""
        self._near(actual, 0.0, label)

    def printed(self, actual: Any, decimals: int, label: str = "") -> None:
        """The same of numbers that were rounded to so many decimals, or for such as expected ones."""
        self._near(actual, 0.5 * 10.0**-decimals, label)

    def _near(self, actual: Any, more: float, label: str) -> None:
        assert np.isfinite(self.values).all(), f"there is no finite {label} to compare with"
        np.testing.assert_allclose(
            np.asarray(actual, dtype=np.float64),
            np.asarray(self.values, dtype=np.float64),
            rtol=0,
            atol=self.share * largest(self.values) + more,
            equal_nan=False,
            err_msg=label,
        )


def largest(values: Any) -> float:
    """The largest absolute value; 0 where there is none."""
    return float(np.abs(np.asarray(values, dtype=np.float64)).max(initial=0.0))


def own_error(single: Any, double: Any) -> float:
    """How far float32 numbers are from their float64 twins, as a share of the largest of these."""
    size = largest(double)
    return 0.0 if size == 0 else largest(np.asarray(single, np.float64) - np.asarray(double)) / size


def allowed(errors: Iterable[float]) -> float:
    """The share of the largest value that ours may be off, from the raw model's errors for a text."""
    return max(FLOOR, *(FACTOR * error for error in errors))


def as_raw(single: Any, double: Any) -> Expected:
    """What the raw model gives in float32, with the tolerance that its float64 twin gives it."""
    return Expected(np.asarray(single), allowed([own_error(single, double)]))


def assert_exact(actual: Any, expected: Any, label: str = "") -> None:
    """Logic, in float64 on both sides: within 1e-10 of the largest value."""
    assert np.asarray(actual).dtype == np.float64, f"{label} is {np.asarray(actual).dtype}, not float64"
    Expected(np.asarray(expected), EXACT).check(actual, label)


def assert_rounded(actual: Any, expected: Any, roundings: int = 1, label: str = "") -> None:
    """A float32 result of what is right in ``expected``, after so many roundings on the way.

    Each is off by at most half an ulp of the largest value, and as much again for what was rounded before
    it. A sum or a product of vectors counts one for each of its terms.
    """
    Expected(np.asarray(expected), roundings * ULP).check(actual, label)


def assert_alike(actual: Any, expected: Any, label: str = "") -> None:
    """The same computation again, in another thread: the processor's libraries may round a few numbers the
    other way, as they choose their code by where in memory the numbers lie."""
    Expected(np.asarray(expected), FLOOR).check(actual, label)


def assert_printed(actual: Any, expected: Any, decimals: int, label: str = "") -> None:
    """Numbers read from a page or a file that shows so many decimals: off by half of the last, at most."""
    Expected(np.asarray(expected), ULP).printed(actual, decimals, label)
