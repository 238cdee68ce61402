"""Attention maps: what is hidden, what is divided, and that the frame says the same."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from typing import get_args

import numpy as np
import pandas as pd
import pytest

from bert_probe import attention_long, attention_map, attention_table
from bert_probe.analyses.attention import MEASURE_MEANINGS, AttentionMap, Head, Measure
from bert_probe.analyses.flow import rollout
from bert_probe.analyses.norms import value_norms
from bert_probe.errors import EmptyTextError, SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.trace import Trace
from bert_probe.results.files import attention_zip
from bert_probe.text.words import word_lens

TEXT = "Almost before we knew it, we had left the ground."


def hand_trace(weights: Sequence[np.ndarray], names: str = "[CLS] sun moon [SEP]") -> Trace:
    """A trace whose attention weights are given, one array [head, query, key] a layer."""
    tokens = tuple(
        Token(
            name,
            position=position,
            id=position + 7,
            segment=0,
            word=None if name.startswith("[") else position,
            start=None,
            end=None,
            special=name.startswith("["),
            split_word=False,
            display=name,
        )
        for position, name in enumerate(names.split())
    )
    states = tuple(np.zeros((len(tokens), 2), np.float32) for _ in range(len(weights) + 1))
    layers = tuple(np.asarray(layer, np.float32) for layer in weights)
    return Trace(Encoding("sun moon", None, tokens, {}, None, 0), states, None, {}, weights=layers)


# Worked by hand: rows are queries and sum to 1.
HEAD_1 = [[0.25, 0.25, 0.25, 0.25], [0.5, 0.125, 0.25, 0.125], [0.5, 0.0, 0.0, 0.5], [1.0, 0.0, 0.0, 0.0]]
HEAD_2 = [[1.0, 0.0, 0.0, 0.0], [0.25, 0.375, 0.25, 0.125], [0.0, 0.5, 0.25, 0.25], [0.0, 0.0, 0.0, 1.0]]


@pytest.fixture
def hand() -> Trace:
    return hand_trace([np.array([HEAD_1, HEAD_2])])


def test_a_head_is_shown_as_it_is(hand: Trace) -> None:
    shown = attention_map(hand, 0, 1)
    assert shown.weights.tolist() == HEAD_2
    assert (shown.layer, shown.head, shown.specials, shown.renormalised) == (0, 1, True, False)
    assert shown.queries == shown.keys == ("[CLS]", "sun", "moon", "[SEP]")
    assert shown.row_sums.tolist() == [1, 1, 1, 1]


def test_the_mean_over_heads_by_hand(hand: Trace) -> None:
    shown = attention_map(hand)
    assert shown.head == "mean"
    assert shown.weights[1].tolist() == [0.375, 0.25, 0.25, 0.125]


def test_special_tokens_go_from_both_axes_and_their_share_is_not_given_away(hand: Trace) -> None:
    shown = attention_map(hand, 0, 0, specials=False)
    assert shown.queries == shown.keys == ("sun", "moon")
    assert shown.weights.tolist() == [[0.125, 0.25], [0.0, 0.0]]
    assert shown.row_sums.tolist() == [0.375, 0.0]
    assert not shown.specials


def test_renormalised_rows_sum_to_1_and_one_that_gives_nothing_is_not_a_number(hand: Trace) -> None:
    shown = attention_map(hand, 0, 0, specials=False, renormalise=True)
    assert shown.renormalised
    np.testing.assert_allclose(shown.weights[0], [1 / 3, 2 / 3], rtol=1e-6)
    assert np.isnan(shown.weights[1]).all()
    assert shown.weights.dtype == np.float32


def test_renormalising_leaves_the_trace_as_it_was(hand: Trace) -> None:
    attention_map(hand, 0, 0, specials=True, renormalise=True)
    assert hand.attention(0, 0).tolist() == HEAD_1


def test_nothing_but_special_tokens_is_refused_unless_they_are_shown() -> None:
    trace = hand_trace([np.full((1, 2, 2), 0.5)], "[CLS] [SEP]")
    with pytest.raises(EmptyTextError, match="Only special tokens"):
        attention_map(trace, specials=False)
    assert attention_map(trace).weights.shape == (2, 2)


@pytest.mark.parametrize(
    ("layer", "head"), [(1, 0), (-2, 0), (0, 2), (0, -3), (0, "max"), (0.5, 0), (True, 0), (0, None)]
)
def test_no_other_layer_and_head_is_taken(hand: Trace, layer: int, head: int) -> None:
    with pytest.raises(SelectionError):
        attention_map(hand, layer, head)


def test_negative_indices_count_from_the_end(hand: Trace) -> None:
    shown = attention_map(hand, -1, -1)
    assert (shown.layer, shown.head) == (0, 1)
    assert shown.weights.tolist() == HEAD_2


def test_a_map_refuses_labels_that_do_not_fit(hand: Trace) -> None:
    with pytest.raises(ShapeError, match="4 queries, 3 keys"):
        AttentionMap(hand.tokens, hand.tokens[:3], np.ones((4, 4), np.float32), 0, 0, True, False)


@pytest.mark.parametrize("head", [*range(12), "mean"])
def test_the_frame_is_the_traces_attention(minilm: Checkpoint, head: int) -> None:
    trace = minilm.trace(TEXT)
    for layer in range(trace.layers):
        frame = attention_table(trace, layer, head)
        expected = trace.mean_attention(layer) if head == "mean" else trace.attention(layer, head)
        assert frame.to_numpy().dtype == np.float32
        assert np.array_equal(frame.to_numpy(), expected)
        assert list(frame.index) == list(frame.columns) == [str(token) for token in trace.tokens]
        np.testing.assert_allclose(frame.to_numpy().sum(axis=1), 1, atol=1e-5)


def test_hidden_specials_leave_the_same_numbers(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT, "The unknown holds its grounds.")
    kept = [token.position for token in trace.tokens if not token.special]
    assert len(kept) == len(trace.tokens) - 3
    whole = trace.attention(3, 5)
    shown = attention_map(trace, 3, 5, specials=False)
    assert np.array_equal(shown.weights, whole[kept][:, kept])
    divided = attention_map(trace, 3, 5, specials=False, renormalise=True)
    np.testing.assert_allclose(divided.row_sums, 1, atol=1e-6)
    np.testing.assert_allclose(divided.weights, shown.weights / shown.row_sums[:, None], rtol=1e-6)


def measured(checkpoint: Checkpoint, trace: Trace, measure: str, head: int | str) -> np.ndarray:
    """A measure of layer 4 over tokens, straight from its parts."""
    if measure == "rollout":
        return rollout([trace.attention(layer) for layer in range(4)], 0.3)
    weights = trace.attention(3)
    if measure == "value-norm":
        weights = weights * value_norms(checkpoint, trace, 3)[:, None, :]
    return weights.mean(axis=0) if head == "mean" else weights[int(head)]


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize(("specials", "renormalise"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize(
    ("measure", "head"),
    [("weights", 5), ("weights", "mean"), ("value-norm", 5), ("value-norm", "mean"), ("rollout", "mean")],
)
def test_every_measure_takes_every_option(
    minilm: Checkpoint, measure: Measure, head: Head, specials: bool, renormalise: bool, words: bool
) -> None:
    trace = minilm.trace("Tallahassee loves it", "unaffable, is it?")
    options = {"specials": specials, "renormalise": renormalise, "words": words, "measure": measure}
    shown = attention_map(trace, 3, head, checkpoint=minilm, residual=0.3, **options)  # type: ignore[arg-type]
    expected = measured(minilm, trace, measure, head)
    lens = word_lens(trace)
    units = lens.units if words else trace.tokens
    if words:
        expected = lens.merge(expected)
    if not specials:
        kept = [place for place, unit in enumerate(units) if not unit.special]
        expected = expected[kept][:, kept]
    if renormalise:
        expected = expected / expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shown.weights, expected, rtol=1e-5, atol=1e-7)
    assert shown.keys == tuple(unit for unit in units if specials or not unit.special)
    if specials and measure != "value-norm":
        np.testing.assert_allclose(shown.row_sums, 1, atol=1e-5)
    if renormalise:
        np.testing.assert_allclose(shown.row_sums, 1, atol=1e-5)


EXTRA = {"weights": {}, "value-norm": {"output_projection": True}, "rollout": {"residual": 0.3}}


@pytest.mark.parametrize("measure", list(MEASURE_MEANINGS))
def test_every_export_carries_the_measure(minilm: Checkpoint, measure: Measure) -> None:
    trace = minilm.trace("Tallahassee loves it")
    given = {"measure": measure, "checkpoint": minilm, "residual": 0.3, "words": True, "specials": False}
    view = {"special_tokens": False, "renormalised": False, "words": True, "measure": measure}
    long = attention_long(trace, **given)
    about = long.attrs["provenance"]["view"]
    assert about == {"table": "attention", "layout": "long"} | view | EXTRA[measure]
    heads: list[Head] = ["mean"] if measure == "rollout" else list(range(12))
    maps = [
        attention_map(trace, layer, head, **given)  # type: ignore[arg-type]
        for layer in range(6)
        for head in heads
    ]
    assert np.array_equal(long["weight"], np.concatenate([shown.weights.ravel() for shown in maps]))
    frame = attention_table(trace, 2, "mean", **given)
    about = frame.attrs["provenance"]["view"]
    assert about == {"table": "attention", "layer": 3, "head": "mean"} | view | EXTRA[measure]
    with zipfile.ZipFile(io.BytesIO(attention_zip(trace, **given))) as archive:
        zipped = pd.read_csv(archive.open("attention.csv"), dtype={"weight": np.float32})
        provenance = json.loads(archive.read("attention.csv.meta.json"))
    assert provenance == json.loads(json.dumps(long.attrs["provenance"]))
    assert np.array_equal(zipped["weight"], long["weight"])


def test_each_measure_is_told_in_a_few_words() -> None:
    assert set(MEASURE_MEANINGS) == set(get_args(Measure))
    for told in MEASURE_MEANINGS.values():
        assert told.endswith(".")
        assert len(told) < 240
