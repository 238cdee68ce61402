"""Tolerances of comparisons, derived from the machine's own rounding errors instead of being fixed.

The last digits of float32 depend on the processor: wider registers and more threads add the same numbers
in another order, so a tolerance tuned on one machine fails on another. There are four kinds of comparison:

- Is the formula right? Compare in float64, where rounding is a million times smaller than any mistake:
`assert_exact`.
- Is our float32 as accurate as the raw model's? Allow a small multiple of the raw model's own float32
error for that text, measured against its float64 twin: `expect_raw`.
- Is a float32 result the rounded float64 result? `assert_rounded`, by the number of roundings.
- Is a displayed number right? `assert_printed` allows half a unit of the last decimal; use
`Expected.printed` if the number was also computed in another process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

EXACT = 1e-10
"""Tolerance in float64, relative to the largest value. Two orders of the same sums differ by about 1e-14, a
mistake by far more.
"""
ULP = float(np.finfo(np.float32).eps)
"""Spacing of float32 numbers, relative to the value."""
FACTOR = 8
"""Two float32 computations of a number each have about the raw model's error, in either direction. Over all
families, short and long texts, three instruction sets and two thread counts they differed by at most 4.6
times the raw model's own error.
"""
FLOOR = 32 * ULP
"""Minimum tolerance, relative to the largest value: for a text of three tokens the raw model's error can
happen to be two ulps. The sharpest attention of the tiny families differs by 30 ulps in such a case.
"""


@dataclass(frozen=True, eq=False)
class Expected:
    """Expected numbers, with a tolerance relative to the largest of them."""

    values: np.ndarray
    share: float

    def check(self, actual: Any, label: str = "") -> None:
        """Assert that all of ``actual`` is within the tolerance; NaN never is."""
        self._near(actual, 0.0, label)

    def printed(self, actual: Any, decimals: int, label: str = "") -> None:
        """Assert the same for numbers rounded to ``decimals``."""
        self._near(actual, 0.5 * 10.0**-decimals, label)

    def _near(self, actual: Any, more: float, label: str) -> None:
        assert np.isfinite(self.values).all(), f"{label} has non-finite reference values"
        np.testing.assert_allclose(
            np.asarray(actual, dtype=np.float64),
            np.asarray(self.values, dtype=np.float64),
            rtol=0,
            atol=self.share * largest(self.values) + more,
            equal_nan=False,
            err_msg=label,
        )


def largest(values: Any) -> float:
    """Return the largest absolute value, or 0 without values."""
    return float(np.abs(np.asarray(values, dtype=np.float64)).max(initial=0.0))


def own_error(single: Any, double: Any) -> float:
    """Return the error of float32 numbers against float64, relative to the largest value."""
    size = largest(double)
    return 0.0 if size == 0 else largest(np.asarray(single, np.float64) - np.asarray(double)) / size


def tolerance(errors: Iterable[float]) -> float:
    """Return the relative tolerance that follows from the raw model's errors for a text."""
    return max(FLOOR, *(FACTOR * error for error in errors))


def expect_raw(single: Any, double: Any) -> Expected:
    """Return the raw model's float32 numbers with the tolerance that follows from its float64 twin."""
    return Expected(np.asarray(single), tolerance([own_error(single, double)]))


def assert_exact(actual: Any, expected: Any, label: str = "") -> None:
    """Assert that two float64 results agree within 1e-10 of the largest value."""
    assert np.asarray(actual).dtype == np.float64, f"{label} is {np.asarray(actual).dtype}, not float64"
    Expected(np.asarray(expected), EXACT).check(actual, label)


def assert_rounded(actual: Any, expected: Any, roundings: int = 1, label: str = "") -> None:
    """Assert that a float32 result equals ``expected`` after this number of roundings.

    Each rounding is off by at most half an ulp of the largest value, and by as much again for the numbers
    that were rounded before it. A sum or a product of vectors counts one rounding per term.
    """
    Expected(np.asarray(expected), roundings * ULP).check(actual, label)


def assert_repeatable(actual: Any, expected: Any, label: str = "") -> None:
    """Assert that a repeated computation gives the same numbers.

    In another thread, libraries may choose other code by memory alignment and round a few numbers
    differently.
    """
    Expected(np.asarray(expected), FLOOR).check(actual, label)


def assert_printed(actual: Any, expected: Any, decimals: int, label: str = "") -> None:
    """Assert that displayed numbers are off by at most half a unit of the last decimal."""
    Expected(np.asarray(expected), ULP).printed(actual, decimals, label)
