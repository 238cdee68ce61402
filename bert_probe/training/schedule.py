"""The training schedule: default settings, learning rate, batches and random seeds."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from transformers import get_linear_schedule_with_warmup

from bert_probe.training.models import ALL, HEAD, LORA, TOP

RECOMMENDED_RATES, RECOMMENDED_BATCHES, RECOMMENDED_EPOCHS = (5e-5, 3e-5, 2e-5), (16, 32), (2, 3, 4)
"""Learning rates, batch sizes and epochs that the BERT paper recommends for fine-tuning (Devlin et al.
2019, A.3).
"""

WARM_UP = 0.1
"""Share of the steps during which the learning rate rises; afterwards, it decays linearly to 0."""
_DECAY = 0.01
_POOL = 16
"""Number of batches whose texts are sorted by length together, before all batches are shuffled."""


@dataclass(frozen=True)
class TrainingDefaults:
    """Default settings for an update scope, such as the head or all parameters.

    Attributes:
        epochs: number of passes over the data.
        rate: peak learning rate.
        patience: consecutive evaluations without improvement after which training ends; see `TrainingLoop`.
    """

    epochs: int
    rate: float
    patience: int


DEFAULTS: Mapping[str, TrainingDefaults] = {
    HEAD: TrainingDefaults(30, 1e-3, 5),
    TOP: TrainingDefaults(3, 5e-5, 3),
    ALL: TrainingDefaults(3, 5e-5, 3),
    LORA: TrainingDefaults(3, 5e-4, 3),
}
"""Default settings by update scope. Heads and LoRA matrices are trained from scratch, so their learning rates
are higher. Training only the head is cheap per step, so it has more epochs.
"""


def default_settings(update: str) -> TrainingDefaults:
    """Return the default settings of an update scope, which do not depend on K for top:K."""
    return DEFAULTS[update.partition(":")[0]]


@dataclass(frozen=True)
class Schedule:
    """Number of steps, batch size, learning rate and patience of a training run.

    Attributes:
        batches: number of steps per epoch.
        epochs: number of passes over the data.
        batch: maximum number of texts per step.
        rate: peak learning rate.
        patience: evaluations without improvement until early stopping; see `TrainingLoop`.
    """

    batches: int
    epochs: int
    batch: int
    rate: float
    patience: int

    @property
    def steps(self) -> int:
        """Number of steps in all epochs."""
        return self.batches * self.epochs

    @property
    def warm_up(self) -> int:
        """Number of warmup steps, during which the learning rate rises."""
        return math.ceil(WARM_UP * self.steps)

    def optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> tuple[torch.optim.Optimizer, Any]:
        """Return AdamW and a learning-rate scheduler. Weight decay applies only to matrices, as in BERT."""
        trainable = list(parameters)
        groups = [
            {"params": [parameter for parameter in trainable if parameter.ndim > 1], "weight_decay": _DECAY},
            {"params": [parameter for parameter in trainable if parameter.ndim <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.rate, fused=True)
        return optimizer, get_linear_schedule_with_warmup(optimizer, self.warm_up, self.steps)


class BatchOrder(Protocol):
    """Batches of example indices; each iteration is an epoch with the same number of batches."""

    def __len__(self) -> int:
        """Return the number of batches."""

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the indices of the examples of each batch."""


class LengthBuckets:
    """Batches of texts with similar lengths. Each epoch contains each text once, in a new random order.

    Args:
        pads: whether texts of different lengths may share a padded batch.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int, pads: bool = True) -> None:
        self._lengths, self._batch, self._pads = torch.tensor(lengths), batch, pads
        self._random = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        counts = [len(self._lengths)] if self._pads else Counter(self._lengths.tolist()).values()
        return sum(math.ceil(count / self._batch) for count in counts)

    def __iter__(self) -> Iterator[list[int]]:
        indices = torch.randperm(len(self._lengths), generator=self._random)
        if self._pads:
            pools = torch.split(indices, self._batch * _POOL)
            sorted_pools = [pool[self._lengths[pool].argsort(stable=True)] for pool in pools]
        else:
            sorted_pools = [
                indices[self._lengths[indices] == length] for length in sorted({*self._lengths.tolist()})
            ]
        batches = [batch for sorted_pool in sorted_pools for batch in torch.split(sorted_pool, self._batch)]
        for index in torch.randperm(len(batches), generator=self._random):
            yield batches[int(index)].tolist()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the random generators of Python, NumPy and torch for the block, then restore their states."""
    before, arrays = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    with torch.random.fork_rng(devices):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(arrays)
