"""Test wrapped models whose weights change: results have the current digest; stale traces are refused."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import bert_probe
from bert_probe.errors import UnavailableError
from bert_probe.model.from_model import digest
from bert_probe.runtime.cache import cache_key
from tests.helpers.families import TEXT
from tests.helpers.in_memory import assert_refused, assert_unchanged, train_step


def test_training_step_changes_numbers_and_digest(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    before = wrapped.trace(TEXT)
    states_before = before.hidden_states.copy()
    train_step(bert, before.encoding)
    after = wrapped.trace(TEXT)
    assert before.provenance["weights_sha256"] != after.provenance["weights_sha256"] == digest(bert)
    assert not np.array_equal(after.hidden_states, before.hidden_states)
    np.testing.assert_array_equal(before.hidden_states, states_before)
    np.testing.assert_array_equal(
        after.hidden_states, bert_probe.wrap(bert, tokenizer).trace(TEXT).hidden_states
    )
    assert cache_key(bert_probe.Attention(), before) != cache_key(bert_probe.Attention(), after)
    assert wrapped.description.weights_sha256 == digest(bert)


NEED_BOTH: dict[str, Callable[[Any], Any]] = {
    "value norms": lambda trace: bert_probe.Attention(measure="value-norm").of(trace),
    "value zeroing": lambda trace: bert_probe.Attention(measure="value-zeroing").of(trace),
    "steps": lambda trace: bert_probe.AttentionSteps(query=1).of(trace),
    "embedding": lambda trace: bert_probe.Embedding().of(trace),
    "pooler": lambda trace: bert_probe.Pooler().of(trace),
    "another text": lambda trace: trace.checkpoint.trace(TEXT),
}


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize("call_name", NEED_BOTH)
def test_changed_model_is_refused(call_name: str, bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    trace = wrapped.trace(TEXT)
    bert.pooler.dense.weight.data[0, 0] += 1  # A change of `data` does not increase the version counter.
    for _ in range(2):
        assert_unchanged(bert, lambda: assert_refused(UnavailableError, lambda: NEED_BOTH[call_name](trace)))
    with pytest.raises(UnavailableError, match=r"its weights differ\. Trace the text again\."):
        NEED_BOTH[call_name](trace)
    bert.pooler.dense.weight.data[0, 0] -= 1
    same = trace.provenance["weights_sha256"] == digest(bert)
    assert NEED_BOTH[call_name](wrapped.trace(TEXT) if not same else trace) is not None
    assert bert_probe.Attention().of(trace).weights.shape, "arrays of the trace itself are unchanged"


@pytest.mark.parametrize(
    "ask", [bert_probe.Sentences(), bert_probe.HeadMeans(resamples=5)], ids=["sentences", "heads"]
)
def test_result_never_mixes_two_states_of_a_model(ask: Any, bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    sentences = [f"{'the boat ' * 60}{number}" for number in range(40)]
    reports: list[int] = []

    def train(done: int, _total: int) -> None:
        reports.append(done)
        if 0 < done < len(sentences):
            bert.embeddings.word_embeddings.weight.data[0, 0] += 1

    with pytest.raises(UnavailableError, match=r"its weights differ\. Trace the text again\."):
        ask.of(wrapped, sentences, progress=train)
    assert 0 < reports[-1] < len(sentences)


def test_description_has_current_dtype_and_device(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    trace = wrapped.trace(TEXT)
    bert.double()
    assert wrapped.description.dtype == wrapped.trace(TEXT).provenance["dtype"] == "float64"
    with pytest.raises(UnavailableError, match="it is now in float64 instead of float32"):
        bert_probe.Attention(measure="value-norm").of(trace)
    bert.bfloat16()
    assert wrapped.trace(TEXT).provenance["dtype"] == "bfloat16"
    assert wrapped.trace(TEXT).provenance["device"] == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA is not available")
def test_model_may_move_to_device(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    before = wrapped.trace(TEXT)
    bert.cuda()
    after = wrapped.trace(TEXT)
    assert after.provenance["device"] == "cuda:0"
    assert after.provenance["weights_sha256"] == before.provenance["weights_sha256"]
    with pytest.raises(UnavailableError, match="it is now on cuda:0 instead of cpu"):
        bert_probe.Attention(measure="value-norm").of(before)
    assert bert_probe.Attention(measure="value-norm").of(after).weights.shape


def test_rebuilt_model_is_refused(bert: Any, tokenizer: Any) -> None:
    wrapped = bert_probe.wrap(bert, tokenizer)
    bert.pooler = None
    with pytest.raises(UnavailableError, match=r"has different modules or sizes.*Wrap the model again"):
        wrapped.trace(TEXT)
    assert bert_probe.wrap(bert, tokenizer).trace(TEXT).pooler is None


def test_models_with_equal_weights_share_no_cache_entry(bert: Any, tokenizer: Any) -> None:
    twin = copy.deepcopy(bert)
    for module in twin.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 0.1
    a, b = (bert_probe.wrap(model, tokenizer) for model in (bert, twin))
    assert a.description == b.description
    assert cache_key(bert_probe.Attention(), a.trace(TEXT)) != cache_key(
        bert_probe.Attention(), b.trace(TEXT)
    )
    assert cache_key(bert_probe.Attention(), a.trace(TEXT)) == cache_key(
        bert_probe.Attention(), a.trace(TEXT)
    )


def test_digest_has_the_documented_format() -> None:
    module = torch.nn.Module()
    module.register_parameter("b", torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]])))
    module.register_buffer("a", torch.tensor(7))
    a, b = np.array(7, "<i8"), np.array([1, 2, 3, 4], "<f4")
    lines = f"a int64  {hashlib.sha256(a.tobytes()).hexdigest()}\n"
    lines += f"b float32 2,2 {hashlib.sha256(b.tobytes()).hexdigest()}\n"
    assert digest(module) == hashlib.sha256(lines.encode()).hexdigest()
    module.b.data = module.b.data.T
    assert digest(module) != hashlib.sha256(lines.encode()).hexdigest(), "in row order, for any memory layout"


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.embeddings.LayerNorm.weight.data.mul_(1.0001),
        lambda model: model.double(),
        lambda model: setattr(
            model.embeddings.LayerNorm, "bias", torch.nn.Parameter(model.embeddings.LayerNorm.bias[None])
        ),
        lambda model: model.embeddings.word_embeddings.weight.data.copy_(
            model.embeddings.word_embeddings.weight.data.flip(0)
        ),
    ],
    ids=["a number", "the dtype", "a shape", "rows in another order"],
)
def test_digest_depends_on_every_tensor(change: Callable[[Any], Any], bert: Any) -> None:
    before = digest(bert)
    assert digest(bert) == before
    change(bert)
    assert digest(bert) != before
