"""Pool hidden states into one vector per text, as in sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from bert_probe.model.sentence_networks import SentenceModule


class Pooling(Protocol):
    """Protocol for pooling settings: a `SentenceModel`, or a pooling that the user selects."""

    @property
    def modes(self) -> tuple[str, ...]:
        """Keys of `MODES`, or "pooler"; the results are concatenated in this order."""

    @property
    def token_modules(self) -> tuple[SentenceModule, ...]:
        """Modules applied to the hidden states before pooling."""

    @property
    def vector_modules(self) -> tuple[SentenceModule, ...]:
        """Modules applied to the pooled vector."""

    @property
    def dimensions(self) -> int | None:
        """Number of dimensions to which the vector is truncated; None if it is not truncated."""


def pool_states(
    states: torch.Tensor, mask: torch.Tensor, pooling: Pooling, pooler: torch.Tensor | None = None
) -> torch.Tensor:
    """Pool a batch of texts into vectors of shape [text, size].

    Args:
        states: last hidden states, [text, token, hidden].
        mask: 1 for tokens to pool, 0 for all other tokens, [text, token].
        pooler: the pooler's output, [text, hidden]; required for the mode "pooler".

    Returns:
        The vectors, in float32, or in float64 for float64 states.
    """
    states = token_states(states, pooling.token_modules)
    token_mask = mask[..., None].to(states.dtype)
    parts = [
        at_least_float32(pooler)
        if mode == "pooler" and pooler is not None
        else MODES[mode](states, token_mask)
        for mode in pooling.modes
    ]
    pooled = torch.cat(parts, dim=-1)
    for module in pooling.vector_modules:
        pooled = module(pooled)
    return pooled[..., : pooling.dimensions]


def token_states(states: torch.Tensor, modules: Sequence[SentenceModule]) -> torch.Tensor:
    """Apply modules to last hidden states; return float32, or float64 for float64 states."""
    states = at_least_float32(states)
    for module in modules:
        states = at_least_float32(module(states))
    return states


def at_least_float32(states: torch.Tensor) -> torch.Tensor:
    """Return the states in float32, or in float64 if they are float64."""
    return states if states.dtype == torch.float64 else states.float()


def _sum(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (states * mask).sum(dim=1)


def _first(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return states[torch.arange(len(states), device=states.device), mask[..., 0].argmax(dim=1)]


def _last(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(mask.shape[1], device=mask.device, dtype=mask.dtype)
    last = (mask[..., 0] * positions).argmax(dim=1)
    return states[torch.arange(len(states), device=states.device), last]


def _weighted(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    # Positions count from the first token of the input, even if the prompt is not pooled.
    weights = mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)[None, :, None]
    return _sum(states, weights) / weights.sum(dim=1)


MODES: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": lambda states, mask: _sum(states, mask) / mask.sum(dim=1),
    "cls": _first,
    "max": lambda states, mask: states.masked_fill(mask == 0, -torch.inf).amax(dim=1),
    "mean_sqrt_len_tokens": lambda states, mask: _sum(states, mask) / mask.sum(dim=1).sqrt(),
    "weightedmean": _weighted,
    "lasttoken": _last,
    "splade_max": lambda logits, mask: (logits * mask).relu().log1p().amax(dim=1),
    "splade_sum": lambda logits, mask: (logits * mask).relu().log1p().sum(dim=1),
    "splade_max_log1p": lambda logits, mask: (logits * mask).relu().log1p().log1p().amax(dim=1),
    "splade_sum_log1p": lambda logits, mask: (logits * mask).relu().log1p().log1p().sum(dim=1),
}
"""Name of a pooling mode of sentence-transformers → function that pools hidden states with a token mask."""
