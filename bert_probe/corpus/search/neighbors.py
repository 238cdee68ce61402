"""Exact nearest neighbor search by cosine similarity over the memory-mapped vectors of one layer.

All cosines are computed in float32, with a proven error bound. All vectors that may be among the nearest
within this bound are ranked again in float64, so the result is exact. A search reads all vectors once, and
its speed is limited by memory bandwidth.
See "Nearest contexts" in docs/methods.md.
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

_MIN_LENGTH, _MAX_LENGTH = 1e-15, 1e15
"""Supported range of vector lengths. A vector outside it is treated as having no direction, because its
squares do not fit into float32; models do not produce such vectors."""

_BLOCK = 512
"""Number of vectors that are processed together: about 0.8 MB, which fit in the processor's cache."""


@dataclass(frozen=True, eq=False)
class Hits:
    """The nearest neighbors of a vector, nearest first; ties are in the order of the store.

    Attributes:
        rows: row numbers, from 1, [hit].
        positions: positions within the rows, from 1, [hit].
        cosines: cosine similarities, float64 [hit].
    """

    rows: Array
    positions: Array
    cosines: Array

    def __len__(self) -> int:
        return len(self.rows)

    def first(self, count: int) -> Hits:
        """Return the first `count` hits."""
        return Hits(self.rows[:count], self.positions[:count], self.cosines[:count])


@dataclass(frozen=True, eq=False)
class VectorBatch:
    """The vectors of a layer in one record batch of a file, as views of the memory-mapped file.

    Attributes:
        rows: row numbers, [vector].
        positions: positions within the rows, [vector].
        vectors: float32 or float16 [vector, hidden].
    """

    rows: Array
    positions: Array
    vectors: Array

    @cached_property
    def scales(self) -> Array:
        """Reciprocal L2 norm of each vector, float32 [vector]; NaN for zero and for non-finite vectors."""
        squares = np.concatenate([np.einsum("ij,ij->i", block, block) for block in self._blocks()])
        lengths = np.sqrt(squares)
        is_valid = (lengths > _MIN_LENGTH) & (lengths < _MAX_LENGTH)
        scales: Array = np.divide(np.float32(1), lengths, out=np.full_like(lengths, np.nan), where=is_valid)
        return scales

    def units(self) -> Iterator[tuple[Array, Array]]:
        """Yield blocks of (indices from 0, unit vectors in float32) of the vectors that have a direction."""
        start = 0
        for block in self._blocks():
            scales = self.scales[start : start + len(block)]
            valid = np.flatnonzero(np.isfinite(scales))
            yield start + valid, block[valid] * scales[valid, None]
            start += len(block)

    def scan(self, query: Array) -> Array:
        """Return each vector's cosine with a unit vector, float32, with an error of at most `error_bound`."""
        # Not with BLAS or torch, whose threads wait for each other on a busy machine.
        cosines = np.concatenate([np.einsum("ij,j->i", block, query) for block in self._blocks()])
        cosines *= self.scales
        return cosines

    def _blocks(self) -> Iterator[Array]:
        """Yield blocks of vectors in float32, without a copy if they are stored in float32."""
        for start in range(0, len(self.rows), _BLOCK):
            block = self.vectors[start : start + _BLOCK]
            # NumPy's own conversion from float16 takes five times as long.
            yield block if block.dtype == np.float32 else from_dlpack(block).float().numpy()


class LayerVectors:
    """The memory-mapped vectors of one layer of a store. Vectors are indexed from 0 over all files.

    Args:
        files: Arrow IPC files with the columns row, position, layer and vector, ordered by layer.
        layer: layer of the vectors; 0 is the output of the embeddings.
    """

    def __init__(self, files: Sequence[Path], layer: int) -> None:
        self.batches = tuple(batch for file in files for batch in _open_batches(file, layer))
        if len({batch.vectors.shape[1] for batch in self.batches}) > 1:
            raise ShapeError("The files have vectors of different sizes, so they come from different models.")
        self.ends = np.cumsum([len(batch.rows) for batch in self.batches], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if self.batches else 0

    @property
    def hidden(self) -> int:
        """Number of components of each vector."""
        return int(self.batches[0].vectors.shape[1]) if self.batches else 0

    def take(self, indices: Array) -> tuple[Array, Array, Array]:
        """Return rows, positions and vectors [index, hidden], as stored; indices may be in any order."""
        batch_numbers = np.searchsorted(self.ends, indices, side="right")
        rows, positions = np.empty(len(indices), np.int64), np.empty(len(indices), np.int32)
        vectors = np.empty((len(indices), self.hidden), self.batches[0].vectors.dtype)
        for number in np.unique(batch_numbers):
            batch, selected = self.batches[number], np.flatnonzero(batch_numbers == number)
            within = indices[selected] - (self.ends[number] - len(batch.rows))
            rows[selected], positions[selected] = batch.rows[within], batch.positions[within]
            vectors[selected] = batch.vectors[within]
        return rows, positions, vectors

    def prepare(self, progress: Progress = no_progress) -> None:
        """Compute the lengths of all vectors, which the first search needs; they take 4 bytes per vector."""
        for end, batch in zip(self.ends, self.batches, strict=True):
            _ = batch.scales
            progress(int(end), len(self))

    def rank(self, query: Array, indices: Array) -> tuple[Array, Hits]:
        """Rank some vectors by their exact cosines with a unit vector.

        Returns:
            The indices in rank order, and the hits with cosines in float64. Vectors without a direction are
            left out.
        """
        rows, positions, vectors = self.take(indices)
        # Summed row by row, so that a cosine does not depend on the other vectors, not even by rounding.
        cosines = np.clip((unit_rows(vectors) * query).sum(axis=1), -1.0, 1.0)
        order = np.lexsort((positions, rows, -cosines))
        order = order[np.isfinite(cosines[order])]
        hits = Hits(*(read_only(column[order]) for column in (rows, positions, cosines)))
        return indices[order], hits


class ExactSearch:
    """A search that compares the query with every vector; its result is exact.

    Args:
        vectors: the vectors of a layer.
        query: query vector [hidden], not all zeros.
    """

    def __init__(self, vectors: LayerVectors, query: Array) -> None:
        self._vectors, self._query = vectors, unit_vector(query, vectors.hidden)
        query32 = self._query.astype(np.float32)
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            cosines = threads.map(lambda batch: batch.scan(query32), vectors.batches)
            self._approximate = np.concatenate([np.empty(0, np.float32), *cosines])
        self._approximate[~np.isfinite(self._approximate)] = -np.inf

    def best(self, count: int) -> Hits:
        """Return the `count` nearest vectors, or all if there are fewer.

        Approximate cosines have an error of at most `error_bound`. So every vector of the result has an
        approximate cosine of at least the `count`-th largest one, minus twice the bound.
        """
        if not len(self._approximate):
            return Hits(*(np.empty(0, dtype) for dtype in (np.int64, np.int32, np.float64)))
        count = min(count, len(self._approximate))
        last = np.partition(self._approximate, -count)[-count]
        threshold = max(last - np.float32(2 * error_bound(self._vectors.hidden)), _BELOW_COSINES)
        _, hits = self._vectors.rank(self._query, np.flatnonzero(self._approximate >= threshold))
        return hits.first(count)


_BELOW_COSINES = -2.0
"""A threshold below every cosine, but above the -inf of vectors without a direction."""


def error_bound(hidden: int) -> float:
    """Return the maximum error of the float32 cosines of `ExactSearch`, for any order of summation.

    With u = 2⁻²⁴, a sum of n products is off by at most n u / (1 − n u) times the sum of their absolute
    values (Higham 2002, 3.1). For a vector and a unit vector, that sum is at most the vector's length; the
    computed length has half this relative error. Rounding of the unit vector, the square root,
    the inverse, the product and the subtraction in `ExactSearch.best` adds a few u.

    Args:
        hidden: number of components n.
    """
    rounded = (1.5 * hidden + 16) * 2.0**-24
    return rounded / (1 - rounded)


def unit_vector(vector: Array, hidden: int) -> Array:
    """Return a vector divided by its length, float64 [hidden].

    Raises:
        ShapeError: the vector does not have ``hidden`` components.
        UnavailableError: the vector is all zeros, or not finite.
    """
    if vector.shape != (hidden,):
        raise ShapeError(f"The vector has shape {vector.shape}, but must have shape ({hidden},).")
    if not np.isfinite(vector).all() or not vector.any():
        raise UnavailableError("The vector is all zeros or not finite, so its cosine is undefined.")
    unit: Array = unit_rows(vector[None])[0]
    return unit


def _open_batches(file: Path, layer: int) -> Iterator[VectorBatch]:
    try:
        # The mapping lives as long as a view of it, even after the file is closed.
        with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                yield from _select_layer(reader.get_batch(number), layer)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise StoreError(
            f"{file} cannot be read as vectors: {error}. Run the corpus again; complete shards are kept."
        ) from None


def _select_layer(batch: pa.RecordBatch, layer: int) -> Iterator[VectorBatch]:
    if any(column.null_count for column in (*batch.columns, batch["vector"].flatten())):
        raise pa.ArrowInvalid("a row, position, layer or vector component is missing")
    layers = batch["layer"].to_numpy()
    span = slice(*np.searchsorted(layers, [layer, layer + 1]).tolist())
    if span.start == span.stop:
        return
    stored = batch["vector"].slice(span.start, span.stop - span.start)
    vectors = stored.flatten().to_numpy().reshape(-1, stored.type.list_size)
    yield VectorBatch(batch["row"].to_numpy()[span], batch["position"].to_numpy()[span], vectors)
