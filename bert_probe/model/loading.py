"""Opening a checkpoint: every way it can fail is one sentence, and nothing is filled in."""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from transformers import AutoModel, AutoTokenizer

import bert_probe
from bert_probe.errors import (
    ArchitectureError,
    CheckpointError,
    ProbeError,
    TokenizerError,
    WeightsError,
    memory_errors,
)
from bert_probe.model.capture import IMPLEMENTATION
from bert_probe.model.checkpoint import Checkpoint, Description
from bert_probe.model.checks import listens, pads, projections, self_check
from bert_probe.model.config import REMEDY, SUPPORTED, configure, reason
from bert_probe.model.encoding import Encoder, panics_as_errors
from bert_probe.model.memory import in_words, promised
from bert_probe.model.output_loading import checked, modern, open_heads
from bert_probe.model.outputs import OutputHead
from bert_probe.model.preflight import check_sizes, contents
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import Source, check_tokenizer_files, digest, locate, weight_files
from bert_probe.model.training_history import trainings_in
from bert_probe.model.weights import check_finite, mismatched, on_its_own, read, some

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")


def load(
    model: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress | None = None,
    notice: Callable[[str], None] = lambda _: None,
) -> Checkpoint:
    """Open an encoder.

    Nothing is allocated before the config has been compared with the headers of the weights, and the memory
    that they need with what is free.

    Args:
        model: None for the built-in all-MiniLM-L6-v2; otherwise a local folder or a hub id.
        revision: branch, tag or commit on the hub.
        device: "auto" (a CUDA device if there is one, else the processor) or a torch device.
        dtype: "auto" (float32, to which every smaller type converts exactly) or "float32",
            "float16", "bfloat16", "float64".
        progress: called with bytes done and bytes in all, during a download and while weights are read; what
            it raises ends the opening.
        notice: called with a sentence on the size of the model, once that is known.

    Raises:
        NotFoundError, NetworkError: the files are not to be had.
        ArchitectureError: not an encoder, or one that hides its attention.
        WeightsError: pickle only, broken, or not what the config describes.
        TokenizerError: no tokenizer that gives character positions.
        OutOfMemoryError: too large for this machine.
    """
    target = _device(device)
    precision = _dtype(dtype)
    source = locate(model, revision, progress)
    config = configure(source.folder, source.name)
    files = weight_files(source.folder)
    found = contents(files)
    with _loading_errors(source):
        check_sizes(config, found)
    need = found.need(precision)
    notice(f"{in_words(found.bytes)} of weights, about {in_words(need)} of memory while they are opened.")
    with promised(need, source.name, "Close other programs, use a smaller model, or dtype float16."):
        before = _states(files)
        sha256 = digest(files, progress or no_progress)
        tokenizer = _tokenizer(source, config)
        network, (notes, unused), fused = _network(source, config, precision, target)
        heads, refused = open_heads(source.folder, config, found, network)
        if _states(files) != before:
            raise WeightsError(f"{source.name} was changed while it was opened. Open it again to use it.")
    versions, trainings = libraries(), trainings_in(source.folder)
    with running_errors(source.name, network):
        about = replace(
            describe(network, config, fused),
            name=source.name,
            origin=source.origin,
            revision=source.revision,
            weights_sha256=sha256,
        )
        encoder = encoder_of(tokenizer, about, network)
        checkpoint = Checkpoint(about, encoder, network, versions, folder=source.folder, before=trainings)
        self_check(checkpoint)
        outputs, failing = checked(checkpoint, heads)
        taken = {*network.state_dict(), *(name for output in outputs for name in output.weights)}
        left = [name for name in unused if not any(modern(name).endswith(one) for one in taken)]
        notes += (*((unused_note(left),) if left else ()), *refused, *failing)
        return replace(
            checkpoint,
            opened=replace(about, notes=notes, outputs_sha256=_digest_of(outputs)),
            pads=pads(checkpoint),
            projections=projections(checkpoint),
            outputs={output.task: output for output in outputs},
        )


def _digest_of(outputs: Sequence[OutputHead]) -> str:
    """Of what the config says of the heads; "" for none."""
    said = repr([output.about for output in outputs])
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest() if outputs else ""


def _states(files: list[Path]) -> list[tuple[int, int, int]]:
    """What changes when somebody writes to a file, puts another in its place, or takes one away."""
    found = [file.stat() for file in files if file.exists()]
    return [(state.st_ino, state.st_size, state.st_mtime_ns) for state in found]


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
        torch.zeros(1, device=target).item()  # "meta" holds no numbers and fails here
    except (RuntimeError, AssertionError, NotImplementedError, TypeError):
        raise CheckpointError(f"This machine has no device {device!r}. Use auto or cpu.") from None
    return target


def _dtype(dtype: str) -> torch.dtype:
    try:
        return _DTYPES["float32" if dtype == "auto" else dtype]
    except KeyError:
        raise CheckpointError(f"There is no dtype {dtype!r}; use auto, {', '.join(_DTYPES)}.") from None


@lru_cache(maxsize=1)
def libraries() -> dict[str, str]:
    """Versions of what computes the numbers, and of Python."""
    # Package metadata would lack what is used without being installed, such as a clone of this project.
    modules = (torch, transformers, tokenizers, np)
    return {
        "bert-probe": bert_probe.__version__,
        **{module.__name__: str(module.__version__) for module in modules},
        "python": platform.python_version(),
    }


def _tokenizer(source: Source, config: Any) -> Any:
    if not any(any(source.folder.glob(pattern)) for pattern in _TOKENIZER_FILES):
        raise TokenizerError(
            f"{source.name} has no tokenizer files (tokenizer.json or a vocabulary). "
            "Save the tokenizer into the same folder with save_pretrained."
        )
    check_tokenizer_files(source.folder)
    try:
        with panics_as_errors():
            tokenizer = AutoTokenizer.from_pretrained(
                source.folder, config=config, local_files_only=True, trust_remote_code=False
            )
    except TokenizerError:
        raise
    except Exception as error:  # each tokenizer's loader has its own errors
        raise TokenizerError(
            f"The tokenizer cannot be opened: {reason(error)}. Save it again with save_pretrained."
        ) from None
    check_fast(tokenizer)
    limit = tokenizer.model_max_length
    if not isinstance(limit, int | float) or not limit >= 1:  # NaN is neither above nor below
        raise TokenizerError(
            f"tokenizer_config.json gives {limit!r} as model_max_length, which is no number of tokens. "
            "Correct it or take it out, and save the file."
        )
    return tokenizer


def check_fast(tokenizer: Any) -> None:
    """Refuse a tokenizer that does not say which characters a token comes from.

    Raises:
        TokenizerError: it is none of transformers' fast ones.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise TokenizerError(
            f"{type(tokenizer).__name__} gives no character positions. "
            "Convert it to a fast tokenizer (tokenizer.json)."
        )


def _network(
    source: Source, config: Any, dtype: torch.dtype, device: torch.device
) -> tuple[torch.nn.Module, tuple[tuple[str, ...], list[str]], bool]:
    """The model, what `_check_report` gives, and whether it listens to our attention function."""
    for implementation in (IMPLEMENTATION, "eager"):
        with _loading_errors(source):
            try:
                network, report = read(AutoModel, source.folder, config, dtype, implementation)
            except ValueError as error:
                if implementation == IMPLEMENTATION and "attention" in str(error).lower():
                    continue
                raise
        notes = _check_report(network, report)
        network.eval().requires_grad_(False)
        with running_errors(source.name, network):
            fused = implementation == IMPLEMENTATION and listens(network)
        if fused or implementation == "eager":
            with _loading_errors(source):
                network.to(device)
                on_its_own((*network.parameters(), *network.buffers()))
                return network, notes, fused
    raise AssertionError("the eager attempt returns or raises")


@contextmanager
def _loading_errors(source: Source) -> Iterator[None]:
    try:
        with memory_errors(f"{source.name} needs more memory than is free here. Use a smaller model."):
            yield
    except ProbeError:
        raise
    except ImportError as error:
        raise _incomplete(source.name, error) from None
    except Exception as error:  # transformers raises many types; the file itself was checked before
        raise CheckpointError(
            f"{source.name} cannot be opened: {reason(error)}. Save the model again with save_pretrained."
        ) from None


def _incomplete(name: str, error: ImportError) -> CheckpointError:
    """Return the error of a model that lacks nothing itself, but a package of this Python does."""
    return CheckpointError(
        f"{name} cannot be opened with this installation of Python packages: {reason(error)}. Install what "
        "requirements.txt lists, and any package named here."
    )


@contextmanager
def running_errors(name: str, network: torch.nn.Module) -> Iterator[None]:
    """A model that fails on a plain text needs more than text: a table, a page, a language."""
    try:
        yield
    except ProbeError:
        raise
    except ImportError as error:
        raise _incomplete(name, error) from None
    except Exception as error:
        raise ArchitectureError(
            f"{name} ({type(network).__name__}) cannot be run on plain text: {reason(error)}. "
            f"Supported: {SUPPORTED}."
        ) from None


def _check_report(network: Any, report: dict[str, Any]) -> tuple[tuple[str, ...], list[str]]:
    """Refuse weights that do not fit; take away a pooler that was never trained.

    transformers fills missing weights with random numbers, and drops those it has no place for. Shown
    as the model's results, both would be invented.

    Returns:
        Notes, and the names of weights that the encoder has no use for.
    """
    differing = mismatched(report)
    if differing:
        raise WeightsError(f"Config and weights disagree in {some(differing)}. {REMEDY}")
    missing = sorted(report["missing_keys"])
    pooler = {name for name, _ in network.named_parameters() if name.startswith("pooler.")}
    absent_pooler = pooler and pooler <= set(missing)  # half a pooler is broken, not absent
    others = [key for key in missing if not (absent_pooler and key in pooler)]
    if others:
        raise WeightsError(f"The weights lack {some(others)}, which the config describes. {REMEDY}")
    notes = []
    if absent_pooler:
        network.pooler = None
        notes.append("The weights hold no pooler, so there is no pooler output.")
    unused = sorted(report["unexpected_keys"])
    _check_unused(network, unused)
    check_finite(network)
    return tuple(notes), unused


def unused_note(names: list[str]) -> str:
    """What is said of weights that belong to no part of the encoder."""
    return f"Not used by the encoder, for example because of a task head: {some(names)}."


def _check_unused(network: torch.nn.Module, unused: list[str]) -> None:
    """Refuse when a layer leaves weights out: it has more layers, or computes something else."""
    stacks = [f"{name}." for name, part in network.named_modules() if isinstance(part, torch.nn.ModuleList)]
    within = [name for name in unused if any(f".{stack}" in f".{name}" for stack in stacks)]
    if within:
        raise WeightsError(
            f"The weights hold {some(within)}, for which the config describes no place. {REMEDY}"
        )


def describe(network: Any, config: Any, fused: bool) -> Description:
    """What can be seen of a model itself; its name, origin, digest and notes are the caller's to say."""
    first = next(network.parameters())
    return Description(
        name="",
        origin="",
        revision=None,
        architecture=type(network).__name__,
        family=config.model_type,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        vocabulary_size=network.get_input_embeddings().num_embeddings,
        max_tokens=_max_tokens(config, network),
        parameter_count=sum(parameter.numel() for parameter in network.parameters()),
        weights_sha256="",
        dtype=str(first.dtype).removeprefix("torch."),
        device=str(first.device),
        has_pooler=getattr(network, "pooler", None) is not None,
        shows_qkv=fused,
    )


def encoder_of(tokenizer: Any, about: Description, network: torch.nn.Module) -> Encoder:
    """The tokenizer with the limits of the model."""
    names = frozenset(inspect.signature(network.forward).parameters)
    return Encoder(tokenizer, about.max_tokens, about.vocabulary_size, names)


def _max_tokens(config: Any, network: Any) -> int | None:
    """The longest input: rows of the position table, less those that some families keep for padding."""
    table = getattr(getattr(network, "embeddings", None), "position_embeddings", None)
    if isinstance(table, torch.nn.Embedding):
        kept = 0 if table.padding_idx is None else table.padding_idx + 1
        return table.num_embeddings - kept
    limit = getattr(config, "max_position_embeddings", None)
    return int(limit) if limit else None
