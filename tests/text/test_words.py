"""Test words: tokens are merged into words, and a word is found by its name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.words import Unit, WordLens, find_token, find_word, word_lens
from tests.helpers.exactness import assert_rounded

TEXT = "Mehdi loves Tallahassee, and we love it."


def lens_of(*sizes: int) -> WordLens:
    starts = np.cumsum([0, *sizes[:-1]])
    return WordLens(
        tuple(
            Unit(f"w{i}", tuple(range(start, start + size)), 0, False)
            for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
        )
    )


def test_merged_words_equal_hand_computation() -> None:
    weights = np.array([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.4, 0.4, 0.2]], dtype=np.float32)
    # Tokens 1 and 2 form a word: first, their columns are added; then, their rows are averaged.
    expected = [[0.5, 0.5], [(0.1 + 0.4) / 2, (0.9 + 0.6) / 2]]
    assert_rounded(lens_of(1, 2).merge(weights), expected, 4)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_merged_rows_still_sum_to_one(sizes: list[int], seed: int) -> None:
    length = sum(sizes)
    weights = np.random.default_rng(seed).dirichlet(np.ones(length), size=(2, length)).astype(np.float32)
    merged = lens_of(*sizes).merge(weights)
    assert merged.shape == (2, len(sizes), len(sizes))
    assert_rounded(merged.sum(axis=-1), np.ones((2, len(sizes))), 2 * length)


def test_word_lens_covers_each_token_once(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT, "It is unaffable.")
    units = word_lens(trace).units
    assert [p for unit in units for p in unit.positions] == list(range(len(trace.tokens)))
    assert [str(unit) for unit in units][:4] == ["[CLS]", "Mehdi", "loves", "Tallahassee"]
    with pytest.raises(ShapeError):
        word_lens(trace).merge(np.eye(3, dtype=np.float32))


def test_word_is_found_by_name_and_number(minilm: Checkpoint) -> None:
    trace = minilm.trace("We said: we love what we love.")
    assert find_word(trace, "We").positions == (1,)
    assert find_word(trace, "we:2").positions == find_word(trace, "we:2").positions != (1,)
    assert find_word(trace, "SAID").positions == (2,)
    for wrong, sentence in (
        ("love", "occurs 2 times. Choose one of"),
        ("no", "no word no"),
        (f"no:{'9' * 5000}", "no word no:9999"),
        ("love:3", "no love:3"),
    ):
        with pytest.raises(SelectionError, match=sentence):
            find_word(trace, wrong)


def test_digits_are_a_position_unless_numbered(minilm: Checkpoint) -> None:
    trace = minilm.trace("in 2 or 3 days")
    assert find_token(trace, "2") == "2"
    assert find_token(trace, "3") == "or"
    assert find_token(trace, "3:1").position == 4
    assert find_token(trace, "[SEP]").position == 6


@pytest.mark.parametrize("name", ["7", "9" * 10, "9" * 5000])
def test_huge_position_is_refused(minilm: Checkpoint, name: str) -> None:
    with pytest.raises(SelectionError, match="this text has tokens 0 to 6"):
        find_token(minilm.trace("in 2 or 3 days"), name)
