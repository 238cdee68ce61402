"""Listening to a model's attention while it runs the fused kernel at full speed.

transformers lets every model look its attention function up by name. Ours hands the work to the
fused SDPA kernel and, while a `recording` is open in the same thread, keeps what went in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

IMPLEMENTATION = "bert_probe"


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """What one layer's attention was given and returned.

    Attributes:
        query: [batch, head, query, dim].
        key, value: [batch, key head, key, dim]; fewer heads than ``query`` where keys are grouped.
        mask: bool (True: may attend) or float (added to the scores),
            [batch or 1, head or 1, query, key]; None where everything may be attended to.
        scaling: factor of query·key.
        output: [batch, query, head, dim], before the output projection.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    scaling: float
    output: torch.Tensor


_open_recording: ContextVar[list[AttentionCall] | None] = ContextVar("recording", default=None)


@contextmanager
def recording() -> Iterator[list[AttentionCall]]:
    """Collect the attention calls of this thread, in the order of the layers."""
    calls: list[AttentionCall] = []
    token = _open_recording.set(calls)
    try:
        yield calls
    finally:
        _open_recording.reset(token)


Change = Callable[[int, AttentionCall], torch.Tensor]
"""A layer from 0 and its call → what its heads are to return instead, shaped as `AttentionCall.output`."""

_open_change: ContextVar[tuple[Change, Iterator[int]] | None] = ContextVar("change", default=None)


@contextmanager
def changing(change: Change) -> Iterator[None]:
    """Change what heads return in one forward pass of this thread, whoever else uses the model meanwhile."""
    token = _open_change.set((change, count()))
    try:
        yield
    finally:
        _open_change.reset(token)


@contextmanager
def switched_off(off: torch.Tensor, replacement: str) -> Iterator[None]:
    """Switch heads off in one forward pass of this thread.

    Args:
        off: bool [layer, batch, head]; True switches the head off in that row of the batch.
        replacement: "zero" or "mean", what takes the place of a head's output.
    """

    def change(layer: int, call: AttentionCall) -> torch.Tensor:
        output = call.output
        instead = (
            output.mean(dim=1, keepdim=True) if replacement == "mean" else torch.zeros_like(output[:, :1])
        )
        return torch.where(off[layer][:, None, :, None], instead, output)

    with changing(change):
        yield


def recorded_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' fused SDPA attention, remembered while a `recording` is open, and changed while
    something is `changing`."""
    output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    change, calls = _open_change.get(), _open_recording.get()
    if change is None and calls is None:
        return output, None
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    mask = _with_bias(attention_mask, kwargs.get("position_bias"))
    call = AttentionCall(query, key, value, mask, float(factor), output)
    if change is not None:
        replaced, layers = change
        call = replace(call, output=replaced(next(layers), call))
    if calls is not None:
        calls.append(call)
    return call.output, None


def _with_bias(mask: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor | None:
    if bias is None or mask is None:
        return mask if bias is None else bias
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, float("-inf"))
    return bias + mask


AttentionInterface.register(IMPLEMENTATION, recorded_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
