"""The tree of a model's modules."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def module_tree(model: torch.nn.Module) -> Iterator[tuple[int, str, str, int]]:
    """Yield the model's modules in order: depth from 0, name, class name, number of parameters."""
    for name, module in model.named_modules():
        depth = 0 if not name else name.count(".") + 1
        count = sum(parameter.numel() for parameter in module.parameters())
        yield depth, name.rpartition(".")[2], type(module).__name__, count
