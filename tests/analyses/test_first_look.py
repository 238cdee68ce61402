"""Which head is shown first: a case by hand, ties, what is no job, and a long text measured in part."""

from __future__ import annotations

import numpy as np
import pytest

import bert_probe
from bert_probe.analyses.attention.head_measures import MEASURES, measure_heads
from bert_probe.analyses.attention.heads import LABEL_SHARE, LABELS
from bert_probe.analyses.highlights.first_look import (
    MAX_QUERIES,
    MAX_TOKENS,
    SPECIALIZED_SHARES,
    FirstLook,
    first_look,
)
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Array, Trace
from tests.helpers.traces import hand_trace

TOKENS = "[CLS] we saw [SEP]"


def shift(by: int, share: float) -> Array:
    """A head that gives so much of its attention to the token at this distance, and the rest to all alike."""
    to = np.eye(4, k=by)
    missing = 1 - to.sum(axis=1, keepdims=True)
    return share * (to + missing / 4) + (1 - share) / 4


def trace_of(*layers: list[Array]) -> Trace:
    return hand_trace([np.stack(layer) for layer in layers], TOKENS)


def test_the_share_that_lies_farthest_above_its_mean_wins() -> None:
    many, one = shift(1, 1.0), shift(-1, 7 / 8)
    found = first_look(trace_of([many, many], [many, one]))
    # To the next token: 3 of 4 queries have one. The share is ¾, but of three heads of four.
    # To the one before: 3 of 4 queries give it ⅞ + ⅛ · ¼ = 29/32, which makes 87/128, of one head.
    assert 3 / 4 > 87 / 128 >= LABEL_SHARE
    assert found == FirstLook(1, 1, "previous", 87 / 128, 4)
    assert found.reason == "puts 68 % of its attention on the previous token"


def test_of_equal_heads_the_first_is_shown() -> None:
    plain, one = shift(1, 0.0), shift(1, 1.0)
    found = first_look(trace_of([plain, plain], [plain, one], [one, plain]))
    assert (found.layer, found.head) == (1, 1)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_where_no_share_is_one_half_the_mean_is_shown(share: float) -> None:
    found = first_look(trace_of([shift(0, 0.0), shift(1, share)]))
    assert (found, found.reason) == (FirstLook(0, "mean"), "")


def test_a_head_that_rests_on_a_special_token_does_not_stand_out() -> None:
    rests = np.zeros((4, 4))
    rests[:, 0] = 1
    assert first_look(trace_of([shift(1, 0.0), rests])).head == "mean"
    assert {*SPECIALIZED_SHARES} == LABELS.keys() - {"first", "separator"}


def test_every_head_alike_stands_out_from_none() -> None:
    assert first_look(trace_of([shift(1, 1.0), shift(1, 1.0)])).head == "mean"


def test_the_built_in_model_is_looked_at_where_its_profiles_say(double_minilm: Checkpoint) -> None:
    trace = double_minilm.trace("Almost before we knew it, we had left the ground.")
    profiles = bert_probe.Heads().of(trace)
    found = first_look(trace)
    assert found.measure
    assert profiles.labels[found.layer][found.head] == LABELS[found.measure]  # type: ignore[index]
    values = profiles.values[found.measure]
    assert found.share == values[found.layer, found.head]
    for name in SPECIALIZED_SHARES:
        others = profiles.values[name]
        labelled = [[label == LABELS[name] for label in row] for row in profiles.labels]
        ahead = np.where(labelled, others - others.mean(), 0)
        assert ahead.max() <= found.share - values.mean()


def test_of_a_long_text_the_first_tokens_are_measured(double_minilm: Checkpoint) -> None:
    trace = double_minilm.trace("we left the ground " * 30)
    assert len(trace.tokens) > MAX_QUERIES
    measured = measure_heads(trace, None, MAX_QUERIES)
    for layer in (0, 5):
        rows = trace.attention(layer)[:, :MAX_QUERIES]
        after = np.stack([rows[:, query, query + 1] for query in range(MAX_QUERIES)]).mean(axis=0)
        np.testing.assert_allclose(measured["next"][layer], after, rtol=1e-9)
        entropy = -(rows * np.log2(rows)).sum(axis=-1).mean(axis=-1)
        np.testing.assert_allclose(measured["entropy_bits"][layer], entropy, rtol=1e-9)
    whole, all_of_them = measure_heads(trace, None), measure_heads(trace, None, len(trace.tokens) + 1)
    for name in MEASURES:
        np.testing.assert_array_equal(whole[name], all_of_them[name])
    found = first_look(trace)
    assert (found.queries, found.is_complete) == (MAX_QUERIES, False)
    assert found.reason.endswith(" (mean over the first 64 tokens)")


def test_of_a_very_long_text_nothing_is_measured() -> None:
    for count, head in ((MAX_TOKENS, 1), (MAX_TOKENS + 1, "mean")):
        heads = np.stack([np.full((count, count), 1 / count), np.eye(count)])
        assert first_look(hand_trace([heads], " ".join(f"t{number}" for number in range(count)))).head == head
