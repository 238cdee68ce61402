"""Test that attention with explicit weights equals the fused kernel."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from bert_probe.model.capture import AttentionCall
from bert_probe.model.gradients import AttentionWithWeights, UnfusedAttention


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_weighing_equals_fused_attention_with_grouped_keys(key_heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, heads, 5, 3, dtype=torch.float64, generator=generator)
        for heads in (4, key_heads, key_heads)
    )
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    output = F.scaled_dot_product_attention(query, key, value, mask, scale=0.3, enable_gqa=True)
    call = AttentionCall(query, key, value, mask, 0.3, output.transpose(1, 2))
    weighing = AttentionWithWeights()
    torch.testing.assert_close(weighing(0, call), call.output)
    assert weighing.weights[0].shape == (2, 4, 5, 5)


def test_unfused_attention_keeps_the_causal_mask() -> None:
    query, key, value = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64).unbind()
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    with UnfusedAttention():
        unfused = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(unfused, expected)
