"""Test batches: order, padding and batch size do not change the results."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_probe.errors import ArchitectureError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.forward import BATCH_TOKENS, group_by_length, pad
from tests.helpers.exactness import assert_exact
from tests.helpers.families import LONG, SENTENCES, TEXT
from tests.helpers.gate import examples

Checkpoints = Callable[[str], Checkpoint]


def test_traces_do_not_depend_on_batch_order(double_minilm: Checkpoint) -> None:
    forward = double_minilm.traces(SENTENCES)
    backward = double_minilm.traces(SENTENCES[::-1])[::-1]
    for first, second, text in zip(forward, backward, SENTENCES, strict=True):
        assert first.encoding.text == second.encoding.text == text
        assert_exact(first.hidden_states, second.hidden_states)
        assert_exact(first.attention(-1), second.attention(-1))


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "mpnet", "mobilebert", "layoutlm"])
def test_traces_do_not_depend_on_padding(name: str, double_family: Checkpoints) -> None:
    checkpoint = double_family(name)
    short, long = checkpoint.traces([TEXT, LONG[:180]])
    alone = checkpoint.trace(TEXT)
    assert len(short.tokens) == len(alone.tokens) < len(long.tokens)
    assert_exact(short.hidden_states, alone.hidden_states)
    for layer in range(3):
        assert_exact(short.attention(layer), alone.attention(layer))
    if alone.pooler is not None:
        assert_exact(short.pooler, alone.pooler)


def test_texts_of_several_batches_keep_order(family: Checkpoints) -> None:
    texts = [f"{'we ' * (number % 100)}{number}" for number in range(200)]
    traces = family("bert").traces(texts)
    assert sum(len(trace.tokens) for trace in traces) > BATCH_TOKENS
    assert [trace.encoding.text for trace in traces] == texts


def test_no_texts_give_no_traces(minilm: Checkpoint) -> None:
    assert minilm.traces([]) == []


@pytest.mark.parametrize("texts", ["one text", ["fine", None], [3]])
def test_string_instead_of_list_is_refused(texts: Any, minilm: Checkpoint) -> None:
    with pytest.raises(TextError):
        minilm.traces(texts)


@settings(max_examples=examples(200), deadline=None)
@given(lengths=st.lists(st.integers(1, 60), max_size=40), budget=st.integers(1, 200), pads=st.booleans())
def test_batches_hold_every_text_once_within_the_budget(lengths: list[int], budget: int, pads: bool) -> None:
    groups = group_by_length(lengths, budget, pads)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[index] for index in group)
        assert len(group) == 1 or len(group) * longest <= budget
        assert pads or {lengths[index] for index in group} == {longest}


def test_padding_fills_with_the_given_ids_on_the_right(minilm: Checkpoint) -> None:
    inputs = pad([minilm.encode("one two"), minilm.encode("one")], {"input_ids": 7})
    assert inputs["input_ids"].tolist() == [[101, 2028, 2048, 102], [101, 2028, 102, 7]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]


def test_eager_attention_that_is_not_a_distribution_is_refused(
    family: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = family("longformer")
    forward = checkpoint.model.forward

    def halved(**options: Any) -> Any:
        output = forward(**options)
        output["attentions"] = tuple(part / 2 for part in output["attentions"])
        return output

    monkeypatch.setattr(checkpoint.model, "forward", halved)
    with pytest.raises(ArchitectureError, match="LongformerModel has attention rows that do not sum to 1"):
        checkpoint.trace(TEXT)
