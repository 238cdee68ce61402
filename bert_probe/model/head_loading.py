"""Loading of a checkpoint's output heads, and their comparison with the complete model."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bert_probe.errors import (
    CheckpointError,
    OutOfMemoryError,
    UnavailableError,
    WeightsError,
    memory_errors,
)
from bert_probe.model.architectures import is_encoder_decoder
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.model.checks import CHECK_TEXT, pass_tolerance
from bert_probe.model.config import ConfiguredHeads, read_head_settings, reason
from bert_probe.model.forward import as_array, batch
from bert_probe.model.outputs import CLASSES, TELLING, OutputHead, own_modules, parts_of, with_encoder
from bert_probe.model.preflight import WeightHeaders, check_sizes
from bert_probe.model.sentence_networks import activation_named
from bert_probe.model.trace import Trace
from bert_probe.model.weights import copy_to_own_memory, describe_mismatches, list_names, read


def open_heads(
    folder: Path, config: Any, headers: WeightHeaders, network: torch.nn.Module
) -> tuple[list[OutputHead], list[str]]:
    """Load the heads that a checkpoint has for the tasks of `CLASSES`, and attach them to its encoder.

    Args:
        headers: headers of the weight files.
        network: the loaded encoder.

    Returns:
        The heads, and a sentence for each head that is named in the config and cannot be loaded. The heads
        of encoder-decoders read the decoder, so they are not loaded.
    """
    if is_encoder_decoder(config):
        return [], []
    try:
        configured = read_head_settings(folder)
    except CheckpointError as error:
        return [], [f"No output head is loaded. {error}"]
    heads, refused = [], []
    for task, classes in CLASSES.items():
        name = classes.get(config.model_type, "")
        is_configured = name in configured.architectures
        if not name or not (is_configured or task in TELLING):
            continue
        model_class, settings = getattr(transformers, name), _head_config(config, configured, task)
        try:
            with memory_errors(f"The head for {task} needs more memory than is available."):
                meta_model = check_sizes(settings, headers, model_class)
                if is_configured or _identifying_names(meta_model) <= {
                    modern_name(name) for name in headers.names
                }:
                    head = _load_head(task, model_class, folder, settings, headers, network)
                    heads.append(head)
                    if task == TEXT_CLASSIFICATION and configured.activation:
                        activation = activation_named(configured.activation, "The cross-encoder")
                        heads[-1] = replace(head, activation=activation)
        except OutOfMemoryError:
            raise
        except UnavailableError as error:
            refused.append(f"The score is not shown. {error}")
        except Exception as error:  # heads raise many types of exceptions
            if is_configured:
                refused.append(
                    f"config.json names {name}, but the head for {task} cannot be loaded: {reason(error)}."
                )
    return heads, refused


def modern_name(name: str) -> str:
    """Return the current name of a tensor; in early checkpoints, norms have the parameters gamma and beta."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _head_config(config: Any, configured: ConfiguredHeads, task: str) -> Any:
    """Return the encoder's config with the settings that only heads use."""
    settings = copy.deepcopy(config)
    if task in (TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION):
        settings.id2label = dict(enumerate(configured.labels))
        settings.problem_type = configured.problem or None
    if configured.tied is not None:
        settings.tie_word_embeddings = configured.tied
    return settings


def _identifying_names(meta_model: Any) -> set[str]:
    """Return the names of the weights that identify a head: its own weights, without tied weights."""
    encoder = f"{meta_model.base_model_prefix}."
    names = {name for name in meta_model.state_dict() if not name.startswith(encoder)} - {
        *meta_model.all_tied_weights_keys
    }
    # A head without weights of its own cannot be identified: return a name that no file contains.
    return names or {f"{type(meta_model).__name__}, which has none"}


def _load_head(
    task: str, model_class: Any, folder: Path, settings: Any, headers: WeightHeaders, network: torch.nn.Module
) -> OutputHead:
    """Load a head, attach it to the loaded encoder, and copy its weights to separate memory.

    Raises:
        WeightsError: weights are missing, differ in size, or are not finite.
    """
    weight = next(network.parameters())
    # In the file's dtype, weights are memory-mapped and not copied. The encoder of this model is discarded.
    model, report = read(model_class, folder, settings, headers.dtype or weight.dtype, "eager")
    if report["missing_keys"]:
        raise WeightsError(f"the weights lack {list_names(sorted(report['missing_keys']))}")
    if report["mismatched_keys"]:
        raise WeightsError(f"config and weights disagree in {list_names(describe_mismatches(report))}")
    if type(model.base_model) is not type(network):
        raise WeightsError(f"its encoder is a {type(model.base_model).__name__}")
    model.eval().requires_grad_(False)
    pooler: Any = getattr(model.base_model, "pooler", None)
    if getattr(network, "pooler", network) is None and pooler is not None:
        # Some families have a pooler only together with a head.
        network.pooler = pooler
        _move_weights(pooler.modules(), weight, set())
    model = with_encoder(model, network)
    _move_weights(own_modules(model), weight, {id(tensor) for tensor in network.parameters()})
    labels = tuple(settings.id2label.values()) if task in (TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION) else ()
    output = OutputHead(task, model, labels, settings.problem_type or "", parts_of(task))
    broken = [name for name, tensor in output.weights.items() if not tensor.isfinite().all()]
    if broken:
        raise WeightsError(f"{list_names(broken)} contain values that are not finite numbers")
    return output


def _move_weights(modules: Iterable[torch.nn.Module], weight: torch.Tensor, encoder_ids: Set[int]) -> None:
    """Move weights to the device and dtype of the encoder, except those whose `id` is in `encoder_ids`."""
    tensors = [
        tensor for module in modules for tensor in (*module._parameters.values(), *module._buffers.values())
    ]
    head_tensors = list(
        {
            id(tensor): tensor for tensor in tensors if tensor is not None and id(tensor) not in encoder_ids
        }.values()
    )
    for tensor in head_tensors:
        tensor.data = tensor.data.to(weight.device, weight.dtype if tensor.is_floating_point() else None)
    copy_to_own_memory(head_tensors)


def check_heads(checkpoint: Checkpoint, heads: Sequence[OutputHead]) -> tuple[list[OutputHead], list[str]]:
    """Compare each head's output from a trace with the complete model's output on the same text.

    Returns:
        The heads whose outputs agree, and a sentence for each head that is dropped.
    """
    if not heads:
        return [], []
    trace = checkpoint.trace(CHECK_TEXT, truncate=True)
    valid, refused = [], []
    for head in heads:
        try:
            difference, tolerance = _head_difference(trace, head)
        except OutOfMemoryError:
            raise
        except Exception as error:  # heads raise many types of exceptions
            refused.append(f"The head for {head.task} is not used: {reason(error)}.")
            continue
        if difference <= tolerance:
            valid.append(head)
        else:
            refused.append(
                f"The head for {head.task} depends on more than the encoder's output (its output would be "
                f"off by {difference:.2g}), so it is not used."
            )
    return valid, refused


def _head_difference(trace: Trace, head: OutputHead) -> tuple[float, float]:
    """Return the largest difference between the logits of the head and of the complete model, and the
    tolerance.
    """
    checkpoint, actual = trace.checkpoint, head.logits(trace)
    with torch.inference_mode(), checkpoint.running():
        expected = as_array(head.stack_logits(head.model(**batch(checkpoint, [trace.encoding]))))[0]
    scale = max(1.0, float(np.abs(expected).max()))
    return float(np.abs(actual - expected).max()), pass_tolerance(checkpoint.description) * scale
