"""A model in float64 that rounds nothing to float32 on the way: the truth beside which float32 is judged."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.loading import load


class Float64Mode(TorchFunctionMode):
    """What is float64 stays float64.

    Some models compute a softmax, a norm or rotary positions in float32 whatever they are given, which is
    meant for half precision. In float64 it would be the coarsest step of all.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The function, unless it would make less of a float64."""
        kwargs = dict(kwargs or {})
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            if func is torch.Tensor.float or (func is torch.Tensor.to and torch.float32 in args):
                return args[0]
            if func is torch.nn.functional.softmax:
                kwargs.pop("dtype", None)
        return func(*args, **kwargs)


def keep_doubles(model: torch.nn.Module) -> None:
    """Let a float64 model compute in float64 throughout, from now on."""
    forward = model.forward

    @wraps(forward)
    def doubled(*args: Any, **options: Any) -> Any:
        with Float64Mode():
            return forward(*args, **options)

    model.forward = doubled


def twin(checkpoint: Checkpoint) -> Checkpoint:
    """The same weights in float64, on the processor, opened anew from the same files.

    Raises:
        UnavailableError: a model that is in memory only.
        CheckpointError, OutOfMemoryError: see `load`; it needs twice the memory.
    """
    if checkpoint.folder is None:
        raise UnavailableError("A model that is only in memory has no files to be opened in float64 from.")
    found = load(checkpoint.folder, device="cpu", dtype="float64")
    keep_doubles(found.model)
    # By the name that it goes by, as answers say whose they are.
    about = checkpoint.description
    named = replace(found.opened, name=about.name, origin=about.origin, revision=about.revision)
    return replace(found, opened=named)
