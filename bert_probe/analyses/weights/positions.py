"""How a model knows where a token stands: learned positions beside the sinusoids, or what it has instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.vectors.cosine import cosine
from bert_probe.analyses.weights.position_encodings import (
    DistanceBias,
    PositionTable,
    RelativeTable,
    Rotary,
    distance_bias,
    position_table,
    relative_table,
    rotaries,
    sinusoids,
)
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Optional
from bert_probe.core.inputs import OneCheckpoint
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.lengths import most_tokens
from bert_probe.model.trace import Array

COSINES, FREQUENCIES, DISTANCE, SPECTRUM = "cosines", "frequencies", "distance", "spectrum"
TABLE, BIAS, RELATIVE = "table", "bias", "relative"
SHOWN = (COSINES, FREQUENCIES, DISTANCE, SPECTRUM, TABLE, BIAS, RELATIVE)
MATRICES = (COSINES, TABLE, RELATIVE)
"""Of these, what is a picture of many rows; the others are curves."""


@question("positions")
class Positions(Question):
    """What a model has for positions, and the sinusoids of Vaswani et al. 2017 computed for the same size.

    Attributes:
        show: "cosines" of every two positions; "distance", their mean by how far two are apart; "spectrum"
            and "table" of what was learned; "frequencies" of rotary models; the "bias" by distance; cosines
            of the "relative" vectors. None for the first of these that the model has.
    """

    inputs = OneCheckpoint()

    show: str | None = param(
        Optional(Choice(SHOWN)), default=None, key="positions_show", about="What to list.", display_only=True
    )

    def of(self, checkpoint: Checkpoint) -> PositionsResult:
        """Those of a model.

        Raises:
            UnavailableError: nothing that is known here, or not what is asked for.
        """
        about = checkpoint.description
        most = most_tokens(about.max_tokens)
        with torch.inference_mode(), checkpoint.running() as model:
            found = PositionsResult(
                self,
                InputRecord.of_model(checkpoint),
                most,
                position_table(model, most),
                rotaries(model),
                distance_bias(model, most),
                relative_table(model, most),
            )
        if not found.available:
            raise UnavailableError(
                f"{about.architecture} has no table of positions, no rotary frequencies and no bias by "
                "distance that is known here."
            )
        return replace(found, question=found.resolve(self))


@dataclass(frozen=True, eq=False, repr=False)
class PositionsResult(Result):
    """What a model has for positions; None, or nothing, for what it does not have.

    Attributes:
        positions: how many it reads at most.
        learned: a vector for each position.
        rotary: frequencies, by the kind of layers.
        bias: what is added to scores by distance.
        relative: a vector for each distance.
    """

    question: Positions
    positions: int
    learned: PositionTable | None
    rotary: tuple[Rotary, ...]
    bias: DistanceBias | None
    relative: RelativeTable | None

    @property
    def available(self) -> tuple[str, ...]:
        """What can be shown of it."""
        there = {
            COSINES: self.learned,
            FREQUENCIES: self.rotary,
            DISTANCE: self.learned or self.rotary,
            SPECTRUM: self.learned,
            TABLE: self.learned,
            BIAS: self.bias,
            RELATIVE: self.relative,
        }
        return tuple(name for name, one in there.items() if one)

    def resolve(self, question: Positions) -> Positions:
        """With the first thing that can be shown where none is named.

        Raises:
            UnavailableError: the model does not have it.
        """
        show = question.show or self.available[0]
        if show not in self.available:
            raise UnavailableError(
                f"{self.inputs.model['architecture']} has nothing to show as {show}; there is "
                f"{', '.join(self.available)}. Choose one of them."
            )
        return replace(question, show=show)

    @property
    def table_of_positions(self) -> PositionTable:
        """The learned one, which is there where cosines, spectrum or table are shown."""
        assert self.learned is not None
        return self.learned

    @cached_property
    def sinusoids(self) -> Array:
        """Those of the learned table's size, float64 [position, dimension]; the model does not use them."""
        return sinusoids(*self.table_of_positions.vectors.shape)

    @cached_property
    def cosines(self) -> Array:
        """Of every two positions' vectors, [position, position]."""
        return cosine(self.table_of_positions.vectors, self.table_of_positions.vectors)

    @cached_property
    def sinusoid_cosines(self) -> Array:
        """The same of the sinusoids."""
        return cosine(self.sinusoids, self.sinusoids)

    @cached_property
    def spectra(self) -> tuple[Array, Array]:
        """The share of the variance in each principal direction, of what was learned and of the sinusoids."""
        return spectrum(self.table_of_positions.vectors), spectrum(self.sinusoids)

    @cached_property
    def by_distance(self) -> dict[str, Array]:
        """Mean cosine of two positions that are 0, 1, … apart, by what it is of."""
        if self.learned is not None:
            return {"learned": on_diagonals(self.cosines), "sinusoids": on_diagonals(self.sinusoid_cosines)}
        distances = np.arange(self.positions)
        return {one.name: one.alike(distances) for one in self.rotary}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """How far a learned table is from the sinusoids, and in how many directions most of it lies."""
        if self.learned is None:
            return {}
        learned, fixed = (directions(one) for one in self.spectra)
        off = self.learned.off_sinusoids
        return {"off_sinusoids": off, "directions_90": learned, "directions_90_sinusoids": fixed}

    def frame(self) -> pd.DataFrame:
        """What `Positions.show` names, positions and distances counted from 0."""
        made = {
            COSINES: self._cosines,
            DISTANCE: self._by_distance,
            SPECTRUM: self._spectrum,
            TABLE: self._table,
            FREQUENCIES: self._frequencies,
            BIAS: self._bias,
            RELATIVE: self._relative,
        }
        assert self.question.show is not None  # it is resolved
        return made[self.question.show]()

    def _cosines(self) -> pd.DataFrame:
        names = [*map(str, range(len(self.cosines)))]
        return frames.matrix(self.cosines, names, names, "position")

    def _by_distance(self) -> pd.DataFrame:
        columns = {name.replace(" ", "_"): values for name, values in self.by_distance.items()}
        return pd.DataFrame({"distance": np.arange(len(next(iter(columns.values())))), **columns})

    def _spectrum(self) -> pd.DataFrame:
        learned, fixed = self.spectra
        direction = np.arange(1, len(learned) + 1)
        return pd.DataFrame({"direction": direction, "learned": learned, "sinusoids": fixed})

    def _table(self) -> pd.DataFrame:
        vectors = self.table_of_positions.vectors
        return frames.vectors(vectors, [*map(str, range(len(vectors)))], "position")

    def _frequencies(self) -> pd.DataFrame:
        parts = [
            pd.DataFrame(
                {
                    "layers": one.name,
                    "pair": np.arange(len(one.frequencies)),
                    "frequency": one.frequencies,
                    "wavelength": one.wavelengths,
                }
            )
            for one in self.rotary
        ]
        return pd.concat(parts, ignore_index=True)

    def _bias(self) -> pd.DataFrame:
        assert self.bias is not None  # it is there where it is shown
        heads = [f"head_{head + 1}" for head in range(len(self.bias.values))]
        values = dict(zip(heads, self.bias.values, strict=True))
        return pd.DataFrame({"distance": self.bias.distances, **values})

    def _relative(self) -> pd.DataFrame:
        assert self.relative is not None  # it is there where it is shown
        names = spans(self.relative)
        return frames.matrix(self.relative_cosines, names, names, "distance")

    @cached_property
    def relative_cosines(self) -> Array:
        """Of every two distances' vectors, [row, row]."""
        assert self.relative is not None  # it is there where it is shown
        return cosine(self.relative.vectors, self.relative.vectors)


def spectrum(vectors: Array) -> Array:
    """The share of the variance over positions that lies in each principal direction, the largest first.

    With σ the singular values of the table less its mean row: σ² ÷ Σ σ². float64, as many as the smaller of
    positions and dimensions; zeros for a table whose rows are all the same.
    """
    table = torch.from_numpy(vectors.astype(np.float64))
    squares = torch.linalg.svdvals(table - table.mean(dim=0)).numpy() ** 2
    total = squares.sum()
    found: Array = squares / total if total > 0 else squares
    return found


def directions(shares: Array, share: float = 0.9) -> int:
    """The fewest principal directions in which so much of the variance lies."""
    return int(np.searchsorted(np.cumsum(shares), share * (1 - 1e-12)) + 1)


def on_diagonals(square: Array) -> Array:
    """The mean of each diagonal of [position, position] from the main one upwards, float64."""
    return np.array([np.diagonal(square, one).mean(dtype=np.float64) for one in range(len(square))])


def spans(table: RelativeTable) -> list[str]:
    """The distances of each row as text: −3, or 17…20 where several share it."""
    return [
        str(low).replace("-", "−") if low == high else f"{low}…{high}".replace("-", "−")
        for low, high in table.distances
    ]
