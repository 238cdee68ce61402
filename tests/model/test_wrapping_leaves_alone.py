"""Test that wrapped models are unchanged after every call, including failed ones."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import bert_probe
from bert_probe.errors import ArchitectureError, TooLongError
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.exactness import assert_repeatable
from tests.helpers.families import LONG, PAIR, SENTENCES, TEXT, config
from tests.helpers.gate import prove_unless
from tests.helpers.in_memory import (
    Folders,
    assert_refused,
    assert_unchanged,
    load_for_training,
    take_snapshot,
    tokenizer_of,
)


def fails(_module: Any, _args: Any) -> None:
    raise RuntimeError("a hook of the user's own")


CALLS: dict[str, Callable[[Checkpoint], Any]] = {
    "trace": lambda checkpoint: checkpoint.trace(TEXT, PAIR),
    "a batch": lambda checkpoint: checkpoint.traces(list(SENTENCES)),
    "value norms": lambda checkpoint: bert_probe.Attention(1, 2, "value-norm").of(checkpoint.trace(TEXT)),
    "value zeroing": lambda checkpoint: bert_probe.Attention(1, "mean", "value-zeroing").of(
        checkpoint.trace(TEXT)
    ),
    "steps": lambda checkpoint: bert_probe.AttentionSteps(query=1).of(checkpoint.trace(TEXT)),
    "embedding": lambda checkpoint: bert_probe.Embedding().of(checkpoint.trace(TEXT)),
    "pooler": lambda checkpoint: bert_probe.Pooler().of(checkpoint.trace(TEXT)),
    "parameters": lambda checkpoint: bert_probe.Parameters().of(checkpoint),
    "description": lambda checkpoint: checkpoint.description,
    "a text too long": lambda checkpoint: assert_refused(
        TooLongError, lambda: checkpoint.trace(f"{LONG} {LONG}")
    ),
}

IN_BERT = ("value norms", "value zeroing", "steps", "embedding", "pooler")
"""Calls that not every family supports."""


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("implementation", "name"),
    prove_unless(
        lambda case: case[0] is None or case[1] == "bert",
        product(["eager", None], ["bert", "albert", "modernbert", "deberta-v2", "mpnet"]),
    ),
)
def test_every_call_leaves_the_model_unchanged(
    name: str, implementation: str | None, family_folder: Folders
) -> None:
    folder = family_folder(name)
    model = load_for_training(folder, implementation)
    for number, module in enumerate(model.modules()):
        module.training = number % 3 > 0  # The modules are in different modes, as in a partly frozen model.
    for number, part in enumerate(model.parameters()):
        part.requires_grad_(number % 2 > 0)
    checkpoints: list[Checkpoint] = []
    assert_unchanged(model, lambda: checkpoints.append(bert_probe.wrap(model, tokenizer_of(folder))))
    (wrapped,) = checkpoints
    for call_name, call in CALLS.items():
        if name == "bert" or call_name not in IN_BERT:
            assert_unchanged(model, lambda call=call: call(wrapped))  # type: ignore[misc]


def test_failed_pass_leaves_the_model_unchanged(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    handle = bert.get_submodule("encoder.layer.1.output").register_forward_pre_hook(fails)
    assert_unchanged(bert, lambda: assert_refused(RuntimeError, lambda: wrapped.trace(TEXT)))
    assert_unchanged(
        bert, lambda: assert_refused(ArchitectureError, lambda: bert_probe.wrap(bert, tokenizer))
    )
    handle.remove()
    assert wrapped.trace(TEXT).layers == 3


def test_user_hooks_run_and_remain(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    calls: list[int] = []
    bert.get_submodule("encoder.layer.1").register_forward_hook(lambda *_: calls.append(1))
    assert_unchanged(bert, lambda: wrapped.trace(TEXT))
    assert calls == [1]


def test_dropout_is_off_and_random_state_unchanged(bert: Any, tokenizer: Any) -> None:
    assert bert.config.hidden_dropout_prob > 0
    wrapped = bert_probe.wrap(bert, tokenizer)
    first, second = wrapped.trace(TEXT), wrapped.trace(TEXT)
    np.testing.assert_array_equal(first.hidden_states, second.hidden_states)
    with torch.no_grad():
        inputs = {name: torch.tensor(ids)[None] for name, ids in first.encoding.inputs.items()}
        assert not torch.equal(bert(**inputs)[0], bert(**inputs)[0]), "the model is still in training mode"


def test_accumulated_gradients_remain(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    encoding = wrapped.encode(TEXT)
    inputs = {name: torch.tensor(ids)[None] for name, ids in encoding.inputs.items()}
    bert(**inputs).last_hidden_state.square().mean().backward()
    assert bert.embeddings.word_embeddings.weight.grad is not None
    assert_unchanged(bert, lambda: wrapped.trace(TEXT))


def test_user_settings_do_not_affect_traces(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    expected = wrapped.trace(TEXT).hidden_states
    bert.config.return_dict = False
    bert.config.output_hidden_states = True
    traces = []
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        assert_unchanged(bert, lambda: traces.append(wrapped.trace(TEXT)))
    np.testing.assert_array_equal(traces[0].hidden_states, expected)


@pytest.mark.prove
@pytest.mark.parametrize("in_place", prove_unless({False}, [True, False]))
def test_compiled_model_runs_uncompiled(bert: Any, tokenizer: Any, in_place: bool) -> None:
    expected = bert_probe.wrap(bert, tokenizer).trace(TEXT)

    def never(*_: Any) -> Any:
        raise AssertionError("it was compiled")

    if in_place:
        bert.compile(backend=never)
    model = bert if in_place else torch.compile(bert, backend=never)
    wrapped = bert_probe.wrap(model, tokenizer)
    traces = []
    assert_unchanged(bert, lambda: traces.append(wrapped.trace(TEXT)))
    np.testing.assert_array_equal(traces[0].hidden_states, expected.hidden_states)


@pytest.mark.prove
def test_wrapped_models_run_one_at_a_time(tokenizer: Any) -> None:
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(config("bert")).train()
    # Wrap the same model twice, and another model that has the same config object.
    other = transformers.BertModel(model.config).train()
    checkpoints = [bert_probe.wrap(encoder, tokenizer) for encoder in (model, model.bert, other)]
    jobs = [(checkpoint, text) for checkpoint in checkpoints for text in SENTENCES] * 3
    expected = [checkpoint.trace(text).hidden_states for checkpoint, text in jobs]
    before, other_before = take_snapshot(model), take_snapshot(other)
    with ThreadPoolExecutor(6) as threads:
        results = list(threads.map(lambda job: job[0].trace(job[1]).hidden_states, jobs))
    for states, expected_states in zip(results, expected, strict=True):
        assert_repeatable(states, expected_states)
    assert take_snapshot(model) == before
    assert take_snapshot(other) == other_before
