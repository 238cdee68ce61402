"""Opening a checkpoint's trained output heads: those whose weights are all there, and no others."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bert_probe.errors import CheckpointError, OutOfMemoryError, WeightsError, memory_errors
from bert_probe.model.checkpoint import CLASSIFYING, LABELLING, Checkpoint
from bert_probe.model.checks import CHECK_TEXT, between_passes
from bert_probe.model.config import ConfiguredHeads, reason, trained
from bert_probe.model.forward import as_array, batch
from bert_probe.model.outputs import CLASSES, TELLING, OutputHead, own_modules, parts_of, with_encoder
from bert_probe.model.preflight import WeightHeaders, check_sizes
from bert_probe.model.trace import Trace
from bert_probe.model.weights import mismatched, on_its_own, read, some


def open_heads(
    folder: Path, config: Any, found: WeightHeaders, network: torch.nn.Module
) -> tuple[list[OutputHead], list[str]]:
    """The heads that a checkpoint has for the tasks of `CLASSES`, on top of its encoder.

    Args:
        network: the encoder, already open.

    Returns:
        The heads, and a sentence for each that the config names and that cannot be had.
    """
    try:
        said = trained(folder)
    except CheckpointError as error:
        return [], [f"No output head is opened. {error}"]
    heads, refused = [], []
    for task, classes in CLASSES.items():
        name = classes.get(config.model_type, "")
        named = name in said.architectures
        if not name or not (named or task in TELLING):
            continue
        made, settings = getattr(transformers, name), _settings(config, said, task)
        try:
            with memory_errors(f"The head for {task} needs more memory than is free here."):
                empty = check_sizes(settings, found, made)
                if named or _names(empty) <= {modern(name) for name in found.names}:
                    heads.append(_opened(task, made, folder, settings, found, network))
        except OutOfMemoryError:
            raise
        except Exception as error:  # transformers raises many types; the encoder is open all the same
            if named:
                refused.append(
                    f"There is no head for {task}, though config.json names {name}: {reason(error)}."
                )
    return heads, refused


def modern(name: str) -> str:
    """A tensor's name as it is called today; in the first checkpoints norms had a gamma and a beta."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _settings(config: Any, said: ConfiguredHeads, task: str) -> Any:
    """The encoder's config, with what only heads read."""
    settings = copy.deepcopy(config)
    if task in (CLASSIFYING, LABELLING):
        settings.id2label = dict(enumerate(said.labels))
        settings.problem_type = said.problem or None
    if said.tied is not None:
        settings.tie_word_embeddings = said.tied
    return settings


def _names(empty: Any) -> set[str]:
    """The weights by which a head is known: all of its own that are not another tensor again."""
    encoder = f"{empty.base_model_prefix}."
    own = {name for name in empty.state_dict() if not name.startswith(encoder)} - {
        *empty.all_tied_weights_keys
    }
    return own or {f"{type(empty).__name__}, which has none"}


def _opened(
    task: str, made: Any, folder: Path, settings: Any, found: WeightHeaders, network: torch.nn.Module
) -> OutputHead:
    """A head on top of the encoder that is open, with weights in memory of its own.

    Raises:
        WeightsError: some are missing, of other sizes, or not finite.
    """
    first = next(network.parameters())
    # As the file has them they are not copied; the encoder among them is put aside again.
    whole, report = read(made, folder, settings, found.dtype or first.dtype, "eager")
    if report["missing_keys"]:
        raise WeightsError(f"the weights lack {some(sorted(report['missing_keys']))}")
    if report["mismatched_keys"]:
        raise WeightsError(f"config and weights disagree in {some(mismatched(report))}")
    if type(whole.base_model) is not type(network):
        raise WeightsError(f"it stands on a {type(whole.base_model).__name__}")
    whole.eval().requires_grad_(False)
    pooler: Any = getattr(whole.base_model, "pooler", None)
    if getattr(network, "pooler", network) is None and pooler is not None:
        # Some families have a pooler only below a head.
        network.pooler = pooler
        _settle(pooler.modules(), first, set())
    whole = with_encoder(whole, network)
    _settle(own_modules(whole), first, {id(part) for part in network.parameters()})
    labels = tuple(settings.id2label.values()) if task in (CLASSIFYING, LABELLING) else ()
    output = OutputHead(task, whole, labels, settings.problem_type or "", parts_of(task))
    broken = [name for name, part in output.weights.items() if not part.isfinite().all()]
    if broken:
        raise WeightsError(f"{some(broken)} hold values that are not finite numbers")
    return output


def _settle(modules: Iterable[torch.nn.Module], first: torch.Tensor, others: Set[int]) -> None:
    """Bring weights to where the encoder's are, in its dtype; others, by their identity, are there."""
    held = [part for module in modules for part in (*module._parameters.values(), *module._buffers.values())]
    own = list({id(part): part for part in held if part is not None and id(part) not in others}.values())
    for part in own:
        part.data = part.data.to(first.device, first.dtype if part.is_floating_point() else None)
    on_its_own(own)


def checked(checkpoint: Checkpoint, heads: Sequence[OutputHead]) -> tuple[list[OutputHead], list[str]]:
    """Those heads whose answer from a trace is that of the whole model on the same text; and a sentence for
    each that looks at more than what the encoder gives."""
    if not heads:
        return [], []
    trace = checkpoint.trace(CHECK_TEXT, truncate=True)
    kept, refused = [], []
    for head in heads:
        try:
            off, most = _difference(trace, head)
        except OutOfMemoryError:
            raise
        except Exception as error:  # a head that cannot be run fails in its own way
            refused.append(f"The head for {head.task} is left out: {reason(error)}.")
            continue
        if off <= most:
            kept.append(head)
        else:
            refused.append(
                f"The head for {head.task} reads more than what the encoder gives (its answer would be off "
                f"by {off:.2g}), so it is left out."
            )
    return kept, refused


def _difference(trace: Trace, head: OutputHead) -> tuple[float, float]:
    """How far the two answers to a short text are apart, and how far they may be."""
    checkpoint, answer = trace.checkpoint, head.logits(trace)
    with torch.inference_mode(), checkpoint.running():
        whole = as_array(head.numbers(head.whole(**batch(checkpoint, [trace.encoding]))))[0]
    size = max(1.0, float(np.abs(whole).max()))
    return float(np.abs(answer - whole).max()), between_passes(checkpoint.description) * size
