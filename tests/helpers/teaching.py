"""Small labeled texts with a known rule, and tiny models without dropout to train on them."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path

import torch

import bert_probe
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.labeled_texts import LabeledText, LabeledTexts
from tests.helpers import families

WORDS = ["the", "river", "boat", "small", "bridge", "night", "map", "old", "engineers", "rain"]
KEY = "river"
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
"""Config values without dropout, so that two training loops give the same weights."""


def texts(count: int, kind: str = "classes", seed: int = 0, pairs: bool = False) -> LabeledTexts:
    """Return texts of three to six words, with labels of the type `kind` that depend on their words."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        words = [draw.choice(WORDS) for _ in range(draw.randint(3, 6))]
        words[0] = KEY if number % 2 else "the"
        label: str | tuple[str, ...] | float = "with" if number % 2 else "without"
        if kind == "several":
            label = tuple(sorted({*words} & {"boat", "map"}))
        if kind == "number":
            label = float(words.count(KEY))
        rows.append(LabeledText(" ".join(words), "a boat" if pairs else None, label, number + 2))
    return LabeledTexts.of(kind, rows)


def without_dropout(
    folder: Path, name: str = "bert", dtype: str = "float64", **changes: object
) -> Checkpoint:
    """Return a tiny checkpoint without dropout."""
    families.build(name, folder, **STILL | changes)
    return bert_probe.load(folder, dtype=dtype)


def weights(checkpoint: Checkpoint, task: str) -> dict[str, torch.Tensor]:
    """Return a copy of the current weights of a model with its task head."""
    return copy.deepcopy(checkpoint.outputs[task].model.state_dict())


def equal_states(state: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether two states are identical bit for bit."""
    return state.keys() == other.keys() and all(torch.equal(state[name], other[name]) for name in state)


Folders = Callable[[str], Path]
