"""Models for training: creation, trainable parameters, memory, LoRA, and conversion to checkpoints."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors.torch import save_file

from bert_probe.analyses.weights.parameters import Inventory, Parameter, list_parameters
from bert_probe.core.field_types import FieldType
from bert_probe.errors import SelectionError, UnavailableError
from bert_probe.model.architectures import configs_of, disable_cache, with_full_attention
from bert_probe.model.checkpoint import (
    FILL_MASK,
    SENTENCE_SIMILARITY,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Checkpoint,
    TrainingHistory,
)
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.model.from_model import wrap
from bert_probe.model.outputs import CLASSES
from bert_probe.model.sentence_head import SentenceClassifier
from bert_probe.model.weights import BUILDING, list_names, named_parameters, unify_dtype

if TYPE_CHECKING:
    from bert_probe.training.objectives import Objective, TrainingExample

TASKS = (TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, FILL_MASK, SENTENCE_SIMILARITY)
"""Tasks for which a model can be trained."""

_AUTO = {
    TEXT_CLASSIFICATION: transformers.AutoModelForSequenceClassification,
    TOKEN_CLASSIFICATION: transformers.AutoModelForTokenClassification,
    FILL_MASK: transformers.AutoModelForMaskedLM,
}


def without_weights(checkpoint: Checkpoint, task: str, labels: Sequence[str] = (), problem: str = "") -> Any:
    """Return the model for a task on torch's meta device, where weights have shapes but use no memory.

    Args:
        checkpoint, task, labels, problem: see `with_head`.

    Raises:
        UnavailableError: the model family has no head for the task.
    """
    with torch.device("meta"):
        return _build(checkpoint, task, labels, problem)


def with_head(checkpoint: Checkpoint, task: str, labels: Sequence[str] = (), problem: str = "") -> Any:
    """Return a model with a task head and a copy of the checkpoint's encoder weights.

    The dtype is float64 if the checkpoint's dtype is float64, otherwise float32. If the checkpoint's own task
    head has the same labels, it is copied; otherwise the head is initialized randomly. If the head needs a
    pooler that the checkpoint lacks, the pooler is also initialized randomly.

    Args:
        checkpoint: the checkpoint to train.
        task: one of `TASKS`.
        labels: labels of the task head.
        problem: `problem_type` in the configuration of the model; "" for none.

    Raises:
        UnavailableError: the model family has no head for the task, or the encoder of the task model differs
            from the checkpoint's encoder.
    """
    full_model = _build(checkpoint, task, labels, problem)
    with checkpoint.running() as model:
        report = full_model.base_model.load_state_dict(model.state_dict(), strict=False)
    mismatched = [name for name in (*report.missing_keys, *report.unexpected_keys) if "pooler" not in name]
    if mismatched:
        raise UnavailableError(
            f"The encoders of {type(full_model).__name__} and {checkpoint.description.name} differ in "
            f"{list_names(mismatched)}. Choose another model."
        )
    if has_head(checkpoint, task, labels, problem):
        full_model.load_state_dict(checkpoint.outputs[task].weights, strict=False)
    return full_model.to(checkpoint.device)


def has_head(checkpoint: Checkpoint, task: str, labels: Sequence[str], problem: str = "") -> bool:
    """Return whether a checkpoint has a head for `task` with these labels, in order, and the problem type."""
    head = checkpoint.outputs.get(task)
    if head is None or head.labels != tuple(labels) or isinstance(head.model, SentenceClassifier):
        return False
    return not head.problem or not problem or head.problem == problem


def in_checkpoint_order(checkpoint: Checkpoint, task: str, labels: Sequence[str]) -> tuple[str, ...]:
    """Return `labels`, in the order of the checkpoint's task head if the head has exactly the same labels."""
    head = checkpoint.outputs.get(task)
    is_same = head is not None and sorted(head.labels) == sorted(labels)
    return head.labels if head is not None and is_same else tuple(labels)


def regression_labels(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the label of the checkpoint's head if it predicts a number, whatever its name; otherwise ()."""
    head = checkpoint.outputs.get(TEXT_CLASSIFICATION)
    labels = () if head is None or len(head.labels) != 1 else head.labels
    return labels if has_head(checkpoint, TEXT_CLASSIFICATION, labels, "regression") else ()


def _build(checkpoint: Checkpoint, task: str, labels: Sequence[str], problem: str) -> Any:
    head = checkpoint.outputs.get(task)
    model = checkpoint.model if head is None else head.model
    config = with_full_attention(copy.deepcopy(model.config))
    for name in ("sentence_transformers", "sbert_ce_default_activation_function"):
        vars(config).pop(name, None)  # the activation of a cross-encoder: the head is trained without it
    if config.model_type not in CLASSES[task]:
        raise UnavailableError(
            f"transformers has no {task} head for {config.model_type} models. Choose another model."
        )
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
    if task == TEXT_CLASSIFICATION:
        config.problem_type = problem or None
    dtype = torch.float64 if checkpoint.description.dtype == "float64" else torch.float32

    def build(implementation: str) -> Any:
        with BUILDING:
            model = _AUTO[task].from_config(config, attn_implementation=implementation, dtype=dtype)
        unify_dtype(model, dtype)
        return model

    return _with_fastest_attention(build)


def _with_fastest_attention(build: Callable[[str], Any]) -> Any:
    """Build a model with fused attention if the model family supports it, otherwise with eager attention."""
    try:
        return build("sdpa")
    except ValueError as error:
        if "attention" not in str(error).lower():
            raise
        return build("eager")


def to_checkpoint(
    full_model: Any, tokenizer: Any, name: str, before: Sequence[TrainingHistory]
) -> Checkpoint:
    """Return a trained model as a frozen checkpoint, like a checkpoint loaded from files.

    Args:
        full_model: the trained model. It is frozen and set to evaluation mode in place.
        tokenizer: the model's tokenizer.
        name: name of the checkpoint.
        before: training history, including the latest training run.

    Raises:
        CheckpointError: the model's attention cannot be captured.
    """
    wrapped = wrap(full_model, tokenizer)
    full_model.eval().requires_grad_(False)
    for config in configs_of(full_model.modules()):
        # Directly, because `set_attn_implementation` ignores "eager" in models that lack it, such as Falcon.
        config._attn_implementation = wrapped.initial_description.implementation
    disable_cache(full_model)
    values = {field.name: getattr(wrapped, field.name) for field in fields(Checkpoint)}
    return Checkpoint(
        **values
        | {
            "initial_description": replace(wrapped.initial_description, name=name),
            "training_history": tuple(before),
        }
    )


HEAD, ALL, LORA, TOP = "head", "all", "lora", "top"

UPDATES: Mapping[str, str] = {
    HEAD: "Train only the head. The encoder is frozen, so its vectors are computed only once.",
    TOP: "Train the last K layers and the head.",
    ALL: "Train all parameters, including the embeddings.",
    LORA: "Train the head, and low-rank updates of the matrices in all layers (LoRA; Hu et al. 2022).",
}
"""Descriptions of the update scopes. The number of layers follows "top", as in "top:2"."""

RANK, SCALE = 8, 16
"""Rank and scale of LoRA: the product of the two LoRA matrices is multiplied by scale ÷ rank."""


class UpdateScope(FieldType):
    """Field type of update scopes: head, top:K, all and lora."""

    metavar = "head|top:K|all|lora"

    def check(self, name: str, value: Any) -> str:
        """Return the update scope if it is valid."""
        if not isinstance(value, str) or not re.fullmatch(r"head|all|lora|top:[1-9][0-9]{0,3}", value):
            raise SelectionError(f"{name} must be head, top:K (such as top:2), all or lora, not {value!r}.")
        return value


def encoder_layers(network: torch.nn.Module) -> tuple[tuple[str, ...], int]:
    """Return the names of the module lists that contain the parts of each layer, and the number of layers.

    Most models have one list. XLM and FlauBERT have four: attentions, feed-forward networks and two norms.

    Raises:
        UnavailableError: the model has no list of layers, for example because layers share their weights.
    """
    config: Any = network.config
    count = config.num_hidden_layers
    lists = [
        name
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.ModuleList)
        and len(module) == count
        and not name.startswith("initial_char_encoder.")  # CANINE, before the layers of the encoder
    ]
    if lists:
        parent = lists[0].rpartition(".")[0]
        return tuple(name for name in lists if name.rpartition(".")[0] == parent), count
    raise UnavailableError(
        f"{type(network).__name__} has no list of separate layers, so its last layers cannot be "
        "selected. Choose head or all instead."
    )


_UNREAD_POOLERS = frozenset({"BigBirdForSequenceClassification"})
"""Classes for text classification whose encoder has a pooler that the head does not read."""


def _reads_pooler(full_model: Any) -> bool:
    """Return whether the task head reads the pooler, if there is one: only heads that classify texts do."""
    name = type(full_model).__name__
    is_classifier = name == CLASSES[TEXT_CLASSIFICATION].get(full_model.config.model_type)
    return is_classifier and name not in _UNREAD_POOLERS


def head_parts(full_model: Any) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of the task head, and of the pooler if the head reads it, by name.

    Parameters that the head shares with the embeddings are not included.
    """
    prefix = full_model.base_model_prefix
    pooler = f"{prefix}.pooler" if _reads_pooler(full_model) else ()
    return {
        name: parameter
        for name, parameter in named_parameters(full_model).items()
        if not name.startswith(f"{prefix}.") or name.startswith(pooler)
    }


def select_parameters(full_model: Any, update: str) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that an update scope trains, by name; for lora, without the LoRA matrices.

    Raises:
        SelectionError: the update scope has more layers than the model.
        UnavailableError: the layers cannot be separated.
    """
    if update == ALL:
        return named_parameters(full_model)
    parameters = head_parts(full_model)
    if update.startswith(TOP):
        count = int(update.partition(":")[2])
        lists, layers = encoder_layers(full_model.base_model)
        if count > layers:
            raise SelectionError(f"{update} selects more layers than this model has ({layers}).")
        prefixes = tuple(
            f"{full_model.base_model_prefix}.{name}.{index}."
            for name in lists
            for index in range(layers)[-count:]
        )
        parameters |= {
            name: parameter
            for name, parameter in named_parameters(full_model).items()
            if name.startswith(prefixes)
        }
    return parameters


def lora_targets(full_model: Any) -> dict[str, torch.nn.Linear]:
    """Return the linear modules of the encoder layers, which LoRA adapts, by name.

    Raises:
        UnavailableError: there are no such modules; the layers of GPT-2 consist of ``Conv1D``.
    """
    prefix, network = full_model.base_model_prefix, full_model.base_model
    lists = [
        f"{name}." for name, module in network.named_modules() if isinstance(module, torch.nn.ModuleList)
    ]
    targets = {
        f"{prefix}.{name}": module
        for name, module in network.named_modules()
        if isinstance(module, torch.nn.Linear) and name.startswith(tuple(lists))
    }
    if not targets:
        raise UnavailableError(
            f"The layers of {type(network).__name__} have no linear modules that LoRA can adapt. Choose "
            "--update head, top:K or all."
        )
    return targets


def count_trainable(full_model: Any, update: str) -> int:
    """Return the number of parameters that an update scope trains.

    Raises:
        SelectionError, UnavailableError: see `select_parameters`.
    """
    targets = lora_targets(full_model).values() if update == LORA else ()
    adapters = sum(RANK * (matrix.in_features + matrix.out_features) for matrix in targets)
    selected = sum(parameter.numel() for parameter in select_parameters(full_model, update).values())
    return selected + adapters


@dataclass(frozen=True)
class ParameterCount:
    """The number of parameters that an update scope trains.

    Attributes:
        update: the update scope.
        trainable: number of trainable parameters.
        parameters: number of all parameters, including those of the task head.
    """

    update: str
    trainable: int
    parameters: int


@dataclass(frozen=True)
class TrainableParameters:
    """The parameters that an update scope trains.

    Attributes:
        inventory: all parameters, including those of the task head and the LoRA matrices.
        names: names of the trainable parameters.
    """

    inventory: Inventory
    names: frozenset[str]

    def count(self, condition: Callable[[Parameter], bool] = lambda _: True) -> int:
        """Return the number of trainable parameters among those that satisfy a condition."""
        return sum(row.count for row in self.inventory.rows if row.name in self.names and condition(row))


def trainable_parameters(
    checkpoint: Checkpoint, task: str, update: str, labels: int = 2
) -> TrainableParameters:
    """Return the parameters that an update scope trains, without allocating the model.

    Args:
        checkpoint: the checkpoint to train.
        task: one of `TASKS`.
        update: the update scope; see `UPDATES`.
        labels: the number of labels of a classification head.

    Raises:
        SelectionError: the update scope has more layers than the model.
        UnavailableError: the layers cannot be separated, or the model family has no head for the task.
    """
    full_model = without_weights(checkpoint, task, _labels(labels))
    names, adapted = (
        {*select_parameters(full_model, update)},
        lora_targets(full_model) if update == LORA else {},
    )
    rows = []
    for row in list_parameters(full_model).rows:
        rows.append(row)
        matrix = adapted.get(row.name.removesuffix(".weight"))
        if matrix is not None:
            for side, shape in (("A", (RANK, matrix.in_features)), ("B", (matrix.out_features, RANK))):
                adapter = replace(row, name=f"{row.name.removesuffix('.weight')}.lora_{side}", shape=shape)
                rows.append(
                    replace(adapter, count=prod(shape), bytes=prod(shape) * matrix.weight.element_size())
                )
                names.add(adapter.name)
    total = sum(row.count for row in rows)
    rows = [replace(row, share=row.count / total) for row in rows]
    return TrainableParameters(Inventory(tuple(rows)), frozenset(names))


def _labels(count: int) -> tuple[str, ...]:
    """Return `count` placeholder names for labels."""
    return tuple(f"label {number}" for number in range(1, count + 1))


def count_by_scope(checkpoint: Checkpoint, task: str, labels: int = 2) -> Iterator[ParameterCount]:
    """Yield the number of trainable parameters of each update scope, without allocating the model.

    The scopes are head, top:K for each K, all, and lora. Sentence-similarity models have no task head, so
    their scopes do not include head; models without modules that LoRA can adapt have no scope lora.
    Parameters of sentence-transformers modules are not counted.

    Args:
        checkpoint: the checkpoint to train.
        task: one of `TASKS`.
        labels: the number of labels of a classification head.

    Raises:
        UnavailableError: the model family has no head for the task.
    """
    is_similarity = task == SENTENCE_SIMILARITY
    full_model = (
        _EncoderOnly(checkpoint.model)
        if is_similarity
        else without_weights(checkpoint, task, _labels(labels))
    )
    parameters = sum(parameter.numel() for parameter in full_model.parameters())
    try:
        layers = encoder_layers(full_model.base_model)[1]
    except UnavailableError:
        layers = 0
    tops = [f"{TOP}:{count}" for count in range(1, layers + 1)]
    for update in (*(() if is_similarity else (HEAD,)), *tops, ALL):
        yield ParameterCount(update, count_trainable(full_model, update), parameters)
    with suppress(UnavailableError):
        yield ParameterCount(LORA, count_trainable(full_model, LORA), parameters)


class _EncoderOnly(torch.nn.Module):
    """An encoder without a task head, for counting parameters."""

    base_model_prefix = "encoder"

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder, self.config = encoder, encoder.config

    @property
    def base_model(self) -> Any:
        """The encoder."""
        return self.encoder


@dataclass(frozen=True, eq=False)
class LoraAdapter:
    """A trained LoRA adapter, without its base model.

    Attributes:
        config: the peft configuration.
        parts: tensors of the adapter, by peft's tensor names.
    """

    config: Any
    parts: Mapping[str, torch.Tensor]

    def save(self, folder: Path) -> None:
        """Save the adapter in a new folder, which peft can load on top of the base model."""
        folder.mkdir()
        self.config.save_pretrained(str(folder))
        save_file(dict(self.parts), folder / "adapter_model.safetensors")


class LoraModel:
    """A model of which only the task head and low-rank matrices in linear layers (LoRA, Hu 2021) are trained.

    Attributes:
        updated: trainable parameters by name: the LoRA matrices and the task head.
    """

    def __init__(self, full_model: Any) -> None:
        import peft

        head = head_parts(full_model)
        config = peft.LoraConfig(
            r=RANK, lora_alpha=SCALE, lora_dropout=0.0, target_modules=[*lora_targets(full_model)]
        )
        self._full_model = full_model
        with _no_warnings(), BUILDING:
            self._peft_model: Any = peft.get_peft_model(full_model, config)
        for parameter in head.values():
            parameter.requires_grad_(True)
        self.updated = {
            name: parameter
            for name, parameter in named_parameters(full_model).items()
            if parameter.requires_grad
        }

    def merged(self, task: str, base: str) -> tuple[Any, LoraAdapter | None]:
        """Merge the LoRA matrices into the weights; return the model and the adapter.

        The adapter is None for masked-language modeling, whose head is tied to the embeddings of the base
        model, and for similarity training, whose model is not a transformers class.

        Args:
            task: the task of the model, one of `TASKS`.
            base: name of the base model.
        """
        import peft

        adapter = None
        if task not in (FILL_MASK, SENTENCE_SIMILARITY):
            lora_tensors = peft.get_peft_model_state_dict(self._peft_model)
            head = head_parts(self._full_model)
            named = {f"base_model.model.{name}": parameter for name, parameter in head.items()}
            parts = {name: parameter.detach().clone() for name, parameter in (lora_tensors | named).items()}
            config = self._peft_model.peft_config["default"]
            config.base_model_name_or_path = base
            config.modules_to_save = sorted({_module(name, self._full_model) for name in head})
            config.inference_mode = True
            adapter = LoraAdapter(config, parts)
        with _no_warnings():
            return self._peft_model.merge_and_unload(), adapter


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Suppress peft and transformers warnings within the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _module(name: str, full_model: Any) -> str:
    """Return the outermost module of the task head that contains a parameter."""
    prefix = f"{full_model.base_model_prefix}."
    within = name.removeprefix(prefix)
    return (prefix if within != name else "") + within.partition(".")[0]


_STATES, _INNER, _WEIGHTS = 14, 3, 3
"""Factors for the activations that a layer stores for its backward pass: `_STATES` × hidden size and `_INNER`
× intermediate size for each token, and `_WEIGHTS` × number of attention weights.
"""
_ONCE_STATES, _ONCE_INNER = 10, 2
"""Factors for the activations of a layer without a backward pass: `_ONCE_STATES` × hidden size and
`_ONCE_INNER` × intermediate size for each token. Only one layer at a time is in memory."""
_OTHER_LAYERS = 0.5
"""Size of the model's temporary activations, in multiples of the activations that one layer stores."""
_LORA_OUTPUTS = 3.5
"""Size of LoRA activations per token, in multiples of the output sizes of the adapted matrices."""
_CONSTANT = 40_000_000
"""Memory for the optimizer, batches and libraries, in bytes. With this constant, estimates for the built-in
model were 1.0 to 1.3 times the measured memory (texts of 10 and 128 tokens, batches of 16 and 32).
"""
_LOGITS = 4
"""Size of logits, exponentials and gradients per masked token, in multiples of the vocabulary size."""
_MASKED = 0.2
"""Share of the tokens for which the estimate assumes logits, in masked-language modeling."""
_COPIES = 4
"""Extra values stored per trainable parameter: gradient, two moments of AdamW, and the best checkpoint."""


def frozen_activations(config: Any, examples: Sequence[TrainingExample]) -> int:
    """Estimate the peak number of values in memory while an encoder without gradients processes a batch."""
    hidden = config.hidden_size
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    batch_tokens = min(BATCH_TOKENS, sum(len(example) for example in examples))
    return int(batch_tokens * (_ONCE_STATES * hidden + _ONCE_INNER * inner))


def estimate_memory(
    full_model: Any, objective: Objective, update: str, batch: int, examples: Sequence[TrainingExample]
) -> int:
    """Estimate the peak memory of a training run in bytes, excluding the original checkpoint.

    The estimate includes weights, gradients, AdamW moments, the best checkpoint, and the activations of the
    largest batch.

    Args:
        full_model: the model, which may be on the meta device.
        objective: the training objective.
        update: the update scope; see `UPDATES`.
        batch: maximum number of examples per step.
        examples: all examples, including held-out ones.
    """
    config, size = full_model.config, next(full_model.parameters()).element_size()
    parameters = sum(parameter.numel() for parameter in full_model.parameters())
    hidden, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    longest = max(len(example) for example in examples)
    tokens = batch * longest * objective.texts_per_example
    if update == HEAD and objective.task != FILL_MASK:
        # Vectors for the task head (at most one per token), and activations of the encoder without gradients.
        stored = sum(len(example) for example in examples) if objective.of_tokens else len(examples)
        activations = stored * hidden + frozen_activations(config, examples)
    else:
        depth = int(update.partition(":")[2]) if update.startswith(TOP) else 1 if update == HEAD else layers
        per_layer = tokens * (_STATES * hidden + _INNER * inner + _WEIGHTS * heads * longest)
        activations = int((depth + _OTHER_LAYERS) * per_layer)
        if update == LORA:
            output_size = sum(parameter.out_features for parameter in lora_targets(full_model).values())
            activations += int(_LORA_OUTPUTS * tokens * output_size)
    if objective.task == FILL_MASK:
        activations += int(_MASKED * tokens) * config.vocab_size * _LOGITS
        # The tied embeddings have gradients both as input and as output embeddings.
        activations += config.vocab_size * hidden if update == ALL else 0
    estimate: int = _CONSTANT + size * (
        parameters + _COPIES * count_trainable(full_model, update) + activations
    )
    return estimate
