"""Every parameter of a model, grouped as a person thinks of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pandas as pd
import torch
import transformers
from transformers import AutoModel, PretrainedConfig, PreTrainedModel

from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import OneCheckpoint
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ArchitectureError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.preflight import described

T = TypeVar("T", bound=Hashable)

COLUMNS = {
    "all": ("name", "group", "part", "kind", "shape", "count", "dtype", "bytes", "share", "tied_to"),
    "main": ("name", "group", "shape", "count", "dtype", "bytes"),
}
"""Of the table of parameters, by what the question calls them."""

EMBEDDINGS, POOLER, HEAD, FINAL_NORM = "embeddings", "pooler", "head", "final norm"
EVERY_LAYER, OTHER = "encoder, all layers", "other"
ATTENTION, ATTENTION_OUTPUT, FEED_FORWARD = "attention", "attention output", "feed-forward"

_LAYER = re.compile(r"(?:^|\.)(?:layers?|albert_layer_groups)\.(\d+)\.")
# XLM and FlauBERT keep a list of each part of all layers, instead of a list of layers.
_LISTED_PARTS = re.compile(r"(attentions|layer_norm1|ffns|layer_norm2)\.(\d+)\.(?=(out_lin)?)")
# Everything that only the attention of every layer shares: tables of relative positions.
_RELATIVE_POSITIONS = re.compile(r"encoder\.(?:relative_attention_bias|rel_embeddings)\.")
_FINAL_NORM = re.compile(r"(?:encoder\.)?(?:norm|final_norm|LayerNorm|layer_norm|ln|emb_layer_norm_after)\.")
_PROJECTIONS = re.compile(
    r"query|key|value|Wqkv|qkv|[qkv]_(?:lin|proj|bias|norm)|in_proj|attn\.[qkv]\.|conv_kernel_layer|conv_out_layer"
)
# A norm before the feed-forward part, by which a layer that normalises first is told.
_NORM_FIRST = re.compile(
    r"(?:input_layernorm|attn_norm|attention\.self_attn_layer_norm|intermediate\.LayerNorm|"
    r"feed_forward\.layer_norm|LayerNorm|ln)\."
)
_ATTENTION_NORM = re.compile(
    r"(?:input_layernorm|attn_norm|attention\.(?:self_attn_layer_norm|LayerNorm|layer_norm|ln))\."
)


@dataclass(frozen=True)
class Parameter:
    """One named parameter.

    Attributes:
        name: as in ``model.named_parameters()``.
        group: "embeddings", "layer 1", …, "final norm", "pooler", "head" (of a task), "encoder, all
            layers" (tables of relative positions), "other"; layers that share weights form one group.
        part: within a layer "attention" (query, key, value and a norm before them), "attention
            output", "feed-forward", "bottleneck" or "convolution"; elsewhere the group.
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
class Inventory:
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

    @property
    def megabytes(self) -> float:
        """The same in millions of bytes."""
        return self.bytes / 1e6

    @property
    def tied(self) -> int:
        """How many are shared with another one and counted there."""
        return sum(row.tied_to is not None for row in self.rows)

    def subtotals(self, of: Callable[[Parameter], T]) -> dict[T, int]:
        """Counts by any property, e.g. ``subtotals(lambda row: row.kind)``; they add up to `total`."""
        sums: dict[T, int] = {}
        for row in self.rows:
            sums[of(row)] = sums.get(of(row), 0) + row.count
        return sums

    def by_group(self) -> dict[str, int]:
        """Counts of embeddings, each layer, pooler and head."""
        return self.subtotals(lambda row: row.group)

    def by_part(self) -> dict[tuple[str, str], int]:
        """Counts by group and part."""
        return self.subtotals(lambda row: (row.group, row.part))

    def by_kind(self) -> dict[str, int]:
        """Counts by module class."""
        return self.subtotals(lambda row: row.kind)

    def frame(self, columns: Iterable[str] = COLUMNS["all"]) -> pd.DataFrame:
        """One row a parameter: the fields of `Parameter`, ``shape`` written 768×768."""
        frame = pd.DataFrame({name: [getattr(row, name) for row in self.rows] for name in columns})
        frame["shape"] = ["×".join(map(str, row.shape)) for row in self.rows]
        return frame


@question("parameters")
class Parameters(Question):
    """Every named parameter of a model: what it belongs to, its shape, its size.

    Attributes:
        columns: "all": name, group, part, kind, shape, count, dtype, bytes, share and tied_to; "main": name,
            group, shape, count, dtype and bytes.
    """

    inputs = OneCheckpoint()

    columns: str = param(Choice(COLUMNS), default="all", option="", display_only=True)

    def of(self, checkpoint: Checkpoint) -> ParametersResult:
        """Those of a model."""
        with checkpoint.running() as model:
            return ParametersResult(self, InputRecord.of_model(checkpoint), inventory(model))

    def options(self) -> list[str]:
        """The command gives the main columns unless it is asked for all."""
        return ["--all-columns"] if self.columns == "all" else []


@dataclass(frozen=True, eq=False, repr=False)
class ParametersResult(Result):
    """The parameters of a checkpoint.

    Attributes:
        inventory: the parameters, and their sums.
    """

    question: Parameters
    inventory: Inventory

    @property
    def metadata(self) -> Mapping[str, Any]:
        """How many numbers there are, shared ones counted once."""
        return {"total": self.inventory.total}

    def frame(self) -> pd.DataFrame:
        """One row a parameter."""
        return self.inventory.frame(COLUMNS[self.question.columns])


def inventory(model: torch.nn.Module) -> Inventory:
    """Every named parameter of a transformers model, with or without a task head."""
    total = sum(parameter.numel() for parameter in model.parameters())
    named = list(model.named_parameters(remove_duplicate=False))
    places = _ParameterGroups(model, [name for name, _ in named])
    seen: dict[int, str] = {}
    rows = []
    for name, parameter in named:
        tied_to = seen.get(id(parameter))
        seen.setdefault(id(parameter), name)
        count = 0 if tied_to else parameter.numel()
        group, part = places.of(name)
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
    return Inventory(tuple(rows))


def parameters_of_config(config: PretrainedConfig, architecture: str | None = None) -> Inventory:
    """Every parameter that a config describes, without any weights.

    Args:
        config: e.g. ``transformers.BertConfig()`` for bert-base-uncased.
        architecture: a class of transformers, e.g. "BertForSequenceClassification"; None for the
            encoder alone.

    Raises:
        ArchitectureError: transformers has no such class, or none for this config; sizes that no model has.
    """
    kind: Any = AutoModel if architecture is None else getattr(transformers, architecture, None)
    if architecture is not None and not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
        raise ArchitectureError(f"transformers has no model class {architecture}. Check the spelling.")
    if architecture is not None and not isinstance(config, kind.config_class or ()):
        raise ArchitectureError(f"{architecture} takes no {type(config).__name__}. Give the config it takes.")
    return inventory(described(config, AutoModel.from_config if architecture is None else kind))


class _ParameterGroups:
    """Where the parameters of a model belong, told by their names and those beside them."""

    def __init__(self, model: torch.nn.Module, names: Iterable[str]) -> None:
        prefix = getattr(model, "base_model_prefix", "")
        self._model = model
        self._start = f"{prefix}." if prefix and hasattr(model, prefix) else ""
        self._names = frozenset(names)
        self._within: dict[str, set[str]] = {}
        for name in (name.removeprefix(self._start) for name in self._names if name.startswith(self._start)):
            if layer := _LAYER.search(name):
                self._within.setdefault(name[: layer.end()], set()).add(name[layer.end() :])

    def of(self, name: str) -> tuple[str, str]:
        """Group and part of a parameter."""
        if not name.startswith(self._start):
            return HEAD, HEAD
        name = name.removeprefix(self._start)
        layer, listed = _LAYER.search(name), _LISTED_PARTS.match(name)
        if layer:
            part = _part(name[layer.end() :], self._within[name[: layer.end()]])
            shared = "albert_layer_groups" in layer[0]
            return _shared_layers(
                self._model, int(layer[1])
            ) if shared else f"layer {int(layer[1]) + 1}", part
        if listed:
            return f"layer {int(listed[2]) + 1}", _listed_part(listed[1], bool(listed[3]))
        if name.startswith("encoder.conv."):
            return "layer 1", "convolution"  # DeBERTa adds it to the output of its first layer alone
        if _RELATIVE_POSITIONS.match(name):
            return (EVERY_LAYER,) * 2
        relative = f"{self._start}encoder.rel_embeddings.weight" in self._names
        if name.startswith("encoder.LayerNorm.") and relative:
            return (EVERY_LAYER,) * 2  # DeBERTa normalises its relative positions with it
        return (_outside_layers(name),) * 2


def _outside_layers(name: str) -> str:
    """Group of a parameter that belongs to no layer."""
    if _FINAL_NORM.match(name):
        return FINAL_NORM
    if "pooler" in name:
        return POOLER
    if "embed" in name or name.startswith("layer_norm_emb"):
        return EMBEDDINGS
    return EVERY_LAYER if name.startswith("encoder.") else OTHER


def _shared_layers(model: torch.nn.Module, group: int) -> str:
    """ALBERT's layers share weights by group (Lan et al. 2020)."""
    config: Any = model.config
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    members = [layer + 1 for layer in range(layers) if int(layer / (layers / groups)) == group]
    if len(members) < 2:
        return f"layer {members[0]}" if members else OTHER
    return f"layers {members[0]} to {members[-1]}, shared"


def _part(name: str, beside: Iterable[str]) -> str:
    """Part of a layer, from the name within it and the names ``beside`` it."""
    if "bottleneck" in name:
        return "bottleneck"
    norm_first = any(_NORM_FIRST.match(other) for other in beside)
    if norm_first and _ATTENTION_NORM.match(name):
        return ATTENTION
    if norm_first and name.startswith("post_attention_layernorm."):
        return FEED_FORWARD
    if name.startswith("sa_layer_norm."):
        return ATTENTION_OUTPUT
    if "attention" not in name and "attn" not in name:
        return FEED_FORWARD
    return ATTENTION if _PROJECTIONS.search(name) else ATTENTION_OUTPUT


def _listed_part(kind: str, is_output: bool) -> str:
    if kind in ("ffns", "layer_norm2"):
        return FEED_FORWARD
    return ATTENTION_OUTPUT if is_output or kind == "layer_norm1" else ATTENTION
