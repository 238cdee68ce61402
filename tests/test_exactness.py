"""Tests of the tolerances in `helpers.exactness`, with differences that pass and differences that fail."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.exactness import (
    EXACT,
    FACTOR,
    FLOOR,
    ULP,
    Expected,
    assert_exact,
    assert_printed,
    assert_rounded,
    expect_raw,
    own_error,
    tolerance,
)
from tests.helpers.families import TEXT
from tests.helpers.raw import Raw

VALUES = np.array([0.25, -4.0, 1.0])


def test_assert_exact_requires_float64_and_relative_tolerance() -> None:
    assert_exact(VALUES + 3e-10, VALUES)
    for wrong in (VALUES + 5e-10, VALUES.astype(np.float32), VALUES * np.nan, VALUES[:2]):
        with pytest.raises(AssertionError):
            assert_exact(wrong, VALUES)


def test_assert_rounded_tolerance_grows_with_roundings() -> None:
    third = np.float32(1 / 3)
    assert_rounded(third, 1 / 3)
    for roundings in (1, 4):
        assert_rounded(1 / 3 * (1 + 0.99 * roundings * ULP), 1 / 3, roundings)
        with pytest.raises(AssertionError):
            assert_rounded(1 / 3 * (1 + 1.01 * roundings * ULP), 1 / 3, roundings)


def test_assert_printed_allows_half_of_last_decimal() -> None:
    assert_printed([0.12, 0.13], [0.125, 0.125], decimals=2)
    with pytest.raises(AssertionError):
        assert_printed(0.12, 0.1251, decimals=2)


def test_printed_adds_tolerance_and_half_of_last_decimal() -> None:
    expected = Expected(VALUES, 1e-3)
    expected.printed(VALUES + 0.0089, decimals=2)
    with pytest.raises(AssertionError):
        expected.printed(VALUES + 0.0091, decimals=2)


def test_tolerance_is_multiple_of_raw_model_error() -> None:
    off = 1e-4 * np.array([1, -1, 0])
    expected = expect_raw((VALUES + off).astype(np.float32), VALUES)
    # The largest value is 4. Rounding it to float32 changes the error by at most half an ulp.
    assert abs(expected.share - FACTOR * 1e-4 / 4) <= FACTOR * ULP / 2
    expected.check(VALUES - (FACTOR - 2) * off)
    with pytest.raises(AssertionError):
        expected.check(VALUES - FACTOR * off)


def test_tolerance_has_floor_without_raw_error() -> None:
    assert own_error(VALUES, VALUES) == own_error(np.zeros(3), np.zeros(3)) == 0
    assert tolerance([0.0]) == tolerance([FLOOR / FACTOR / 2, 0.0]) == FLOOR < tolerance([FLOOR])


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_non_finite_reference_is_rejected(broken: float) -> None:
    with pytest.raises(AssertionError, match="thing has non-finite reference values"):
        Expected(VALUES * broken, 1.0).check(VALUES, "thing")


@pytest.mark.parametrize("name", ["bert", "modernbert", "eurobert", "layoutlm", "mpnet"])
def test_float64_model_does_not_round_to_float32(name: str, double_family: Any, family_folder: Any) -> None:
    """The models have rotary positions, norms and softmax, which might be computed in float32."""
    checkpoint, raw = double_family(name), Raw(family_folder(name), "float64")
    trace = checkpoint.trace(TEXT)
    numbers = raw.numbers(trace.encoding)
    for layer in range(trace.layers):
        for weights in (numbers.arrays[f"attention {layer}"], trace.attention(layer)):
            in_disguise = own_error(weights.astype(np.float32), weights) < EXACT
            assert weights.dtype == np.float64
            assert not in_disguise, f"layer {layer} is float32 in disguise"
    for array in (trace.hidden_states, trace.attention(0), *(trace.masks or ()), trace.pooler, trace.q):
        assert array is None or array.dtype in (np.float64, bool)


def test_float64_twin_has_same_weights(minilm: Checkpoint) -> None:
    assert minilm.folder is not None
    raw = Raw(Path(minilm.folder))
    for actual, parameter in zip(raw.model.parameters(), raw.twin.model.parameters(), strict=True):
        assert torch.equal(actual.double(), parameter)
