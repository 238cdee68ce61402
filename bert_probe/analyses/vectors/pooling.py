"""Pooling of the hidden states of a sentence's tokens into one sentence vector.

A checkpoint made with sentence-transformers specifies its pooling in ``modules.json``. This module reads that
file without the package, and raises an error for unsupported settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers.normalizers import Lowercase

from bert_probe.errors import CheckpointError, ProbeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.strict_json import parse_integer

POOLINGS: Mapping[str, str] = {
    "mean": "Mean of all token vectors, including [CLS] and [SEP].",
    "cls": "Last-layer vector of the first token, [CLS] or <s>.",
    "pooler": "The pooler's output for [CLS]; BERT's was trained for next-sentence prediction.",
    "max": "Largest value of all tokens in each dimension, including [CLS] and [SEP].",
    "last": "Last-layer vector of the last token, which in a decoder alone attends to the whole text.",
    "model": "The pooling that the checkpoint was trained with; equal to sentence-transformers.",
}

_NAMES = {
    "mean": "mean of all tokens",
    "cls": "first token",
    "max": "maximum over all tokens",
    "lasttoken": "last token",
}

_PROMPTS = "config_sentence_transformers.json"

_LEGACY_MODES = {
    # The order is that in which sentence-transformers concatenates the modes.
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class PoolingConfig:
    """How the tokens of a sentence are pooled into one vector.

    Attributes:
        modes: keys of `_MODES`, or "pooler"; the results are concatenated in this order.
        normalised: whether sentence vectors are divided by their norm.
        max_tokens: longer sentences are truncated to this many tokens, including special tokens. With None,
            sentences longer than the model's limit raise an error.
        prefix: prompt before each sentence.
        lower_case: whether sentences are lowercased first.
    """

    modes: tuple[str, ...]
    normalised: bool = False
    max_tokens: int | None = None
    prefix: str = ""
    lower_case: bool = False

    def text(self, sentence: str) -> str:
        """Return the text that is passed to the tokenizer for a sentence."""
        text = self.prefix + sentence if isinstance(sentence, str) else sentence
        return str(Lowercase().normalize_str(text)) if self.lower_case else text

    def __str__(self) -> str:
        """Return a readable description of the pooling."""
        parts = [" and ".join(_NAMES.get(mode, mode) for mode in self.modes)]
        parts += [f"“{self.prefix}” before each sentence"] if self.prefix else []
        parts += ["lowercased"] if self.lower_case else []
        parts += [f"truncated to {self.max_tokens:,} tokens"] if self.max_tokens else []
        parts += ["normalized"] if self.normalised else []
        return ", ".join(parts)

    @property
    def about(self) -> dict[str, Any]:
        """The configuration as JSON values, for provenance."""
        return {
            "modes": list(self.modes),
            "normalised": self.normalised,
            "max_tokens": self.max_tokens,
            "prefix": self.prefix,
            "lower_case": self.lower_case,
        }


def resolve_pooling(checkpoint: Checkpoint, pooling: str) -> PoolingConfig:
    """Return the pooling configuration for a name in `POOLINGS`.

    Raises:
        UnavailableError: the checkpoint does not support this pooling.
        CheckpointError: the checkpoint's own configuration cannot be read.
    """
    if pooling == "model":
        return _own(checkpoint)
    available = available_poolings(checkpoint)
    if pooling == "pooler" and pooling not in available:
        raise UnavailableError(f"This {checkpoint.description.architecture} has no pooler. Use cls or mean.")
    if pooling == "last" and pooling not in available:
        raise UnavailableError(
            "Only a model that reads from left to right is pooled by its last token. Use mean."
        )
    if pooling == "last":
        return PoolingConfig(("lasttoken",))
    if pooling == "cls" and pooling not in available:
        raise UnavailableError("This model has no [CLS] token that attends to the whole text. Use mean.")
    return PoolingConfig((pooling,))


def available_poolings(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the poolings that a checkpoint supports, beginning with the one that it declares, if any."""
    own: tuple[str, ...] = ("model",) if checkpoint.has_pooling else ()
    is_causal = checkpoint.description.is_causal
    cls: tuple[str, ...] = ("cls",) if checkpoint.encode("a").tokens[0].special and not is_causal else ()
    # The last token is the only one that attends to the whole text.
    last: tuple[str, ...] = ("last",) if is_causal else ()
    pooler: tuple[str, ...] = ("pooler",) if checkpoint.description.has_pooler else ()
    return (*own, *last, "mean", *cls, *pooler, "max")


def pooling_files(checkpoint: Checkpoint) -> tuple[dict[str, Any], list[str]]:
    """Return the sentence-transformers files for a copy of the checkpoint, and warnings.

    The files are a mapping from the file name to the JSON content.

    If the checkpoint's own files have unsupported settings, there are no files and one warning.
    """
    folder = checkpoint.folder
    if folder is None or not checkpoint.has_pooling:
        return {}, []
    try:
        own, pooling = _own(checkpoint), _read(_modules(checkpoint)[1], dict)
        prompts = _read(folder / _PROMPTS, dict) if (folder / _PROMPTS).is_file() else None
    except ProbeError as error:
        return {}, [f"sentence-transformers will not be able to use this model. {error}"]
    types = [("Transformer", ""), ("Pooling", "1_Pooling")]
    types += [("Normalize", "2_Normalize")] if own.normalised else []
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
        for index, (name, path) in enumerate(types)
    ]
    transformer = {"max_seq_length": own.max_tokens, "do_lower_case": own.lower_case}
    files = {
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
        "sentence_bert_config.json": transformer,
    }
    return files | ({} if prompts is None else {_PROMPTS: prompts}), []


def _own(checkpoint: Checkpoint) -> PoolingConfig:
    """Return the pooling that the checkpoint declares in its sentence-transformers files."""
    folder, name = checkpoint.folder, checkpoint.description.name
    if folder is None or not checkpoint.has_pooling:
        raise UnavailableError(
            f"{name} does not declare its pooling in a modules.json of sentence-transformers. "
            "Use mean, cls, pooler or max."
        )
    types, file = _modules(checkpoint)
    pooling = _read(file, dict)
    transformer = _read_transformer(folder)
    prefix = _default_prompt(folder)
    if prefix and not pooling.get("include_prompt", True):
        raise UnavailableError(
            f"The pooling of {name} excludes its prompt, which is not supported. "
            "Use mean, cls, pooler or max."
        )
    return PoolingConfig(
        modes=_modes(pooling),
        normalised="Normalize" in types,
        max_tokens=_max_tokens(transformer.get("max_seq_length"), checkpoint),
        prefix=prefix,
        lower_case=bool(transformer.get("do_lower_case")),
    )


def _modules(checkpoint: Checkpoint) -> tuple[list[str], Path]:
    """Return the types of the sentence-transformers modules, and the pooling configuration file."""
    folder = checkpoint.folder
    assert folder is not None  # all callers check this
    modules = _read(folder / "modules.json", list)
    try:
        types = [str(module["type"]).rpartition(".")[2] for module in modules]
        paths = [folder / str(module["path"]) for module in modules]
    except (TypeError, KeyError):
        raise CheckpointError("modules.json cannot be read. Download the model again.") from None
    if types[:2] != ["Transformer", "Pooling"] or set(types[2:]) - {"Normalize"} or paths[0] != folder:
        raise UnavailableError(
            f"The modules of {checkpoint.description.name} are {', '.join(types)}, but only "
            "Transformer, Pooling and Normalize are supported. Use mean, cls, pooler or max."
        )
    if not paths[1].resolve().is_relative_to(folder.resolve()):
        raise CheckpointError("modules.json refers to a path outside its folder. Download the model again.")
    return types, paths[1] / "config.json"


def _read(path: Path, json_type: type) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_int=parse_integer)
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}. Download the model again.") from None
    if not isinstance(content, json_type):
        raise CheckpointError(
            f"{path.name} must contain a JSON {json_type.__name__}. Download the model again."
        )
    return content


def _read_transformer(folder: Path) -> dict[str, Any]:
    """Return the settings of the Transformer module, whose file may be named after the architecture."""
    files = sorted(folder.glob("sentence_*_config.json"))
    settings: dict[str, Any] = _read(files[0], dict) if files else {}
    unknown = [name for name in ("query_expansion", "processing_kwargs") if settings.get(name)]
    if unknown:
        raise UnavailableError(
            f"The pooling of this checkpoint sets {', '.join(unknown)}, which is not supported. "
            "Use mean, cls, pooler or max."
        )
    return settings


def _default_prompt(folder: Path) -> str:
    path = folder / _PROMPTS
    config = _read(path, dict) if path.is_file() else {}
    return str((config.get("prompts") or {}).get(config.get("default_prompt_name")) or "")


def _modes(config: dict[str, Any]) -> tuple[str, ...]:
    setting = config.get("pooling_mode")
    if setting is None:
        setting = [mode for name, mode in _LEGACY_MODES.items() if config.get(name)] or ["mean"]
    modes = (setting,) if isinstance(setting, str) else tuple(setting)
    if not modes or not set(modes) <= set(_MODES):
        raise UnavailableError(
            f"The checkpoint's pooling mode is {', '.join(map(str, modes))}, which is not supported. "
            "Use mean, cls, pooler or max."
        )
    return modes


def _max_tokens(max_seq_length: Any, checkpoint: Checkpoint) -> int | None:
    """Return max_seq_length, or the tokenizer's limit if it is None, but at most the model's limit."""
    limit = max_seq_length if max_seq_length is not None else checkpoint.tokenizer.model_max_length
    limits = [limit, checkpoint.description.max_tokens]
    # A tokenizer without a limit has a model_max_length of 1e30.
    return min((int(limit) for limit in limits if limit is not None and limit < 10**9), default=None)


def pool(output: Any, mask: torch.Tensor, recipe: PoolingConfig) -> torch.Tensor:
    """Pool a batch of sentences into vectors of shape [sentence, hidden × modes].

    Args:
        output: the model's output.
        mask: 1 for tokens, 0 for padding, [sentence, token].
        recipe: the pooling configuration.

    Returns:
        The vectors, in float32, or in float64 if the model computes in float64. Sums in half precision would
        be too inaccurate.
    """
    states = _at_least_float32(output.last_hidden_state)
    token_mask = mask[..., None].to(states.dtype)
    parts = [
        _at_least_float32(output.pooler_output) if mode == "pooler" else _MODES[mode](states, token_mask)
        for mode in recipe.modes
    ]
    pooled = torch.cat(parts, dim=-1)
    return torch.nn.functional.normalize(pooled, dim=-1) if recipe.normalised else pooled


def pool_unpadded(
    states: torch.Tensor, recipe: PoolingConfig, pooler: torch.Tensor | None = None
) -> torch.Tensor:
    """Pool texts of the same length into vectors; see `pool`.

    Args:
        states: last hidden states, [text, token, hidden].
        recipe: the pooling configuration.
        pooler: the pooler's output, [text, hidden]; required for the mode "pooler".
    """
    output = SimpleNamespace(last_hidden_state=states, pooler_output=pooler)
    return pool(output, torch.ones(states.shape[:2], device=states.device), recipe)


def _at_least_float32(states: torch.Tensor) -> torch.Tensor:
    return states if states.dtype == torch.float64 else states.float()


def _sum(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (states * mask).sum(dim=1)


def _last(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    ends = mask[..., 0].sum(dim=1).long() - 1
    return states[torch.arange(len(states), device=states.device), ends]


def _weighted(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)[None, :, None]
    return _sum(states, weights) / weights.sum(dim=1)


_MODES: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": lambda states, mask: _sum(states, mask) / mask.sum(dim=1),
    "cls": lambda states, _: states[:, 0],
    "max": lambda states, mask: states.masked_fill(mask == 0, -torch.inf).amax(dim=1),
    "mean_sqrt_len_tokens": lambda states, mask: _sum(states, mask) / mask.sum(dim=1).sqrt(),
    "weightedmean": _weighted,
    "lasttoken": _last,
}
"""Name of a pooling mode of sentence-transformers → function that pools hidden states with a token mask."""
