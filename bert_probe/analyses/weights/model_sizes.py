"""How large models are, side by side: from their configs alone, or as they were opened."""

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
from bert_probe.model.config_alone import ModelConfig
from bert_probe.model.loading import libraries

MEMORY = {"float64": 8, "float32": 4, "float16": 2}
"""Bytes of a number; one in bfloat16 takes as many as one in float16."""


@question("sizes", command="parameters", is_analysis=False)
class ModelSizes(Question):
    """Layers, heads, dimensions, parameters by part, and the memory of the weights, of several models.

    The encoder is counted, with the pooler that its class has, and without an output head.
    """

    inputs = Configs()

    def of(self, *models: ModelConfig | Checkpoint) -> ModelSizesResult:
        """Their sizes, in the order given. Of a config the model is made without memory, and counted.

        Raises:
            SelectionError: none is given.
            ArchitectureError: transformers makes no model of a config, or one too large to be counted.
        """
        if not models:
            raise SelectionError("No model is given. Give configs of open_config, or checkpoints of load.")
        for one in models:
            if not isinstance(one, ModelConfig | Checkpoint):
                raise SubjectError(
                    f"ModelSizes is asked of configs and checkpoints, and a {type(one).__name__} was given. "
                    "They come from open_config and load."
                )
        about = tuple(
            model.about if isinstance(model, ModelConfig) else model.provenance() for model in models
        )
        subject = InputRecord({"libraries": libraries()}, configs=about)
        return ModelSizesResult(self, subject, tuple(map(_size, models)))


@dataclass(frozen=True)
class ModelSize:
    """How large one model is.

    Attributes:
        name: what it is called.
        family: transformers' name for its kind.
        layers, heads, hidden_size, vocabulary_size: heads are those of one layer.
        tensors: named arrays that hold its parameters.
        parts: parameters by what they serve, tied ones counted once, in the model's order.
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
        """Numbers in the model, tied ones counted once."""
        return sum(self.parts.values())

    def bytes(self, dtype: str) -> int:
        """Memory of the weights in one of `MEMORY`."""
        return self.parameters * MEMORY[dtype]


@dataclass(frozen=True, eq=False, repr=False)
class ModelSizesResult(Result):
    """How large several models are.

    Attributes:
        sizes: of each, in the order given.
    """

    question: ModelSizes
    sizes: tuple[ModelSize, ...]

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.inputs.configs):
            raise ShapeError(f"{len(self.sizes)} sizes for {len(self.inputs.configs)} models.")

    @property
    def part_names(self) -> tuple[str, ...]:
        """All parts that any of the models has."""
        return tuple(dict.fromkeys(part for size in self.sizes for part in size.parts))

    @property
    def finding(self) -> str:
        """Which is the largest, and how much larger than the smallest, as a sentence."""
        least, most = (key(self.sizes, key=lambda one: one.parameters) for key in (min, max))
        if len(self.sizes) == 1:
            return f"{most.name} has {most.parameters:,} parameters in {most.tensors:,} tensors."
        times = most.parameters / least.parameters
        return (
            f"{most.name} has {most.parameters:,} parameters, {times:.3g} times the {least.parameters:,} of "
            f"{least.name}."
        )

    def frame(self) -> pd.DataFrame:
        """A row for each model: name, family, layers, heads, hidden_size, vocabulary_size, tensors,
        parameters, a column for each part that any of them has, and bytes of the weights in three types."""
        rows: list[dict[str, Any]] = []
        for size in self.sizes:
            sizes = {name: value for name, value in vars(size).items() if name != "parts"}
            parts = {_column(part): size.parts.get(part, 0) for part in self.part_names}
            memory = {f"bytes_{dtype}": size.bytes(dtype) for dtype in MEMORY}
            rows.append({**sizes, "parameters": size.parameters, **parts, **memory})
        return pd.DataFrame(rows)


def _column(part: str) -> str:
    """A part as the name of a column."""
    return "".join(letter if letter.isalnum() else "_" for letter in part.replace(", ", "_"))


def _size(model: ModelConfig | Checkpoint) -> ModelSize:
    if isinstance(model, ModelConfig):
        config, found, name = model.config, parameters_of_config(model.config), model.name
        sizes = (config.model_type, config.num_hidden_layers, config.num_attention_heads, config.hidden_size)
        return ModelSize(name, *sizes, config.vocab_size, len(found.rows), _parts(found))
    about, found = model.description, Parameters().of(model).inventory
    sizes = (about.family, about.layers, about.heads, about.hidden_size)
    return ModelSize(about.name, *sizes, about.vocabulary_size, len(found.rows), _parts(found))


def _parts(found: Inventory) -> Mapping[str, int]:
    return found.subtotals(lambda row: row.part)
