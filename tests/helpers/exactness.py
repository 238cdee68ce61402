"""Tolerances for numerical comparisons, derived from measured rounding error instead of fixed constants.

The last digits of float32 results depend on the processor: wider registers and more threads add the same
numbers in another order, so a tolerance tuned on one machine fails on another. There are four types of
comparisons:

- Is the formula correct? `assert_exact` compares in float64, where rounding errors are a million times
smaller than any mistake.
- Is a float32 result as accurate as the raw model's? `expect_raw` allows a small multiple of the raw model's
float32 error on the same text, measured against its float64 reference.
- Is a float32 result the rounded float64 result? `assert_rounded` allows a given number of ulps.
- Is a displayed number correct? `assert_printed` allows half a unit in the last decimal place. Use
`Expected.printed` if the number was computed in another process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

EXACT = 1e-10
"""Tolerance in float64, relative to the largest value.

Sums of the same terms in different orders differ by about 1e-14. A mistake causes a much larger difference.
"""
ULP = float(np.finfo(np.float32).eps)
"""Spacing of float32 numbers, relative to the value."""
FACTOR = 8
"""Tolerance of `expect_raw` as a multiple of the raw model's float32 error.

Over all families, short and long texts, three instruction sets and two thread counts, float32 results of BERT
Probe and of the raw model differed by at most 4.6 times this error.
"""
FLOOR = 32 * ULP
"""Minimum tolerance of `expect_raw`, relative to the largest value.

For a text of three tokens, the raw model's error may be only two ulps by chance, although attention weights
in the tiny families differ by up to 30 ulps.
"""


@dataclass(frozen=True, eq=False)
class Expected:
    """Expected values, with a tolerance relative to the largest absolute value."""

    values: np.ndarray
    share: float

    def check(self, actual: Any, label: str = "") -> None:
        """Assert that all values of ``actual`` are within the tolerance; NaN always fails."""
        self._near(actual, 0.0, label)

    def printed(self, actual: Any, decimals: int, label: str = "") -> None:
        """Assert that displayed values are within the tolerance plus half a unit in the last decimal place.

        Args:
            decimals: number of displayed decimals.
        """
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
    """Return the largest absolute value, or 0 for an empty array."""
    return float(np.abs(np.asarray(values, dtype=np.float64)).max(initial=0.0))


def own_error(single: Any, double: Any) -> float:
    """Return the largest difference of float32 from float64 values, relative to the largest value."""
    size = largest(double)
    return 0.0 if size == 0 else largest(np.asarray(single, np.float64) - np.asarray(double)) / size


def tolerance(errors: Iterable[float]) -> float:
    """Return the relative tolerance derived from the raw model's errors on a text."""
    return max(FLOOR, *(FACTOR * error for error in errors))


def expect_raw(single: Any, double: Any) -> Expected:
    """Return the raw model's float32 values, with a tolerance derived from their rounding errors.

    Args:
        single: values of the raw model in float32.
        double: values of the raw model in float64.
    """
    return Expected(np.asarray(single), tolerance([own_error(single, double)]))


def assert_exact(actual: Any, expected: Any, label: str = "") -> None:
    """Assert that two float64 results agree within 1e-10 of the largest value."""
    assert np.asarray(actual).dtype == np.float64, f"{label} is {np.asarray(actual).dtype}, not float64"
    Expected(np.asarray(expected), EXACT).check(actual, label)


def assert_rounded(actual: Any, expected: Any, roundings: int = 1, label: str = "") -> None:
    """Assert that a float32 result equals ``expected`` up to a given number of ulps.

    Each step adds at most half an ulp of the largest value, and as much again for inputs that were already
    rounded. A sum or dot product counts as one step per term.
    """
    Expected(np.asarray(expected), roundings * ULP).check(actual, label)


def assert_repeatable(actual: Any, expected: Any, label: str = "") -> None:
    """Assert that a repeated computation gives the same values, up to a minimal tolerance.

    In another thread, libraries may select other kernels, depending on memory alignment, and round a few
    values differently.
    """
    Expected(np.asarray(expected), FLOOR).check(actual, label)


def assert_printed(actual: Any, expected: Any, decimals: int, label: str = "") -> None:
    """Assert that displayed numbers are off by at most half a unit in the last decimal place."""
    Expected(np.asarray(expected), ULP).printed(actual, decimals, label)
