"""Sizes of several models, from their configs alone or from checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bert_probe.analyses.weights.parameters import Inventory, Parameters, parameters_of_config
from bert_probe.core.inputs import Configs
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, SubjectError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.config import ModelConfig
from bert_probe.model.loading import library_versions

MEMORY = {"float64": 8, "float32": 4, "float16": 2}
"""Dtype → bytes per value; bfloat16 has the same size as float16."""


@question("model sizes", command="parameters", is_analysis=False)
class ModelSizes(Question):
    """Sizes of several models: layers, heads, dimensions, parameters by part, and memory of the weights.

    Parameters are those of the encoder, including the pooler of its class, but without an output head.
    """

    inputs = Configs()

    def of(self, *models: ModelConfig | Checkpoint) -> ModelSizesResult:
        """Return the sizes of models, in the order given.

        For a config, the model is created without allocating its weights.

        Raises:
            SelectionError: no model was given.
            SubjectError: an argument is neither a config nor a checkpoint.
            ArchitectureError: transformers cannot create the model of a config, or it is too large.
        """
        if not models:
            raise SelectionError(
                "No model was given. Give configs from open_config, or checkpoints from load."
            )
        for model in models:
            if not isinstance(model, ModelConfig | Checkpoint):
                raise SubjectError(
                    f"ModelSizes takes configs and checkpoints, not a {type(model).__name__}. "
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
        parts: name of a part → number of parameters, with tied ones counted once, in the model's order.
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
        """Number of parameters, tied ones counted once."""
        return sum(self.parts.values())

    def bytes(self, dtype: str) -> int:
        """Return the memory of the weights, in bytes, for a dtype in `MEMORY`."""
        return self.parameters * MEMORY[dtype]


@dataclass(frozen=True, eq=False, repr=False)
class ModelSizesResult(Result):
    """Sizes of several models.

    Attributes:
        sizes: the size of each model, in the order given.
    """

    question: ModelSizes
    sizes: tuple[ModelSize, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.inputs.configs):
            raise ShapeError(f"{len(self.sizes)} sizes do not match {len(self.inputs.configs)} models.")

    @property
    def part_names(self) -> tuple[str, ...]:
        """Names of the parts of all models."""
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
        """Return a row for each model.

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
    """Return the column name of a part."""
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
