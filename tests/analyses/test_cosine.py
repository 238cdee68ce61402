"""Test cosine similarity: hand-computed cases, and properties that hold for all vectors."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bert_probe.analyses.vectors import similarity
from bert_probe.analyses.vectors.similarity import cosine, cosine_of_rows, cosines_of_pairs
from bert_probe.errors import ShapeError
from tests.helpers.exactness import ULP, assert_exact, assert_rounded

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def matrices() -> Any:
    """Return a strategy for float32 matrices with 1 to 5 rows and 3 columns."""
    shapes = st.tuples(st.integers(1, 5), st.just(3))
    return shapes.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=FINITE))


def assert_agree(actual: np.ndarray, expected: np.ndarray) -> None:
    """Assert that NaN is in the same cells, and that all other cells agree within float32 rounding."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=ULP, equal_nan=True)


def test_cosine_equals_hand_computation() -> None:
    a = np.array([[3, 4], [1, 0], [0, 0]], np.float32)
    b = np.array([[4, 3], [-6, -8], [0, 2], [1, 1]], np.float32)
    result = cosine(a, b)
    assert_rounded(result[0], [0.96, -1, 0.8, 7 / 50**0.5])
    assert_rounded(result[1], [0.8, -0.6, 0, 0.5**0.5])
    assert np.isnan(result[2]).all(), "a zero vector has no direction"
    assert np.isnan(cosine(b, a)[:, 2]).all()
    assert result.dtype == np.float32


@given(matrices())
def test_cosine_with_itself_is_symmetric_bounded_and_1_on_the_diagonal(rows: np.ndarray) -> None:
    result = cosine(rows, rows)
    directed = rows.any(axis=1)
    assert np.isnan(result[~directed]).all()
    assert np.isnan(result[:, ~directed]).all()
    result = result[directed][:, directed]
    assert np.array_equal(result, result.T)
    assert (np.abs(result) <= 1).all()
    assert (result.diagonal() == 1).all()


@given(matrices(), matrices(), st.sampled_from([1e-30, 0.5, 1e30]))
def test_cosine_ignores_norms_and_transposes(a: np.ndarray, b: np.ndarray, factor: float) -> None:
    result = cosine(a, b)
    assert_agree(result, cosine(b, a).T)
    assert_agree(result, cosine(a.astype(np.float64) * factor, b))
    np.testing.assert_array_equal(result, -cosine(-a, b))


@given(hnp.arrays(np.float64, (2, 3), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_cosine_of_extreme_values_is_finite(rows: np.ndarray) -> None:
    result = cosine(rows, rows)
    directed = rows.any(axis=1)
    assert_exact(result.diagonal()[directed], np.ones(directed.sum()))
    assert np.isnan(result[~directed]).all()


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3), (2, 4)), ((3,), (2, 3)), ((2, 3), (3,)), ((1, 2, 3), (2, 3)), ((), ())]
)
def test_inconsistent_shapes_raise(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="must be matrices with the same number of columns"):
        cosine(np.ones(a, np.float32), np.ones(b, np.float32))


def test_empty_matrices_are_allowed() -> None:
    assert cosine(np.ones((0, 3), np.float32), np.ones((2, 3), np.float32)).shape == (0, 2)


def test_cosines_of_rows_equal_hand_computation() -> None:
    a = np.array([[3, 4], [1, 0], [0, 0], [0.1, 0.2]])
    b = np.array([[4, 3], [-2, 0], [1, 1], [0.1, 0.2]])
    result = cosine_of_rows(a, b)
    assert_exact(result[:2], [0.96, -1])
    assert np.isnan(result[2])
    assert result[3] == 1
    with pytest.raises(ShapeError, match="matrices of the same shape"):
        cosine_of_rows(a, b[:3])


@given(matrices())
def test_cosines_of_rows_equal_diagonal(rows: np.ndarray) -> None:
    assert_agree(cosine_of_rows(rows, rows[::-1]), cosine(rows, rows[::-1]).diagonal())


@pytest.mark.parametrize(
    ("rows", "expected"), [("float16", "float32"), ("float32", "float32"), ("float64", "float64")]
)
def test_float64_is_preserved(rows: str, expected: str) -> None:
    assert cosine(np.eye(2, dtype=rows), np.eye(2, dtype=rows)).dtype == expected


@given(matrices(), matrices(), st.integers(1, 10))
def test_cosines_of_pairs_equal_cosines_of_rows(a: np.ndarray, b: np.ndarray, block: int) -> None:
    pairs = np.argwhere(np.ones((len(a), len(b)), dtype=bool))
    expected = cosine_of_rows(a[pairs[:, 0]], b[pairs[:, 1]])
    with patch.object(similarity, "_BLOCK_VALUES", block):
        assert np.array_equal(cosines_of_pairs(a, b, pairs), expected, equal_nan=True)
