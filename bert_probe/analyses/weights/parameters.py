"""The named parameters of a model, and the sizes of several models: parameters by part, and memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pandas as pd
import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel

from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import Configs, OneCheckpoint
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ArchitectureError, SelectionError, ShapeError, SubjectError
from bert_probe.model.architectures import build_model
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.config import ModelConfig
from bert_probe.model.loading import library_versions
from bert_probe.model.preflight import described

T = TypeVar("T", bound=Hashable)

COLUMNS = {
    "all": ("name", "group", "part", "kind", "shape", "count", "dtype", "bytes", "share", "tied_to"),
    "main": ("name", "group", "shape", "count", "dtype", "bytes"),
}
"""Value of `Parameters.columns` → names of the columns in the table."""

EMBEDDINGS, POOLER, HEAD, FINAL_NORM = "embeddings", "pooler", "head", "final norm"
EVERY_LAYER, OTHER = "encoder, all layers", "other"
ATTENTION, ATTENTION_OUTPUT, FEED_FORWARD = "attention", "attention output", "feed-forward"

_LAYER = re.compile(r"(?:^|\.)(?:layers?|albert_layer_groups)\.(\d+)\.")
# XLM and FlauBERT have a module list over all layers for each part, instead of a list of layers.
_LISTED_PARTS = re.compile(r"(attentions|layer_norm1|ffns|layer_norm2)\.(\d+)\.(?=(out_lin)?)")
# Tables of relative positions, which all attention layers share.
_RELATIVE_POSITIONS = re.compile(r"encoder\.(?:relative_attention_bias|rel_embeddings)\.")
_FINAL_NORM = re.compile(r"(?:encoder\.)?(?:norm|final_norm|LayerNorm|layer_norm|ln|emb_layer_norm_after)\.")
_PROJECTIONS = re.compile(
    r"query|key|value|Wqkv|qkv|[qkv]_(?:lin|proj|bias|norm)|in_proj|attn\.[qkv]\.|conv_kernel_layer|conv_out_layer"
)
# Names of norms that occur only in pre-norm layers.
_NORM_FIRST = re.compile(
    r"(?:input_layernorm|attn_norm|attention\.self_attn_layer_norm|intermediate\.LayerNorm|"
    r"feed_forward\.layer_norm|LayerNorm|ln)\."
)
_ATTENTION_NORM = re.compile(
    r"(?:input_layernorm|attn_norm|attention\.(?:self_attn_layer_norm|LayerNorm|layer_norm|ln))\."
)


@dataclass(frozen=True)
class Parameter:
    """A named parameter.

    Attributes:
        name: name in ``model.named_parameters()``.
        group: "embeddings", "layer 1", …, "final norm", "pooler", "head" (of a task), "encoder, all
            layers" (tables of relative positions), "other"; layers that share weights form one group.
        part: within a layer, "attention" (query, key, value and a preceding norm), "attention output",
            "feed-forward", "bottleneck" or "convolution"; outside of layers, the group.
        kind: class of the module that has the parameter, e.g. "Linear".
        shape: shape of the tensor.
        count: number of elements; 0 if the parameter is tied.
        dtype: element type, e.g. "float32".
        bytes: size in bytes; 0 if the parameter is tied.
        share: share of the model's elements, 0 to 1.
        tied_to: name of the earlier parameter with the same tensor, which is counted instead; None if the
            parameter is not tied.
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
    """All parameters of a model, in the order of ``model.named_parameters()``."""

    rows: tuple[Parameter, ...]

    @property
    def total(self) -> int:
        """Number of elements of all parameters, counting tied ones once."""
        return sum(row.count for row in self.rows)

    @property
    def bytes(self) -> int:
        """Size of all parameters in bytes, counting tied ones once."""
        return sum(row.bytes for row in self.rows)

    @property
    def megabytes(self) -> float:
        """Size of all parameters in millions of bytes, counting tied ones once."""
        return self.bytes / 1e6

    @property
    def tied(self) -> int:
        """Number of parameters that are tied to an earlier parameter."""
        return sum(row.tied_to is not None for row in self.rows)

    def subtotals(self, key: Callable[[Parameter], T]) -> dict[T, int]:
        """Return element counts by any property of a parameter, e.g. ``subtotals(lambda row: row.kind)``.

        The counts add up to `total`.
        """
        sums: dict[T, int] = {}
        for row in self.rows:
            sums[key(row)] = sums.get(key(row), 0) + row.count
        return sums

    def by_group(self) -> dict[str, int]:
        """Return the number of elements in the embeddings, in each layer, in the pooler and in the head."""
        return self.subtotals(lambda row: row.group)

    def by_part(self) -> dict[tuple[str, str], int]:
        """Return the number of parameters (tensor elements) for each pair of group and part."""
        return self.subtotals(lambda row: (row.group, row.part))

    def by_kind(self) -> dict[str, int]:
        """Return the number of parameters (tensor elements) for each module class, such as Linear."""
        return self.subtotals(lambda row: row.kind)

    def frame(self, columns: Iterable[str] = COLUMNS["all"]) -> pd.DataFrame:
        """Return one row per parameter: the fields of `Parameter`, with ``shape`` as text such as 768×768."""
        frame = pd.DataFrame({name: [getattr(row, name) for row in self.rows] for name in columns})
        frame["shape"] = ["×".join(map(str, row.shape)) for row in self.rows]
        return frame


@question("parameters")
class Parameters(Question):
    """The named parameters of a model, with their groups, shapes and sizes.

    Attributes:
        columns: "all": name, group, part, kind, shape, count, dtype, bytes, share and tied_to; "main": name,
            group, shape, count, dtype and bytes.
    """

    inputs = OneCheckpoint()

    columns: str = param(Choice(COLUMNS), default="all", option="", display_only=True)

    def of(self, checkpoint: Checkpoint) -> ParametersResult:
        """Return the parameters of a model."""
        with checkpoint.running() as model:
            return ParametersResult(self, InputRecord.of_model(checkpoint), list_parameters(model))

    def options(self) -> list[str]:
        """Return the command-line options for the value of ``columns``; [] for "main"."""
        return ["--all-columns"] if self.columns == "all" else []


@dataclass(frozen=True, eq=False, repr=False)
class ParametersResult(Result):
    """The parameters of a checkpoint.

    Attributes:
        inventory: the parameters and their totals.
    """

    question: Parameters
    inventory: Inventory

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The number of elements of all parameters, counting tied ones once."""
        return {"total": self.inventory.total}

    def frame(self) -> pd.DataFrame:
        """Return one row per parameter, with the columns that the question selects."""
        return self.inventory.frame(COLUMNS[self.question.columns])


def list_parameters(model: torch.nn.Module) -> Inventory:
    """Return the named parameters of a transformers model, with or without a task head."""
    total = sum(parameter.numel() for parameter in model.parameters())
    parameters = list(model.named_parameters(remove_duplicate=False))
    groups = _ParameterGroups(model, [name for name, _ in parameters])
    first_names: dict[int, str] = {}
    rows = []
    for name, parameter in parameters:
        tied_to = first_names.get(id(parameter))
        first_names.setdefault(id(parameter), name)
        count = 0 if tied_to else parameter.numel()
        group, part = groups.find(name)
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
    """Return the parameters of a config's model without allocating its weights.

    Args:
        config: e.g. ``transformers.BertConfig()`` for bert-base-uncased.
        architecture: a model class of transformers, e.g. "BertForSequenceClassification". If None, only the
            encoder is created.

    Raises:
        ArchitectureError: transformers has no such class, the class does not accept this config, or the
            config has impossible sizes.
    """
    model_class: Any = None if architecture is None else getattr(transformers, architecture, None)
    is_model = isinstance(model_class, type) and issubclass(model_class, PreTrainedModel)
    if architecture is not None and not is_model:
        raise ArchitectureError(f"transformers has no model class {architecture}. Check the spelling.")
    if architecture is not None and not isinstance(config, model_class.config_class or ()):
        raise ArchitectureError(
            f"{architecture} does not accept a {type(config).__name__}. Pass a config of the matching class."
        )
    return list_parameters(described(config, build_model if architecture is None else model_class))


class _ParameterGroups:
    """Assigns each parameter to a group and a part by its name and the other names in its layer."""

    def __init__(self, model: torch.nn.Module, names: Iterable[str]) -> None:
        prefix = getattr(model, "base_model_prefix", "")
        self._model = model
        self._start = f"{prefix}." if prefix and hasattr(model, prefix) else ""
        self._names = frozenset(names)
        self._names_by_layer: dict[str, set[str]] = {}
        for name in (name.removeprefix(self._start) for name in self._names if name.startswith(self._start)):
            if layer := _LAYER.search(name):
                self._names_by_layer.setdefault(name[: layer.end()], set()).add(name[layer.end() :])

    def find(self, name: str) -> tuple[str, str]:
        """Return the group and the part to which a parameter belongs."""
        if not name.startswith(self._start):
            return HEAD, HEAD
        name = name.removeprefix(self._start)
        layer, listed = _LAYER.search(name), _LISTED_PARTS.match(name)
        if layer:
            part = _part(name[layer.end() :], self._names_by_layer[name[: layer.end()]])
            if "albert_layer_groups" in layer[0]:
                return _shared_layers(self._model, int(layer[1])), part
            return f"layer {int(layer[1]) + 1}", part
        if listed:
            return f"layer {int(listed[2]) + 1}", _listed_part(listed[1], bool(listed[3]))
        if name.startswith("encoder.conv."):
            return "layer 1", "convolution"  # the convolution in DeBERTa's first layer
        if _RELATIVE_POSITIONS.match(name):
            return (EVERY_LAYER,) * 2
        relative = f"{self._start}encoder.rel_embeddings.weight" in self._names
        if name.startswith("encoder.LayerNorm.") and relative:
            return (EVERY_LAYER,) * 2  # DeBERTa's norm of the relative position embeddings
        return (_outside_layers(name),) * 2


def _outside_layers(name: str) -> str:
    """Return the group of a parameter that is not in a layer."""
    if _FINAL_NORM.match(name):
        return FINAL_NORM
    if "pooler" in name:
        return POOLER
    if "embed" in name or name.startswith("layer_norm_emb"):
        return EMBEDDINGS
    return EVERY_LAYER if name.startswith("encoder.") else OTHER


def _shared_layers(model: torch.nn.Module, group: int) -> str:
    """Return the name of a group of ALBERT layers that share weights (Lan et al. 2020)."""
    config: Any = model.config
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    members = [layer + 1 for layer in range(layers) if int(layer / (layers / groups)) == group]
    if len(members) < 2:
        return f"layer {members[0]}" if members else OTHER
    return f"layers {members[0]} to {members[-1]}, shared"


def _part(name: str, layer_names: Iterable[str]) -> str:
    """Return the part to which a parameter belongs, given its name and all names within its layer."""
    if "bottleneck" in name:
        return "bottleneck"
    norm_first = any(_NORM_FIRST.match(other) for other in layer_names)
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


MEMORY = {"float64": 8, "float32": 4, "float16": 2}
"""Name of a dtype → bytes per value; bfloat16 has the same size as float16."""


@question("model sizes", command="parameters", is_analysis=False)
class ModelSizes(Question):
    """Sizes of several models: layers, heads, dimensions, parameters by part, and memory of the weights.

    The numbers include the encoder and its pooler, if it has one, but not a task head.
    """

    inputs = Configs()

    def of(self, *models: ModelConfig | Checkpoint) -> ModelSizesResult:
        """Return the sizes of models, in the order of the arguments.

        For a config, the model is created without allocating its weights.

        Raises:
            SelectionError: no model was given.
            SubjectError: an argument is neither a config nor a checkpoint.
            ArchitectureError: transformers cannot create the model of a config, or it is too large.
        """
        if not models:
            raise SelectionError(
                "There are no models. Pass configs from open_config, or checkpoints from load."
            )
        for model in models:
            if not isinstance(model, ModelConfig | Checkpoint):
                raise SubjectError(
                    f"ModelSizes accepts configs and checkpoints, not a {type(model).__name__}. "
                    "Use open_config or load."
                )
        records = tuple(
            model.record if isinstance(model, ModelConfig) else model.provenance() for model in models
        )
        inputs = InputRecord({"libraries": library_versions()}, configs=records)
        return ModelSizesResult(self, inputs, tuple(map(_size, models)))


@dataclass(frozen=True)
class ModelSize:
    """The size of a model.

    Attributes:
        name: name of the model.
        family: model type in transformers.
        layers, heads, hidden_size, vocabulary_size: dimensions; ``heads`` is the number per layer.
        tensors: number of named parameter tensors.
        parts: number of parameters in each part, such as "embeddings" or "attention", in the model's order;
            tied parameters are counted once.
    """

    name: str
    family: str
    layers: int
    heads: int
    hidden_size: int
    vocabulary_size: int
    tensors: int
    parts: Mapping[str, int]

    @property
    def parameters(self) -> int:
        """Number of parameters, counting tied ones once."""
        return sum(self.parts.values())

    def bytes(self, dtype: str) -> int:
        """Return the size of the weights in bytes for a dtype, one of `MEMORY`."""
        return self.parameters * MEMORY[dtype]


@dataclass(frozen=True, eq=False, repr=False)
class ModelSizesResult(Result):
    """Sizes of several models.

    Attributes:
        sizes: the size of each model, in the order of the arguments.
    """

    question: ModelSizes
    sizes: tuple[ModelSize, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.inputs.configs):
            raise ShapeError(
                f"sizes must have {len(self.inputs.configs)} entries, one per model, not {len(self.sizes)}."
            )

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names of the parts (such as embeddings and attention) that occur in at least one model."""
        return tuple(dict.fromkeys(part for size in self.sizes for part in size.parts))

    @property
    def finding(self) -> str:
        """A sentence that compares the largest model with the smallest."""
        smallest, largest = (key(self.sizes, key=lambda size: size.parameters) for key in (min, max))
        if len(self.sizes) == 1:
            return f"{largest.name} has {largest.parameters:,} parameters in {largest.tensors:,} tensors."
        ratio = largest.parameters / smallest.parameters
        return (
            f"{largest.name} has {largest.parameters:,} parameters, {ratio:.3g} times the "
            f"{smallest.parameters:,} of {smallest.name}."
        )

    def frame(self) -> pd.DataFrame:
        """Return one row per model.

        Columns: name, family, layers, heads, hidden_size, vocabulary_size, tensors, parameters, a column for
        each part of any model, and the bytes of the weights in three dtypes.
        """
        rows: list[dict[str, Any]] = []
        for size in self.sizes:
            sizes = {name: value for name, value in vars(size).items() if name != "parts"}
            parts = {_column(part): size.parts.get(part, 0) for part in self.part_names}
            memory = {f"bytes_{dtype}": size.bytes(dtype) for dtype in MEMORY}
            rows.append({**sizes, "parameters": size.parameters, **parts, **memory})
        return pd.DataFrame(rows)


def _column(part: str) -> str:
    """Convert the name of a part to a column name."""
    return "".join(letter if letter.isalnum() else "_" for letter in part.replace(", ", "_"))


def _size(model: ModelConfig | Checkpoint) -> ModelSize:
    if isinstance(model, ModelConfig):
        config, parameters, name = model.config, parameters_of_config(model.config), model.name
        sizes = (config.model_type, config.num_hidden_layers, config.num_attention_heads, config.hidden_size)
        return ModelSize(name, *sizes, config.vocab_size, len(parameters.rows), _parts(parameters))
    description, parameters = model.description, Parameters().of(model).inventory
    sizes = (description.family, description.layers, description.heads, description.hidden_size)
    count = len(parameters.rows)
    return ModelSize(description.name, *sizes, description.vocabulary_size, count, _parts(parameters))


def _parts(parameters: Inventory) -> Mapping[str, int]:
    return parameters.subtotals(lambda row: row.part)
