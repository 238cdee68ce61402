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
from bert_probe.model.architectures import build_model, text_encoder
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.config import ModelConfig
from bert_probe.model.loading import library_versions
from bert_probe.model.preflight import described
from bert_probe.model.weights import named_parameters

T = TypeVar("T", bound=Hashable)

COLUMNS = {
    "all": ("name", "group", "part", "kind", "shape", "count", "dtype", "bytes", "share", "tied_to"),
    "main": ("name", "group", "shape", "count", "dtype", "bytes"),
}
"""Value of `Parameters.columns` → names of the columns in the table."""

EMBEDDINGS, POOLER, HEAD, FINAL_NORM = "embeddings", "pooler", "head", "final norm"
EVERY_LAYER, DECODER, OTHER = "encoder, all layers", "decoder", "other"
ATTENTION, ATTENTION_OUTPUT, FEED_FORWARD = "attention", "attention output", "feed-forward"

_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h|albert_layer_groups)\.(\d+)\.")
# XLM and FlauBERT have a module list over all layers for each part, instead of a list of layers.
_LISTED_PARTS = re.compile(r"(attentions|layer_norm1|ffns|layer_norm2)\.(\d+)\.(?=(out_lin)?)")
# A layer of T5 is a list: attention, and feed-forward network.
_T5_PART = re.compile(r"layer\.(\d+)\.")
# Tables of relative positions, which all attention layers share. T5 keeps its table in the first layer;
# each layer of UMT5 has its own table.
_RELATIVE_POSITIONS = re.compile(
    r"encoder\.(?:relative_attention_bias|rel_embeddings)\.|.*attention\.relative_attention_bias\.",
    re.IGNORECASE,
)
_EMBEDDINGS = re.compile(r"(?:.*\.)?(?:\w*embed\w*|wte|wpe|shared)\.|w\.|layer_norm_emb\.")
_HEAD = re.compile(r"(?:lm_head|qa_outputs|classifier|classification_head)\.")
_FINAL_NORM = re.compile(
    r"(?:encoder\.|decoder\.)?"
    r"(?:(?:final_)?(?:norm|layer_?norm|LayerNorm)|ln|ln_f|norm_f|emb_layer_norm_after)\."
)
# Within the attention, the projection of the outputs of all heads, and norms after it. Other parameters, such
# as projections of relative positions, belong to queries, keys and values.
_ATTENTION_OUTPUT = re.compile(
    r"(?:.*\.)?(?:\w*output|o(?:ut)?_proj|out_lin|c_proj|wo|o|dense|attn_sub_norm)\.|sa_layer_norm\.|"
    r"post_(?:self_)?att|(?:.*\.)?(?:self_attn_layer_norm|attention\.(?:layernorm|layer_norm|ln))\."
)
# Names of norms that occur only in pre-norm layers.
_NORM_FIRST = re.compile(
    r"(?:input_layernorm|attn_norm|ln_attn|attention\.self_attn_layer_norm|intermediate\.layernorm|"
    r"feed_forward\.layer_norm|layernorm|ln)\."
)
_ATTENTION_NORM = re.compile(
    r"(?:input_layernorm|attn_norm|ln_attn|attention\.(?:self_attn_layer_norm|layernorm|layer_norm|ln))\."
)
# Names of norms that precede the attention in some models and follow it in others.
_FIRST_NORM = re.compile(
    r"(?:ln_1|norm_1|layer_?norm_?1|self_attn_layer_norm|temporal_pre_norm|operator_norm)\."
)
# Doge scales the input of a layer before it adds the output of the attention or of the feed-forward network.
_RESIDUAL_SCALES = {"input_residual": ATTENTION_OUTPUT, "post_attention_residual": FEED_FORWARD}
# Modules that some layers have in place of attention.
_MIXER = re.compile(r"(?:conv|fourier|mamba|mixer|temporal_block)\.")


@dataclass(frozen=True)
class Parameter:
    """A named parameter.

    Attributes:
        name: name in ``model.named_parameters()``.
        group: "embeddings", "layer 1", …, "final norm", "pooler", "head" (of a task), "encoder, all
            layers" (tables of relative positions), "decoder" (of an encoder-decoder), "other"; layers that
            share weights form one group.
        part: within a layer, "attention" (query, key, value and a preceding norm), "attention output",
            "feed-forward", "bottleneck", "convolution" or "other" (a module in place of attention, such as a
            Fourier transform); outside of layers, the group.
        kind: class of the module that has the parameter, e.g. "Linear".
        shape: shape of the tensor.
        count: number of elements; 0 if the parameter is tied.
        dtype: element type, e.g. "float32".
        bytes: size in bytes; 0 if the parameter is tied.
        share: share of the model's elements, 0 to 1.
        tied_to: name of another parameter with the same tensor, which is counted instead; None if the
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
    counted = {id(parameter): name for name, parameter in named_parameters(model).items()}
    rows = []
    for name, parameter in parameters:
        tied_to = None if counted[id(parameter)] == name else counted[id(parameter)]
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
            text encoder is listed, without the decoder of an encoder-decoder.

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
    if architecture is None:
        return list_parameters(text_encoder(described(config, build_model)))
    return list_parameters(described(config, model_class))


class _ParameterGroups:
    """Assigns each parameter to a group and a part by its name and the other names in its layer."""

    def __init__(self, model: torch.nn.Module, names: Iterable[str]) -> None:
        prefix = getattr(model, "base_model_prefix", "")
        self._model: Any = model
        self._start = f"{prefix}." if prefix and hasattr(model, prefix) else ""
        self._names_by_layer: dict[str, set[str]] = {}
        self._outside: set[str] = set()
        for name in (name.removeprefix(self._start) for name in names if name.startswith(self._start)):
            if layer := _LAYER.search(name):
                self._names_by_layer.setdefault(name[: layer.end()], set()).add(name[layer.end() :])
            else:
                self._outside.add(name)
        self._is_encoder_decoder = bool(getattr(self._model.config, "is_encoder_decoder", False))
        self._has_final_norm = any(self._outside_layers(name) == FINAL_NORM for name in self._outside)

    def find(self, name: str) -> tuple[str, str]:
        """Return the group and the part to which a parameter belongs."""
        if not name.startswith(self._start):
            return HEAD, HEAD
        name = name.removeprefix(self._start)
        if self._is_encoder_decoder and name.startswith("decoder."):
            return DECODER, DECODER
        if name.startswith(("initial_char_encoder.", "final_char_encoder.")):
            return OTHER, OTHER  # CANINE's layers of characters, before and after the layers of the encoder
        if _RELATIVE_POSITIONS.match(name) and self._model.config.model_type != "umt5":
            return EVERY_LAYER, EVERY_LAYER
        if layer := _LAYER.search(name):
            inner, layer_names = name[layer.end() :], self._names_by_layer[name[: layer.end()]]
            part = _part(inner, layer_names, self._has_final_norm)
            if "albert_layer_groups" in layer[0]:
                return _shared_layers(self._model, int(layer[1])), part
            return f"layer {int(layer[1]) + 1}", part
        if listed := _LISTED_PARTS.match(name):
            is_norm_first = getattr(self._model.config, "pre_norm", False)  # FlauBERT
            return f"layer {int(listed[2]) + 1}", _listed_part(listed[1], bool(listed[3]), is_norm_first)
        if name.startswith("encoder.conv."):
            return "layer 1", "convolution"  # the convolution in DeBERTa's first layer
        return (self._outside_layers(name),) * 2

    def _outside_layers(self, name: str) -> str:
        """Return the group of a parameter that is not in a layer."""
        if name.startswith("encoder.LayerNorm.") and "encoder.rel_embeddings.weight" in self._outside:
            return EVERY_LAYER  # DeBERTa's norm of the relative position embeddings
        model_type = self._model.config.model_type
        is_final = (name.startswith("embedding_norm.") and model_type.startswith("lfm2")) or (
            name.startswith(("layernorm_embedding.", "encoder.layernorm_embedding."))
            and model_type == "bigbird_pegasus"
        )
        if is_final or _FINAL_NORM.match(name):
            return FINAL_NORM
        if "pooler" in name:
            return POOLER
        if _HEAD.match(name):
            return HEAD
        if _EMBEDDINGS.match(name):
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


def _part(name: str, layer_names: Iterable[str], has_final_norm: bool) -> str:
    """Return the part to which a parameter belongs.

    Args:
        name: name of the parameter within its layer.
        layer_names: names of all parameters in the layer.
        has_final_norm: whether a norm follows the last layer, as in models with norms before the attention.
    """
    if "bottleneck" in name:
        return "bottleneck"
    name, layer_names = name.lower(), [other.lower() for other in layer_names]
    if listed := _T5_PART.match(name):
        name = name[listed.end() :]
        if name.startswith("layer_norm."):
            return ATTENTION if listed[1] == "0" else FEED_FORWARD
    norm_first = any(_NORM_FIRST.match(other) for other in layer_names)
    if norm_first and name.startswith("post_attention_layernorm."):
        is_after = any(other.startswith("pre_feedforward_layernorm.") for other in layer_names)
        return ATTENTION_OUTPUT if is_after else FEED_FORWARD
    if name in _RESIDUAL_SCALES:
        return _RESIDUAL_SCALES[name]
    has_attention = any(_is_in_attention(other) for other in layer_names)
    if _FIRST_NORM.match(name) or (norm_first and _ATTENTION_NORM.match(name)):
        is_first = has_final_norm or norm_first
        return (ATTENTION if is_first else ATTENTION_OUTPUT) if has_attention else OTHER
    if _is_in_attention(name):
        return ATTENTION_OUTPUT if _ATTENTION_OUTPUT.match(name) else ATTENTION
    has_mixer = not has_attention and any(_MIXER.match(other) for other in layer_names)
    return OTHER if _MIXER.match(name) or (has_mixer and name.startswith("norm.")) else FEED_FORWARD


def _is_in_attention(name: str) -> bool:
    """Return whether the name of a parameter within its layer, in lower case, names the attention."""
    is_projection = re.match(r"temporal_block\.[qkvo]_proj\.", name) is not None  # RecurrentGemma
    return is_projection or "attention" in name or "attn" in name or name.startswith("sa_layer_norm.")


def _listed_part(kind: str, is_output: bool, is_norm_first: bool) -> str:
    """Return the part of a parameter of XLM or FlauBERT, given the name of its module list."""
    if kind in ("ffns", "layer_norm2"):
        return FEED_FORWARD
    is_output |= kind == "layer_norm1" and not is_norm_first
    return ATTENTION_OUTPUT if is_output else ATTENTION


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
