"""Every parameter of a model, grouped as a person thinks of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import AutoModel, PretrainedConfig

from bert_probe.errors import ArchitectureError

EMBEDDINGS, POOLER, HEAD, FINAL_NORM = "embeddings", "pooler", "head", "final norm"

_LAYER = re.compile(r"(?:^|\.)(?:layers?|albert_layer_groups)\.(\d+)\.")
_PROJECTIONS = re.compile(r"query|key|value|Wqkv|qkv|[qkv]_(?:lin|proj)|in_proj|pos_(?:key|query)|[qk]_norm")


@dataclass(frozen=True)
class Parameter:
    """One named parameter.

    Attributes:
        name: as in ``model.named_parameters()``.
        group: "embeddings", "layer 1", …, "pooler", "head"; layers that share weights form one group.
        part: within a layer "attention" (query, key, value), "attention output" or "feed-forward".
        kind: class of the module that owns it, e.g. "Linear".
        shape: sizes of its axes.
        count: numbers in it, 0 if it is the same tensor as ``tied_to``.
        dtype: element type, e.g. "float32".
        bytes: memory it takes, 0 if tied.
        share: its part of the model's total, 0 to 1.
        tied_to: name of the parameter it is shared with and counted under, or None.
    """

    name: str
    group: str
    part: str
    kind: str
    shape: tuple[int, ...]
    count: int
    dtype: str
    bytes: int
    share: float
    tied_to: str | None


@dataclass(frozen=True)
class Parameters:
    """All parameters of a model, in the model's own order."""

    rows: tuple[Parameter, ...]

    @property
    def total(self) -> int:
        """Numbers in the model, shared ones counted once."""
        return sum(row.count for row in self.rows)

    @property
    def bytes(self) -> int:
        """Memory the parameters take, shared ones counted once."""
        return sum(row.bytes for row in self.rows)

    def subtotals(self, of: Callable[[Parameter], str]) -> dict[str, int]:
        """Counts by any property, e.g. ``subtotals(lambda row: row.kind)``; they add up to `total`."""
        sums: dict[str, int] = {}
        for row in self.rows:
            sums[of(row)] = sums.get(of(row), 0) + row.count
        return sums

    def by_group(self) -> dict[str, int]:
        """Counts of embeddings, each layer, pooler and head."""
        return self.subtotals(lambda row: row.group)

    def by_kind(self) -> dict[str, int]:
        """Counts by module class."""
        return self.subtotals(lambda row: row.kind)


def list_parameters(model: torch.nn.Module) -> Parameters:
    """Every named parameter of a transformers model, with or without a task head."""
    total = sum(parameter.numel() for parameter in model.parameters())
    seen: dict[int, str] = {}
    rows = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        tied_to = seen.get(id(parameter))
        seen.setdefault(id(parameter), name)
        count = 0 if tied_to else parameter.numel()
        group, part = _place(name, model)
        rows.append(
            Parameter(
                name=name,
                group=group,
                part=part,
                kind=type(model.get_submodule(name.rpartition(".")[0])).__name__,
                shape=tuple(parameter.shape),
                count=count,
                dtype=str(parameter.dtype).removeprefix("torch."),
                bytes=count * parameter.element_size(),
                share=count / total,
                tied_to=tied_to,
            )
        )
    return Parameters(tuple(rows))


def parameters_of_config(config: PretrainedConfig, architecture: str | None = None) -> Parameters:
    """Every parameter that a config describes, without any weights.

    Args:
        config: e.g. ``transformers.BertConfig()`` for bert-base-uncased.
        architecture: a class of transformers, e.g. "BertForSequenceClassification"; None for the
            encoder alone.

    Raises:
        ArchitectureError: transformers has no such class.
    """
    with torch.device("meta"):
        if architecture is None:
            return list_parameters(AutoModel.from_config(config))
        kind: Any = getattr(transformers, architecture, None)
        if kind is None:
            raise ArchitectureError(f"transformers has no class {architecture}. Check the spelling.")
        return list_parameters(kind(config))


def _place(name: str, model: torch.nn.Module) -> tuple[str, str]:
    """Group and part of a parameter, from its name."""
    prefix = getattr(model, "base_model_prefix", "")
    has_head = bool(prefix) and hasattr(model, prefix)
    if has_head:
        if not name.startswith(f"{prefix}."):
            return HEAD, HEAD
        name = name.removeprefix(f"{prefix}.")
    layer = _LAYER.search(name)
    if layer and "albert_layer_groups" in layer[0]:
        return _shared_layers(model, int(layer[1])), _part(name[layer.end() :])
    if layer:
        return f"layer {int(layer[1]) + 1}", _part(name[layer.end() :])
    if "pooler" in name:
        return POOLER, POOLER
    if "embed" in name:
        return EMBEDDINGS, EMBEDDINGS
    if "norm" in name.lower():
        return FINAL_NORM, FINAL_NORM
    return ("encoder, all layers",) * 2 if "encoder" in name or "attn" in name else (HEAD, HEAD)


def _shared_layers(model: torch.nn.Module, group: int) -> str:
    """ALBERT's layers share weights by group (Lan et al. 2020)."""
    config: Any = model.config
    size = config.num_hidden_layers / config.num_hidden_groups
    first, last = int(group * size) + 1, int((group + 1) * size)
    return f"layers {first} to {last}, shared"


def _part(name: str) -> str:
    """Part of a layer, from the name within it."""
    if "attention" not in name and "attn" not in name:
        if "bottleneck" in name:
            return "bottleneck"
        return "attention output" if name.startswith("sa_layer_norm") else "feed-forward"
    return "attention" if _PROJECTIONS.search(name) else "attention output"


def module_tree(model: torch.nn.Module) -> Iterator[tuple[int, str, str, int]]:
    """The model's modules in order: depth from 0, name, class, parameters in it."""
    for name, module in model.named_modules():
        depth = 0 if not name else name.count(".") + 1
        count = sum(parameter.numel() for parameter in module.parameters())
        yield depth, name.rpartition(".")[2], type(module).__name__, count
