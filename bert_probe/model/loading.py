"""Load a checkpoint and its task heads from files.

Missing weights are never initialized: a task head with missing weights is not loaded. Every failure is a
`ProbeError`.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from transformers import AutoTokenizer

import bert_probe
from bert_probe.errors import (
    CheckpointError,
    ProbeError,
    TokenizerError,
    WeightsError,
    memory_errors,
)
from bert_probe.model.architectures import (
    block_sparse_limit,
    disable_cache,
    limit_notes,
    other_part,
    other_part_notes,
    text_encoder,
    text_model_class,
    unused_code_note,
    with_full_attention,
)
from bert_probe.model.capture import IMPLEMENTATION
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, Checkpoint, Description, read_training_history
from bert_probe.model.checks import (
    attention_errors,
    capture_problem,
    check_heads,
    has_longrope,
    missing_package,
    pads,
    projections,
    running_errors,
    self_check,
    uses_interface,
)
from bert_probe.model.config import (
    REMEDY,
    load_config,
    reason,
)
from bert_probe.model.encoding import Encoder, panics_as_errors
from bert_probe.model.late_interaction import add_markers, open_multi_vector_model
from bert_probe.model.lengths import check_expansion
from bert_probe.model.outputs import (
    OutputHead,
    modern_name,
    open_heads,
)
from bert_probe.model.preflight import (
    check_sizes,
    format_bytes,
    limited_operations,
    read_headers,
    reserved_memory,
)
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sentence_head import open_sentence_head
from bert_probe.model.sentence_modules import open_sentence_model
from bert_probe.model.sentence_router import at_encoder
from bert_probe.model.sources import (
    Source,
    digest,
    locate,
    read_config,
    stamp,
    weight_files,
)
from bert_probe.model.token_positions import check_positions
from bert_probe.model.tokenizer_files import check_tokenizer_files
from bert_probe.model.weights import (
    check_finite,
    copy_to_own_memory,
    describe_mismatches,
    hold_read_lease,
    list_names,
    read,
)

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
    """Load an encoder and its tokenizer.

    Before memory is allocated, the config is checked against the headers of the weight files, and the
    required memory against the available memory.

    Args:
        model: None for the built-in all-MiniLM-L6-v2; otherwise a local folder or a Hub ID.
        revision: branch, tag or commit on the hub.
        device: "auto" (a CUDA device if available, otherwise the CPU) or a torch device.
        dtype: "auto" (float32, to which every smaller type converts exactly) or "float32",
            "float16", "bfloat16", "float64".
        progress: called with bytes done and total bytes during a download and while weights are hashed; an
            exception that it raises cancels the loading.
        notice: called once, with a sentence about the size of the weights and the required memory.

    Raises:
        NotFoundError, NetworkError: the files are unavailable.
        ArchitectureError: the model is not an encoder, or its attention cannot be recorded.
        WeightsError: the weights are available only as a pickle file, are broken, or do not fit the config.
        TokenizerError: the model has no tokenizer, or the character positions of its tokens are unknown.
        OutOfMemoryError: the model is too large for this machine.
    """
    target = _device(device)
    precision = _dtype(dtype)
    files = None if model is None else stamp(os.fspath(model))
    source = locate(model, revision, progress)
    root, source = source.folder, at_encoder(source)
    config = load_config(source.folder, source.name)
    opened = _open_files(source, config, precision, target, progress or no_progress, notice)
    versions, trainings = library_versions(), read_training_history(root)
    with attention_errors(source.name, config), running_errors(source.name, opened.network):
        description = replace(
            describe(opened.network, config, opened.no_qkv, opened.is_eager),
            name=source.name,
            origin=source.origin,
            revision=source.revision,
            weights_sha256=opened.sha256,
        )
        encoder = make_encoder(opened.tokenizer, description, opened.network)
        checkpoint = Checkpoint(
            description,
            encoder,
            opened.network,
            versions,
            folder=root,
            files=files,
            training_history=trainings,
        )
        description = self_check(checkpoint)
        sentence_model, sentence_model_error = open_sentence_model(
            root, description, opened.tokenizer.model_max_length, opened.network
        )
        sentence_heads, sentence_head_notes = open_sentence_head(root, opened.network, sentence_model)
        heads = opened.heads
        if sentence_heads:
            heads = [head for head in heads if head.task != TEXT_CLASSIFICATION] + sentence_heads
        outputs, failure_notes = check_heads(checkpoint, heads)
        notes = (
            *opened.notes,
            *unused_code_note(read_config(source.folder), description.architecture),
            *limit_notes(config),
            *description.qkv_notes,
            *_unused_notes(opened, outputs),
            *opened.head_notes,
            *sentence_head_notes,
            *failure_notes,
        )
        multi_vector, multi_vector_error = open_multi_vector_model(
            source.folder, description, opened.tokenizer, opened.network
        )
        modules = sentence_model or multi_vector
        return replace(
            checkpoint,
            initial_description=replace(
                description,
                notes=notes,
                outputs_sha256=outputs_digest(outputs),
                sentence_model_sha256=modules.sha256 if modules else "",
            ),
            sentence_model=sentence_model,
            sentence_model_error=sentence_model_error,
            multi_vector_model=multi_vector,
            multi_vector_error=multi_vector_error,
            pads=pads(checkpoint),
            lock=RLock() if has_longrope(checkpoint.model) else nullcontext(),
            projections=projections(checkpoint),
            outputs={output.task: output for output in outputs},
        )


@dataclass(frozen=True, eq=False)
class _OpenedFiles:
    """The objects that `load` creates from the files of a checkpoint, before the model runs on a text.

    Attributes:
        network: the encoder, on its device.
        heads: the task heads whose weights are complete.
        sha256: digest of the weight files.
        no_qkv: why queries, keys and values are unavailable; "" if they are available.
        is_eager: whether the model computes attention with its own code.
        unused: names of weights that the encoder does not use.
        notes: notes about the encoder.
        head_notes: notes about the task heads that are not opened.
    """

    network: Any
    tokenizer: Any
    heads: list[OutputHead]
    sha256: str
    no_qkv: str
    is_eager: bool
    unused: list[str]
    notes: tuple[str, ...]
    head_notes: Sequence[str]


def _open_files(
    source: Source,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
    notice: Callable[[str], None],
) -> _OpenedFiles:
    """Open the encoder, its tokenizer and its heads; arguments and errors are the same as for `load`."""
    files = weight_files(source.folder, source)
    with hold_read_lease(files):
        headers = read_headers(files)
        with _loading_errors(source):
            check_sizes(config, headers)
        memory = headers.estimate_memory(dtype)
        notice(
            f"The model has {format_bytes(headers.bytes)} of weights; about {format_bytes(memory)} of "
            "memory are needed to load it."
        )
        with reserved_memory(
            memory, source.name, "Close other programs, use a smaller model, or use the dtype float16."
        ):
            file_states = _file_states(files)
            sha256 = digest(files, progress)
            tokenizer = _tokenizer(source, config)
            with attention_errors(source.name, config):
                network, (notes, unused), no_qkv, is_eager = _network(
                    source, config, dtype, device, headers.masks
                )
            heads, head_notes = open_heads(source.folder, config, headers, network)
            notes += other_part_notes(config, headers.names)
            if _file_states(files) != file_states:
                raise WeightsError(
                    f"{source.name} was changed while it was being loaded. Load the model again."
                )
    return _OpenedFiles(network, tokenizer, heads, sha256, no_qkv, is_eager, unused, notes, head_notes)


def _unused_notes(opened: _OpenedFiles, outputs: Sequence[OutputHead]) -> tuple[str, ...]:
    """Return a note about the weights that neither the encoder nor a task head uses; () if there are none."""
    used = (*opened.network.state_dict(), *(name for output in outputs for name in output.weights))
    unused = [name for name in opened.unused if not any(modern_name(name).endswith(end) for end in used)]
    return (unused_note(unused),) if unused else ()


def outputs_digest(outputs: Sequence[OutputHead]) -> str:
    """Return the SHA-256 of the task heads' configuration; "" if there are no task heads."""
    settings = repr([output.configuration for output in outputs])
    return hashlib.sha256(settings.encode("utf-8", "surrogatepass")).hexdigest() if outputs else ""


def _file_states(files: list[Path]) -> list[tuple[int, int, int]]:
    """Return the inode, size and modification time of each existing file, to detect changes."""
    stats = [file.stat() for file in files if file.exists()]
    return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        target = torch.device(device)
        torch.zeros(1, device=target).item()  # raises an error for "meta", which stores no values
    except (RuntimeError, AssertionError, NotImplementedError, TypeError):
        raise CheckpointError(f"{device!r} is unavailable on this machine. Use auto or cpu.") from None
    return target


def _dtype(dtype: str) -> torch.dtype:
    try:
        return _DTYPES["float32" if dtype == "auto" else dtype]
    except KeyError:
        raise CheckpointError(f"Unknown dtype {dtype!r}. Use auto, {', '.join(_DTYPES)}.") from None


@lru_cache(maxsize=1)
def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that compute the results, and of Python."""
    # Read the modules instead of package metadata, which lacks packages that run from a Git clone.
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
            "Save the tokenizer into the same folder with save_pretrained. Tokenizers without a vocabulary, "
            "such as ByT5's, are not supported."
        )
    check_tokenizer_files(source.folder)
    try:
        with panics_as_errors():
            tokenizer = AutoTokenizer.from_pretrained(
                source.folder, config=config, local_files_only=True, trust_remote_code=False
            )
    except TokenizerError:
        raise
    except Exception as error:  # Catch all exceptions, because tokenizers raise many types.
        raise TokenizerError(
            f"The tokenizer cannot be loaded: {reason(error)}. Save the tokenizer again with save_pretrained."
        ) from None
    check_expansion(tokenizer)
    check_positions(tokenizer)
    limit = tokenizer.model_max_length
    if not isinstance(limit, int | float) or not limit >= 1:  # the negated comparison also rejects NaN
        raise TokenizerError(
            f"model_max_length in tokenizer_config.json is {limit!r}, but must be a number of tokens. "
            "Correct or remove model_max_length, and save the file."
        )
    with suppress(ProbeError):  # `open_multi_vector_model` reports files that cannot be read
        add_markers(source.folder, tokenizer)
    return tokenizer


def _network(
    source: Source, config: Any, dtype: torch.dtype, device: torch.device, masks: Collection[str]
) -> tuple[torch.nn.Module, tuple[tuple[str, ...], list[str]], str, bool]:
    """Load the text encoder with fused attention or, if the model does not support it, eager attention.

    Returns:
        The encoder; the result of `_check_report`; the reason why q, k and v are unavailable, or ""; and
        whether the encoder computes attention with its own code.
    """

    def is_mask(name: str) -> bool:  # names in a file may have a prefix
        return any(f".{mask}".endswith(f".{name}") for mask in masks)

    for implementation in (IMPLEMENTATION, "eager"):
        with _loading_errors(source):
            try:
                model_class, settings = text_model_class(config), with_full_attention(config)
                model, report = read(model_class, source.folder, settings, dtype, implementation)
                network = text_encoder(model)
            except (ValueError, KeyError) as error:
                # Some classes look up their attention in their own dict, which raises KeyError 'bert_probe'.
                if implementation == IMPLEMENTATION and (
                    "attention" in str(error).lower() or error.args == (IMPLEMENTATION,)
                ):
                    continue
                raise
        report["unexpected_keys"] = {
            name
            for name in report["unexpected_keys"]
            if not name.startswith(other_part(config)[1]) and not is_mask(name)
        }
        notes = _check_report(model, network, report)
        network.eval().requires_grad_(False)
        is_eager = implementation == "eager"
        disable_cache(network)
        with running_errors(source.name, network), limited_operations(network):
            if not is_eager and not uses_interface(network):
                continue
            no_qkv = capture_problem(network) if is_eager else ""
        with _loading_errors(source):
            network.to(device)
            copy_to_own_memory((*network.parameters(), *network.buffers()))
            return network, notes, no_qkv, is_eager
    raise AssertionError("unreachable: the eager attempt returns or raises")


@contextmanager
def _loading_errors(source: Source) -> Iterator[None]:
    try:
        with memory_errors(f"{source.name} needs more memory than is available. Use a smaller model."):
            yield
    except ProbeError:
        raise
    except ImportError as error:
        raise missing_package(source.name, error) from None
    except Exception as error:  # Catch all exceptions, because transformers raises many types.
        raise CheckpointError(
            f"{source.name} cannot be loaded: {reason(error)}. Save the model again with save_pretrained."
        ) from None


_REMOVABLE = {
    "pooler": "The weights contain no pooler, so pooler output is unavailable.",
    "contact_head": "The weights contain no contact head, so contacts are not predicted.",
}
"""Optional modules of an encoder: maps each name to the note shown if the weights lack this module."""


_TIED = (
    "If they contain the word vectors only under the name of an output head, open the complete model with "
    "transformers, and save it with save_pretrained."
)


def _check_report(model: Any, network: Any, report: dict[str, Any]) -> tuple[tuple[str, ...], list[str]]:
    """Raise an error for weights that do not fit the config; remove optional modules without weights.

    transformers would initialize missing weights randomly and ignore unused weights. Both would make the
    output meaningless.

    Args:
        model: the loaded model.
        network: the model's text encoder. Only its weights are required.
        report: the loading report that `weights.read` returns.

    Returns:
        Notes for the user, and the names of weights that the encoder does not use.
    """
    differing = describe_mismatches(report)
    if differing:
        raise WeightsError(
            f"The shapes of the weights do not match the config: {list_names(differing)}. {REMEDY}"
        )
    encoder_ids = {id(parameter) for parameter in network.parameters()}
    outside = {name for name, parameter in model.named_parameters() if id(parameter) not in encoder_ids}
    missing = sorted(set(report["missing_keys"]) - outside)
    notes = []
    for part, note in _REMOVABLE.items():
        names = {name for name, _ in network.named_parameters() if name.startswith(f"{part}.")}
        if names and names <= set(missing):  # it is an error if a module lacks only some of its weights
            setattr(network, part, None)
            notes.append(note)
            missing = [name for name in missing if name not in names]
    if missing:
        vectors = network.get_input_embeddings().weight
        parameters = model.named_parameters(remove_duplicate=False)
        is_all = set(missing) <= {name for name, parameter in parameters if parameter is vectors}
        raise WeightsError(
            f"The weights lack {list_names(missing)}, which the config describes. "
            + (f"{_TIED} Otherwise, {REMEDY[0].lower()}{REMEDY[1:]}" if is_all else REMEDY)
        )
    unused = sorted(report["unexpected_keys"])
    _check_unused(network, unused)
    check_finite(network)
    return tuple(notes), unused


def unused_note(names: list[str]) -> str:
    """Return a note for the user that the encoder does not use the weights with these names."""
    return (
        "The encoder does not use some of the weights, for example those of a task head: "
        f"{list_names(names)}."
    )


def _check_unused(network: torch.nn.Module, unused: list[str]) -> None:
    """Raise an error if layer weights are unused, because the config describes fewer or other layers."""
    stacks = [
        f"{name}." for name, module in network.named_modules() if isinstance(module, torch.nn.ModuleList)
    ]
    unused_in_layers = [name for name in unused if any(f".{stack}" in f".{name}" for stack in stacks)]
    if unused_in_layers:
        raise WeightsError(
            f"The weights contain {list_names(unused_in_layers)}, which the config does not "
            f"describe. {REMEDY}"
        )


def describe(network: Any, config: Any, no_qkv: str, is_eager: bool) -> Description:
    """Return the `Description` of a model; the caller sets name, origin, revision, digests and notes."""
    parameter, sizes = next(network.parameters()), network.config
    return Description(
        name="",
        origin="",
        revision=None,
        architecture=type(network).__name__,
        family=config.model_type,
        layers=sizes.num_hidden_layers,
        heads=sizes.num_attention_heads,
        hidden_size=sizes.hidden_size,
        vocabulary_size=len(network.get_input_embeddings().weight),
        max_tokens=_max_tokens(config, network),
        parameter_count=sum(parameter.numel() for parameter in network.parameters()),
        weights_sha256="",
        dtype=str(parameter.dtype).removeprefix("torch."),
        device=str(parameter.device),
        has_pooler=getattr(network, "pooler", None) is not None,
        no_qkv=no_qkv,
        is_eager=is_eager,
    )


def make_encoder(tokenizer: Any, description: Description, network: torch.nn.Module) -> Encoder:
    """Return an `Encoder` that combines the tokenizer with the model's limits."""
    input_names = frozenset(inspect.signature(network.forward).parameters)
    segments = next(
        (
            module.num_embeddings
            for name, module in network.named_modules()
            if f".{name}".endswith(".token_type_embeddings") and isinstance(module, torch.nn.Embedding)
        ),
        None,
    )
    return Encoder(tokenizer, description.max_tokens, description.vocabulary_size, input_names, segments)


def _max_tokens(config: Any, network: Any) -> int | None:
    """Return the maximum number of input tokens; None for no limit.

    The maximum is the number of rows of the position embedding, minus the rows that some model families
    reserve for padding. Block-sparse models have a second limit; see `block_sparse_limit`.
    """
    limits = [limit for limit in (_positions(network), block_sparse_limit(config)) if limit]
    return min(limits, default=None)


def _positions(network: Any) -> int | None:
    """Return the number of positions in the position embedding or the config; None for no limit."""
    table = getattr(getattr(network, "embeddings", None), "position_embeddings", None)
    weight, padding = getattr(table, "weight", None), getattr(table, "padding_idx", None)
    if isinstance(weight, torch.Tensor):  # of an Embedding, or of a QuantEmbedding in I-BERT
        return len(weight) - (0 if padding is None else padding + 1)
    names = ("max_position_embeddings", "max_seq_len")  # the latter in MPT
    limit = next((limit for name in names if (limit := getattr(network.config, name, None))), None)
    return int(limit) if limit and limit > 0 else None  # XLNet states -1 for no limit
