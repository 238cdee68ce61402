"""A wrapped model is left as it was, whatever is asked of it and whatever fails."""

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
from tests.helpers.exactness import assert_alike
from tests.helpers.families import LONG, PAIR, SENTENCES, TEXT, config
from tests.helpers.gate import prove_unless
from tests.helpers.in_memory import Folders, everything, left_alone, opened, refused, tokenizer_of


def fails(_module: Any, _given: Any) -> None:
    raise RuntimeError("a hook of the user's own")


CALLS: dict[str, Callable[[Checkpoint], Any]] = {
    "trace": lambda one: one.trace(TEXT, PAIR),
    "a batch": lambda one: one.traces(list(SENTENCES)),
    "value norms": lambda one: bert_probe.Attention(1, 2, "value-norm").of(one.trace(TEXT)),
    "value zeroing": lambda one: bert_probe.Attention(1, "mean", "value-zeroing").of(one.trace(TEXT)),
    "steps": lambda one: bert_probe.AttentionSteps(query=1).of(one.trace(TEXT)),
    "embedding": lambda one: bert_probe.Embedding().of(one.trace(TEXT)),
    "pooler": lambda one: bert_probe.Pooler().of(one.trace(TEXT)),
    "parameters": lambda one: bert_probe.Parameters().of(one),
    "description": lambda one: one.description,
    "a text too long": lambda one: refused(TooLongError, lambda: one.trace(f"{LONG} {LONG}")),
}

IN_BERT = ("value norms", "value zeroing", "steps", "embedding", "pooler")
"""What not every family offers."""


@pytest.mark.parametrize(
    ("implementation", "name"),
    prove_unless(
        lambda case: case[0] is None or case[1] == "bert",
        product(["eager", None], ["bert", "albert", "modernbert", "deberta-v2", "mpnet"]),
    ),
)
def test_every_call_leaves_it_as_it_was(
    name: str, implementation: str | None, family_folder: Folders
) -> None:
    folder = family_folder(name)
    model = opened(folder, implementation)
    for number, module in enumerate(model.modules()):
        module.training = number % 3 > 0  # each its own, as in a model that is frozen in parts
    for number, part in enumerate(model.parameters()):
        part.requires_grad_(number % 2 > 0)
    found: list[Checkpoint] = []
    left_alone(model, lambda: found.append(bert_probe.wrap(model, tokenizer_of(folder))))
    (wrapped,) = found
    for what, call in CALLS.items():
        if name == "bert" or what not in IN_BERT:
            left_alone(model, lambda call=call: call(wrapped))  # type: ignore[misc]


def test_a_failing_pass_leaves_it_as_it_was(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    handle = bert.get_submodule("encoder.layer.1.output").register_forward_pre_hook(fails)
    left_alone(bert, lambda: refused(RuntimeError, lambda: wrapped.trace(TEXT)))
    left_alone(bert, lambda: refused(ArchitectureError, lambda: bert_probe.wrap(bert, tokenizer)))
    handle.remove()
    assert wrapped.trace(TEXT).layers == 3


def test_hooks_of_the_user_run_and_stay(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    seen: list[int] = []
    bert.get_submodule("encoder.layer.1").register_forward_hook(lambda *_: seen.append(1))
    left_alone(bert, lambda: wrapped.trace(TEXT))
    assert seen == [1]


def test_dropout_is_off_while_it_runs_and_no_dice_are_thrown(bert: Any, tokenizer: Any) -> None:
    assert bert.config.hidden_dropout_prob > 0
    wrapped = bert_probe.wrap(bert, tokenizer)
    one, other = wrapped.trace(TEXT), wrapped.trace(TEXT)
    np.testing.assert_array_equal(one.hidden_states, other.hidden_states)
    with torch.no_grad():
        inputs = {name: torch.tensor(ids)[None] for name, ids in one.encoding.inputs.items()}
        assert not torch.equal(bert(**inputs)[0], bert(**inputs)[0]), "it is still in training"


def test_gradients_that_are_gathered_stay(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    encoding = wrapped.encode(TEXT)
    inputs = {name: torch.tensor(ids)[None] for name, ids in encoding.inputs.items()}
    bert(**inputs).last_hidden_state.square().mean().backward()
    assert bert.embeddings.word_embeddings.weight.grad is not None
    left_alone(bert, lambda: wrapped.trace(TEXT))


def test_settings_of_the_user_do_not_reach_our_passes(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    expected = wrapped.trace(TEXT).hidden_states
    bert.config.return_dict = False
    bert.config.output_hidden_states = True
    found = []
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        left_alone(bert, lambda: found.append(wrapped.trace(TEXT)))
    np.testing.assert_array_equal(found[0].hidden_states, expected)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_model_is_run_as_it_was_written(bert: Any, tokenizer: Any, in_place: bool) -> None:
    expected = bert_probe.wrap(bert, tokenizer).trace(TEXT)

    def never(*_: Any) -> Any:
        raise AssertionError("it was compiled")

    if in_place:
        bert.compile(backend=never)
    given = bert if in_place else torch.compile(bert, backend=never)
    wrapped = bert_probe.wrap(given, tokenizer)
    found = []
    left_alone(bert, lambda: found.append(wrapped.trace(TEXT)))
    np.testing.assert_array_equal(found[0].hidden_states, expected.hidden_states)


def test_threads_take_turns(tokenizer: Any) -> None:
    torch.manual_seed(0)
    whole = transformers.BertForMaskedLM(config("bert")).train()
    # One model twice, and another one that shares its config.
    other = transformers.BertModel(whole.config).train()
    checkpoints = [bert_probe.wrap(one, tokenizer) for one in (whole, whole.bert, other)]
    jobs = [(checkpoint, text) for checkpoint in checkpoints for text in SENTENCES] * 3
    expected = [one.trace(text).hidden_states for one, text in jobs]
    before, other_before = everything(whole), everything(other)
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda job: job[0].trace(job[1]).hidden_states, jobs))
    for one, theirs in zip(found, expected, strict=True):
        assert_alike(one, theirs)
    assert everything(whole) == before
    assert everything(other) == other_before
