"""Test recording of attention calls: recorded inputs reproduce the output, and other calls are ignored."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from bert_probe.errors import ArchitectureError
from bert_probe.model.capture import attention, recorded_attention, recording
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.exactness import assert_exact


def attend(mask: torch.Tensor | None, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the output of a recorded attention call, and the output recomputed from its inputs."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    module = torch.nn.Module()
    module.is_causal = False  # type: ignore[assignment]
    with torch.inference_mode(), recording() as calls:
        recorded_attention(module, q, k, v, mask, **options)
    (call,) = calls
    scores = (call.query @ call.key.mT).numpy() * call.scaling
    if call.softcap is not None:
        scores = call.softcap * np.tanh(scores / call.softcap)
    if call.mask is not None and call.mask.dtype == torch.bool:
        scores = np.where(call.mask.numpy(), scores, -np.inf)
    elif call.mask is not None:
        scores = scores + call.mask.numpy()
    worked_out = np.swapaxes(torch.softmax(torch.tensor(scores), -1).numpy() @ call.value.numpy(), 1, 2)
    return call.output.numpy(), worked_out


SEES = torch.tensor([[True, True, False, True, False]]).expand(2, 1, 5, 5)
BIAS = torch.linspace(-2, 2, 75, dtype=torch.float64).reshape(1, 3, 5, 5)


@pytest.mark.parametrize("bias", [None, BIAS], ids=["no bias", "bias"])
@pytest.mark.parametrize("mask", [None, SEES, SEES.double() * 2], ids=["no mask", "yes and no", "numbers"])
@pytest.mark.parametrize("scaling", [None, 0.1])
def test_recorded_calls_reproduce_the_output(
    scaling: float | None, mask: torch.Tensor | None, bias: torch.Tensor | None
) -> None:
    output, worked_out = attend(mask, scaling=scaling, position_bias=bias)
    assert_exact(worked_out, output)


@pytest.mark.parametrize("mask", [None, SEES, SEES.double() * 2], ids=["no mask", "yes and no", "numbers"])
def test_limited_scores_reproduce_the_output(mask: torch.Tensor | None) -> None:
    limited, worked_out = attend(mask, softcap=0.5)
    assert_exact(worked_out, limited)
    unlimited, _ = attend(mask)
    assert np.abs(limited - unlimited).max() > 0.01
    nearly_unlimited, _ = attend(mask, softcap=1e9)
    np.testing.assert_allclose(nearly_unlimited, unlimited, atol=1e-8)


def test_limit_equals_hand_computation() -> None:
    query, key = torch.tensor([[[[4.0]]]]), torch.tensor([[[[1.0], [-1.0]]]])
    # The soft cap 2 maps the scaled products 2 and -2 to ±2 tanh 1, so the weights are 1 : e^(-4 tanh 1).
    weights, output = attention(query, key, torch.tensor([[[[1.0], [0.0]]]]), None, 0.5, softcap=2.0)
    expected = 1 / (1 + math.exp(-4 * math.tanh(1)))
    assert weights[0, 0, 0].tolist() == pytest.approx([expected, 1 - expected])
    assert output.item() == pytest.approx(expected)


def test_query_without_keys_has_weights_of_zero() -> None:
    mask = torch.tensor([[[[True, True], [False, False]]]])
    tensors = torch.ones(1, 1, 2, 3)
    assert attention(tensors, tensors, tensors, mask, 1.0, softcap=2.0)[0].tolist() == [
        [[[0.5, 0.5], [0, 0]]]
    ]


def test_recording_collects_only_calls_inside_its_context(minilm: Checkpoint) -> None:
    with recording() as outer:
        minilm.trace("one")
        assert outer == [], "a trace has its own recording"
    minilm.trace("one")
    assert outer == []


def test_model_with_two_attention_calls_per_layer_is_refused(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = minilm.model.forward

    def twice(**options: Any) -> Any:
        forward(**options)
        return forward(**options)

    monkeypatch.setattr(minilm.model, "forward", twice)
    with pytest.raises(
        ArchitectureError, match="BertModel called its attention function 12 times in 6 layers"
    ):
        minilm.trace("one")
