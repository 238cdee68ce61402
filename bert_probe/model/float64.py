"""Run models in float64 without rounding to float32, as a reference for float32 results."""

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
    """A torch function mode that skips conversions of float64 tensors to float32.

    Some models always compute softmax, norms or rotary positions in float32 for the benefit of half
    precision. In a float64 model, these would be the least precise steps.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a torch function, but skip conversions from float64 to float32."""
        kwargs = dict(kwargs or {})
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            if func is torch.Tensor.float or (func is torch.Tensor.to and torch.float32 in args):
                return args[0]
            if func is torch.nn.functional.softmax:
                kwargs.pop("dtype", None)
        return func(*args, **kwargs)


def keep_float64(model: torch.nn.Module) -> None:
    """Patch the forward method of a float64 model so that every step is computed in float64."""
    forward = model.forward

    @wraps(forward)
    def forward_in_float64(*args: Any, **kwargs: Any) -> Any:
        with Float64Mode():
            return forward(*args, **kwargs)

    model.forward = forward_in_float64


def float64_reference(checkpoint: Checkpoint) -> Checkpoint:
    """Load the checkpoint's files again in float64 on the CPU.

    Raises:
        UnavailableError: the model is in memory and has no files.
        CheckpointError, OutOfMemoryError: see `load`; float64 needs twice the memory of float32.
    """
    if checkpoint.folder is None:
        raise UnavailableError(
            "A model in memory has no files that can be loaded in float64. Save the model, and load it "
            "from the folder."
        )
    reference = load(checkpoint.folder, device="cpu", dtype="float64")
    keep_float64(reference.model)
    # The provenance of results must contain the original name, not the folder.
    description = checkpoint.description
    renamed = replace(
        reference.initial_description,
        name=description.name,
        origin=description.origin,
        revision=description.revision,
    )
    return replace(reference, initial_description=renamed)
