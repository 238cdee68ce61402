"""Test that the recomputed pooler output equals the raw model's, for every architecture."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

import bert_probe
from bert_probe import Pooler
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from tests.helpers import families
from tests.helpers.exactness import EXACT, assert_exact, largest
from tests.helpers.families import PAIR, TEXT
from tests.helpers.gate import prove_unless
from tests.helpers.raw import Raw

Folders = Callable[[str], Path]
Checkpoints = Callable[[str], Checkpoint]

WITH_POOLER = [
    "bert", "roberta", "albert", "camembert", "xlm-roberta", "mobilebert", "mpnet", "ernie",
    "xlm-roberta-xl", "roberta-prelayernorm", "jina_embeddings_v3", "layoutlm",
]  # fmt: skip


@pytest.mark.parametrize("name", prove_unless({*families.REPRESENTATIVE, "mobilebert"}, WITH_POOLER))
def test_replay_equals_pooler_of_raw_model(
    name: str, double_family: Checkpoints, family_folder: Folders
) -> None:
    trace = double_family(name).trace(TEXT, PAIR)
    replay = Pooler().of(trace)
    expected = Raw(family_folder(name), "float64").run(trace.encoding).pooler_output[0].numpy()
    assert_exact(replay.replay, expected)
    assert_exact(replay.model_output, expected)
    assert replay.difference == np.abs(replay.replay - replay.model_output).max() <= EXACT
    assert np.array_equal(replay.cls, trace.vectors(-1)[0])
    assert_exact(np.tanh(replay.linear), replay.replay)
    assert np.abs(replay.replay - np.tanh(replay.cls)).max() > 0.1, "the linear layer has an effect"


@pytest.mark.parametrize("name", families.representative(WITH_POOLER))
def test_replay_in_float32_is_as_accurate_as_raw_model(
    name: str, family: Checkpoints, family_folder: Folders
) -> None:
    trace = family(name).trace(TEXT, PAIR)
    replay = Pooler().of(trace)
    expected = Raw(family_folder(name)).numbers(trace.encoding)
    for ours in (replay.replay, replay.model_output):
        expected.near(ours, expected.arrays["pooler"], "pooler")
    assert replay.difference <= 2 * expected.share * largest(expected.arrays["pooler"])
    assert {part.dtype for part in (replay.linear, replay.replay)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("name", families.representative(sorted(set(families.FAMILIES) - set(WITH_POOLER))))
def test_missing_pooler_raises(name: str, family: Checkpoints) -> None:
    trace = family(name).trace(TEXT)
    assert trace.pooler is None
    with pytest.raises(UnavailableError, match="has no pooler"):
        Pooler().of(trace)


def test_pooler_without_a_linear_layer_raises(tmp_path: Path) -> None:
    model = AutoModel.from_config(families.config("mobilebert", classifier_activation=False))
    families.randomize(model)
    model.save_pretrained(tmp_path)
    families.save_tokenizer("mobilebert", tmp_path)
    with pytest.raises(UnavailableError, match="is not a linear layer and a tanh"):
        Pooler().of(bert_probe.load(tmp_path).trace(TEXT))


def test_pooler_with_another_activation_raises(family: Checkpoints) -> None:
    model: Any = copy.deepcopy(family("bert").model)
    model.pooler.activation = torch.nn.ReLU()
    other = replace(family("bert"), model=model)
    with pytest.raises(
        UnavailableError, match=r"is not a linear layer and a tanh: the recomputed output differs"
    ):
        Pooler().of(other.trace(TEXT))


def test_external_trace_has_no_pooler(minilm: Checkpoint) -> None:
    with pytest.raises(UnavailableError, match="needs the model that computed the attention"):
        Pooler().of(replace(minilm.trace("we"), made_by=None))


def nudged(trace: Trace, amount: float) -> Trace:
    """Return a trace whose model has an amount added to the bias of its pooler."""
    model: Any = copy.deepcopy(trace.checkpoint.model)
    with torch.no_grad():
        model.pooler.dense.bias += amount
    return replace(trace, made_by=replace(trace.checkpoint, model=model))


def test_difference_grows_with_error(double_family: Checkpoints) -> None:
    trace = double_family("bert").trace(TEXT)
    exact = Pooler().of(trace).difference
    small, larger = (Pooler().of(nudged(trace, amount)).difference for amount in (3e-6, 9e-6))
    # The change of the output is bounded, because the derivative of tanh is at most 1.
    slope = 1 - np.tanh(Pooler().of(trace).linear) ** 2
    assert exact <= EXACT
    for amount, off in ((3e-6, small), (9e-6, larger)):
        # The second derivative of tanh is below 1, so the linear approximation is off by at most amount² / 2.
        assert off == pytest.approx(amount * slope.max(), abs=EXACT + amount**2 / 2)
    with pytest.raises(UnavailableError, match=r"the recomputed output differs by 0\.\d+"):
        Pooler().of(nudged(trace, 0.5))


def test_minilm_replay_is_within_rounding(double_minilm: Checkpoint) -> None:
    assert Pooler().of(double_minilm.trace("I am Sinan", "And you?")).difference <= EXACT


def test_pooler_has_expected_steps(minilm: Checkpoint) -> None:
    trace = minilm.trace("Sinan loves, loves it", "Do you?")
    replay = Pooler().of(trace)
    frame = replay.table()
    assert list(frame.index) == ["cls", "W·cls + b", "tanh(W·cls + b)", "model"]
    steps = [replay.cls, replay.linear, replay.replay, replay.model_output]
    assert np.array_equal(frame.to_numpy(), np.stack(steps))
    description = frame.attrs["provenance"]
    assert description["question"] == {"analysis": "pooler"}
    assert description["facts"] == {"difference_to_model": replay.difference}
    with pytest.raises(ShapeError, match="must have shape"):
        replace(replay, cls=replay.cls[:3])
    with pytest.raises(TypeError):
        replay.table(minilm.trace("another text"))  # type: ignore[call-arg]
