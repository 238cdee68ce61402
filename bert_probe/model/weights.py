"""Weights as transformers reads them into a model, and what is wrong with them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from bert_probe.errors import WeightsError
from bert_probe.model.logging_utils import SilencedLogging


def read(made: Any, folder: Path, config: Any, dtype: torch.dtype, implementation: str) -> tuple[Any, Any]:
    """A model of a class of transformers with its weights, and transformers' report on these."""
    with QUIET:
        return made.from_pretrained(  # type: ignore[no-any-return]
            folder,
            # transformers writes the attention implementation into the object it is given.
            config=copy.deepcopy(config),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=dtype,
            attn_implementation=implementation,
            output_loading_info=True,
            # Reported instead of raised, so that the message can name them; refused all the same.
            ignore_mismatched_sizes=True,
        )


def _silence() -> Callable[[], None]:
    """No progress bar and no report table: what they say is checked and told in our own words."""
    bars = transformers_logging.is_progress_bar_enabled()
    level = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()

    def restore() -> None:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()

    return restore


QUIET = SilencedLogging(_silence)
"""transformers, saying nothing."""


def mismatched(report: Any) -> list[str]:
    """What a report says of tensors whose sizes are not those of the config."""
    return [
        f"{name} ({_size(stored)} in the weights, {_size(described)} in the config)"
        for name, stored, described in sorted(report["mismatched_keys"])
    ]


def on_its_own(tensors: Iterable[torch.Tensor]) -> None:
    """Keep weights in memory of their own, no longer in that which their file is mapped to.

    There they would change with the file, and to read what a shortened file no longer holds ends the process.
    """
    for tensor in tensors:
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


def check_finite(network: torch.nn.Module) -> None:
    """Refuse weights that hold NaN or infinite numbers.

    Raises:
        WeightsError: with their names.
    """
    broken = [name for name, part in network.named_parameters() if not _is_finite(part)]
    if broken:
        raise WeightsError(
            f"{some(broken)} hold values that are not finite numbers in this dtype. "
            "Download the weights again, or use float32."
        )


def _is_finite(part: torch.Tensor) -> bool:
    # No sum with NaN or an infinite number in it is finite, and it takes a fortieth of the time of looking at
    # each. One of finite numbers can be infinite, so that proves nothing.
    return bool(part.sum().isfinite()) or bool(part.isfinite().all())


def _size(shape: Any) -> str:
    return "×".join(str(size) for size in shape)


def some(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
