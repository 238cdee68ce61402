"""Build models for training from a checkpoint and a task, and turn trained models into checkpoints."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
import transformers

from bert_probe.errors import UnavailableError
from bert_probe.model.capture import IMPLEMENTATION
from bert_probe.model.checkpoint import FILL_MASK, TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.model.from_model import wrap
from bert_probe.model.outputs import CLASSES
from bert_probe.model.training_history import TrainingHistory
from bert_probe.model.weights import list_names

TASKS = (TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, FILL_MASK)
"""Tasks for which a model can be trained."""

_AUTO = {
    TEXT_CLASSIFICATION: transformers.AutoModelForSequenceClassification,
    TOKEN_CLASSIFICATION: transformers.AutoModelForTokenClassification,
    FILL_MASK: transformers.AutoModelForMaskedLM,
}


def without_weights(checkpoint: Checkpoint, task: str, labels: Sequence[str] = (), problem: str = "") -> Any:
    """Return the model for a task on torch's meta device, where weights have shapes but use no memory.

    Raises:
        UnavailableError: the model family has no head for the task.
    """
    with torch.device("meta"):
        return _build(checkpoint, task, labels, problem)


def with_head(checkpoint: Checkpoint, task: str, labels: Sequence[str] = (), problem: str = "") -> Any:
    """Return a model with a head for the task and a copy of the checkpoint's encoder weights.

    The dtype is float64 if the checkpoint's dtype is float64, otherwise float32. The checkpoint's own head is
    used if it has the same labels; otherwise the head is initialized randomly. If the head needs a
    pooler that the checkpoint lacks, the pooler is initialized randomly as well.

    Raises:
        UnavailableError: the model family has no head for the task, or its encoder differs from the
            checkpoint's.
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
    """Return whether the head of a checkpoint is for the given task and has the given labels, in order."""
    head = checkpoint.outputs.get(task)
    if head is None or head.labels != tuple(labels):
        return False
    return not head.problem or not problem or head.problem == problem


def in_checkpoint_order(checkpoint: Checkpoint, task: str, labels: Sequence[str]) -> tuple[str, ...]:
    """Return labels in the order of the checkpoint's head if the head has exactly these labels."""
    head = checkpoint.outputs.get(task)
    is_same = head is not None and sorted(head.labels) == sorted(labels)
    return head.labels if head is not None and is_same else tuple(labels)


def _build(checkpoint: Checkpoint, task: str, labels: Sequence[str], problem: str) -> Any:
    head = checkpoint.outputs.get(task)
    config: Any = copy.deepcopy(checkpoint.model.config if head is None else head.model.config)
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
        return _AUTO[task].from_config(config, attn_implementation=implementation, dtype=dtype)

    return _with_fastest_attention(build)


def _with_fastest_attention(build: Callable[[str], Any]) -> Any:
    """Build a model with fused attention, or with eager attention if its family does not support it."""
    try:
        return build("sdpa")
    except ValueError as error:
        if "attention" not in str(error).lower():
            raise
        return build("eager")


def to_checkpoint(
    full_model: Any, tokenizer: Any, name: str, before: Sequence[TrainingHistory]
) -> Checkpoint:
    """Return a trained model as a frozen checkpoint, like one loaded from files.

    Args:
        before: training history, including the latest training.

    Raises:
        CheckpointError: the attention of the model cannot be captured.
    """
    wrapped = wrap(full_model, tokenizer)
    full_model.eval().requires_grad_(False)
    full_model.set_attn_implementation(IMPLEMENTATION if wrapped.initial_description.shows_qkv else "eager")
    values = {field.name: getattr(wrapped, field.name) for field in fields(Checkpoint)}
    return Checkpoint(
        **values
        | {
            "initial_description": replace(wrapped.initial_description, name=name),
            "training_history": tuple(before),
        }
    )
