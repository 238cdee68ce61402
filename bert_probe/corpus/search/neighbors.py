"""The vectors of one layer that are nearest to a given one, found where they lie in memory-mapped files.

All of them are looked at in float32, which says within a bound how large each cosine is; those that the bound
leaves in question are computed again in float64. So what is found is exact, by proof, and costs one reading
of the vectors at the speed of memory. See "Nearest contexts" in docs/methods.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch.utils.dlpack import from_dlpack

from bert_probe.analyses.vectors.cosine import unit_rows
from bert_probe.errors import ShapeError, StoreError, UnavailableError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only

_LENGTHS = (1e-15, 1e15)
"""Shorter and longer vectors have no direction here: their squares leave float32. Models make neither."""

_BLOCK = 512
"""Vectors that are looked at together: 0.8 MB of them, which stay in the processor's cache."""


@dataclass(frozen=True, eq=False)
class Hits:
    """Vectors that are near to one, nearest first; equal ones as they stand in the store.

    Attributes:
        rows, positions: whose they are, [hit], from 1.
        cosines: float64 [hit].
    """

    rows: Array
    positions: Array
    cosines: Array

    def __len__(self) -> int:
        return len(self.rows)

    def first(self, count: int) -> Hits:
        """The nearest of them."""
        return Hits(self.rows[:count], self.positions[:count], self.cosines[:count])


@dataclass(frozen=True, eq=False)
class VectorBatch:
    """The vectors of a layer in one batch of a file: views of it, which are read when they are looked at.

    Attributes:
        rows, positions: [vector].
        vectors: [vector, hidden], float32 or float16.
    """

    rows: Array
    positions: Array
    vectors: Array

    @cached_property
    def scales(self) -> Array:
        """1 ÷ the length of each vector, float32; NaN for one without a direction. Reads all, once."""
        squares = np.concatenate([np.einsum("ij,ij->i", block, block) for block in self._blocks()])
        lengths = np.sqrt(squares)
        shortest, longest = _LENGTHS
        plain = (lengths > shortest) & (lengths < longest)
        scales: Array = np.divide(np.float32(1), lengths, out=np.full_like(lengths, np.nan), where=plain)
        return scales

    def units(self) -> Iterator[tuple[Array, Array]]:
        """Those that have a direction, some at a time: places from 0, and they of length 1 in float32."""
        start = 0
        for block in self._blocks():
            scales = self.scales[start : start + len(block)]
            plain = np.flatnonzero(np.isfinite(scales))
            yield start + plain, block[plain] * scales[plain, None]
            start += len(block)

    def scan(self, query: Array) -> Array:
        """The cosine of each vector with a unit one, in float32: within `error` of what it is."""
        # Not BLAS or torch: on a busy machine their threads wait for each other; see `ExactSearch`.
        found = np.concatenate([np.einsum("ij,j->i", block, query) for block in self._blocks()])
        found *= self.scales
        return found

    def _blocks(self) -> Iterator[Array]:
        """All vectors in float32, some at a time; where they lie if they are stored so."""
        for start in range(0, len(self.rows), _BLOCK):
            block = self.vectors[start : start + _BLOCK]
            # NumPy's own conversion takes five times as long.
            yield block if block.dtype == np.float32 else from_dlpack(block).float().numpy()


class LayerVectors:
    """The vectors of one layer of a store, where they lie; opening them reads no vector.

    Args:
        files: Arrow IPC files with the columns row, position, layer and vector, ordered by layer.
        layer: whose vectors, from 0, which is the output of the embeddings.
    """

    def __init__(self, files: Sequence[Path], layer: int) -> None:
        self.parts = tuple(part for file in files for part in _parts(file, layer))
        if len({part.vectors.shape[1] for part in self.parts}) > 1:
            raise ShapeError("The files hold vectors of different lengths, so they are of different models.")
        self.ends = np.cumsum([len(part.rows) for part in self.parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if self.parts else 0

    @property
    def hidden(self) -> int:
        """Numbers of a vector."""
        return int(self.parts[0].vectors.shape[1]) if self.parts else 0

    def take(self, places: Array) -> tuple[Array, Array, Array]:
        """Rows, positions and vectors [place, hidden] at places from 0, as stored, in any order."""
        holding = np.searchsorted(self.ends, places, side="right")
        rows, positions = np.empty(len(places), np.int64), np.empty(len(places), np.int32)
        vectors = np.empty((len(places), self.hidden), self.parts[0].vectors.dtype)
        for number in np.unique(holding):
            part, here = self.parts[number], np.flatnonzero(holding == number)
            within = places[here] - (self.ends[number] - len(part.rows))
            rows[here], positions[here] = part.rows[within], part.positions[within]
            vectors[here] = part.vectors[within]
        return rows, positions, vectors

    def prepare(self, report: Progress = no_progress) -> None:
        """Read all lengths, which the first search needs; they are kept, 4 bytes a vector."""
        for end, part in zip(self.ends, self.parts, strict=True):
            _ = part.scales
            report(int(end), len(self))

    def exactly(self, query: Array, places: Array) -> tuple[Array, Hits]:
        """The places in the order of their cosines, and these in float64, of the vectors as they are stored.

        What has no direction is left out.
        """
        rows, positions, vectors = self.take(places)
        # Added up row by row, so that no digit depends on what else is looked at.
        cosines = np.clip((unit_rows(vectors) * query).sum(axis=1), -1.0, 1.0)
        order = np.lexsort((positions, rows, -cosines))
        order = order[np.isfinite(cosines[order])]
        hits = Hits(*(read_only(column[order]) for column in (rows, positions, cosines)))
        return places[order], hits


class ExactSearch:
    """A search that looks at every vector; what it finds is exact.

    Args:
        query: [hidden], with a direction.
    """

    def __init__(self, vectors: LayerVectors, query: Array) -> None:
        self._vectors, self._query = vectors, direction(query, vectors.hidden)
        given = self._query.astype(np.float32)
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            found = threads.map(lambda part: part.scan(given), vectors.parts)
            self._about = np.concatenate([np.empty(0, np.float32), *found])
        self._about[~np.isfinite(self._about)] = -np.inf

    def best(self, count: int) -> Hits:
        """The nearest, or as many as there are.

        Whatever is among them has a cosine of at least that of the last one. Computed values are off by at
        most `error`, so it was computed as at least that last one's less twice the error.
        """
        if not len(self._about):
            return Hits(*(np.empty(0, kind) for kind in (np.int64, np.int32, np.float64)))
        count = min(count, len(self._about))
        last = np.partition(self._about, -count)[-count]
        least = last - np.float32(2 * error(self._vectors.hidden))
        _, hits = self._vectors.exactly(self._query, np.flatnonzero(self._about >= max(least, _NOTHING)))
        return hits.first(count)


_NOTHING = -2.0
"""Below every cosine, and above what stands for a vector without a direction."""


def error(hidden: int) -> float:
    """How far a cosine of a `ExactSearch` may be off, whatever the order in which its products are added up.

    With u = 2⁻²⁴, a sum of n products is off by at most n u ÷ (1 − n u) times the sum of their sizes (Higham
    2002, 3.1), which for a vector and a unit one is at most the vector's length, and its length by half as
    much of itself. The roundings of the unit vector, the root, the inverse, the product and the subtraction
    in `ExactSearch.best` add a few u.
    """
    rounded = (1.5 * hidden + 16) * 2.0**-24
    return rounded / (1 - rounded)


def direction(vector: Array, hidden: int) -> Array:
    """A vector divided by its length, float64 [hidden].

    Raises:
        ShapeError: it has another number of numbers than those that are searched.
        UnavailableError: it is all zeros, or not finite.
    """
    if vector.shape != (hidden,):
        raise ShapeError(f"The vector has shape {vector.shape}; ({hidden},) is needed.")
    if not np.isfinite(vector).all() or not vector.any():
        raise UnavailableError("The vector is all zeros or not finite, so it has no direction: no cosine.")
    unit: Array = unit_rows(vector[None])[0]
    return unit


def _parts(file: Path, layer: int) -> Iterator[VectorBatch]:
    try:
        # What is mapped stays so while somebody holds a view of it; the file itself may be closed.
        with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                yield from _part(reader.get_batch(number), layer)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise StoreError(
            f"{file} cannot be read as vectors: {error}. Run the corpus again; what is whole is kept."
        ) from None


def _part(batch: pa.RecordBatch, layer: int) -> Iterator[VectorBatch]:
    if any(column.null_count for column in (*batch.columns, batch["vector"].flatten())):
        raise pa.ArrowInvalid("a row, position, layer or number is missing")
    layers = batch["layer"].to_numpy()
    some = slice(*np.searchsorted(layers, [layer, layer + 1]).tolist())
    if some.start == some.stop:
        return
    stored = batch["vector"].slice(some.start, some.stop - some.start)
    vectors = stored.flatten().to_numpy().reshape(-1, stored.type.list_size)
    yield VectorBatch(batch["row"].to_numpy()[some], batch["position"].to_numpy()[some], vectors)
