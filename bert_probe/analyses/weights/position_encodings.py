"""Position encodings of models, read from their modules.

Position embeddings, added to word embeddings (Devlin et al. 2019); rotary embeddings of queries and keys (Su
et al. 2021); and a bias on scores, or a table of vectors, for the distance between two tokens (Raffel et al.
2020; He et al. 2021).
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
    """Return sinusoidal position encodings, float64 [position, dimension]; Vaswani et al. 2017, section 3.5.

    Dimension 2i is sin(p ÷ 10000^(2i ÷ dimensions)), and dimension 2i + 1 the cosine of the same angle.
    """
    pairs = np.arange(dimensions) // 2
    angles = np.arange(positions)[:, None] / 10_000.0 ** (2 * pairs / dimensions)
    return read_only(np.where(np.arange(dimensions) % 2 == 0, np.sin(angles), np.cos(angles)))


@dataclass(frozen=True, eq=False)
class PositionTable:
    """Learned position embeddings, which are added to word embeddings.

    Attributes:
        vectors: [position, dimension].
        first: row of the model's table for the first position; some architectures do not use earlier rows.
    """

    vectors: Array
    first: int

    @property
    def sinusoid_difference(self) -> float:
        """Largest absolute difference from the sinusoids of this size, which some models use unchanged."""
        return float(np.abs(self.vectors - sinusoids(*self.vectors.shape)).max())


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary position embeddings: rotations of pairs of dimensions of queries and keys.

    Attributes:
        name: name of the layer type; "rotary" if all layers have the same frequencies.
        layers: layers with these frequencies, from 0.
        frequencies: radians per position, float64 [pair].
    """

    name: str
    layers: tuple[int, ...]
    frequencies: Array

    @property
    def wavelengths(self) -> Array:
        """Number of positions for a full rotation of each pair, [pair]."""
        wavelengths: Array = 2 * np.pi / self.frequencies
        return wavelengths

    def rotated_cosines(self, distances: Array) -> Array:
        """Return the cosine of a vector and itself rotated by each distance, [distance].

        All pairs of its dimensions are assumed to have the same norm.
        """
        cosines: Array = np.cos(distances[:, None] * self.frequencies).mean(axis=1)
        return cosines


@dataclass(frozen=True, eq=False)
class DistanceBias:
    """A bias on attention scores by the distance of key and query.

    Attributes:
        distances: position of the key − position of the query, ascending.
        values: [head, distance]; the same in all layers.
    """

    distances: Array
    values: Array


@dataclass(frozen=True, eq=False)
class RelativeTable:
    """Relative position embeddings, which are multiplied with queries and keys.

    Attributes:
        vectors: [row, dimension], as passed to the layers; only rows that are used.
        distances: smallest and largest distance (position of the key − position of the query) of each row;
            large distances share a row.
    """

    vectors: Array
    distances: tuple[tuple[int, int], ...]


def position_table(model: Any, max_positions: int) -> PositionTable | None:
    """Return the position embeddings of a model, or None."""
    for module in (getattr(model, "embeddings", None), model):
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, torch.nn.Embedding) and getattr(module, "position_biased_input", True):
            first = 0 if table.padding_idx is None else table.padding_idx + 1
            rows = as_array(table.weight.detach()[first : first + max_positions])
            return PositionTable(read_only(rows.copy()), first)
    return None


def rotaries(model: Any) -> tuple[Rotary, ...]:
    """Return the distinct rotary position embeddings of a model."""
    layer_types = list(getattr(model.config, "layer_types", None) or ())
    layers = range(model.config.num_hidden_layers)
    result: list[Rotary] = []
    for path, buffer in model.named_buffers():
        match = _FREQUENCIES.fullmatch(path.rpartition(".")[2])
        if match is None or match["kind"] == "original" or str(match["kind"]).endswith("_original"):
            continue
        frequencies = buffer.detach().double().cpu().numpy().ravel()
        if any(np.array_equal(rotary.frequencies, frequencies) for rotary in result):
            continue  # each layer may have its own buffer
        kind = match["kind"] if match["kind"] in layer_types else None
        own = [layer for layer in layers if kind is None or layer_types[layer] == kind]
        name = "rotary" if kind is None else kind.replace("_", " ")
        result.append(Rotary(name, tuple(own), read_only(frequencies)))
    return tuple(result)


def distance_bias(model: Any, max_positions: int) -> DistanceBias | None:
    """Return the bias by distance of a model, which is the same in all layers, or None."""
    encoder: Any = getattr(model, "encoder", None)
    if not hasattr(encoder, "relative_attention_bias") or not hasattr(encoder, "compute_position_bias"):
        return None
    device = encoder.relative_attention_bias.weight.device
    bias = as_array(encoder.compute_position_bias(torch.zeros(1, max_positions, 1, device=device))[0])
    # The bias of each query for the first key, and of the first query for each key.
    values = np.concatenate([bias[:, :0:-1, 0], bias[:, 0, :]], axis=1)
    return DistanceBias(np.arange(1 - max_positions, max_positions), read_only(values))


def relative_table(model: Any, max_positions: int) -> RelativeTable | None:
    """Return the relative position embeddings of a model, or None."""
    encoder: Any = getattr(model, "encoder", None)
    if not hasattr(encoder, "rel_embeddings") or not hasattr(encoder, "get_rel_pos"):
        return None
    vectors = as_array(encoder.get_rel_embedding().detach())
    offsets = encoder.get_rel_pos(torch.zeros(1, max_positions, 1))[0].cpu().numpy()  # query − key
    rows = np.clip(offsets + len(vectors) // 2, 0, len(vectors) - 1)
    members: dict[int, list[int]] = {}
    for distance in range(1 - max_positions, max_positions):
        row = rows[0, distance] if distance >= 0 else rows[-distance, 0]
        members.setdefault(int(row), []).append(distance)
    used = list(members)
    spans = tuple((members[row][0], members[row][-1]) for row in used)
    return RelativeTable(read_only(vectors[used]), spans)
