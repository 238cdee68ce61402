"""Cosines by hand, and what holds for all vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bert_probe.analyses.vectors.cosine import cosine, cosine_of_rows
from bert_probe.errors import ShapeError
from tests.helpers.exactness import ULP, assert_exact, assert_rounded

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def matrices() -> Any:
    """float32 [1 to 5 rows, 3]."""
    shapes = st.tuples(st.integers(1, 5), st.just(3))
    return shapes.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=FINITE))


def agree(found: np.ndarray, wanted: np.ndarray) -> None:
    """The same ones are no numbers, and the others equal to the rounding of a 1 in float32."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=ULP, equal_nan=True)


def test_cosine_by_hand() -> None:
    a = np.array([[3, 4], [1, 0], [0, 0]], np.float32)
    b = np.array([[4, 3], [-6, -8], [0, 2], [1, 1]], np.float32)
    found = cosine(a, b)
    assert_rounded(found[0], [0.96, -1, 0.8, 7 / 50**0.5])
    assert_rounded(found[1], [0.8, -0.6, 0, 0.5**0.5])
    assert np.isnan(found[2]).all(), "a zero vector has no direction"
    assert np.isnan(cosine(b, a)[:, 2]).all()
    assert found.dtype == np.float32


@given(matrices())
def test_cosine_with_itself_is_symmetric_bounded_and_1_on_the_diagonal(rows: np.ndarray) -> None:
    found = cosine(rows, rows)
    directed = rows.any(axis=1)
    assert np.isnan(found[~directed]).all()
    assert np.isnan(found[:, ~directed]).all()
    found = found[directed][:, directed]
    assert np.array_equal(found, found.T)
    assert (np.abs(found) <= 1).all()
    assert (found.diagonal() == 1).all()


@given(matrices(), matrices(), st.sampled_from([1e-30, 0.5, 1e30]))
def test_cosine_knows_no_lengths_and_turns_with_its_arguments(
    a: np.ndarray, b: np.ndarray, factor: float
) -> None:
    found = cosine(a, b)
    agree(found, cosine(b, a).T)
    agree(found, cosine(a.astype(np.float64) * factor, b))
    np.testing.assert_array_equal(found, -cosine(-a, b))


@given(hnp.arrays(np.float64, (2, 3), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_no_double_is_too_large_or_too_small(rows: np.ndarray) -> None:
    found = cosine(rows, rows)
    directed = rows.any(axis=1)
    assert_exact(found.diagonal()[directed], np.ones(directed.sum()))
    assert np.isnan(found[~directed]).all()


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3), (2, 4)), ((3,), (2, 3)), ((2, 3), (3,)), ((1, 2, 3), (2, 3)), ((), ())]
)
def test_shapes_that_do_not_fit_are_refused(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="rows of the same length"):
        cosine(np.ones(a, np.float32), np.ones(b, np.float32))


def test_no_rows_are_no_error() -> None:
    assert cosine(np.ones((0, 3), np.float32), np.ones((2, 3), np.float32)).shape == (0, 2)


def test_cosines_of_rows_by_hand() -> None:
    a = np.array([[3, 4], [1, 0], [0, 0], [0.1, 0.2]])
    b = np.array([[4, 3], [-2, 0], [1, 1], [0.1, 0.2]])
    found = cosine_of_rows(a, b)
    assert_exact(found[:2], [0.96, -1])
    assert np.isnan(found[2])
    assert found[3] == 1
    with pytest.raises(ShapeError, match="matrices of the same shape"):
        cosine_of_rows(a, b[:3])


@given(matrices())
def test_rows_are_the_diagonal_of_all_cosines(rows: np.ndarray) -> None:
    agree(cosine_of_rows(rows, rows[::-1]), cosine(rows, rows[::-1]).diagonal())


@pytest.mark.parametrize(
    ("rows", "kept"), [("float16", "float32"), ("float32", "float32"), ("float64", "float64")]
)
def test_doubles_stay_doubles(rows: str, kept: str) -> None:
    assert cosine(np.eye(2, dtype=rows), np.eye(2, dtype=rows)).dtype == kept
