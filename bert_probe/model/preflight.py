"""What a checkpoint would need, found out before anything of it is allocated.

The sizes that a config asks for are made without memory, on torch's meta device, and compared with what the
headers of the weights say that there is.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers import AutoModel

from bert_probe.errors import ArchitectureError, WeightsError
from bert_probe.model.config import REMEDY, reason

_FLOATS = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64"}
_INDICES = ("_ids", "_index", "num_batches_tracked")
"""Ends of the names of buffers, which are no weights and may hold whole numbers."""
_SLACK_NUMBERS = 20_000_000
_SLACK_TENSORS = 1_000
"""What a config may ask for beyond twice the weights, so that small disagreements are still named one by one
when they have been loaded: a pooler that was never trained, a layer too many."""
MOST_NUMBERS, MOST_TENSORS = 1_000_000_000_000, 10_000
"""What a config without weights may ask for: far more than any encoder has, and little enough to be counted
at once."""


@dataclass(frozen=True)
class WeightHeaders:
    """What the headers of the weights say.

    Attributes:
        names: of the tensors.
        numbers: in all of them.
        bytes: of the files.
        kinds: what the numbers are, as safetensors names it: F32, BF16, …
    """

    names: frozenset[str]
    numbers: int
    bytes: int
    kinds: frozenset[str]

    @property
    def tensors(self) -> int:
        """How many there are."""
        return len(self.names)

    @property
    def dtype(self) -> torch.dtype | None:
        """Of all the numbers; None where there are several."""
        found = [dtype for dtype, kind in _FLOATS.items() if self.kinds == {kind}]
        return found[0] if found else None

    def need(self, dtype: torch.dtype) -> int:
        """Bytes of memory at the peak of opening them; measured, where another dtype takes both at once."""
        asked = self.numbers * dtype.itemsize
        return asked if self.kinds <= {_FLOATS[dtype]} else asked + self.bytes


def contents(files: list[Path]) -> WeightHeaders:
    """What is in the weights, without reading them.

    Raises:
        WeightsError: weights that are whole numbers, which mean nothing without their scales.
    """
    names: set[str] = set()
    numbers, kinds = 0, set()
    for file in files:
        with safe_open(file, framework="np") as opened:
            for name in opened.keys():  # noqa: SIM118 - no mapping
                part = opened.get_slice(name)
                kind, size = part.get_dtype(), prod(part.get_shape())
                if kind not in _FLOATS.values() and not name.endswith(_INDICES):
                    raise WeightsError(
                        f"{name} holds {kind} numbers, which are no weights without the scales that belong "
                        "to them. Use the model as it was before it was quantized."
                    )
                names.add(name)
                numbers += size
                kinds |= set() if name.endswith(_INDICES) else {kind}
    total = sum(file.stat().st_size for file in files)
    return WeightHeaders(frozenset(names), numbers, total, frozenset(kinds))


def check_sizes(config: Any, found: WeightHeaders, make: Callable[[Any], Any] = AutoModel.from_config) -> Any:
    """Refuse a config that asks for far more than the weights hold.

    Args:
        make: builds the model that it describes.

    Returns:
        That model, without memory.

    Raises:
        WeightsError: with what it asks for and what there is.
    """
    try:
        with _counting(
            _ModuleCounter(2 * found.tensors + _SLACK_TENSORS, 2 * found.numbers + _SLACK_NUMBERS)
        ):
            return make(copy.deepcopy(config))
    except _TooMuchError as error:
        raise WeightsError(
            f"config.json describes {error}, and the weights hold {found.numbers:,} numbers in "
            f"{found.tensors:,} tensors. {REMEDY}"
        ) from None


def described(config: Any, make: Callable[[Any], Any] = AutoModel.from_config) -> Any:
    """The model that a config describes by itself, without memory.

    Args:
        make: builds it.

    Raises:
        ArchitectureError: too large to be counted, or transformers makes no model of it.
    """
    try:
        with _counting(_ModuleCounter(MOST_TENSORS, MOST_NUMBERS)):
            return make(copy.deepcopy(config))
    except _TooMuchError as error:
        raise ArchitectureError(
            f"The config describes {error}, which no encoder has. Check the sizes in it."
        ) from None
    except Exception as error:  # the model classes check their own settings, each in its own way
        raise ArchitectureError(
            f"transformers makes no model of this config: {reason(error)}. Check the settings in it."
        ) from None


class _TooMuchError(Exception):
    """More is being built than the weights can fill. Says what."""


@dataclass
class _ModuleCounter:
    """What modules have registered, and the most that they may."""

    most_tensors: int
    most_numbers: int
    tensors: int = 0
    numbers: int = 0

    def add(self, tensor: torch.Tensor) -> None:
        self.tensors += 1
        self.numbers += tensor.numel()
        if self.tensors > self.most_tensors:
            raise _TooMuchError(f"more than {self.most_tensors:,} tensors")
        if tensor.numel() > self.most_numbers:
            sizes = "×".join(f"{size:,}" for size in tensor.shape)
            raise _TooMuchError(f"a tensor of {sizes} numbers")
        if self.numbers > self.most_numbers:
            raise _TooMuchError(f"more than {self.most_numbers:,} numbers")


@contextmanager
def _counting(count: _ModuleCounter) -> Iterator[None]:
    """Let modules that this thread makes take no memory, and be counted while they are made."""
    mine = threading.get_ident()

    # torch tells every hook of every module in the process, whatever thread makes it.
    def registered(_module: torch.nn.Module, _name: str, tensor: torch.Tensor | None) -> None:
        if tensor is not None and threading.get_ident() == mine:
            count.add(tensor)

    hooks = [
        register_module_parameter_registration_hook(registered),
        register_module_buffer_registration_hook(registered),
    ]
    try:
        with torch.device("meta"):
            yield
    finally:
        for hook in hooks:
            hook.remove()
