"""A checkpoint's encoder under a head for a task, to be taught; and what was taught as a checkpoint again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
import transformers

from bert_probe.errors import UnavailableError
from bert_probe.model.capture import IMPLEMENTATION
from bert_probe.model.checkpoint import CLASSIFYING, FILLING, LABELLING, Checkpoint
from bert_probe.model.from_model import wrap
from bert_probe.model.outputs import CLASSES
from bert_probe.model.training_history import TrainingHistory
from bert_probe.model.weights import some

TASKS = (CLASSIFYING, LABELLING, FILLING)
"""What can be taught."""

_AUTO = {
    CLASSIFYING: transformers.AutoModelForSequenceClassification,
    LABELLING: transformers.AutoModelForTokenClassification,
    FILLING: transformers.AutoModelForMaskedLM,
}


def without_weights(checkpoint: Checkpoint, task: str, labels: Sequence[str] = (), problem: str = "") -> Any:
    """The model that would be taught, on torch's meta device: sizes and names, and no memory.

    Raises:
        UnavailableError: the family has no head for the task.
    """
    with torch.device("meta"):
        return _made(checkpoint, task, labels, problem)


def with_head(checkpoint: Checkpoint, task: str, labels: Sequence[str] = (), problem: str = "") -> Any:
    """The checkpoint's encoder under a head, with weights of their own, in float32, or float64 as it is.

    The head is the checkpoint's where it has one for these very labels; else it is drawn anew, as its class
    draws it, from torch's random numbers. So is a pooler that the head reads and the checkpoint lacks.

    Raises:
        UnavailableError: the family has no head for the task, or the head stands on another encoder.
    """
    whole = _made(checkpoint, task, labels, problem)
    with checkpoint.running() as model:
        report = whole.base_model.load_state_dict(model.state_dict(), strict=False)
    astray = [name for name in (*report.missing_keys, *report.unexpected_keys) if "pooler" not in name]
    if astray:
        raise UnavailableError(
            f"{type(whole).__name__} stands on another encoder than {checkpoint.description.name}: they "
            f"differ in {some(astray)}."
        )
    if has_head(checkpoint, task, labels, problem):
        whole.load_state_dict(checkpoint.outputs[task].weights, strict=False)
    return whole.to(checkpoint.device)


def has_head(checkpoint: Checkpoint, task: str, labels: Sequence[str], problem: str = "") -> bool:
    """Whether the checkpoint has a head for a task with these labels, in this order."""
    known = checkpoint.outputs.get(task)
    if known is None or known.labels != tuple(labels):
        return False
    return not known.problem or not problem or known.problem == problem


def in_its_order(checkpoint: Checkpoint, task: str, labels: Sequence[str]) -> tuple[str, ...]:
    """The same labels, as the checkpoint's own head has them where it has just these."""
    known = checkpoint.outputs.get(task)
    same = known is not None and sorted(known.labels) == sorted(labels)
    return known.labels if known is not None and same else tuple(labels)


def _made(checkpoint: Checkpoint, task: str, labels: Sequence[str], problem: str) -> Any:
    known = checkpoint.outputs.get(task)
    config: Any = copy.deepcopy(checkpoint.model.config if known is None else known.whole.config)
    if config.model_type not in CLASSES[task]:
        raise UnavailableError(
            f"transformers has no head for {task} of the family {config.model_type}. Choose another model."
        )
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
    if task == CLASSIFYING:
        config.problem_type = problem or None
    dtype = torch.float64 if checkpoint.description.dtype == "float64" else torch.float32

    def made(implementation: str) -> Any:
        return _AUTO[task].from_config(config, attn_implementation=implementation, dtype=dtype)

    return _first(made)


def _first(made: Callable[[str], Any]) -> Any:
    """With fused attention where the family has it."""
    try:
        return made("sdpa")
    except ValueError as error:
        if "attention" not in str(error).lower():
            raise
        return made("eager")


def opened(whole: Any, tokenizer: Any, name: str, before: Sequence[TrainingHistory]) -> Checkpoint:
    """A model that nobody teaches any more, as a checkpoint: as one that was opened from files, it no longer
    changes.

    Args:
        before: how it was taught, this time too.

    Raises:
        CheckpointError: its attention cannot be read.
    """
    seen = wrap(whole, tokenizer)
    whole.eval().requires_grad_(False)
    whole.set_attn_implementation(IMPLEMENTATION if seen.opened.shows_qkv else "eager")
    held = {field.name: getattr(seen, field.name) for field in fields(Checkpoint)}
    return Checkpoint(**held | {"opened": replace(seen.opened, name=name), "before": tuple(before)})
