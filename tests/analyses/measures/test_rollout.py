"""Test attention rollout: hand-computed cases and invariants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_probe import Attention
from bert_probe.analyses.attention.measures.rollout import rollout, rollouts
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint

FIRST = np.array([[[1.0, 0.0], [0.5, 0.5]]])
SECOND = np.array([[[0.0, 1.0], [0.0, 1.0]]])


def test_rollout_equals_hand_computation() -> None:
    """The rollout of two layers is the product of their mixed matrices ½(A + I), later layers first.

    ½(A₂ + I) · ½(A₁ + I) = [[½, ½], [0, 1]] · [[1, 0], [¼, ¾]] = [[⅝, ⅜], [¼, ¾]].
    """
    first, second = rollouts([FIRST, SECOND])
    np.testing.assert_array_equal(first, [[1, 0], [0.25, 0.75]])
    np.testing.assert_array_equal(second, [[0.625, 0.375], [0.25, 0.75]])


def test_rollout_multiplies_later_layers_from_the_left() -> None:
    first = np.array([[[1.0, 0.0], [1.0, 0.0]]], dtype=np.float32)
    second = np.array([[[0.0, 1.0], [0.0, 1.0]]], dtype=np.float32)
    # The rollout is ½(A₂ + I) · ½(A₁ + I) = [[.5, .5], [0, 1]] · [[1, 0], [.5, .5]].
    # The opposite order of the layers would give [[.5, .5], [.25, .75]].
    # All entries are sums of powers of two, so float32 represents them exactly.
    np.testing.assert_array_equal(rollout([first, second]), [[0.75, 0.25], [0.5, 0.5]])
    np.testing.assert_array_equal(rollout([first, second], residual=0), [[1, 0], [1, 0]])
    np.testing.assert_array_equal(rollout([first, second], residual=1), np.eye(2))
    # With the residual weight ¼, the rollout is [[.25, .75], [0, 1]] · [[1, 0], [.75, .25]].
    np.testing.assert_array_equal(rollout([first, second], residual=0.25), [[0.8125, 0.1875], [0.75, 0.25]])


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 4), st.floats(0, 1, allow_subnormal=False)
)
def test_rows_of_every_rollout_sum_to_one(seed: int, tokens: int, layers: int, residual: float) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.ones(tokens), (layers, 2, tokens))
    for reached in rollouts(weights, residual):
        np.testing.assert_allclose(reached.sum(axis=1), 1)
        assert (reached >= 0).all()


def test_invalid_rollout_raises() -> None:
    for wrong in ([], [np.zeros((2, 3))], [np.ones((1, 2, 2)), np.ones((1, 3, 3))]):
        with pytest.raises(ShapeError):
            rollout(wrong)
    for share in (1.5, -0.1, float("nan")):
        with pytest.raises(SelectionError, match="between 0 and 1"):
            rollout([FIRST], residual=share)


def test_measure_is_rollout_up_to_layer(minilm: Checkpoint) -> None:
    trace = minilm.trace("Mehdi loves Tallahassee, and we love it.")
    for layer in (0, 3, 5):
        result = Attention(layer, measure="rollout", residual=0.3).of(trace).weights
        below = [trace.attention(index) for index in range(layer + 1)]
        np.testing.assert_array_equal(result, rollout(below, 0.3).astype(np.float32))
