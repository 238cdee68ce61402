"""Test traces: attention computed by hand, invariants, and errors."""

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bert_probe import Attribution, Sentences
from bert_probe.errors import OutOfMemoryError, SelectionError, ShapeError, TooLongError, UnavailableError
from bert_probe.model import lengths
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace, resolve_index
from tests.helpers.exactness import EXACT, assert_rounded, own_error
from tests.helpers.families import LONG, PAIR, TEXT
from tests.helpers.gate import prove_unless
from tests.helpers.traces import two_token_trace

Checkpoints = Callable[[str], Checkpoint]


def test_scores_and_attention_equal_hand_computation() -> None:
    trace = two_token_trace()
    assert trace.scores(0, 0).tolist() == [[0.5, 0], [0, 1]]
    # softmax(½, 0) = e^½ / (e^½ + 1) = 0.6225; softmax(0, 1) = 1 / (1 + e) = 0.2689.
    first = math.exp(0.5) / (math.exp(0.5) + 1)
    second = 1 / (1 + math.e)
    expected = [[first, 1 - first], [second, 1 - second]]
    # There are four rounding steps: a difference, an exponential, a sum and a division.
    assert_rounded(trace.attention(0, 0), expected, 4)
    assert_rounded(trace.attention(0), [expected], 4)
    assert_rounded(trace.mean_attention(0), expected, 4)
    assert round(first, 4) == 0.6225


def test_scores_each_layer_uses_its_own_scaling() -> None:
    trace = two_token_trace()
    two = {name: getattr(trace, name) * 2 for name in ("queries", "keys", "values", "masks")}
    trace = replace(trace, states=(trace.states[0], *trace.states[-1:] * 2), scaling=(0.5, 1.5), **two)
    np.testing.assert_array_equal(trace.scores(1), 3 * trace.scores(0))


def test_boolean_mask_removes_attention() -> None:
    trace = two_token_trace(np.array([[True, False], [True, True]]))
    assert trace.scores(0, 0)[0, 1] == -np.inf
    np.testing.assert_array_equal(trace.attention(0, 0)[0], [1, 0])
    assert_rounded(trace.attention(0, 0)[1], two_token_trace().attention(0, 0)[1], 4)


def test_float_mask_is_added_to_scores() -> None:
    trace = two_token_trace(np.array([[0, 0.5], [0, 0]], np.float32))
    assert trace.scores(0, 0).tolist() == [[0.5, 0.5], [0, 1]]
    assert trace.attention(0, 0)[0].tolist() == [0.5, 0.5]
    for_a_head = two_token_trace(np.array([[[0, 0.5], [0, 0]]], np.float32))
    np.testing.assert_array_equal(for_a_head.attention(0, 0), trace.attention(0, 0))
    np.testing.assert_array_equal(for_a_head.attention(0), trace.attention(0))
    for_all_queries = two_token_trace(np.array([[0, 0.5]], np.float32))
    assert for_all_queries.scores(0, 0).tolist() == [[0.5, 0.5], [0, 1.5]]


def test_huge_scores_do_not_overflow() -> None:
    trace = two_token_trace(np.array([[1e30, 0], [-1e30, -1e30]], np.float32))
    np.testing.assert_array_equal(trace.attention(0, 0), [[1, 0], [0.5, 0.5]])


@pytest.mark.parametrize("name", ["bert", "modernbert", "eurobert", "mpnet", "deberta-v2"])
def test_rows_sum_to_1_and_columns_do_not(name: str, family: Checkpoints, double_family: Checkpoints) -> None:
    for checkpoint in (family(name), double_family(name)):
        trace = checkpoint.trace(LONG[:150], PAIR)
        for layer in range(trace.layers):
            weights = trace.attention(layer)
            sums = weights.sum(axis=-1, dtype=np.float64)
            assert_rounded(sums, np.ones_like(sums), len(trace.tokens))
            assert weights.dtype == np.float32 or own_error(sums, np.ones_like(sums)) < EXACT
            assert (weights >= 0).all()
            assert np.abs(weights.sum(axis=-2) - 1).max() > 0.1
            mean = weights.mean(axis=0, dtype=np.float64)
            assert_rounded(trace.mean_attention(layer), mean, trace.heads)


def test_traces_of_same_text_are_identical(minilm: Checkpoint) -> None:
    first, second = minilm.trace(TEXT), minilm.trace(TEXT)
    np.testing.assert_array_equal(first.hidden_states, second.hidden_states)
    np.testing.assert_array_equal(first.attention(2), second.attention(2))


def test_negative_layers_and_heads_count_from_the_end(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    np.testing.assert_array_equal(trace.attention(-1, -1), trace.attention(5, 11))
    np.testing.assert_array_equal(trace.attention(-6, -12), trace.attention(0, 0))
    np.testing.assert_array_equal(trace.vectors(-1), trace.hidden_states[6])
    np.testing.assert_array_equal(trace.vectors(-7), trace.hidden_states[0])
    np.testing.assert_array_equal(trace.attention(np.int64(2), np.int32(3)), trace.attention(2, 3))


@pytest.mark.parametrize("layer", [6, -7, 1000, True, False, 1.0, "1", None, np.float32(1), [0]])
def test_unknown_layer_is_refused(layer: Any, minilm: Checkpoint) -> None:
    trace = minilm.trace("one")
    for ask in (trace.attention, trace.scores, trace.mean_attention):
        with pytest.raises(SelectionError, match=r"There is no layer|layer must be a whole number"):
            ask(layer)
        with pytest.raises(IndexError):
            ask(layer)


@pytest.mark.parametrize("head", [12, -13, True, 0.0, "0", [0]])
def test_unknown_head_is_refused(head: Any, minilm: Checkpoint) -> None:
    trace = minilm.trace("one")
    for ask in (trace.attention, trace.scores):
        with pytest.raises(SelectionError, match=r"There is no head|head must be a whole number"):
            ask(0, head)


def test_vectors_have_one_layer_more_than_attention(minilm: Checkpoint) -> None:
    trace = minilm.trace("one")
    assert trace.vectors(6).shape == (3, 384)
    with pytest.raises(SelectionError, match="valid indices are 0 to 6, or -7 to -1"):
        trace.vectors(7)


@given(count=st.integers(1, 50), index=st.integers(-60, 60))
def test_indices_resolve_like_python(count: int, index: int) -> None:
    try:
        expected = range(count)[index]
    except IndexError:
        with pytest.raises(SelectionError):
            resolve_index(index, count, "layer")
    else:
        assert resolve_index(index, count, "layer") == expected


def test_scores_are_unavailable_if_q_and_k_are_hidden(family: Checkpoints) -> None:
    trace = family("longformer").trace(TEXT)
    with pytest.raises(UnavailableError, match="LongformerModel does not expose its queries and keys"):
        trace.scores(0)


def test_arrays_are_read_only(minilm: Checkpoint, family: Checkpoints) -> None:
    for trace in (
        minilm.trace(TEXT),
        *minilm.traces([TEXT, PAIR]),
        *(family(n).trace(LONG[:200]) for n in ("modernbert", "mpnet")),
    ):
        arrays = [trace.hidden_states, trace.vectors(0), trace.pooler, trace.cls, trace.q, trace.k, trace.v]
        for group in (trace.states, trace.queries, trace.keys, trace.values, trace.weights, trace.masks):
            arrays += group or ()
        for array in arrays:
            if array is not None:
                assert not array.flags.writeable
                with pytest.raises(ValueError, match="read-only"):
                    array[...] = 0
    with pytest.raises(FrozenInstanceError):
        trace.states = ()  # type: ignore[misc]


def test_changing_an_attention_map_does_not_change_the_trace(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    before = trace.attention(0).copy()
    trace.attention(0)[:] = 7
    trace.scores(0)[:] = 7
    np.testing.assert_array_equal(trace.attention(0), before)


def test_repr_is_short(minilm: Checkpoint) -> None:
    assert repr(minilm.trace("we had left")) == "<Trace of 5 tokens: “we had left”>"
    assert len(repr(minilm.trace("boat " * 300))) < 80


def owners(trace: Trace) -> list[np.ndarray]:
    """Return every array that a trace refers to, including the arrays that views are based on."""
    arrays: dict[int, np.ndarray] = {}
    stack: list[Any] = list(vars(trace).values())
    while stack:
        item = stack.pop()
        if isinstance(item, tuple | list):
            stack += item
        elif isinstance(item, np.ndarray) and id(item) not in arrays:
            arrays[id(item)] = item
            stack.append(item.base)
    return list(arrays.values())


def test_512_tokens_of_minilm_need_at_most_40_megabytes(minilm: Checkpoint) -> None:
    trace = minilm.trace("the " * 510)
    assert len(trace.tokens) == 512
    fresh = trace.nbytes
    arrays = (7 * 512 * 384 + 3 * 6 * 512 * 384 + 384) * 4
    assert fresh == arrays + trace.encoding.nbytes
    assert trace.encoding.nbytes < 0.5e6
    for array in (trace.q, trace.k, trace.v, trace.hidden_states):
        assert array is not None
    for layer in range(6):
        trace.attention(layer, 0)
        trace.mean_attention(layer)
    assert fresh < trace.nbytes <= 40_000_000
    assert all(array.shape[-2:] != (512, 512) for array in owners(trace)), "attention is not stored"


@pytest.mark.parametrize("name", ["bert", "roberta", "eurobert", "layoutlm"])
def test_new_trace_has_no_attention_matrix(name: str, family: Checkpoints) -> None:
    for trace in (family(name).trace(LONG[:180]), *family(name).traces([TEXT, LONG[:180]])):
        length = len(trace.tokens)
        assert trace.masks == (None, None, None)
        assert all(array.shape[-2:] != (length, length) for array in owners(trace))


def test_trace_of_batch_does_not_keep_batch(minilm: Checkpoint) -> None:
    short, _ = minilm.traces(["one", "the " * 500])
    owned = owners(short)
    assert len(owned) >= 7 + 3 * 6, "arrays were found"
    for array in owned:
        assert array.nbytes <= 3 * 384 * 4
        assert not isinstance(array.base, torch.Tensor), "a view would keep the whole batch in memory"


def test_shared_mask_is_counted_once(family: Checkpoints) -> None:
    trace = family("modernbert").trace(LONG, truncate=True)
    assert trace.masks is not None
    assert trace.masks[0] is None
    assert trace.masks[1] is trace.masks[2]
    assert trace.masks[1].dtype == np.bool_
    parts = (trace.states, trace.queries, trace.keys, trace.values, trace.masks[1:2])
    arrays: list[Any] = [array for part in parts if part for array in part]
    assert trace.nbytes == trace.encoding.nbytes + sum(array.nbytes for array in arrays)


def test_out_of_memory_in_attention_raises_error(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = minilm.trace(TEXT)

    def fail(*_args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Trace, "_scores", fail)
    with pytest.raises(OutOfMemoryError, match=r"14 tokens needs more memory .* one head at a time"):
        trace.attention(0)
    with pytest.raises(OutOfMemoryError):
        trace.scores(0)
    monkeypatch.setattr(np, "stack", fail)
    with pytest.raises(OutOfMemoryError, match="arrays of 7 layers need more memory"):
        _ = trace.hidden_states


def _cut(trace: Trace, name: str) -> tuple[np.ndarray, ...]:
    return tuple(part[:, :-1] if part.ndim == 3 else part[:-1] for part in getattr(trace, name))


@pytest.mark.parametrize("name", ["states", "queries", "keys", "values"])
def test_arrays_with_other_token_count_are_refused(name: str, minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    with pytest.raises(ShapeError, match=f"{name} must contain .* arrays over 14 tokens"):
        replace(trace, **{name: _cut(trace, name)})


@pytest.mark.parametrize("name", ["queries", "keys", "values", "scaling", "masks"])
def test_arrays_with_other_layer_count_are_refused(name: str, minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    with pytest.raises(ShapeError):
        replace(trace, **{name: getattr(trace, name)[:-1]})


@pytest.mark.parametrize("name", ["queries", "keys", "values", "scaling", "masks"])
def test_trace_refuses_missing_arrays(name: str) -> None:
    with pytest.raises(ShapeError):
        two_token_trace(**{name: None})


def test_weights_together_with_queries_are_refused() -> None:
    with pytest.raises(ShapeError, match="either q, k and v or the attention weights"):
        two_token_trace(weights=(np.full((1, 2, 2), 0.5, np.float32),))


def test_mismatched_keys_and_masks_are_refused() -> None:
    with pytest.raises(ShapeError, match="do not match"):
        two_token_trace(keys=(np.zeros((2, 2, 2), np.float32),))
    with pytest.raises(ShapeError, match="do not match"):
        two_token_trace(keys=(np.zeros((1, 2, 3), np.float32),))
    with pytest.raises(ShapeError, match="do not match"):
        two_token_trace(values=(np.zeros((2, 2, 2), np.float32),))
    with pytest.raises(ShapeError, match="The shape of a mask"):
        two_token_trace(np.ones((3, 3), bool))
    with pytest.raises(ShapeError, match="The shape of a mask"):
        two_token_trace(np.ones((2, 2, 2), bool))


def test_non_square_weights_are_refused(family: Checkpoints) -> None:
    trace = family("longformer").trace(TEXT)
    with pytest.raises(ShapeError, match="with one query and one key"):
        replace(trace, weights=tuple(part[:, :, :-1] for part in trace.weights or ()))


def test_cls_is_last_vector_of_first_token(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    np.testing.assert_array_equal(trace.cls, trace.hidden_states[-1, 0])
    assert two_token_trace().cls is None, "without a special token at the start"


def test_provenance_has_model_and_text(minilm: Checkpoint) -> None:
    trace = minilm.trace("the " * 600, truncate=True)
    record = trace.provenance
    assert record["weights_sha256"].startswith("53aa5117")
    assert (record["dtype"], record["device"], record["origin"]) == ("float32", "cpu", "built-in")
    assert (record["tokens"], record["tokens_dropped"], record["pair"]) == (512, 90, None)
    assert record["libraries"]["torch"] == torch.__version__
    assert record["text"] == "the " * 600


HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    '"; DROP TABLE tokens; --',
    "{{ 7 * 7 }} ${7*7} %s %n {0}",
    "=cmd|' /C calc'!A0",
    "\u202eright to left\u202c",
    "a\u0301\u0302\u0303" * 20,
    "🏳️‍🌈👩‍👩‍👧‍👦",
    "\ufffe\uffff",
    "[CLS] [SEP] [PAD] [PAD]",
    "../../etc/passwd\r\nSet-Cookie: a=b",
    "x" * 5000,
    "﷽",
]


@pytest.mark.parametrize("name", prove_unless({"roberta", "camembert"}, ["minilm", "roberta", "camembert"]))
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_traced(text: str, name: str, minilm: Checkpoint, family: Checkpoints) -> None:
    checkpoint = minilm if name == "minilm" else family(name)
    trace = checkpoint.trace(text, truncate=True)
    assert trace.encoding.text == text
    for layer in range(trace.layers):
        sums = trace.attention(layer).sum(axis=-1, dtype=np.float64)
        assert_rounded(sums, np.ones_like(sums), len(trace.tokens))
    assert np.isfinite(trace.hidden_states).all()


def test_attention_of_all_heads_is_limited_on_servers_with_limited_tasks(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = minilm.trace(TEXT)
    size = 4 * trace.heads * len(trace.tokens) ** 2
    monkeypatch.setattr(lengths, "MAX_ATTENTION_BYTES", size - 1)
    trace.attention(0)
    monkeypatch.setattr(lengths, "_task_bytes", 250_000_000)
    trace.attention(0, 3)
    for compute in (trace.attention, trace.scores, trace.mean_attention):
        with pytest.raises(UnavailableError, match="Use a shorter text or, if possible, one head"):
            compute(0)
    monkeypatch.setattr(lengths, "MAX_ATTENTION_BYTES", size)
    trace.attention(0)


def test_attention_of_one_head_of_8192_tokens_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "_task_bytes", 250_000_000)
    lengths.check_attention_bytes(8_192, 1)
    with pytest.raises(UnavailableError):
        lengths.check_attention_bytes(8_192, 2)


@pytest.mark.parametrize("name", ["t5", "bert"])
def test_tokens_of_traces_are_limited_on_such_servers(
    family: Checkpoints, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    checkpoint = family(name)
    monkeypatch.setattr(lengths, "MAX_SERVER_TOKENS", 20)
    text = "the boat " * 15
    assert len(checkpoint.trace(text).tokens) > 20
    monkeypatch.setattr(lengths, "_task_bytes", 250_000_000)
    for truncate in (False, True):  # a truncated text would have other results elsewhere
        with pytest.raises(TooLongError, match=r"this server supports at most 20\. Shorten the text\.$"):
            checkpoint.trace(text, truncate=truncate)
    if checkpoint.description.max_tokens is None:
        for encode in (checkpoint.encoder.inputs, checkpoint.encoder.encode):
            with pytest.raises(TooLongError, match="this server supports at most 20"):
                encode(text, truncate=True)
        with pytest.raises(TooLongError, match="this server supports at most 20"):
            checkpoint.encoder.windows("the boat", text, 0)
    assert len(checkpoint.trace("the boat").tokens) < 20


def test_attention_of_models_with_own_code_is_limited_on_such_servers(
    family: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeBERTa computes several arrays of attention: 4.2 GB for the vector of a text of 4,000 tokens."""
    fused, eager = family("bert"), family("deberta-v2")
    texts = ["the boat " * 15]
    tokens = len(eager.encode(texts[0]))
    monkeypatch.setattr(lengths, "_task_bytes", 250_000_000)
    monkeypatch.setattr(lengths, "MAX_ATTENTION_BYTES", 4 * 4 * eager.description.heads * tokens**2)
    assert Sentences().of(eager, texts).tokens == (tokens,)
    monkeypatch.setattr(lengths, "MAX_ATTENTION_BYTES", 1)
    assert Sentences().of(fused, texts).tokens
    with pytest.raises(UnavailableError, match="Use a shorter text"):
        Sentences().of(eager, texts)


def test_vectors_on_such_servers_equal_those_of_other_servers(
    family: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only traces have a limit of the server; a vector does not depend on where it is computed."""
    bert = family("bert")
    texts = ["the boat " * 15]
    vectors = Sentences().of(bert, texts).vectors
    monkeypatch.setattr(lengths, "MAX_SERVER_TOKENS", 20)
    monkeypatch.setattr(lengths, "_task_bytes", 250_000_000)
    assert np.array_equal(Sentences().of(bert, texts).vectors, vectors)


def test_attention_for_gradients_is_limited_on_such_servers(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = Attribution("sentence-similarity", method="attention-gradient")
    traces = minilm.trace(TEXT), minilm.trace(PAIR)
    question.of(*traces)
    size = 4 * 12 * 6 * min(len(side.tokens) for side in traces) ** 2
    monkeypatch.setattr(lengths, "_task_bytes", 250_000_000)
    monkeypatch.setattr(lengths, "MAX_ATTENTION_BYTES", size - 1)
    with pytest.raises(UnavailableError, match="Use a shorter text"):
        question.of(*traces)


@pytest.mark.parametrize("name", ["bert", "t5", "deberta-v2", "longformer", "mpnet"])
def test_trace_with_its_biases_or_weights_is_limited_on_such_servers(
    name: str, family: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traces contain biases or attention weights of all layers: 5 GB for 3,000 tokens of Longformer."""
    checkpoint = family(name)
    trace = checkpoint.trace(TEXT)
    matrices = {id(array): array for array in (*(trace.masks or ()), *(trace.weights or ()))}.values()
    vectors = [array for array in (trace.hidden_states, trace.q, trace.k, trace.v) if array is not None]
    actual = sum(array.nbytes for array in (*matrices, *vectors) if array is not None)
    size = checkpoint.description.trace_bytes(len(trace.tokens))
    assert actual == size
    monkeypatch.setattr(lengths, "_task_bytes", size - 1)
    with pytest.raises(UnavailableError, match="Use a shorter text"):
        checkpoint.trace(TEXT)
    monkeypatch.setattr(lengths, "_task_bytes", size)
    checkpoint.trace(TEXT)
