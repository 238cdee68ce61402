"""Which of a model's parameters are updated, and how many these are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from bert_probe.analyses.weights.parameters import Inventory, Parameter, inventory
from bert_probe.core.field_types import FieldType
from bert_probe.errors import SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.training.models import without_weights

HEAD, ALL, LORA, TOP = "head", "all", "lora", "top"

UPDATES: Mapping[str, str] = {
    HEAD: "What comes after the last layer. The encoder stays as it is, so its vectors are computed once.",
    TOP: "The last K layers and the head.",
    ALL: "Every parameter, the embeddings among them.",
    LORA: "The head, and beside each matrix of the layers a product of two narrow ones (Hu et al. 2022).",
}
"""What can be updated; top is written with its number of layers, as in top:2."""

RANK, SCALE = 8, 16
"""Of the narrow matrices beside a layer's own; their product is multiplied by scale ÷ rank."""


class UpdateScope(FieldType):
    """What is updated: head, top:K, all, lora."""

    metavar = "head|top:K|all|lora"

    def check(self, name: str, value: Any) -> str:
        """One of them."""
        if not isinstance(value, str) or not re.fullmatch(r"head|all|lora|top:[1-9][0-9]{0,3}", value):
            raise SelectionError(f"{name} is {value!r}; head, top:K (as in top:2), all or lora can be given.")
        return value


def layers_of(network: torch.nn.Module) -> tuple[str, Sequence[torch.nn.Module]]:
    """The layers of an encoder, first to last, and the name of the list that holds them.

    Raises:
        UnavailableError: it has no such list, as where layers share their weights.
    """
    config: Any = network.config
    count = config.num_hidden_layers
    for name, part in network.named_modules():
        if isinstance(part, torch.nn.ModuleList) and len(part) == count:
            return name, list(part)
    raise UnavailableError(
        f"{type(network).__name__} does not hold its layers one by one. Update the head or all of it."
    )


def head_parts(whole: Any) -> dict[str, torch.nn.Parameter]:
    """Parameters after the last layer: the head's own, and those of the pooler below it. What a head shares
    with the embeddings belongs to these."""
    prefix = whole.base_model_prefix
    return {
        name: part
        for name, part in whole.named_parameters()
        if not name.startswith(f"{prefix}.") or name.startswith(f"{prefix}.pooler")
    }


def chosen(whole: Any, update: str) -> dict[str, torch.nn.Parameter]:
    """The parameters that are updated, by name; for lora those of the head alone.

    Raises:
        SelectionError: more layers than there are.
        UnavailableError: layers that cannot be told apart.
    """
    if update == ALL:
        return dict(whole.named_parameters())
    found = head_parts(whole)
    if update.startswith(TOP):
        count = int(update.partition(":")[2])
        name, layers = layers_of(whole.base_model)
        if count > len(layers):
            raise SelectionError(f"{update} names more layers than the {len(layers)} of this model.")
        within = [f"{whole.base_model_prefix}.{name}.{place}." for place in range(len(layers))[-count:]]
        found |= {one: part for one, part in whole.named_parameters() if one.startswith(tuple(within))}
    return found


def beside(whole: Any) -> dict[str, torch.nn.Linear]:
    """The matrices of the layers, to each of which lora puts two narrow ones; by name."""
    prefix, network = whole.base_model_prefix, whole.base_model
    lists = [f"{name}." for name, part in network.named_modules() if isinstance(part, torch.nn.ModuleList)]
    return {
        f"{prefix}.{name}": part
        for name, part in network.named_modules()
        if isinstance(part, torch.nn.Linear) and name.startswith(tuple(lists))
    }


def trainable(whole: Any, update: str) -> int:
    """How many numbers are updated.

    Raises:
        SelectionError, UnavailableError: as `chosen`.
    """
    narrow = sum(RANK * (one.in_features + one.out_features) for one in beside(whole).values())
    own = sum(part.numel() for part in chosen(whole, update).values())
    return own + (narrow if update == LORA else 0)


@dataclass(frozen=True)
class ParameterCount:
    """How many parameters an update changes.

    Attributes:
        update: as it is asked for.
        trainable: numbers that are updated; parameters: of the model with its head, all of them.
    """

    update: str
    trainable: int
    parameters: int


@dataclass(frozen=True)
class TrainableParameters:
    """What of a model an update changes.

    Attributes:
        inventory: the model's parameters with those of its head, and of lora's narrow matrices.
        names: those that are updated.
    """

    inventory: Inventory
    names: frozenset[str]

    def count(self, of: Callable[[Parameter], bool] = lambda _: True) -> int:
        """How many numbers are updated, of the parameters that fulfil a condition."""
        return sum(row.count for row in self.inventory.rows if row.name in self.names and of(row))


def updated(checkpoint: Checkpoint, task: str, update: str, labels: int = 2) -> TrainableParameters:
    """What an update changes, parameter by parameter. Takes no memory.

    Args:
        labels: as of `counts`.

    Raises:
        SelectionError, UnavailableError: as `chosen`; the family has no head for the task.
    """
    whole = without_weights(checkpoint, task, _labels(labels))
    names, narrow = {*chosen(whole, update)}, beside(whole) if update == LORA else {}
    rows = []
    for row in inventory(whole).rows:
        rows.append(row)
        matrix = narrow.get(row.name.removesuffix(".weight"))
        if matrix is not None:
            for side, shape in (("A", (RANK, matrix.in_features)), ("B", (matrix.out_features, RANK))):
                made = replace(row, name=f"{row.name.removesuffix('.weight')}.lora_{side}", shape=shape)
                rows.append(
                    replace(made, count=prod(shape), bytes=prod(shape) * matrix.weight.element_size())
                )
                names.add(made.name)
    total = sum(row.count for row in rows)
    rows = [replace(row, share=row.count / total) for row in rows]
    return TrainableParameters(Inventory(tuple(rows)), frozenset(names))


def _labels(count: int) -> tuple[str, ...]:
    """Names for so many labels, of which nothing but their number matters."""
    return tuple(f"label {number}" for number in range(1, count + 1))


def counts(checkpoint: Checkpoint, task: str, labels: int = 2) -> Iterator[ParameterCount]:
    """How many parameters each update changes: head, top:K for each K, all, lora. Takes no memory.

    Args:
        labels: how many a head for classes or labels has.

    Raises:
        UnavailableError: the family has no head for the task.
    """
    whole = without_weights(checkpoint, task, _labels(labels))
    parameters = sum(part.numel() for part in whole.parameters())
    try:
        layers = len(layers_of(whole.base_model)[1])
    except UnavailableError:
        layers = 0
    tops = [f"{TOP}:{count}" for count in range(1, layers + 1)]
    for update in (HEAD, *tops, ALL, LORA):
        yield ParameterCount(update, trainable(whole, update), parameters)
