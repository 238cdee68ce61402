"""The ways in which models are told where a token stands, as they are found in their modules.

A table with a vector for each position, which is added to the word's (Devlin et al. 2019); queries and keys
turned by an angle that grows with the position (Su et al. 2021); a bias on scores, or a table of vectors, for
the distance between two tokens (Raffel et al. 2020; He et al. 2021).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bert_probe.model.forward import as_array
from bert_probe.model.trace import Array, read_only

_FREQUENCIES = re.compile(r"(?:(?P<kind>\w+)_)?inv_freq")


def sinusoids(positions: int, dimensions: int) -> Array:
    """The fixed vectors of Vaswani et al. 2017, section 3.5, float64 [position, dimension].

    Dimension 2i holds sin(p ÷ 10000^(2i ÷ dimensions)), the next one the cosine of the same.
    """
    pairs = np.arange(dimensions) // 2
    angles = np.arange(positions)[:, None] / 10_000.0 ** (2 * pairs / dimensions)
    return read_only(np.where(np.arange(dimensions) % 2 == 0, np.sin(angles), np.cos(angles)))


@dataclass(frozen=True, eq=False)
class PositionTable:
    """A vector for each position, added to that of the word.

    Attributes:
        vectors: [position, dimension].
        first: row of the model's table that the first position reads; some families leave others free.
    """

    vectors: Array
    first: int

    @property
    def off_sinusoids(self) -> float:
        """The largest difference to the sinusoids of this size, which some models take as they are."""
        return float(np.abs(self.vectors - sinusoids(*self.vectors.shape)).max())


@dataclass(frozen=True, eq=False)
class Rotary:
    """Angles by which pairs of dimensions of queries and keys are turned, for each position.

    Attributes:
        name: of the kind of layers, "rotary" where all have the same.
        layers: those that turn so, from 0.
        frequencies: radians a position, float64 [pair].
    """

    name: str
    layers: tuple[int, ...]
    frequencies: Array

    @property
    def wavelengths(self) -> Array:
        """Positions after which a pair has turned once round, [pair]."""
        found: Array = 2 * np.pi / self.frequencies
        return found

    def alike(self, distances: Array) -> Array:
        """Cosine of a vector with itself so many positions on, if its pairs are equally long, [distance]."""
        found: Array = np.cos(distances[:, None] * self.frequencies).mean(axis=1)
        return found


@dataclass(frozen=True, eq=False)
class DistanceBias:
    """What is added to the score of a query and a key, for how far the key stands behind the query.

    Attributes:
        distances: key's position − query's, in order.
        values: [head, distance]; the same in all layers.
    """

    distances: Array
    values: Array


@dataclass(frozen=True, eq=False)
class RelativeTable:
    """A vector for each distance of query and key, with which queries and keys are multiplied.

    Attributes:
        vectors: [row, dimension], as the layers are given them; rows of distances that occur.
        distances: of each row the least and the greatest distance that it stands for, key's position −
            query's; far ones share a row.
    """

    vectors: Array
    distances: tuple[tuple[int, int], ...]


def position_table(model: Any, most: int) -> PositionTable | None:
    """The table of positions that a model adds to its words, if it does."""
    for module in (getattr(model, "embeddings", None), model):
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, torch.nn.Embedding) and getattr(module, "position_biased_input", True):
            first = 0 if table.padding_idx is None else table.padding_idx + 1
            rows = as_array(table.weight.detach()[first : first + most])
            return PositionTable(read_only(rows.copy()), first)
    return None


def rotaries(model: Any) -> tuple[Rotary, ...]:
    """The frequencies by which a model turns queries and keys, each kind once."""
    kinds = list(getattr(model.config, "layer_types", None) or ())
    layers = range(model.config.num_hidden_layers)
    found: list[Rotary] = []
    for path, buffer in model.named_buffers():
        match = _FREQUENCIES.fullmatch(path.rpartition(".")[2])
        if match is None or match["kind"] == "original" or str(match["kind"]).endswith("_original"):
            continue
        frequencies = buffer.detach().double().cpu().numpy().ravel()
        if any(np.array_equal(one.frequencies, frequencies) for one in found):
            continue  # layers may hold one each
        kind = match["kind"] if match["kind"] in kinds else None
        own = [layer for layer in layers if kind is None or kinds[layer] == kind]
        name = "rotary" if kind is None else kind.replace("_", " ")
        found.append(Rotary(name, tuple(own), read_only(frequencies)))
    return tuple(found)


def distance_bias(model: Any, most: int) -> DistanceBias | None:
    """The bias by distance that a model computes for its first layer and all others, if it does."""
    encoder: Any = getattr(model, "encoder", None)
    if not hasattr(encoder, "relative_attention_bias") or not hasattr(encoder, "compute_position_bias"):
        return None
    device = encoder.relative_attention_bias.weight.device
    bias = as_array(encoder.compute_position_bias(torch.zeros(1, most, 1, device=device))[0])
    # What the first query gives to each key, and what each query gives to the first key.
    values = np.concatenate([bias[:, :0:-1, 0], bias[:, 0, :]], axis=1)
    return DistanceBias(np.arange(1 - most, most), read_only(values))


def relative_table(model: Any, most: int) -> RelativeTable | None:
    """The vectors of distances that a model has, if it does."""
    encoder: Any = getattr(model, "encoder", None)
    if not hasattr(encoder, "rel_embeddings") or not hasattr(encoder, "get_rel_pos"):
        return None
    vectors = as_array(encoder.get_rel_embedding().detach())
    apart = encoder.get_rel_pos(torch.zeros(1, most, 1))[0].cpu().numpy()  # query's position − key's
    rows = np.clip(apart + len(vectors) // 2, 0, len(vectors) - 1)
    members: dict[int, list[int]] = {}
    for distance in range(1 - most, most):
        row = rows[0, distance] if distance >= 0 else rows[-distance, 0]
        members.setdefault(int(row), []).append(distance)
    used = list(members)
    spans = tuple((members[row][0], members[row][-1]) for row in used)
    return RelativeTable(read_only(vectors[used]), spans)
