"""Test tables: labels, counting from 1, and provenance that describes the content."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

import bert_probe
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace

TEXT = "Sinan loves, loves it"
PAIR = "Do you?"


@pytest.fixture(scope="module")
def pair(minilm: Checkpoint) -> Trace:
    return minilm.trace(TEXT, PAIR)


@pytest.mark.parametrize(
    ("layer", "head", "expected"),
    [
        (0, 0, (1, 1)),
        (5, 11, (6, 12)),
        (-1, -1, (6, 12)),
        (2, "mean", (3, "mean")),
        (-6, "mean", (1, "mean")),
    ],
)
def test_attention_counts_layers_and_heads_from_1(
    pair: Trace, layer: int, head: Any, expected: tuple[int, Any]
) -> None:
    question = bert_probe.Attention(layer, head).of(pair).table().attrs["provenance"]["question"]
    assert (question["analysis"], question["layer"], question["head"]) == ("attention", *expected)
    assert (question["specials"], question["renormalize"]) == (True, False)
    table = bert_probe.Attention(layer, head, specials=False, renormalize=True).of(pair).table()
    question = table.attrs["provenance"]["question"]
    assert (question["specials"], question["renormalize"]) == (False, True)


def test_matrix_may_have_repeated_tokens(pair: Trace) -> None:
    frame = bert_probe.Attention(1, 2).of(pair).table()
    assert list(frame.columns).count("loves") == list(frame.index).count("loves") == 2
    assert frame.index.name == "token"
    assert all(type(name) is str for name in (*frame.index, *frame.columns)), "not a Token, which has more"
    assert np.array_equal(frame.iloc[:, 5].to_numpy(), pair.attention(1, 2)[:, 5])


def test_long_form_equals_the_matrix(pair: Trace) -> None:
    frame = bert_probe.AttentionLong([4, 0], ["mean", 3]).of(pair).table()
    header = ["layer", "head", "query_position", "query_token", "key_position", "key_token", "weight"]
    assert list(frame) == header
    assert len(frame) == 4 * 12 * 12
    assert frame["weight"].dtype == np.float32
    assert frame["head"].unique().tolist() == ["mean", "4"], "one type, because files need one"
    blocks = [part for _, part in frame.groupby(["layer", "head"], sort=False)]
    expected = [(5, "mean", pair.mean_attention(4)), (5, "4", pair.attention(4, 3))]
    expected += [(1, "mean", pair.mean_attention(0)), (1, "4", pair.attention(0, 3))]
    for block, (layer, head, weights) in zip(blocks, expected, strict=True):
        assert (block["layer"].iloc[0], block["head"].iloc[0]) == (layer, head)
        # Any, because mypy needs half a minute for the annotation of pandas
        rows: Iterable[Any] = block.itertuples()
        for row in rows:
            assert row.weight == weights[row.query_position, row.key_position]
            assert row.query_token == pair.tokens[row.query_position]
            assert row.key_token == pair.tokens[row.key_position]


def test_default_is_all_layers_and_heads(minilm: Checkpoint) -> None:
    trace = minilm.trace("a")
    frame = bert_probe.AttentionLong().of(trace).table()
    assert len(frame) == 6 * 12 * 3 * 3
    assert frame["head"].dtype.kind == frame["layer"].dtype.kind == "i"
    values = frame["weight"].to_numpy().reshape(6, 12, 3, 3)
    assert np.array_equal(values, np.stack([trace.attention(layer) for layer in range(6)]))


def test_empty_selection_is_refused(pair: Trace) -> None:
    for layers, heads in (([], None), (None, []), ([6], None), (None, [12])):
        with pytest.raises(SelectionError):
            bert_probe.AttentionLong(layers, heads).of(pair).table()


def test_hidden_query_and_key_do_not_change_tables(family: Callable[[str], Checkpoint]) -> None:
    trace = family("longformer").trace("we had left")
    frame = bert_probe.Attention(1, 2).of(trace).table()
    assert np.array_equal(frame.to_numpy(), trace.attention(1, 2))
