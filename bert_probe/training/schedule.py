"""How long, how fast and in which order is taught."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import get_linear_schedule_with_warmup

from bert_probe.training.trainable_parameters import ALL, HEAD, LORA, TOP

RATES, BATCHES, EPOCHS = (5e-5, 3e-5, 2e-5), (16, 32), (2, 3, 4)
"""What the BERT paper (Devlin et al. 2019, A.3) found to work where the encoder is updated."""

WARM_UP = 0.1
"""Of all steps, those in which the learning rate rises; then it falls to 0 in a line."""
_DECAY = 0.01
_POOL = 16
"""Batches whose texts are sorted by length together; their order is drawn afterwards."""


@dataclass(frozen=True)
class TrainingDefaults:
    """What is meant where nothing is said of how to update.

    Attributes:
        epochs: how often each text is seen; rate: the highest learning rate.
        patience: evaluations in a row that give no hope, see `TrainingLoop`, after which the training ends.
    """

    epochs: int
    rate: float
    patience: int


USUAL: Mapping[str, TrainingDefaults] = {
    HEAD: TrainingDefaults(30, 1e-3, 5),
    TOP: TrainingDefaults(3, 5e-5, 3),
    ALL: TrainingDefaults(3, 5e-5, 3),
    LORA: TrainingDefaults(3, 5e-4, 3),
}
"""A head alone begins with nothing known and costs little, so it takes larger steps, and more of them; what
lora adds begins with nothing too."""


def usual(update: str) -> TrainingDefaults:
    """For top:2, as for any other number of layers."""
    return USUAL[update.partition(":")[0]]


@dataclass(frozen=True)
class Schedule:
    """How texts are gone through.

    Attributes:
        batches: steps in which each text is seen once; batch: texts in each at most.
    """

    batches: int
    epochs: int
    batch: int
    rate: float
    patience: int

    @property
    def steps(self) -> int:
        """In all epochs."""
        return self.batches * self.epochs

    @property
    def warm_up(self) -> int:
        """Steps in which the learning rate rises."""
        return math.ceil(WARM_UP * self.steps)

    def optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> tuple[torch.optim.Optimizer, Any]:
        """AdamW, and what moves its learning rate. Only matrices decay, as in the BERT paper."""
        updated = list(parameters)
        groups = [
            {"params": [part for part in updated if part.ndim > 1], "weight_decay": _DECAY},
            {"params": [part for part in updated if part.ndim <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.rate, fused=True)
        return optimizer, get_linear_schedule_with_warmup(optimizer, self.warm_up, self.steps)


class LengthBuckets:
    """Places of texts in batches of about one length, every one once, in an order drawn anew each epoch.

    Args:
        pads: lengths may differ within a batch; else none needs any padding.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int, pads: bool = True) -> None:
        self._lengths, self._batch, self._pads = torch.tensor(lengths), batch, pads
        self._random = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        counts = [len(self._lengths)] if self._pads else Counter(self._lengths.tolist()).values()
        return sum(math.ceil(count / self._batch) for count in counts)

    def __iter__(self) -> Iterator[list[int]]:
        places = torch.randperm(len(self._lengths), generator=self._random)
        if self._pads:
            pools = torch.split(places, self._batch * _POOL)
            alike = [pool[self._lengths[pool].argsort(stable=True)] for pool in pools]
        else:
            alike = [places[self._lengths[places] == length] for length in sorted({*self._lengths.tolist()})]
        found = [part for one in alike for part in torch.split(one, self._batch)]
        for place in torch.randperm(len(found), generator=self._random):
            yield found[int(place)].tolist()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers of Python, NumPy and torch that begin at a seed; afterwards they go on as before."""
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
