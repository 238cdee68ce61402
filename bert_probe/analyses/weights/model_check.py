"""The features that a checkpoint supports, determined from its config and then by opening it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from bert_probe.analyses.vectors.pooling import resolve_pooling
from bert_probe.errors import (
    ArchitectureError,
    CheckpointError,
    NetworkError,
    NotFoundError,
    OutOfMemoryError,
    ProbeError,
    TokenizerError,
    WeightsError,
)
from bert_probe.model.checkpoint import SENTENCE_SIMILARITY, TASKS, Checkpoint
from bert_probe.model.config import load_config
from bert_probe.model.loading import load
from bert_probe.model.outputs import unused_head_note
from bert_probe.model.progress import Progress
from bert_probe.model.sentence_router import at_encoder
from bert_probe.model.sources import CONFIG_FILES, locate

_ARCHITECTURE, _WEIGHTS, _TOKENIZER = "architecture", "weights", "tokenizer"
_MEMORY, _ATTENTION, _QKV = "memory", "attention", "queries, keys and values"
_STAGES = (_ARCHITECTURE, _WEIGHTS, _MEMORY, _TOKENIZER, _ATTENTION)
"""Requirements for opening a checkpoint, in the order in which `load` checks them."""

Works = Literal["yes", "no", "unknown"]


@dataclass(frozen=True)
class Capability:
    """One row of a `ModelCheck`.

    Attributes:
        name: a feature, such as "attention" or "fill-mask".
        works: "yes", "no", or "unknown" if the checkpoint was not opened.
        reason: why the feature does not work, or a detail; "" if there is neither.
    """

    name: str
    works: Works
    reason: str = ""


@dataclass(frozen=True)
class ModelCheck:
    """The features that a checkpoint supports.

    Attributes:
        model: the name of the model.
        revision: commit on the Hub; None for a model that was not downloaded from the Hub.
        capabilities: the rows of the table.
    """

    model: str
    revision: str | None
    capabilities: tuple[Capability, ...]

    @property
    def opens(self) -> bool:
        """Whether the checkpoint can be opened."""
        return all(row.works == "yes" for row in self.capabilities if row.name in _STAGES)

    def table(self) -> pd.DataFrame:
        """Return a table with the columns capability, works (yes, no or unknown) and reason."""
        rows = [(row.name, row.works, row.reason) for row in self.capabilities]
        return pd.DataFrame(rows, columns=["capability", "works", "reason"], dtype="str")


def check(
    model: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    *,
    config_only: bool = False,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress | None = None,
) -> ModelCheck:
    """Return whether a checkpoint supports each feature, and the reason if it does not.

    The config is read first. If it describes a supported model, the checkpoint is opened as by `load`.

    Args:
        model: None for the built-in model; otherwise a local folder or a Hub ID.
        revision: branch, tag or commit on the Hub.
        config_only: whether to read only the config, without downloading or opening weights.
        device, dtype, progress: see `load`.

    Raises:
        NotFoundError, NetworkError: the model is unavailable.
    """
    source = at_encoder(locate(model, revision, progress, CONFIG_FILES))
    try:
        load_config(source.folder, source.name)
        if config_only:
            rows = [
                Capability(_ARCHITECTURE, "yes"),
                *_unknown("The feature was not checked: only the config was read."),
            ]
        else:
            rows = list(_opened(load(model, revision, device, dtype, progress)))
    except (NotFoundError, NetworkError):
        raise
    except (CheckpointError, OutOfMemoryError) as error:
        rows = list(_refused(error))
    return ModelCheck(source.name, source.revision, tuple(rows))


def _refused(error: ProbeError) -> Iterator[Capability]:
    """Yield the capabilities of a checkpoint that cannot be opened because of ``error``."""
    stage = _stage(error)
    for name in _STAGES[: _STAGES.index(stage)]:
        # `load` raises the error only after all earlier stages have succeeded.
        yield Capability(name, "yes")
    yield Capability(stage, "no", str(error))
    yield from _unknown("The feature was not checked: the model cannot be opened.", _STAGES.index(stage) + 1)


def _stage(error: ProbeError) -> str:
    if isinstance(error, WeightsError):
        return _WEIGHTS
    if isinstance(error, OutOfMemoryError):
        return _MEMORY
    if isinstance(error, TokenizerError):
        return _TOKENIZER
    is_attention = isinstance(error, ArchitectureError) and "attention" in str(error)
    return _ATTENTION if is_attention else _ARCHITECTURE


def _unknown(reason: str, start: int = 1) -> list[Capability]:
    names = (*_STAGES[start:], *_CHECKS, *TASKS)
    return [Capability(name, "unknown", reason) for name in names]


def _opened(checkpoint: Checkpoint) -> Iterator[Capability]:
    """Yield the capabilities of a checkpoint that was opened; the unavailable ones state a reason."""
    description = checkpoint.description
    limit = "no limit" if description.max_tokens is None else f"at most {description.max_tokens:,} tokens"
    details = {
        _ARCHITECTURE: f"{description.architecture}, {description.layers} layers × {description.heads} heads",
        _WEIGHTS: f"{description.parameter_count:,} parameters",
        _TOKENIZER: f"{description.vocabulary_size:,} tokens in the vocabulary, {limit}",
    }
    for name in _STAGES:
        yield Capability(name, "yes", details.get(name, ""))
    for name, (works, reason) in _CHECKS.items():
        why_not = f"{description.no_qkv} {reason}" if name == _QKV else reason
        yield Capability(name, "yes") if works(checkpoint) else Capability(name, "no", why_not)
    for task in TASKS:
        if task == SENTENCE_SIMILARITY:
            yield _pooling(checkpoint)
        elif task in checkpoint.outputs:
            yield Capability(task, "yes")
        else:
            yield Capability(task, "no", _missing_head(checkpoint, task))


def _pooling(checkpoint: Checkpoint) -> Capability:
    try:
        resolve_pooling(checkpoint, "model")
    except ProbeError as error:
        return Capability(SENTENCE_SIMILARITY, "no", str(error))
    return Capability(SENTENCE_SIMILARITY, "yes")


def _missing_head(checkpoint: Checkpoint, task: str) -> str:
    return unused_head_note(checkpoint, task) or "The checkpoint has no trained head for this task."


_CHECKS: dict[str, tuple[Callable[[Checkpoint], bool], str]] = {
    _QKV: (
        lambda checkpoint: checkpoint.description.shows_qkv,
        "Attention steps, value-weighted measures and head ablation are unavailable.",
    ),
    "output of each head": (
        lambda checkpoint: bool(checkpoint.projections) and None not in checkpoint.projections,
        "The model has no linear output projection that reads the outputs of the heads, so value-weighted "
        "attention uses only the norms of the value vectors.",
    ),
    "pooler": (
        lambda checkpoint: checkpoint.description.has_pooler,
        "The checkpoint has no trained pooler.",
    ),
    "padded batches": (
        lambda checkpoint: checkpoint.pads,
        "Padding changes the model's output, so texts of different lengths are run separately.",
    ),
}
"""Name of a capability → function that returns whether it works, and the reason if it does not work."""
