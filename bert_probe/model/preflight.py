"""Check a checkpoint before memory is allocated for its weights, and reserve memory.

The checks build the model on torch's meta device, which needs no memory, and compare its sizes with the
headers of the weight files.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import safe_open
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from bert_probe.errors import ArchitectureError, OutOfMemoryError, WeightsError
from bert_probe.model.architectures import build_model
from bert_probe.model.config import REMEDY, reason
from bert_probe.model.weights import BUILDING

_FLOATS = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64"}
_INDICES = ("_ids", "_index", "num_batches_tracked")
"""Name suffixes of buffers that are not weights and may contain integers."""
_MASKS = ("attn.bias", "attention.bias", "causal_mask")
"""Name suffixes of buffers with a causal mask of shape [1, 1, n, n], which older transformers saved."""
# A config may describe at most twice as many elements and tensors as the weight files, plus these margins.
# Smaller mismatches, such as an untrained pooler or an extra layer, are reported by name after loading.
_SLACK_NUMBERS = 20_000_000
_SLACK_TENSORS = 1_000
# The test runs on 8 tokens may have at most this many operations, and the results of all operations at most
# this many times as many elements as a single result may have.
_MAX_OPERATIONS = 200_000
_MAX_RESULTS = 100
# Maximum number of elements and of tensors for a config without weights; any encoder has far fewer.
MOST_NUMBERS, MOST_TENSORS = 1_000_000_000_000, 10_000


@dataclass(frozen=True)
class WeightHeaders:
    """The names, sizes and data types in the headers of a checkpoint's weight files.

    Attributes:
        names: tensor names.
        numbers: total number of elements.
        bytes: total file size.
        kinds: data types of the weights, by their names in safetensors: F32, BF16, …
        masks: names of buffers with a causal mask or the score of masked tokens, which no model needs.
    """

    names: frozenset[str]
    numbers: int
    bytes: int
    kinds: frozenset[str]
    masks: frozenset[str]

    @property
    def tensors(self) -> int:
        """Return the number of tensors in the weight files."""
        return len(self.names)

    @property
    def dtype(self) -> torch.dtype | None:
        """Return the data type of the weights; None if they have several types."""
        matching = [dtype for dtype, kind in _FLOATS.items() if self.kinds == {kind}]
        return matching[0] if matching else None

    def estimate_memory(self, dtype: torch.dtype) -> int:
        """Return the peak memory for loading the weights, in bytes.

        If the weights are converted to another dtype, the original and the converted weights need memory.
        """
        size = self.numbers * dtype.itemsize
        return size if self.kinds <= {_FLOATS[dtype]} else size + self.bytes


def read_headers(files: list[Path]) -> WeightHeaders:
    """Read the headers of weight files, without the weights.

    Raises:
        WeightsError: a weight has an integer type, which is meaningless without its scale.
    """
    names: set[str] = set()
    masks: set[str] = set()
    numbers, kinds = 0, set()
    for file in files:
        with safe_open(file, framework="np") as weights:
            for name in weights.keys():  # noqa: SIM118 - not a mapping
                tensor = weights.get_slice(name)
                kind, size = tensor.get_dtype(), prod(tensor.get_shape())
                if _is_mask(name, kind, tensor.get_shape()):
                    masks.add(name)
                is_buffer = name.endswith(_INDICES) or name in masks
                if kind not in _FLOATS.values() and not is_buffer:
                    raise WeightsError(
                        f"{name} contains numbers of type {kind}, but quantized weights cannot be read "
                        "without their scales. Use the model before quantization."
                    )
                names.add(name)
                numbers += size
                kinds |= set() if is_buffer else {kind}
    total = sum(file.stat().st_size for file in files)
    return WeightHeaders(frozenset(names), numbers, total, frozenset(kinds), frozenset(masks))


def _is_mask(name: str, kind: str, shape: list[int]) -> bool:
    """Return whether a tensor is a causal mask or the score of masked tokens."""
    if kind not in ("BOOL", "U8", *_FLOATS.values()):
        return False
    if name.endswith(("attn.masked_bias", "attention.masked_bias")):
        return prod(shape) == 1
    return name.endswith(_MASKS) and len(shape) == 4 and prod(shape) == shape[2] ** 2 == shape[3] ** 2


def check_sizes(config: Any, headers: WeightHeaders, make: Callable[[Any], Any] = build_model) -> Any:
    """Raise an error if a config describes far more tensors or elements than the weight files contain.

    Args:
        make: builds the model from the config.

    Returns:
        The model on the meta device.

    Raises:
        WeightsError: the config describes far more tensors or elements than the weight files contain, or
            the files contain more tensors than any encoder has.
    """
    if headers.tensors > 5 * MOST_TENSORS:
        raise WeightsError(
            f"The weights contain {headers.tensors:,} tensors, more than any encoder has. {REMEDY}"
        )
    try:
        with _counting(
            _ModuleCounter(2 * headers.tensors + _SLACK_TENSORS, 2 * headers.numbers + _SLACK_NUMBERS)
        ):
            return make(copy.deepcopy(config))
    except _SizeLimitError as error:
        raise WeightsError(
            f"config.json describes {error}, but the weights contain {headers.numbers:,} elements in "
            f"{headers.tensors:,} tensors. {REMEDY}"
        ) from None


def described(config: Any, make: Callable[[Any], Any] = build_model) -> Any:
    """Build a model from its config on torch's meta device.

    Args:
        make: builds the model from the config.

    Raises:
        ArchitectureError: the model is larger than any encoder, or transformers rejects the config.
    """
    try:
        with _counting(_ModuleCounter(MOST_TENSORS, MOST_NUMBERS)):
            return make(copy.deepcopy(config))
    except _SizeLimitError as error:
        raise ArchitectureError(
            f"The config describes {error}, more than any encoder has. Check the sizes in the config."
        ) from None
    except Exception as error:  # Catch all exceptions, because model classes raise many types.
        raise ArchitectureError(
            f"transformers cannot build a model from this config: {reason(error)}. Check the settings in "
            "the config."
        ) from None


class _SizeLimitError(Exception):
    """Raised when a model grows beyond the limits of `_ModuleCounter`."""


@dataclass
class _ModuleCounter:
    """Counts tensors and their elements; raises an error above a maximum."""

    max_tensors: int
    max_numbers: int
    tensors: int = 0
    numbers: int = 0

    def add(self, tensor: torch.Tensor) -> None:
        self.tensors += 1
        self.numbers += tensor.numel()
        if self.tensors > self.max_tensors:
            raise _SizeLimitError(f"more than {self.max_tensors:,} tensors")
        if tensor.numel() > self.max_numbers:
            sizes = "×".join(f"{size:,}" for size in tensor.shape)
            raise _SizeLimitError(f"a tensor of {sizes} elements")
        if self.numbers > self.max_numbers:
            raise _SizeLimitError(f"more than {self.max_numbers:,} elements")


@contextmanager
def _counting(count: _ModuleCounter) -> Iterator[None]:
    """Within the context, create this thread's modules on the meta device, and count their tensors."""
    before = getattr(_counters, "current", None)
    _counters.current = count
    try:
        with BUILDING, torch.device("meta"):
            yield
    finally:
        _counters.current = before


_counters = threading.local()
"""The attribute `current` is the counter of this thread's context; it is missing or None outside of one."""


def _on_registration(_module: torch.nn.Module, _name: str, tensor: torch.Tensor | None) -> None:
    count: _ModuleCounter | None = getattr(_counters, "current", None)
    if count is not None and tensor is not None:
        count.add(tensor)


# The hooks stay registered, because threads that build modules iterate over the hooks of the whole process.
register_module_parameter_registration_hook(_on_registration)
register_module_buffer_registration_hook(_on_registration)


class _LimitedOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises an error before an operation allocates more elements than the weights of a model explain."""

    def __init__(self, numbers: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = numbers
        self.max_elements = 2 * numbers + _SLACK_NUMBERS
        self.operations = self.elements = 0
        # Shapes of results by operation and arguments, because all layers have the same.
        self._shapes: dict[Any, list[torch.Size]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        kwargs = kwargs or {}
        if not function.is_view:
            leaves = tree_leaves((args, kwargs))
            shapes = [leaf.shape if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            key = (function, *shapes)
            if key not in self._shapes:
                self._shapes[key] = _result_shapes(function, args, kwargs)
            self._check(self._shapes[key])
        return function(*args, **kwargs)

    def _check(self, shapes: list[torch.Size]) -> None:
        self.elements += sum(map(prod, shapes))
        problem = ""
        if self.operations > _MAX_OPERATIONS:
            problem = f"more than {_MAX_OPERATIONS:,} operations"
        for shape in shapes:
            if prod(shape) > self.max_elements:
                problem = f"a tensor of {'×'.join(f'{size:,}' for size in shape)} elements"
        if self.elements > _MAX_RESULTS * self.max_elements:
            problem = problem or f"tensors of {self.elements:,} elements in total"
        if problem:
            raise WeightsError(
                f"With the settings in config.json, a text of 8 tokens needs {problem}, but the model has "
                f"only {self.numbers:,} weights. {REMEDY}"
            )


def _result_shapes(function: Any, args: Any, kwargs: Mapping[str, Any]) -> list[torch.Size]:
    """Return the shapes of the tensors that an operation returns.

    The list is empty if torch cannot compute them without the values of the arguments.
    """
    meta_args, meta_kwargs = tree_map_only(
        torch.Tensor, lambda tensor: tensor.to("meta"), (args, dict(kwargs))
    )
    if "device" in meta_kwargs:
        meta_kwargs["device"] = torch.device("meta")
    try:
        results = function(*meta_args, **meta_kwargs)
    except (
        Exception
    ):  # Catch all exceptions, because operations without a meta implementation raise many types.
        return []
    return [result.shape for result in tree_leaves(results) if isinstance(result, torch.Tensor)]


def limited_operations(network: torch.nn.Module) -> AbstractContextManager[Any]:
    """Return a context for test runs on 8 tokens, in which settings cannot cause large allocations.

    Some models pad their input, or compute a table of positions, to a size in the config, such as the
    attention window of Longformer. The context raises a WeightsError before an operation returns far more
    elements than the model has weights.
    """
    return _LimitedOperations(sum(parameter.numel() for parameter in network.parameters()))


_CGROUP = Path("/sys/fs/cgroup")

_lock = threading.Lock()
_reserved_bytes = 0


def free_memory() -> int:
    """Return the number of bytes that this process can still allocate on this machine and in its cgroup."""
    available = int(psutil.virtual_memory().available)
    container = _free_in_container()
    return available if container is None else min(available, container)


def _free_in_container() -> int | None:
    """Return the free memory of the cgroup in bytes; None if the cgroup has no limit."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = (_CGROUP / "memory.current").read_text()
        statistics = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    # Count cached file pages as free memory, because the kernel frees them on demand.
    cached = int(statistics.get("inactive_file", 0))
    return None if limit == "max" else max(0, int(limit) - int(used) + cached)


@contextmanager
def reserved_memory(size: int, purpose: str, remedy: str) -> Iterator[None]:
    """Reserve memory within the context, so that concurrent calls count it as used.

    Args:
        size: bytes that the caller will allocate within the context.
        purpose: start of the error message: the model or task that needs the memory.
        remedy: a sentence with advice for the user.

    Raises:
        OutOfMemoryError: fewer than `size` bytes are available.
    """
    global _reserved_bytes
    with _lock:
        available = free_memory() - _reserved_bytes
        if size > available:
            raise OutOfMemoryError(
                f"{purpose} needs about {format_bytes(size)} of memory, but only "
                f"{format_bytes(max(0, available))} are available. {remedy}"
            )
        _reserved_bytes += size
    try:
        yield
    finally:
        with _lock:
            _reserved_bytes -= size


def format_bytes(size: int) -> str:
    """Format a number of bytes as KB, MB or GB."""
    if size >= 1e9:
        return f"{size / 1e9:,.1f} GB"
    return f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} KB"
