"""Test the initial head of the Attention page: hand-computed cases, ties, attention sinks, and long texts."""

from __future__ import annotations

import numpy as np
import pytest

import bert_probe
from bert_probe.analyses.attention.heads import (
    LABEL_SHARE,
    LABELS,
    MAX_QUERIES,
    MAX_TOKENS,
    MEASURES,
    SPECIALIZED_SHARES,
    FirstLook,
    first_look,
    measure_heads,
)
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Array, Trace
from tests.helpers.traces import hand_trace

TOKENS = "[CLS] we saw [SEP]"


def shift(by: int, share: float) -> Array:
    """Return attention that favors one distance, and spreads the remaining attention evenly over all keys.

    Args:
        by: distance from the query to the key: 1 for the next token, -1 for the previous token.
        share: attention weight on the key at this distance.
    """
    to = np.eye(4, k=by)
    missing = 1 - to.sum(axis=1, keepdims=True)
    return share * (to + missing / 4) + (1 - share) / 4


def trace_of(*layers: list[Array]) -> Trace:
    return hand_trace([np.stack(layer) for layer in layers], TOKENS)


def test_head_farthest_above_the_mean_share_is_first() -> None:
    many, item = shift(1, 1.0), shift(-1, 7 / 8)
    result = first_look(trace_of([many, many], [many, item]))
    # In three of four heads, the share of the next token is ¾, because 3 of 4 queries have a next token.
    # In one head, 3 of 4 queries put ⅞ + ⅛ · ¼ = 29/32 on the previous token, so its share is 87/128.
    assert 3 / 4 > 87 / 128 >= LABEL_SHARE
    assert result == FirstLook(1, 1, "previous", 87 / 128, 4)
    assert result.reason == "puts 68% of its attention on the previous token"


def test_tie_goes_to_the_first_head() -> None:
    plain, item = shift(1, 0.0), shift(1, 1.0)
    result = first_look(trace_of([plain, plain], [plain, item], [item, plain]))
    assert (result.layer, result.head) == (1, 1)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_mean_is_shown_without_a_specialized_head(share: float) -> None:
    result = first_look(trace_of([shift(0, 0.0), shift(1, share)]))
    assert (result, result.reason) == (FirstLook(0, "mean"), "")


def test_attention_sink_does_not_stand_out() -> None:
    rests = np.zeros((4, 4))
    rests[:, 0] = 1
    assert first_look(trace_of([shift(1, 0.0), rests])).head == "mean"
    assert {*SPECIALIZED_SHARES} == LABELS.keys() - {"first", "separator"}


def test_equal_heads_do_not_stand_out() -> None:
    assert first_look(trace_of([shift(1, 1.0), shift(1, 1.0)])).head == "mean"


def test_first_look_agrees_with_head_profiles(double_minilm: Checkpoint) -> None:
    trace = double_minilm.trace("Almost before we knew it, we had left the ground.")
    profiles = bert_probe.Heads().of(trace)
    result = first_look(trace)
    assert result.measure
    assert profiles.labels[result.layer][result.head] == LABELS[result.measure]  # type: ignore[index]
    values = profiles.values[result.measure]
    assert result.share == values[result.layer, result.head]
    for name in SPECIALIZED_SHARES:
        rest_values = profiles.values[name]
        labeled = [[label == LABELS[name] for label in row] for row in profiles.labels]
        ahead = np.where(labeled, rest_values - rest_values.mean(), 0)
        assert ahead.max() <= result.share - values.mean()


def test_long_text_is_measured_on_its_first_tokens(double_minilm: Checkpoint) -> None:
    trace = double_minilm.trace("we left the ground " * 30)
    assert len(trace.tokens) > MAX_QUERIES
    measured = measure_heads(trace, None, MAX_QUERIES)
    for layer in (0, 5):
        rows = trace.attention(layer)[:, :MAX_QUERIES]
        after = np.stack([rows[:, query, query + 1] for query in range(MAX_QUERIES)]).mean(axis=0)
        np.testing.assert_allclose(measured["next"][layer], after, rtol=1e-9)
        entropy = -(rows * np.log2(rows)).sum(axis=-1).mean(axis=-1)
        np.testing.assert_allclose(measured["entropy_bits"][layer], entropy, rtol=1e-9)
    full, all_of_them = measure_heads(trace, None), measure_heads(trace, None, len(trace.tokens) + 1)
    for name in MEASURES:
        np.testing.assert_array_equal(full[name], all_of_them[name])
    result = first_look(trace)
    assert (result.queries, result.is_complete) == (MAX_QUERIES, False)
    assert result.reason.endswith(" (mean over the first 64 tokens)")


def test_very_long_text_is_not_measured() -> None:
    for count, head in ((MAX_TOKENS, 1), (MAX_TOKENS + 1, "mean")):
        heads = np.stack([np.full((count, count), 1 / count), np.eye(count)])
        assert first_look(hand_trace([heads], " ".join(f"t{number}" for number in range(count)))).head == head
