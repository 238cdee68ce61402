"""Tiny checkpoints with an output head, of every family that has one; and a real one for masked words."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from tests.helpers.families import FAMILIES, config, randomize, save_tokenizer

CLASSES = {
    "fill-mask": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "text-classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "token-classification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "question-answering": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    "next-sentence-prediction": modeling_auto.MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES,
}

LABELS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}


def model_class(name: str, task: str) -> Any:
    """transformers' class of a family for a task, or None."""
    found = CLASSES[task].get(config(name).model_type)
    return getattr(transformers, found) if found else None


def with_heads(task: str) -> list[str]:
    """Names of the families that have a head for a task."""
    return [name for name in FAMILIES if model_class(name, task) is not None]


def build(name: str, task: str, folder: Path, seed: int = 0, made: Any = None, **changes: Any) -> Path:
    """Save a tiny model with a head, and its tokenizer, into a folder, which comes back.

    Args:
        made: another class than the task's own.
    """
    labelled = task in ("text-classification", "token-classification")
    settings = ({"id2label": LABELS} if labelled else {}) | changes
    torch.manual_seed(seed)
    model = (made or model_class(name, task))(config(name, **settings))
    randomize(model, seed)
    model.save_pretrained(folder)
    save_tokenizer(name, folder)
    return folder


def bert_tiny() -> Path:
    """The folder of a real bert-tiny with a masked-word head, in a package of which nothing is imported."""
    found = find_spec("cognition")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"
