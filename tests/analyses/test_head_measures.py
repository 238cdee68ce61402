"""Test head measures: hand-computed cases, and parity with loops in float64 over one or several blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import bert_probe
from bert_probe.analyses.attention import heads
from bert_probe.analyses.attention.heads import BLOCK, MEASURES, measure_heads
from bert_probe.text.words import word_lens
from tests.helpers.exactness import assert_exact, assert_rounded
from tests.helpers.traces import hand_trace

TEXT = "Mehdi loves Tallahassee, and we love it."
PAIR = "Does Mehdi love it, too?"


def test_measures_of_two_heads_equal_hand_computation() -> None:
    to_the_next = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 1]])
    everywhere = np.full((3, 3), 1 / 3)
    measured = measure_heads(hand_trace([np.stack([to_the_next, everywhere])], "[CLS] sun [SEP]"), None)
    expected = {
        "entropy_bits": (0, np.log2(3)),
        "relative_entropy": (0, 1),
        "mean_distance": (2 / 3, 8 / 9),
        "self": (1 / 3, 1 / 3),
        "previous": (0, 2 / 9),
        "next": (2 / 3, 2 / 9),
        "first": (0, 1 / 3),
        "separator": (2 / 3, 1 / 3),
        "difference_from_mean": (1 / 3, 1 / 3),
    }
    for name in MEASURES:
        assert_rounded(measured[name], [expected.get(name, (0, 0))], roundings=4, label=name)


def test_single_token_attends_to_itself_and_first_token() -> None:
    measured = measure_heads(hand_trace([np.ones((2, 1, 1))], "sun"), None)
    for name in MEASURES:
        np.testing.assert_array_equal(measured[name], [[name in ("self", "first")] * 2], name)


def reference(trace: bert_probe.Trace, layer: int, head: int) -> dict[str, float]:
    """Compute every measure with loops over queries and keys, as defined in docs/methods.md."""
    weights = trace.attention(layer, head).astype(np.float64)
    mean = trace.attention(layer).astype(np.float64).mean(axis=0)
    tokens, n = trace.tokens, len(trace.tokens)
    sums = dict.fromkeys(MEASURES, 0.0)
    for q in range(n):
        row = weights[q]
        sums["entropy_bits"] -= sum(p * np.log2(p) for p in row if p > 0)
        sums["difference_from_mean"] += np.abs(row - mean[q]).sum() / 2
        for k in range(n):
            item, other = tokens[q], tokens[k]
            is_word = item.word is not None and (item.segment, item.word) == (other.segment, other.word)
            hit = {
                "self": k == q,
                "previous": k == q - 1,
                "next": k == q + 1,
                "first": k == 0,
                "separator": other == "[SEP]" and other.special,
                "punctuation": str(other) in {",", ".", "?"},
                "other_segment": item.segment != other.segment,
                "same_word": is_word and k != q,
                "same_token": item.id == other.id and k != q,
            }
            sums["mean_distance"] += row[k] * abs(q - k)
            for name, yes in hit.items():
                sums[name] += row[k] * yes
    result = {name: value / n for name, value in sums.items()}
    result["relative_entropy"] = result["entropy_bits"] / np.log2(n)
    return result


@pytest.mark.parametrize("block", [1, 12 * 18 * 5, BLOCK])
@pytest.mark.parametrize("pair", [None, PAIR])
def test_measures_equal_definitions(
    double_minilm: bert_probe.Checkpoint, pair: str | None, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "BLOCK", block)
    trace = double_minilm.trace(TEXT, pair)
    measured = measure_heads(trace, None)
    for layer, head in ((0, 2), (2, 5), (5, 11)):
        expected = reference(trace, layer, head)
        for name in MEASURES:
            assert_exact(measured[name][layer, head], expected[name], name)
    assert measured["same_word"].max() > 0.01


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("rows", [40, 70, 1000])
def test_measures_with_partial_last_block_equal_definitions(
    double_minilm: bert_probe.Checkpoint, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = double_minilm.trace(f"{TEXT} " * 7, f"{PAIR} " * 8)
    length = len(trace.tokens)
    assert min(length % 40, length % 70, length % (heads.LANES + 1)) > 1
    monkeypatch.setattr(heads, "BLOCK", -(-rows * 12 * length // torch.get_num_threads()))
    measured = measure_heads(trace, None)
    expected = reference(trace, 3, 7)
    assert expected["other_segment"] > 0.01
    for name in MEASURES:
        assert_exact(measured[name][3, 7], expected[name], name)


@pytest.mark.parametrize("block", [1, BLOCK])
@pytest.mark.parametrize("name", ["modernbert", "mpnet"])
def test_measures_of_local_or_hidden_attention_equal_definitions(
    name: str,
    block: int,
    double_family: Callable[[str], bert_probe.Checkpoint],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heads, "BLOCK", block)
    trace = double_family(name).trace("we left the ground, and the river left us")
    measured = measure_heads(trace, None)
    place = np.arange(len(trace.tokens))
    for layer in range(trace.layers):
        weights = trace.attention(layer)
        entropy = -np.where(weights > 0, weights * np.log2(np.maximum(weights, 1e-300)), 0)
        apart = np.abs(weights - weights.mean(axis=0)) / 2
        for measure, counted in (
            ("entropy_bits", entropy),
            ("difference_from_mean", apart),
            ("mean_distance", weights * np.abs(place[:, None] - place)),
            ("next", weights * (place[:, None] + 1 == place)),
        ):
            assert_exact(measured[measure][layer], counted.sum(axis=(1, 2)) / len(place), measure)


@pytest.mark.prove
def test_long_text_in_float32_is_accurate(minilm: bert_probe.Checkpoint) -> None:
    trace = minilm.trace("we left the ground and the river " * 72)
    place = np.arange(len(trace.tokens))
    counted = {
        "mean_distance": np.abs(place[:, None] - place),
        "previous": place[:, None] == place + 1,
        "first": np.broadcast_to(place == 0, (len(place),) * 2),
    }
    measured = measure_heads(trace, None)
    for layer in range(trace.layers):
        weights = trace.attention(layer).astype(np.float64)
        for name, each in counted.items():
            # The score, its exponential, the weight and the column sum are each rounded once.
            # The rounding errors do not grow with the length of the text.
            expected = (weights * each).sum(axis=(1, 2)) / len(place)
            assert_rounded(measured[name][layer], expected, roundings=4, label=name)


def test_measures_of_words_use_merged_attention(double_minilm: bert_probe.Checkpoint) -> None:
    trace = double_minilm.trace(TEXT)
    lens = word_lens(trace)
    measured = measure_heads(trace, lens)
    merged = lens.merge(trace.attention(0))
    assert_exact(measured["previous"][0], np.trace(merged, -1, 1, 2) / merged.shape[1])
    assert_exact(measured["self"][0], np.trace(merged, 0, 1, 2) / merged.shape[1])
