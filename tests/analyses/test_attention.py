"""Test attention matrices: hidden tokens, renormalization, and tables."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bert_probe import Attention, AttentionLong
from bert_probe.analyses.attention import attention
from bert_probe.analyses.attention.attention import AttentionResult, Head
from bert_probe.analyses.attention.measures import get_measure as measure_named
from bert_probe.analyses.attention.measures import measures
from bert_probe.analyses.attention.measures.rollout import rollout
from bert_probe.analyses.attention.measures.value_norm import value_norms
from bert_probe.core import files
from bert_probe.core.provenance import InputRecord
from bert_probe.errors import EmptyTextError, SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Trace
from bert_probe.text.words import Unit, word_lens
from tests.helpers.exactness import assert_rounded
from tests.helpers.traces import hand_trace

TEXT = "Almost before we knew it, we had left the ground."


# Hand-computed values: rows are queries and sum to 1.
HEAD_1 = [[0.25, 0.25, 0.25, 0.25], [0.5, 0.125, 0.25, 0.125], [0.5, 0.0, 0.0, 0.5], [1.0, 0.0, 0.0, 0.0]]
HEAD_2 = [[1.0, 0.0, 0.0, 0.0], [0.25, 0.375, 0.25, 0.125], [0.0, 0.5, 0.25, 0.25], [0.0, 0.0, 0.0, 1.0]]


@pytest.fixture
def hand() -> Trace:
    return hand_trace([np.array([HEAD_1, HEAD_2])])


def test_single_head_equals_the_trace(hand: Trace) -> None:
    result = Attention(0, 1).of(hand)
    assert result.weights.tolist() == HEAD_2
    assert result.question == Attention(0, 1)
    assert result.queries == result.keys == ("[CLS]", "sun", "moon", "[SEP]")
    assert result.row_sums.tolist() == [1, 1, 1, 1]


def test_mean_over_heads_equals_hand_computation(hand: Trace) -> None:
    result = Attention().of(hand)
    assert (result.question.layer, result.question.head) == (0, "mean")
    assert result.weights[1].tolist() == [0.375, 0.25, 0.25, 0.125]


def test_special_tokens_are_left_out_without_renormalizing(hand: Trace) -> None:
    result = Attention(0, 0, specials=False).of(hand)
    assert result.queries == result.keys == ("sun", "moon")
    assert result.weights.tolist() == [[0.125, 0.25], [0.0, 0.0]]
    assert result.row_sums.tolist() == [0.375, 0.0]


def test_renormalized_rows_sum_to_1_or_are_nan(hand: Trace) -> None:
    result = Attention(0, 0, specials=False, renormalize=True).of(hand)
    assert_rounded(result.weights[0], [1 / 3, 2 / 3], 2)
    assert np.isnan(result.weights[1]).all()
    assert result.weights.dtype == np.float32


def test_renormalizing_does_not_change_the_trace(hand: Trace) -> None:
    Attention(0, 0, renormalize=True).of(hand)
    assert hand.attention(0, 0).tolist() == HEAD_1


def test_text_of_special_tokens_raises_unless_they_are_shown() -> None:
    trace = hand_trace([np.full((1, 2, 2), 0.5)], "[CLS] [SEP]")
    with pytest.raises(EmptyTextError, match="only special tokens"):
        Attention(specials=False).of(trace)
    assert Attention().of(trace).weights.shape == (2, 2)


@pytest.mark.parametrize(
    ("layer", "head"), [(1, 0), (-2, 0), (0, 2), (0, -3), (0, "max"), (0.5, 0), (True, 0), (0, None)]
)
def test_invalid_layer_or_head_raises(hand: Trace, layer: int, head: int) -> None:
    with pytest.raises(SelectionError):
        Attention(layer, head).of(hand)  # type: ignore[arg-type]


def test_negative_indices_count_from_the_end(hand: Trace) -> None:
    result = Attention(-1, -1).of(hand)
    assert result.question == Attention(0, 1)
    assert result.weights.tolist() == HEAD_2


@pytest.mark.parametrize("kind", [Attention, AttentionLong])
def test_residual_is_kept_for_rollout_only(kind: type, hand: Trace) -> None:
    rollout_options = kind(measure="rollout", residual=0.4).of(hand).question.options()
    assert rollout_options[-2:] == ["--residual", "0.4"]
    assert "--residual" not in kind(residual=0.4).of(hand).question.options(), "the command would refuse it"


def test_labels_of_another_length_raise(hand: Trace) -> None:
    with pytest.raises(ShapeError, match="4 queries, 3 keys"):
        AttentionResult(
            Attention(), InputRecord.of(hand), hand.tokens, hand.tokens[:3], np.ones((4, 4), np.float32), {}
        )


@pytest.mark.parametrize("head", [*range(12), "mean"])
def test_data_frame_equals_attention_of_trace(minilm: Checkpoint, head: Head) -> None:
    trace = minilm.trace(TEXT)
    for layer in range(trace.layers):
        frame = Attention(layer, head).of(trace).table()
        expected = trace.mean_attention(layer) if head == "mean" else trace.attention(layer, head)
        assert frame.to_numpy().dtype == np.float32
        assert np.array_equal(frame.to_numpy(), expected)
        assert list(frame.index) == list(frame.columns) == [str(token) for token in trace.tokens]
        assert_rounded(frame.to_numpy().sum(axis=1), np.ones(len(frame)), len(frame))


def test_hidden_special_tokens_do_not_change_other_weights(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT, "The unknown holds its grounds.")
    indices = [token.position for token in trace.tokens if not token.special]
    assert len(indices) == len(trace.tokens) - 3
    full = trace.attention(3, 5)
    result = Attention(3, 5, specials=False).of(trace)
    assert np.array_equal(result.weights, full[indices][:, indices])
    divided = Attention(3, 5, specials=False, renormalize=True).of(trace)
    assert_rounded(divided.row_sums, np.ones(len(indices)), len(indices))
    assert_rounded(divided.weights, result.weights / result.row_sums[:, None], 2)


def measured(trace: Trace, measure: str, head: int | str) -> np.ndarray:
    """Return an attention measure of layer 4, computed from the trace without the question."""
    if measure == "rollout":
        return rollout([trace.attention(layer) for layer in range(4)], 0.3)
    weights = trace.attention(3)
    if measure == "value-norm":
        weights = weights * value_norms(trace, 3)[:, None, :]
    return weights.mean(axis=0) if head == "mean" else weights[int(head)]


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize(("specials", "renormalize"), [(True, False), (False, False), (False, True)])
@pytest.mark.parametrize(
    ("measure", "head"),
    [("weights", 5), ("weights", "mean"), ("value-norm", 5), ("value-norm", "mean"), ("rollout", "mean")],
)
def test_all_measures_accept_all_options(
    minilm: Checkpoint, measure: str, head: Head, specials: bool, renormalize: bool, words: bool
) -> None:
    trace = minilm.trace("Tallahassee loves it", "unaffable, is it?")
    result = Attention(3, head, measure, words, specials, renormalize, residual=0.3).of(trace)
    expected = measured(trace, measure, head)
    lens = word_lens(trace)
    units: tuple[Token | Unit, ...] = lens.units if words else trace.tokens
    if words:
        expected = lens.merge(expected)
    if not specials:
        indices = [place for place, unit in enumerate(units) if not unit.special]
        expected = expected[indices][:, indices]
    if renormalize:
        expected = expected / expected.sum(axis=1, keepdims=True)
    assert_rounded(result.weights, expected, 4)
    assert result.keys == tuple(unit for unit in units if specials or not unit.special)
    if renormalize or (specials and measure_named(measure).shares):
        assert_rounded(result.row_sums, np.ones(len(result.keys)), len(trace.tokens))


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("measure", list(measures()))
def test_all_exports_contain_measure(minilm: Checkpoint, measure: str) -> None:
    trace = minilm.trace("Tallahassee loves it")
    residual = 0.3 if measure == "rollout" else 0.5  # the default: only rollout uses it
    question = AttentionLong(measure=measure, residual=residual, words=True, specials=False)
    result = question.of(trace)
    long = result.table()
    description = long.attrs["provenance"]["question"]
    assert description == question.to_json()
    assert (
        description["measure"],
        description["residual"],
        description["words"],
        description["specials"],
    ) == (
        measure,
        residual,
        True,
        False,
    )
    heads: list[Head] = list(range(12)) if measure_named(measure).of_heads else ["mean"]
    maps = [
        Attention(layer, head, measure, words=True, specials=False, residual=0.3).of(trace)
        for layer in range(6)
        for head in heads
    ]
    assert np.array_equal(long["weight"], np.concatenate([answer.weights.ravel() for answer in maps]))
    item = Attention(2, "mean", measure, words=True, specials=False, residual=0.3).of(trace)
    assert item.table().attrs["provenance"]["question"]["layer"] == 3
    with zipfile.ZipFile(io.BytesIO(files.parts_zip(result.parts(), "attention"))) as archive:
        zipped = pd.read_csv(archive.open("attention.csv"), dtype={"weight": np.float32})
        provenance = json.loads(archive.read("attention.csv.meta.json"))
    assert provenance == json.loads(json.dumps(long.attrs["provenance"]))
    assert np.array_equal(zipped["weight"], long["weight"])


def test_all_measures_are_described() -> None:
    assert list(measures())[:3] == ["weights", "value-norm", "rollout"]
    for name, item in measures().items():
        assert item.name == name
        assert item.meaning.endswith(".")
        assert len(item.meaning) < 240


@pytest.mark.parametrize(
    "arguments",
    [
        {"measure": "rollout", "head": 1},
        {"measure": "nope"},
        {"residual": 1.5},
        {"residual": float("nan")},
        {"words": 1},
        {"layer": "last"},
    ],
)
def test_invalid_questions_raise(minilm: Checkpoint, arguments: dict[str, Any]) -> None:
    with pytest.raises(SelectionError):
        Attention(**arguments).of(minilm.trace("we left"))


def test_long_form_names_rows_and_columns(minilm: Checkpoint) -> None:
    trace = minilm.trace("Sinan loves, loves it")
    table = AttentionLong([4, 0], ["mean", 3]).of(trace).table()
    assert list(table) == [
        "layer", "head", "query_position", "query_token", "key_position", "key_token", "weight"
    ]  # fmt: skip
    count = len(trace.tokens) ** 2
    assert list(table["layer"].unique()) == [5, 1]
    assert list(table["head"].unique()) == ["mean", "4"]
    assert len(table) == 4 * count
    part = table[(table["layer"] == 1) & (table["head"] == "4")]
    assert np.array_equal(part["weight"].to_numpy(), trace.attention(0, 3).ravel())


def test_long_form_is_built_in_blocks_of_queries(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of one head over 6,000 tokens has 36 million rows, which would need 4 GB at once."""
    trace = minilm.trace(TEXT)
    result = AttentionLong([0, 2], [1]).of(trace)
    whole, count = result.table(), len(trace.tokens)
    assert len([*result.parts()]) == 2
    monkeypatch.setattr(attention, "_BLOCK_ROWS", 3 * count - 1)
    parts = [*result.parts()]
    assert len(parts) == 2 * math.ceil(count / 2)
    assert max(map(len, parts)) == 2 * count
    pd.testing.assert_frame_equal(result.joined(parts), whole)
    pd.testing.assert_frame_equal(result.frame(), whole)


@pytest.mark.parametrize("arguments", [{"layers": []}, {"heads": []}, {"layers": [6]}, {"heads": [12]}])
def test_long_form_with_invalid_layer_or_head_raises(minilm: Checkpoint, arguments: dict[str, Any]) -> None:
    with pytest.raises(SelectionError):
        AttentionLong(**arguments).of(minilm.trace("we left"))


def test_result_uses_model_of_its_trace(minilm: Checkpoint, family: Callable[[str], Checkpoint]) -> None:
    """Measures that need a model use the trace's own model, so no other model can be passed by mistake."""
    own, other = minilm.trace("we left"), family("bert").trace("we left")
    for trace in (own, other):
        table = Attention(0, 0, "value-norm").of(trace).table()
        assert table.attrs["provenance"]["weights_sha256"] == trace.checkpoint.description.weights_sha256
        assert_rounded(table.to_numpy(), trace.attention(0, 0) * value_norms(trace, 0)[0], 2)
