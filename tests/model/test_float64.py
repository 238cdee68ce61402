"""Test float64 mode: float64 values are not rounded to float32, and other dtypes are not affected."""

from __future__ import annotations

import torch

from bert_probe.model.float64 import Float64Mode, keep_float64

THIRD = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
"""Numbers that float32 cannot represent."""


class Rounding(torch.nn.Module):
    """A module that rounds to float32, as models written for half precision do."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Compute a softmax in float32."""
        return torch.nn.functional.softmax(values.float(), dim=-1, dtype=torch.float32)


def test_float64_is_not_rounded_internally() -> None:
    with Float64Mode():
        assert THIRD.float() is THIRD
        assert THIRD.to(torch.float32) is THIRD
        assert torch.nn.functional.softmax(THIRD, dim=-1, dtype=torch.float32).dtype == torch.float64
        assert THIRD.to(torch.float16).dtype == torch.float16, "explicit casts are kept"
    assert THIRD.float().dtype == torch.float32, "unchanged outside the context"


def test_float32_is_not_affected() -> None:
    half, single = torch.tensor([0.25, 0.5], dtype=torch.float16), torch.tensor([0.25, 0.5])
    with Float64Mode():
        assert half.float().dtype == torch.float32
        assert single.to(torch.float64).dtype == torch.float64
        assert torch.nn.functional.softmax(half, dim=-1, dtype=torch.float32).dtype == torch.float32


def test_keep_doubles_prevents_rounding() -> None:
    model = Rounding()
    assert model(THIRD).dtype == torch.float32
    keep_float64(model)
    by_hand = THIRD.exp() / THIRD.exp().sum()
    assert model(THIRD).dtype == torch.float64
    assert torch.allclose(model(THIRD), by_hand, rtol=0, atol=1e-15)
    assert model(THIRD.float()).dtype == torch.float32
