"""Test attention steps: parity with the raw model in every architecture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_probe import AttentionSteps, Checkpoint
from bert_probe.analyses.attention.steps import head_outputs
from bert_probe.errors import UnavailableError
from tests.helpers.exactness import EXACT, assert_exact, expect_raw, largest
from tests.helpers.families import ALL_FAMILIES, LONG, PAIR, TEXT, representative
from tests.helpers.raw import Raw

Checkpoints = Callable[[str], Checkpoint]

SHOWN = sorted(name for name, family in ALL_FAMILIES.items() if family.shows_qkv)

LOCAL = {
    "modernbert": [False, True, True],
    "modernbert-decoder": [False, True, True],
    "qwen2": [False, False, True],
    "mistral": [True, True, True],
    "gemma3_text": [True, False, True],
    "t5gemma": [True, False, True],
    "embeddinggemma": [True, False, True],
}
"""Family → whether each layer uses local attention. The layers of other families use full attention."""

GROUPED = {"t5gemma", "eurobert", "qwen3", "qwen2", "mistral", "llama", "gemma3_text", "embeddinggemma"}

HIDDEN = sorted(ALL_FAMILIES.keys() - set(SHOWN))


def projected(raw: Raw, trace: Any) -> list[np.ndarray]:
    """Return the outputs of each layer's heads in the raw model, shape [token, head × dim]."""
    with raw.projected() as value:
        raw.run(trace.encoding)
    # ConvBERT concatenates the outputs of convolutions to those of the heads.
    width = trace.values[0].shape[0] * trace.values[0].shape[2]
    return [layer.reshape(len(trace.tokens), -1)[:, :width].numpy() for layer in value]


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", representative(SHOWN))
def test_steps_equal_raw_model(
    name: str, double_family: Checkpoints, family_folder: Callable[[str], Path]
) -> None:
    trace = double_family(name).trace(LONG, PAIR, truncate=True)
    outputs = head_outputs(trace)
    expected = projected(Raw(family_folder(name), "float64"), trace)
    assert len(outputs.layers) == len(expected) == trace.layers
    assert outputs.nbytes == sum(layer.nbytes for layer in expected)
    for layer, observed in enumerate(outputs.layers):
        assert observed.shape[:2] == (trace.heads, len(trace.tokens))
        assert_exact(observed.swapaxes(0, 1).reshape(len(trace.tokens), -1), expected[layer])
        for head in range(trace.heads):
            for query in (0, 30, len(trace.tokens) - 1):
                steps = AttentionSteps(layer, head, query).of(trace, outputs)
                np.testing.assert_array_equal(steps.model_output, observed[head, query])
                assert_exact(steps.weights, trace.attention(layer, head)[query])
                scores = trace.scores(layer, head)[query]
                np.testing.assert_array_equal(np.isneginf(scores), steps.masked)
                assert_exact(steps.scores[~steps.masked], scores[~steps.masked])
                assert steps.difference <= EXACT * largest(observed)
                assert steps.spacing == np.spacing(largest(steps.model_output))


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", representative(SHOWN))
def test_replay_and_check_are_as_good_as_the_raw_model(
    name: str, family: Checkpoints, family_folder: Callable[[str], Path]
) -> None:
    trace = family(name).trace(LONG, PAIR, truncate=True)
    outputs = head_outputs(trace)
    raw = Raw(family_folder(name))
    layers = zip(projected(raw, trace), projected(raw.twin, trace), strict=True)
    weights = raw.numbers(trace.encoding)
    assert trace.values is not None
    for layer, (single, double) in enumerate(layers):
        expected = expect_raw(single, double)
        observed = outputs.layers[layer]
        expected.check(observed.swapaxes(0, 1).reshape(single.shape), "what the kernel returned")
        replay = trace.attention(layer) @ trace.values[layer]
        expected.check(replay.swapaxes(0, 1).reshape(single.shape), "weights · values")
        queries = (0, 30, len(trace.tokens) - 1)
        steps = [
            [AttentionSteps(layer, h, q).of(trace, outputs) for q in queries] for h in range(trace.heads)
        ]
        weights.near(
            [[item.weights for item in row] for row in steps],
            weights.arrays[f"attention {layer}"][:, queries],
            "weights",
        )
        # The head outputs of the kernel and of `AttentionSteps` differ from those of the raw model by at most
        # the tolerance, so they differ from each other by at most twice the tolerance.
        maximum = 2 * expected.share * largest(single)
        assert max(item.difference for row in steps for item in row) <= maximum


@pytest.mark.parametrize("name", HIDDEN)
def test_architecture_without_q_k_v_raises(name: str, family: Checkpoints) -> None:
    trace = family(name).trace(TEXT)
    for ask in (head_outputs, AttentionSteps().of):
        with pytest.raises(UnavailableError, match="does not expose its queries, keys and values"):
            ask(trace)


ROTARY = {
    *(
        "embeddinggemma",
        "eurobert",
        "gemma3_text",
        "gpt_neox",
        "gte",
        "jina_embeddings_v3",
        "llama",
        "mistral",
    ),
    *("modernbert", "modernbert-decoder", "nomic_bert", "qwen2", "qwen3", "roformer", "t5gemma"),
}


@pytest.mark.parametrize("name", representative(SHOWN))
def test_architecture_has_expected_flags(name: str, family: Checkpoints) -> None:
    trace = family(name).trace(TEXT)
    outputs = head_outputs(trace)
    steps = [AttentionSteps(layer, 3, 1).of(trace, outputs) for layer in range(3)]
    assert [step.rotary for step in steps] == [name in ROTARY] * 3
    assert [step.local for step in steps] == LOCAL.get(name, [False] * 3)
    assert steps[0].sharing == ((2, 3) if name in GROUPED else (3,))


def test_keys_outside_a_local_window_are_masked(family: Checkpoints) -> None:
    trace = family("modernbert").trace(LONG, truncate=True)
    steps = AttentionSteps(1, 0, 20).of(trace)
    far = np.abs(np.arange(len(trace.tokens)) - 20) > 8
    np.testing.assert_array_equal(steps.masked, far)
    assert (steps.weights[far] == 0).all()
    assert (steps.weights[~far] > 0).all()
    assert not steps.biased
