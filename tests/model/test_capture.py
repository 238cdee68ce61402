"""Recording of attention calls: recorded inputs reproduce the output, and other calls are ignored."""

from typing import Any

import numpy as np
import pytest
import torch

from bert_probe.errors import ArchitectureError
from bert_probe.model import capture
from bert_probe.model.capture import SoftcapError, recorded_attention, recording
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.exactness import assert_exact


def attend(mask: torch.Tensor | None, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return one attention call's recorded output, and the output recomputed from its inputs."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    module = torch.nn.Module()
    module.is_causal = False  # type: ignore[assignment]
    with torch.inference_mode(), recording() as calls:
        recorded_attention(module, q, k, v, mask, **options)
    (call,) = calls
    scores = (call.query @ call.key.mT).numpy() * call.scaling
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


def test_limited_scores_are_refused_with_every_version_of_transformers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ignores_the_limit(_module: object, query: torch.Tensor, *_: object, **__: object) -> tuple[Any, None]:
        return query.transpose(1, 2), None

    monkeypatch.setattr(capture, "sdpa_attention_forward", ignores_the_limit)
    attend(None, softcap=None)
    with pytest.raises(SoftcapError):
        attend(None, softcap=50.0)


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
    with pytest.raises(ArchitectureError, match="BertModel made 12 attention calls in 6 layers"):
        minilm.trace("one")
