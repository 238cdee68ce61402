"""Record and change a model's attention while the model runs the fused SDPA kernel.

transformers looks up every model's attention function by name. The function registered here calls the
fused kernel and, inside a `recording` context of the same thread, stores its inputs.
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
"""Name under which `recorded_attention` is registered as an attention implementation of transformers."""


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """Inputs and output of one layer's attention function.

    Attributes:
        query: tensor of shape [batch, head, query, dim].
        key, value: tensors of shape [batch, key head, key, dim], with fewer heads than ``query`` in
            grouped-query attention.
        mask: tensor of shape [batch or 1, head or 1, query, key], either bool (True: may attend) or float
            (added to the scores); None if every token may attend to all tokens. A causal mask is always
            included, although transformers omits it and lets the kernel apply it.
        scaling: factor that multiplies query·key.
        output: tensor of shape [batch, query, head, dim], before the output projection.
        softcap: limit for the scaled query-key products, see `attention_scores`; None without a limit.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    scaling: float
    output: torch.Tensor
    softcap: float | None = None


class _Calls(list[AttentionCall]):
    """List of recorded attention calls that also caches the causal mask shared by all layers."""

    causal_mask: torch.Tensor | None = None


_open_recording: ContextVar[_Calls | None] = ContextVar("recording", default=None)


@contextmanager
def recording() -> Iterator[list[AttentionCall]]:
    """Yield a list that collects this thread's attention calls, in layer order, inside the context."""
    calls = _Calls()
    token = _open_recording.set(calls)
    try:
        yield calls
    finally:
        _open_recording.reset(token)


OutputChange = Callable[[int, AttentionCall], torch.Tensor]
"""Type of a function that computes new head outputs, shaped like `AttentionCall.output`, from a layer index
(from 0) and the layer's attention call.
"""

_open_change: ContextVar[tuple[OutputChange, Iterator[int]] | None] = ContextVar("change", default=None)


@contextmanager
def changed_outputs(change: OutputChange) -> Iterator[None]:
    """Replace the outputs of attention heads in one forward pass inside the context.

    The context applies to the current thread only. `change` is called once per layer, in layer order.
    """
    token = _open_change.set((change, count()))
    try:
        yield
    finally:
        _open_change.reset(token)


@contextmanager
def heads_switched_off(off: torch.Tensor, replacement: str) -> Iterator[None]:
    """Ablate attention heads in the single forward pass that this thread runs inside the context.

    Args:
        off: bool tensor of shape [layer, batch, head]; True ablates a head in one row of the batch.
        replacement: "zero", or "mean" for the mean of the head's output over the tokens.
    """

    def change(layer: int, call: AttentionCall) -> torch.Tensor:
        output = call.output
        replaced = (
            output.mean(dim=1, keepdim=True) if replacement == "mean" else torch.zeros_like(output[:, :1])
        )
        return torch.where(off[layer][:, None, :, None], replaced, output)

    with changed_outputs(change):
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
    """Compute fused SDPA attention, and apply this thread's `changed_outputs` and `recording` contexts.

    The fused kernel does not support `softcap`, so layers with a softcap compute attention step by step.

    Returns:
        The output, of shape [batch, query, head, dim], and None in place of the attention weights.
    """
    softcap = kwargs.pop("softcap", None)
    if softcap is None:
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        if not is_captured():
            return output, None
    scale = float(query.shape[-1] ** -0.5 if scaling is None else scaling)
    mask = attention_mask
    if mask is None and _is_causal(module, query, kwargs.get("is_causal")):
        mask = _causal_mask(query, key, _open_recording.get())
    mask = _with_bias(mask, kwargs.get("position_bias"))
    if softcap is not None:
        output = attention(query, key, value, mask, scale, softcap)[1].transpose(1, 2).contiguous()
    return finish_call(AttentionCall(query, key, value, mask, scale, output, softcap)).output, None


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention without the fused kernel; the arguments are attributes of `AttentionCall`.

    Returns:
        Weights of shape [batch, head, query, key] and outputs of shape [batch, head, query, dim]. Weights and
        outputs are 0 for a query that may not attend to any key, as in the fused kernel.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    scores = attention_scores(query, key, mask, scaling, softcap)
    # Like the kernel and transformers' eager attention, compute the softmax in float32 or better.
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    if mask is not None:  # the softmax of a padded query without keys is NaN; set it to 0
        weights = weights.masked_fill(scores.isneginf().all(dim=-1, keepdim=True), 0)
    # GPT-Neo and GPT-J compute the weights in float32, even with values in float64.
    return weights, weights.to(value.dtype) @ value


def attention_scores(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float | None = None,
) -> torch.Tensor:
    """Return f(q · k × scaling) + mask, of shape [batch, head, query, key].

    f is the identity, or a limit for large scores: f(x) = softcap × tanh(x ÷ softcap) (Gemma Team 2024,
    section 2).
    """
    return add_mask(limited(query @ key.transpose(-1, -2) * scaling, softcap), mask)


def limited(products: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """Return the scaled query-key products, limited to ±softcap if `softcap` is not None."""
    return products if softcap is None else torch.tanh(products / softcap) * softcap


def add_mask(scores: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Add the mask of an `AttentionCall` to scores of shape [batch, head, query, key]."""
    if mask is None:
        return scores
    mask = mask[..., : scores.shape[-2], : scores.shape[-1]]
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def is_captured() -> bool:
    """Return whether a `recording` or `changed_outputs` context is open in this thread."""
    return _open_change.get() is not None or _open_recording.get() is not None


def finish_call(call: AttentionCall) -> AttentionCall:
    """Apply this thread's `changed_outputs` and `recording` contexts to an attention call of a layer.

    Return the call with its output replaced if a `changed_outputs` context is open; the model must continue
    with this output.
    """
    change, calls = _open_change.get(), _open_recording.get()
    if change is not None:
        new_output, layers = change
        call = replace(call, output=new_output(next(layers), call))
    if calls is not None:
        calls.append(call)
    return call


def _is_causal(module: torch.nn.Module, query: torch.Tensor, argument: bool | None) -> bool:
    """Return whether the fused kernel applies a causal mask in a call without a mask argument.

    This is the same rule as in transformers' `sdpa_attention_forward`.
    """
    is_causal = getattr(module, "is_causal", True) if argument is None else argument
    return bool(is_causal) and query.shape[2] > 1


def _causal_mask(query: torch.Tensor, key: torch.Tensor, calls: _Calls | None) -> torch.Tensor:
    """Return a causal bool mask of shape [1, 1, query, key]; all layers of a recording share one tensor."""
    shape = (1, 1, query.shape[2], key.shape[2])
    shared = None if calls is None else calls.causal_mask
    if shared is not None and shared.shape == shape and shared.device == query.device:
        return shared
    mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril_()
    if calls is not None:
        calls.causal_mask = mask
    return mask


def _with_bias(mask: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor | None:
    """Merge an attention mask and a position bias into one mask that is added to the scores."""
    if bias is None or mask is None:
        return mask if bias is None else bias
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, float("-inf"))
    return bias + mask


AttentionInterface.register(IMPLEMENTATION, recorded_attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
