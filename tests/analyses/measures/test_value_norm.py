"""Compare value norms with the inputs and outputs of the model's own output projection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import bert_probe
from bert_probe import Attention
from bert_probe.analyses.attention.measures.value_norm import projects, value_norms, value_weighted
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.exactness import assert_exact
from tests.helpers.families import FAMILIES, representative
from tests.helpers.traces import hand_trace

TEXT = "we left the ground"
SHOWN = sorted(name for name, family in FAMILIES.items() if family.shows_qkv)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", representative(SHOWN))
def test_projected_values_sum_to_layer_output(name: str, family_folder: Callable[[str], Path]) -> None:
    """In float64, the heads' weighted sums of values equal the input of the output projection."""
    checkpoint = bert_probe.load(family_folder(name), dtype="float64")
    for weight in {projection.weight for projection in checkpoint.projections if projection is not None}:
        weight.mul_(1 + 1e-9)  # make weights that float32 cannot represent
    trace = checkpoint.trace(TEXT)
    assert projects(trace)
    assert trace.values is not None
    for layer, module in enumerate(checkpoint.projections):
        assert module is not None
        hook_inputs: list[torch.Tensor] = []
        hook = module.register_forward_pre_hook(
            lambda _, args, hook_inputs=hook_inputs: hook_inputs.append(args[0])
        )
        checkpoint.trace(TEXT)
        hook.remove()
        # ALBERT's layers share one module, which is called once per layer.
        call = hook_inputs[layer] if len(hook_inputs) > 1 else hook_inputs[0]
        values = trace.values[layer]
        created = np.concatenate(trace.attention(layer) @ values, axis=-1)
        assert_exact(created, call[0].numpy())
        heads, tokens, size = values.shape
        assert module.weight.shape[1] == heads * size
        part = module.weight.numpy()[:, -size:]
        assert_exact(value_norms(trace, layer)[-1], np.linalg.norm(values[-1] @ part.T, axis=-1))
        assert value_weighted(trace, layer, slice(None)).shape == (heads, tokens, tokens)


def test_measure_is_weight_times_value_norm(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    result = Attention(1, 2, "value-norm").of(trace).weights
    np.testing.assert_array_equal(result, trace.attention(1, 2) * value_norms(trace, 1)[2])


def test_hidden_values_or_missing_model_raise(family: Callable[[str], Checkpoint]) -> None:
    with pytest.raises(UnavailableError, match="does not expose its value vectors"):
        value_norms(family("longformer").trace("we left"), 0)
    with pytest.raises(UnavailableError, match="does not expose its value vectors"):
        Attention(0, 0, "value-norm").of(hand_trace([np.full((1, 4, 4), 0.25)]))
