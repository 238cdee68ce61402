"""Position encodings of a model, and a comparison of learned position embeddings with sinusoids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.vectors.similarity import cosine
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Optional
from bert_probe.core.inputs import OneCheckpoint
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.checks import CHECK_TEXT
from bert_probe.model.forward import as_array
from bert_probe.model.layers import ModuleCall, record_forward_pass
from bert_probe.model.lengths import max_input_tokens
from bert_probe.model.trace import Array, read_only

COSINES, FREQUENCIES, DISTANCE, SPECTRUM = "cosines", "frequencies", "distance", "spectrum"
TABLE, BIAS, RELATIVE = "table", "bias", "relative"
TABLES = (COSINES, FREQUENCIES, DISTANCE, SPECTRUM, TABLE, BIAS, RELATIVE)
MATRICES = (COSINES, TABLE, RELATIVE)
"""Values of `Positions.show` that are displayed as matrices; the others are displayed as curves."""


@question("positions")
class Positions(Question):
    """Position encodings of a model, and sinusoids of the same size (Vaswani et al. 2017).

    Attributes:
        show: the table to return: "cosines" (cosine similarity of all pairs of positions), "distance" (mean
            cosine by distance), "spectrum" or "table" of learned position embeddings, "frequencies" of rotary
            embeddings, "bias" by distance, or "relative" (cosine similarity of relative position embeddings).
            If None, the first of `TABLES` that the model has is returned.
    """

    inputs = OneCheckpoint()

    show: str | None = param(
        Optional(Choice(TABLES)),
        default=None,
        key="positions_show",
        about="Table of position encodings; by default, the first table that the model supports.",
        display_only=True,
    )

    def of(self, checkpoint: Checkpoint) -> PositionsResult:
        """Return the position encodings of a model.

        Raises:
            UnavailableError: the model has no supported position encoding, or does not have the requested
                table.
        """
        description = checkpoint.description
        max_positions = max_input_tokens(description.max_tokens)
        with torch.inference_mode(), checkpoint.running() as model:
            result = PositionsResult(
                self,
                InputRecord.of_model(checkpoint),
                max_positions,
                position_table(model, max_positions),
                rotaries(checkpoint),
                distance_bias(model, max_positions),
                relative_table(model, max_positions),
            )
        if not result.available:
            raise UnavailableError(
                f"{description.architecture} has no position embeddings, rotary embeddings or relative "
                "positions that can be shown."
            )
        return replace(result, question=result.resolve(self))


@dataclass(frozen=True, eq=False, repr=False)
class PositionsResult(Result):
    """Position encodings of a model. Encodings that the model does not have are None or empty.

    Attributes:
        positions: maximum number of positions.
        learned: learned position embeddings.
        rotary: rotary embeddings, one for each layer type.
        bias: bias on attention scores that depends on the distance.
        relative: relative position embeddings.
    """

    question: Positions
    positions: int
    learned: PositionTable | None
    rotary: tuple[Rotary, ...]
    bias: DistanceBias | None
    relative: RelativeTable | None

    @property
    def available(self) -> tuple[str, ...]:
        """The values of `Positions.show` that this model supports."""
        encodings = {
            COSINES: self.learned,
            FREQUENCIES: self.rotary,
            DISTANCE: self.learned or self.rotary,
            SPECTRUM: self.learned,
            TABLE: self.learned,
            BIAS: self.bias,
            RELATIVE: self.relative,
        }
        return tuple(name for name, encoding in encodings.items() if encoding)

    def resolve(self, question: Positions) -> Positions:
        """Return the question with the name of its table; the default is the first available table.

        Raises:
            UnavailableError: the model does not have the requested table.
        """
        show = question.show or self.available[0]
        if show not in self.available:
            raise UnavailableError(
                f"{self.inputs.model['architecture']} has no position table “{show}”. "
                f"Choose one of {', '.join(self.available)}."
            )
        return replace(question, show=show)

    @property
    def position_table(self) -> PositionTable:
        """The learned position embeddings, which the tables "cosines", "spectrum" and "table" require."""
        assert self.learned is not None
        return self.learned

    @cached_property
    def sinusoids(self) -> Array:
        """Sinusoidal encodings with the shape of the learned embeddings, float64 [position, dimension]."""
        return sinusoids(*self.position_table.vectors.shape)

    @property
    def cosines(self) -> Array:
        """Cosine similarity of each pair of position embeddings, of shape [position, position]."""
        return cosine(self.position_table.vectors, self.position_table.vectors)

    @cached_property
    def spectra(self) -> tuple[Array, Array]:
        """Spectra of the learned embeddings and of the sinusoids; see `spectrum`."""
        return spectrum(self.position_table.vectors), spectrum(self.sinusoids)

    @cached_property
    def by_distance(self) -> dict[str, Array]:
        """Mapping from the name of each encoding to the mean cosine of positions at distance 0, 1, …."""
        if self.learned is not None:
            return {
                "learned": mean_cosines(self.position_table.vectors),
                "sinusoids": mean_cosines(self.sinusoids),
            }
        distances = np.arange(self.positions)
        return {rotary.name: rotary.rotated_cosines(distances) for rotary in self.rotary}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The largest difference from sinusoids, and how many components explain 90% of the variance."""
        if self.learned is None:
            return {}
        learned, fixed = (count_directions(shares) for shares in self.spectra)
        off = self.learned.sinusoid_difference
        return {"off_sinusoids": off, "directions_90": learned, "directions_90_sinusoids": fixed}

    def frame(self) -> pd.DataFrame:
        """Return the table selected by ``show``; positions and distances are counted from 0."""
        tables = {
            COSINES: self._cosines,
            DISTANCE: self._by_distance,
            SPECTRUM: self._spectrum,
            TABLE: self._table,
            FREQUENCIES: self._frequencies,
            BIAS: self._bias,
            RELATIVE: self._relative,
        }
        assert self.question.show is not None  # not None, because `resolve` has filled in a table
        return tables[self.question.show]()

    def _cosines(self) -> pd.DataFrame:
        names = [*map(str, range(len(self.position_table.vectors)))]
        return frames.matrix(self.cosines, names, names, "position")

    def _by_distance(self) -> pd.DataFrame:
        columns = {name.replace(" ", "_"): values for name, values in self.by_distance.items()}
        return pd.DataFrame({"distance": np.arange(len(next(iter(columns.values())))), **columns})

    def _spectrum(self) -> pd.DataFrame:
        learned, fixed = self.spectra
        direction = np.arange(1, len(learned) + 1)
        return pd.DataFrame({"direction": direction, "learned": learned, "sinusoids": fixed})

    def _table(self) -> pd.DataFrame:
        vectors = self.position_table.vectors
        return frames.vectors(vectors, [*map(str, range(len(vectors)))], "position")

    def _frequencies(self) -> pd.DataFrame:
        parts = [
            pd.DataFrame(
                {
                    "layers": rotary.name,
                    "pair": np.arange(len(rotary.frequencies)),
                    "frequency": rotary.frequencies,
                    "wavelength": rotary.wavelengths,
                }
            )
            for rotary in self.rotary
        ]
        return pd.concat(parts, ignore_index=True)

    def _bias(self) -> pd.DataFrame:
        assert self.bias is not None  # not None, as checked by `resolve`
        heads = [f"head_{head + 1}" for head in range(len(self.bias.values))]
        values = dict(zip(heads, self.bias.values, strict=True))
        return pd.DataFrame({"distance": self.bias.distances, **values})

    def _relative(self) -> pd.DataFrame:
        assert self.relative is not None  # not None, as checked by `resolve`
        names = format_distances(self.relative)
        return frames.matrix(self.relative_cosines, names, names, "distance")

    @cached_property
    def relative_cosines(self) -> Array:
        """Cosine similarity of each pair of relative position embeddings, of shape [row, row]."""
        assert self.relative is not None  # not None, as checked by `resolve`
        return cosine(self.relative.vectors, self.relative.vectors)


def spectrum(vectors: Array) -> Array:
    """Return the share of the variance that each principal component of a table explains, descending.

    The shares are σ² ÷ Σ σ², where σ are the singular values of the table, [position, dimension], after
    subtracting its mean row. The result is float64 of shape [min(position, dimension)], and all zeros if all
    rows are equal.
    """
    table = torch.from_numpy(vectors.astype(np.float64))
    squares = torch.linalg.svdvals(table - table.mean(dim=0)).numpy() ** 2
    total = squares.sum()
    shares: Array = squares / total if total > 0 else squares
    return shares


def count_directions(shares: Array, share: float = 0.9) -> int:
    """Return how many of the first principal components explain at least a share of the variance.

    Args:
        shares: share of the variance that each component explains, in descending order.
        share: the share to explain, 0 to 1.
    """
    return int(np.searchsorted(np.cumsum(shares), share * (1 - 1e-12)) + 1)


def mean_cosines(vectors: Array) -> Array:
    """Return the mean cosine of all pairs of rows at each distance, from 0; float64 of shape [distance].

    The cosines are computed in blocks of rows, because those of 8,192 rows have 268 MB in float32.

    Args:
        vectors: array of shape [row, dimension].
    """
    count = len(vectors)
    sums, rows = np.zeros(count), max(1, _BLOCK_COSINES // count)
    for first in range(0, count, rows):
        for offset, cosines in enumerate(cosine(vectors[first : first + rows], vectors[first:])):
            sums[: len(cosines) - offset] += cosines[offset:]
    means: Array = sums / np.arange(count, 0, -1)
    return means


def format_distances(table: RelativeTable) -> list[str]:
    """Return the distances of each row as text: −3, or 17…20 if several distances share a row."""
    return [
        str(low).replace("-", "−") if low == high else f"{low}…{high}".replace("-", "−")
        for low, high in table.distances
    ]


_BLOCK_COSINES = 2**22
"""Maximum number of cosines that `mean_cosines` computes at once."""
_FREQUENCIES = re.compile(r"(?:(?P<kind>\w+)_)?inv_freq")
_TABLE_NAMES = ("position_embeddings", "position_embedding", "embed_positions", "positions_embed", "wpe")
"""Names of learned position embeddings in models such as BERT, CLIP, BART and OPT, OpenAI GPT, and GPT-2."""
_SHARED_BIAS_OF_FIRST_LAYER = {"mt5", "switch_transformers", "t5"}
"""Model types in which all layers add the bias of the first layer; each layer of UMT5 has its own."""


def sinusoids(positions: int, dimensions: int) -> Array:
    """Return sinusoidal position encodings, float64 [position, dimension]; Vaswani et al. 2017, section 3.5.

    Dimension 2i is sin(p ÷ 10000^(2i ÷ dimensions)), and dimension 2i + 1 the cosine of the same angle.
    """
    pairs = np.arange(dimensions) // 2
    angles = np.arange(positions)[:, None] / 10_000.0 ** (2 * pairs / dimensions)
    return read_only(np.where(np.arange(dimensions) % 2 == 0, np.sin(angles), np.cos(angles)))


@dataclass(frozen=True, eq=False)
class PositionTable:
    """Learned position embeddings, which the model adds to word embeddings.

    Attributes:
        vectors: the embeddings, [position, dimension].
        first: row of the first position in the model's table; some architectures do not use earlier rows.
    """

    vectors: Array
    first: int

    @property
    def sinusoid_difference(self) -> float:
        """Largest absolute difference from sinusoids of the same shape, which some models use."""
        return float(np.abs(self.vectors - sinusoids(*self.vectors.shape)).max())


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary position embeddings, which rotate pairs of dimensions in queries and keys.

    Attributes:
        name: name of the layer type; "rotary" if all layers that rotate have the same frequencies.
        layers: layers that rotate with these frequencies, from 0.
        frequencies: angle of rotation in radians per position, float64 [pair].
    """

    name: str
    layers: tuple[int, ...]
    frequencies: Array

    @property
    def wavelengths(self) -> Array:
        """Number of positions after which each pair of dimensions has made a full rotation; shape [pair]."""
        wavelengths: Array = 2 * np.pi / self.frequencies
        return wavelengths

    def rotated_cosines(self, distances: Array) -> Array:
        """Return, for each distance, the cosine between a vector and the same vector rotated by the distance.

        All pairs of dimensions of the vector are assumed to have the same norm.
        """
        cosines: Array = np.cos(distances[:, None] * self.frequencies).mean(axis=1)
        return cosines


@dataclass(frozen=True, eq=False)
class DistanceBias:
    """A bias on attention scores that depends on the distance between key and query.

    Attributes:
        distances: position of the key − position of the query, ascending.
        values: the bias, [head, distance], which is the same in all layers.
    """

    distances: Array
    values: Array


@dataclass(frozen=True, eq=False)
class RelativeTable:
    """Relative position embeddings, which are multiplied with queries and keys.

    Attributes:
        vectors: embeddings [row, dimension], as passed to the layers, without unused rows.
        distances: smallest and largest distance (position of the key − position of the query) of each row;
            large distances share a row.
    """

    vectors: Array
    distances: tuple[tuple[int, int], ...]


def position_table(model: Any, max_positions: int) -> PositionTable | None:
    """Return the learned position embeddings of a model, or None if it has none."""
    for module in (getattr(model, "embeddings", None), getattr(model, "decoder", None), model):
        if not getattr(module, "position_biased_input", True):
            continue
        for name in _TABLE_NAMES:
            table = getattr(module, name, None)
            if isinstance(table, torch.nn.Embedding) and "Sinusoidal" not in type(table).__name__:
                first = 0 if table.padding_idx is None else table.padding_idx + 1
                first = getattr(table, "offset", first)  # BART and models derived from it
                rows = as_array(table.weight.detach()[first : first + max_positions])
                return PositionTable(read_only(rows.copy()), first)
    return None


def rotaries(checkpoint: Checkpoint) -> tuple[Rotary, ...]:
    """Return the distinct rotary position embeddings of a model, with the layers that use them."""
    model: Any = checkpoint.model
    layer_types = list(getattr(model.config, "layer_types", None) or ())
    rotated = rotated_layers(checkpoint)
    found: list[tuple[str, set[int], Array]] = []
    for path, buffer in model.named_buffers():
        match = _FREQUENCIES.fullmatch(path.rpartition(".")[2])
        if match is None or match["kind"] == "original" or str(match["kind"]).endswith("_original"):
            continue
        # With LongRoPE, a text that is longer than the original limit changes the buffer.
        parent, _, name = path.rpartition(".")
        original = f"{name.removesuffix('inv_freq')}original_inv_freq"
        buffer = getattr(model.get_submodule(parent), original, buffer)
        frequencies = buffer.detach().double().cpu().numpy().ravel()
        kind = match["kind"] if match["kind"] in layer_types else None
        own = {layer for layer in rotated if kind is None or layer_types[layer] == kind}
        # Several layers, or types of layers, may have equal frequencies.
        equal = [layers for _, layers, other in found if np.array_equal(other, frequencies)]
        if equal:
            equal[0].update(own)
        else:
            found.append(("rotary" if kind is None else kind.replace("_", " "), own, frequencies))
    # Some models store the sines and cosines of all angles; the angles of position 1 are the frequencies.
    model_type = model.config.model_type
    if model_type in ("roformer", "gptj", "codegen"):
        is_shared = model_type == "roformer"
        stored = model.encoder.embed_positions.weight if is_shared else model.h[0].attn.embed_positions
        table = stored.detach().double().cpu().numpy()
        sines, cosines = np.split(table[1], 2)
        found.append(("rotary", set(rotated), np.arctan2(sines, cosines)))
    return tuple(
        Rotary("rotary" if layers == {*rotated} else name, tuple(sorted(layers)), read_only(frequencies))
        for name, layers, frequencies in found
        if layers
    )


_rotated_layers: WeakKeyDictionary[Any, tuple[int, ...]] = WeakKeyDictionary()
"""Model → the result of `rotated_layers`."""


def rotated_layers(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Return the layers whose output depends on the angles of rotary position embeddings, from 0.

    Models that pass the angles to each layer are run once on a short text. Each layer is then run twice, with
    the angles in the order of the tokens and in reverse order; layers without rotary embeddings return the
    same output. For other models, all layers are returned, or none if the model uses ALiBi.
    """
    model = checkpoint.model
    if model not in _rotated_layers:
        _rotated_layers[model] = _measured_layers(checkpoint)
    return _rotated_layers[model]


def _measured_layers(checkpoint: Checkpoint) -> tuple[int, ...]:
    config: Any = checkpoint.model.config
    layers = tuple(range(config.num_hidden_layers))
    names = [name.rpartition(".")[2] for name, _ in checkpoint.model.named_buffers()]
    if getattr(config, "alibi", False):  # Falcon adds a bias to the scores instead.
        return ()
    if not any(map(_FREQUENCIES.fullmatch, names)):
        return layers
    calls: dict[int, ModuleCall] = {}
    paths = {module: path for path, module in checkpoint.model.named_modules()}
    trace = checkpoint.trace(CHECK_TEXT, truncate=True)
    with torch.inference_mode(), checkpoint.running():
        for call in record_forward_pass(trace).calls:
            number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", paths[call.module])
            if number is not None and "position_embeddings" in call.kwargs:
                calls[int(number[1])] = call  # the layer itself ends after its parts
        if not calls:
            return layers
        return tuple(layer for layer in layers if layer in calls and _is_rotated(calls[layer]))


def _is_rotated(call: ModuleCall) -> bool:
    """Return whether the output of a layer depends on its argument `position_embeddings`."""
    angles = call.kwargs["position_embeddings"]
    if angles is None:
        return False
    outputs = [
        call.module(*call.args, **{**call.kwargs, "position_embeddings": value})
        for value in (angles, _reversed(angles))
    ]
    first, second = (replace(call, output=output).vectors for output in outputs)
    return not torch.equal(first, second)


def _reversed(angles: Any) -> Any:
    """Reverse the order of the tokens in all tensors of shape [text, token, dim], recursively."""
    if isinstance(angles, torch.Tensor):
        return angles.flip(-2)
    if isinstance(angles, dict):
        return {name: _reversed(value) for name, value in angles.items()}
    return tuple(map(_reversed, angles)) if isinstance(angles, tuple | list) else angles


def distance_bias(model: Any, max_positions: int) -> DistanceBias | None:
    """Return the distance-dependent bias that all layers of a model share, or None if it has none."""
    encoder: Any = getattr(model, "encoder", model)
    if hasattr(encoder, "relative_attention_bias") and hasattr(encoder, "compute_position_bias"):  # MPNet
        device = encoder.relative_attention_bias.weight.device
        bias = as_array(encoder.compute_position_bias(torch.zeros(1, max_positions, 1, device=device))[0])
        of_first_key, of_first_query = bias[:, :, 0], bias[:, 0, :]
    elif model.config.model_type in _SHARED_BIAS_OF_FIRST_LAYER:
        attention = encoder.block[0].layer[0].SelfAttention
        of_first_key = as_array(attention.compute_bias(max_positions, 1)[0, :, :, 0])
        of_first_query = as_array(attention.compute_bias(1, max_positions)[0, :, 0, :])
    else:
        return None
    values = np.concatenate([of_first_key[:, :0:-1], of_first_query], axis=1)
    return DistanceBias(np.arange(1 - max_positions, max_positions), read_only(values))


def relative_table(model: Any, max_positions: int) -> RelativeTable | None:
    """Return the relative position embeddings of a model, or None if it has none."""
    encoder: Any = getattr(model, "encoder", None)
    if not hasattr(encoder, "rel_embeddings") or not hasattr(encoder, "get_rel_pos"):
        return None
    vectors = as_array(encoder.get_rel_embedding().detach())
    # position of the query − position of the key
    offsets = encoder.get_rel_pos(torch.zeros(1, max_positions, 1))[0].cpu().numpy()
    rows = np.clip(offsets + len(vectors) // 2, 0, len(vectors) - 1)
    members: dict[int, list[int]] = {}
    for distance in range(1 - max_positions, max_positions):
        row = rows[0, distance] if distance >= 0 else rows[-distance, 0]
        members.setdefault(int(row), []).append(distance)
    used = list(members)
    spans = tuple((members[row][0], members[row][-1]) for row in used)
    return RelativeTable(read_only(vectors[used]), spans)
