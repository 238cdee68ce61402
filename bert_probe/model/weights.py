"""Load weights into a transformers model, and describe errors in the weights."""

from __future__ import annotations

import copy
import errno
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from bert_probe.errors import WeightsError
from bert_probe.model.sources import SilencedLogging

try:
    import fcntl
except ImportError:  # fcntl is not available on Windows.
    fcntl = None  # type: ignore[assignment]


BUILDING = threading.RLock()
"""Held while a model is built: transformers then changes torch's default dtype and its own functions, which
all threads share.
"""


def read(
    model_class: Any, folder: Path, config: Any, dtype: torch.dtype, implementation: str
) -> tuple[Any, Any]:
    """Load a model with its weights; return the model and transformers' loading report (`loading_info`)."""
    with QUIET, BUILDING:
        model, report = model_class.from_pretrained(
            folder,
            # The config is copied, because transformers writes the attention implementation into it.
            config=copy.deepcopy(config),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=dtype,
            attn_implementation=implementation,
            output_loading_info=True,
            # Mismatches are reported instead of raised, so that one error can list all of them.
            ignore_mismatched_sizes=True,
        )
    unify_dtype(model, dtype)
    return model, report


def named_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of a model by name; those that the task head shares with the encoder once.

    Their name is that in the encoder, also where transformers registers the head before the encoder, as in
    XLM-RoBERTa and CamemBERT.
    """
    start = f"{getattr(model, 'base_model_prefix', '')}."
    in_encoder: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name.startswith(start):
            in_encoder.setdefault(id(parameter), name)
    return {in_encoder.get(id(parameter), name): parameter for name, parameter in model.named_parameters()}


_FLOAT32_PARAMETERS = {"deberta": (".q_bias", ".v_bias")}
"""Model type → endings of the names of parameters that transformers creates in float32 for every dtype."""


def unify_dtype(model: Any, dtype: torch.dtype) -> None:
    """Convert the parameters that transformers leaves in float32, although the model has another dtype.

    In float16 and bfloat16, DeBERTa could not multiply its queries, to which it adds a float32 bias, by its
    keys.
    """
    endings = _FLOAT32_PARAMETERS.get(model.config.model_type, ())
    for name, parameter in model.named_parameters():
        if name.endswith(endings):
            parameter.data = parameter.data.to(dtype)


def _silence() -> Callable[[], None]:
    """Turn off progress bars and logged loading reports, whose contents `load` raises as errors."""
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
"""A context manager that silences transformers' logging."""


def describe_mismatches(report: Any) -> list[str]:
    """Return a description of each tensor whose size differs from the config."""
    return [
        f"{name} ({_size(stored)} in the weights, {_size(described)} in the config)"
        for name, stored, described in sorted(report["mismatched_keys"])
    ]


def copy_to_own_memory(tensors: Iterable[torch.Tensor]) -> None:
    """Copy weights from the memory-mapped file to separate memory.

    Mapped weights would change with the file, and reading past the end of a shortened file kills the process.
    """
    for tensor in tensors:
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


@contextmanager
def hold_read_lease(files: Iterable[Path]) -> Iterator[None]:
    """Make other programs wait before they write to files that are memory-mapped within the context.

    Reading a mapped file that another program has just shortened kills the process. On Linux a read lease
    (F_SETLEASE) blocks a program that opens the file for writing, by default for at most 45 seconds. Files of
    other users, file systems without leases, and other systems are not protected.

    Raises:
        WeightsError: another program has opened a file for writing.
    """
    if not hasattr(fcntl, "F_SETLEASE"):
        yield
        return
    with ExitStack() as stack:
        for file in files:
            descriptor = os.open(file, os.O_RDONLY)
            stack.callback(os.close, descriptor)  # closing the file ends the lease
            try:
                # The kernel sends SIGURG, which is ignored by default, when another program is waiting.
                fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    raise WeightsError(
                        f"{file.name} is being written by another program. Wait until it is complete, then "
                        "load the model again."
                    ) from None
        yield


def check_finite(network: torch.nn.Module) -> None:
    """Raise an error if weights contain NaN or infinite numbers.

    Raises:
        WeightsError: weights are not finite; the message lists their names.
    """
    broken = [name for name, parameter in network.named_parameters() if not _is_finite(parameter)]
    if broken:
        raise WeightsError(
            f"{list_names(broken)} contain values that are not finite in this dtype. "
            "Download the weights again, or use float32."
        )


def _is_finite(tensor: torch.Tensor) -> bool:
    # A finite sum proves that all elements are finite, 40 times faster than checking each element.
    # An infinite sum proves nothing, because the sum of finite elements may overflow.
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def _size(shape: Any) -> str:
    return "×".join(str(size) for size in shape)


def list_names(names: list[str]) -> str:
    """Return the first three names as text, followed by the number of remaining names."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
