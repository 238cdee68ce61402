"""A copy of a checkpoint with changed weights, as after some training."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

import bert_probe
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.folders import Weights, change_weights, copy


def save_changed_copy(folder: Path, target: Path, share: float = 0.1) -> Path:
    """Save a copy with noise added to the weights: `share` times the standard deviation of each tensor."""

    def moved(weights: Weights) -> Weights:
        generator = torch.Generator().manual_seed(1)
        noise = {name: torch.randn(part.shape, generator=generator) for name, part in weights.items()}
        return {name: part + share * part.std() * noise[name] for name, part in weights.items()}

    change_weights(copy(folder, target), moved)
    return target


@cache
def changed_folder(folder: Path) -> Path:
    """Return the folder of the changed copy, which is saved next to the original on first use."""
    return save_changed_copy(folder, folder.with_name(f"{folder.name}-after"))


@cache
def _opened(folder: Path, dtype: str) -> Checkpoint:
    return bert_probe.load(folder, dtype=dtype)


def changed_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """Return the changed copy of a checkpoint, opened once."""
    assert checkpoint.folder is not None
    return _opened(changed_folder(checkpoint.folder), checkpoint.description.dtype)
