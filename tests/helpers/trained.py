"""Tiny checkpoints with task heads for every family, and a real masked language model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from tests.helpers.families import FAMILIES, REPRESENTATIVE, config, randomize, save_tokenizer

CLASSES = {
    "fill-mask": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "text-classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "token-classification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "question-answering": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    "next-sentence-prediction": modeling_auto.MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES,
}

LABELS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}


def model_class(name: str, task: str) -> Any:
    """Return the transformers class of a model family for a task, or None if the family has none."""
    name_of_class = CLASSES[task].get(config(name).model_type)
    return getattr(transformers, name_of_class) if name_of_class else None


def families_with_head(task: str) -> list[str]:
    """Return the names of the families that have a head for a task."""
    return [
        name
        for name, family in FAMILIES.items()
        if family.is_available and model_class(name, task) is not None
    ]


def one_task_each(cases: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the cases (family, task) of ``make test``: all tasks of BERT, and one task of each other
    representative family."""
    selection = {case for case in cases if case[0] == "bert"}
    for number, name in enumerate(REPRESENTATIVE):
        tasks = [task for family, task in cases if family == name]
        selection.add((name, tasks[number % len(tasks)]))
    return selection


def build(name: str, task: str, folder: Path, seed: int = 0, head_class: Any = None, **changes: Any) -> Path:
    """Save a tiny model with a task head and its tokenizer, and return the folder.

    Args:
        head_class: a model class to use instead of the default class of the task.
    """
    labeled = task in ("text-classification", "token-classification")
    settings = ({"id2label": LABELS} if labeled else {}) | changes
    torch.manual_seed(seed)
    model = (head_class or model_class(name, task))(config(name, **settings))
    randomize(model, seed)
    model.save_pretrained(folder)
    save_tokenizer(name, folder)
    return folder


def bert_tiny() -> Path:
    """Return the folder of a real bert-tiny with a masked-language-modeling head, from a data package."""
    spec = find_spec("cognition")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"
