"""An approximate nearest neighbor index over a layer's vectors, for stores too large for exact search.

The index is an inverted file (IVF; Sivic and Zisserman 2003). The number of its lists is about the square
root of the number of vectors. Each list has a centroid, and its vectors are quantized to 8 bits per
component. A search probes the lists with the nearest centroids, and reranks their candidates by exact
cosines. The number of probed lists is chosen so that the ten nearest neighbors of sampled vectors are found
with high recall; the reported recall is measured on other vectors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import psutil
import pyarrow as pa
import torch

from bert_probe.analyses.vectors.similarity import unit_rows
from bert_probe.core import extras
from bert_probe.corpus.schema import read_bytes
from bert_probe.corpus.store import atomic_path, check_no_link, write_json
from bert_probe.errors import OutOfMemoryError, ShapeError, StoreError, UnavailableError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only, tensor_view

if TYPE_CHECKING:
    import faiss


RECALL_COUNT = 10
"""Number of nearest neighbors for which recall is measured (the k of recall@k)."""

_QUERIES = 100
"""Number of vectors sampled to choose the number of probes, and of vectors sampled to measure the recall."""
_TARGET_RECALL = 0.98
"""The number of probes is doubled until the recall reaches this value."""
_SAMPLES_PER_LIST = 64
"""Number of vectors per list from which the centroids are trained."""
_MIN_PROBES = 8
_SEED = 0
_INDEX_ENDING, _METADATA_ENDING = ".faiss", ".json"
_DIGITS = 16  # number of hexadecimal digits of the store's digest in a file name


@dataclass(frozen=True)
class IndexMetadata:
    """The content of the JSON file next to an index.

    Attributes:
        digest: the digest of the store that the index was built from.
        layer: layer of the vectors; 0 is the output of the embeddings.
        vectors: number of indexed vectors; zero and non-finite vectors are left out.
        lists: number of lists.
        probes: number of lists that a search probes.
        recall: mean recall of the ten nearest neighbors, 0 to 1.
        recall_of: number of vectors on which the recall was measured.
        bytes: size of the index file in bytes.
        sha256: SHA-256 of the index file.
    """

    digest: str
    layer: int
    vectors: int
    lists: int
    probes: int
    recall: float
    recall_of: int
    bytes: int
    sha256: str


class VectorIndex:
    """A memory-mapped approximate index over the vectors of one layer.

    Attributes:
        metadata: description of the index, see `IndexMetadata`.
    """

    def __init__(
        self, file: MappedFile, lists: faiss.IndexIVF, metadata: IndexMetadata, vectors: LayerVectors
    ) -> None:
        self._file, self._lists, self.metadata, self._vectors = file, lists, metadata, vectors

    @classmethod
    def of(
        cls, folder: Path, digest: str, layer: int, vectors: LayerVectors, progress: Progress = no_progress
    ) -> Self:
        """Open the index of a store's layer, or build it if it is missing or outdated.

        Args:
            folder: the folder of the store's indexes.
            digest: the digest of the store. An index with another digest is outdated, and is rebuilt.
            layer: layer of the vectors; 0 is the output of the embeddings.
            vectors: the vectors of this layer.
            progress: called with the number of processed vectors and their total while the index is built.

        Raises:
            UnavailableError: faiss is not installed.
            StoreError: the folder cannot be written, or the index is broken.
            OutOfMemoryError: there is not enough memory to build the index.
        """
        _faiss()
        file = folder / f"{layer:02}-{digest[:_DIGITS]}{_INDEX_ENDING}"
        metadata = _read_metadata(file)
        if metadata is None or (metadata.digest, metadata.layer) != (digest, layer):
            check_no_link(folder)
            try:
                metadata = _build(file, digest, layer, vectors, progress)
            except OSError as error:
                raise StoreError(
                    f"{folder} cannot be written: {error.strerror or error}. A store of this size is "
                    "searched with an index, which is saved in this folder. Free some space, or use the "
                    "option exact, which needs no index."
                ) from None
        return cls(MappedFile.of(file), _open_index(file), metadata, vectors)

    def search(self, query: Array) -> Callable[[int], Hits]:
        """Return a function of k that returns at most k approximate nearest neighbors of the query vector."""
        unit = unit_vector(query, self._vectors.hidden)
        return lambda count: self._best(unit, count)

    def _best(self, unit: Array, count: int) -> Hits:
        """Return the `count` nearest candidates. Probe more lists if the lists contain too few vectors."""
        probes = self.metadata.probes
        while True:
            self._file.check()
            candidates = _candidates(self._lists, unit, 4 * count + 100, probes)
            if len(candidates) >= min(count, self.metadata.vectors) or probes >= self.metadata.lists:
                break
            probes *= 4
        _, hits = self._vectors.rank(unit, candidates)
        return hits.first(count)


def _candidates(lists: faiss.IndexIVF, unit: Array, count: int, probes: int) -> Array:
    """Search `probes` lists of a quantized index; return the indices of the neighbors nearest to `unit`."""
    parameters = _faiss().SearchParametersIVF(nprobe=min(probes, lists.nlist))
    _, labels = lists.search(unit[None].astype(np.float32), min(count, lists.ntotal), params=parameters)
    candidates: Array = labels[0][labels[0] >= 0]
    return candidates


def _build(file: Path, digest: str, layer: int, vectors: LayerVectors, progress: Progress) -> IndexMetadata:
    """Build the index of a layer, replace its file atomically, and remove outdated indexes of the layer."""
    _check_memory(vectors)
    vectors.prepare()
    total = 2 * len(vectors)
    with atomic_path(file) as path:
        lists = _train(vectors)
        for indices, units in _unit_blocks(vectors):
            lists.add_with_ids(units, indices)
            progress(int(indices[-1]) + 1, total)
        _faiss().write_index(lists, str(path))
        lists = _open_index(path)
        probes, recall, queries = _tune(lists, vectors, lambda done, _: progress(len(vectors) + done, total))
        size, sha256 = path.stat().st_size, _sha256(path)
        metadata = IndexMetadata(
            digest, layer, lists.ntotal, lists.nlist, probes, recall, queries, size, sha256
        )
    write_json(file.with_suffix(_METADATA_ENDING), asdict(metadata))
    for path in file.parent.glob(f"{layer:02}-{'[0-9a-f]' * _DIGITS}.*"):
        if path.stem != file.stem and path.suffix in (_INDEX_ENDING, _METADATA_ENDING):
            path.unlink(missing_ok=True)
    return metadata


def _read_metadata(file: Path) -> IndexMetadata | None:
    """Return the metadata of an index, or None if the index is incomplete.

    The metadata file is written after the index file. The index is incomplete if the metadata file is missing
    or invalid, or states a different size of the index file.
    """
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError, StoreError):
        metadata = IndexMetadata(**json.loads(read_bytes(file.with_suffix(_METADATA_ENDING))))
        is_complete = file.is_file() and file.stat().st_size == metadata.bytes
        if is_complete and metadata.probes > 0:  # a search multiplies the number of probes
            return metadata
    return None


def index_files(folder: Path) -> list[Path]:
    """Return the index files in a folder, sorted by name."""
    return sorted(folder.glob(f"*{_INDEX_ENDING}"))


def problem(file: Path) -> str:
    """Return a phrase that describes what is wrong with an index file; "" if it is valid."""
    metadata = _read_metadata(file)
    if metadata is None:
        return "does not match the description in its metadata"
    return "" if _sha256(file) == metadata.sha256 else "was changed: its SHA-256 differs"


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _open_index(file: Path) -> faiss.IndexIVF:
    library = _faiss()
    try:
        lists: faiss.IndexIVF = library.read_index(str(file), library.IO_FLAG_MMAP)
    except RuntimeError:
        raise StoreError(f"{file} is broken. Delete this file; the index will be rebuilt.") from None
    # By default, faiss starts 32 prefetch threads, which takes longer than the search itself.
    library.downcast_InvertedLists(lists.invlists).prefetch_nthread = 0
    return lists


def _check_memory(vectors: LayerVectors) -> None:
    """Check that there is enough free memory to build an index.

    An index takes 1 byte per component and 8 bytes per vector. While it grows, it takes twice this size.
    """
    needed, free = 2 * len(vectors) * (vectors.hidden + 8), psutil.virtual_memory().available
    if needed > free:
        raise OutOfMemoryError(
            f"Building an index of {len(vectors):,} vectors needs {needed / 1e9:.1f} GB of memory, but only "
            f"{free / 1e9:.1f} GB are available. Free some memory, or use the option exact, which needs no "
            "index."
        )


def _train(vectors: LayerVectors) -> faiss.IndexIVF:
    """Return an empty index whose centroids are trained on a sample of the vectors."""
    library = _faiss()
    count = max(1, 2 ** round(np.log2(len(vectors)) / 2))
    sample = _sample(vectors, _SAMPLES_PER_LIST * count)
    units = unit_rows(vectors.take(sample)[2]).astype(np.float32)
    quantizer = library.ScalarQuantizer.QT_8bit
    lists: faiss.IndexIVF = library.IndexIVFScalarQuantizer(
        library.IndexFlatIP(vectors.hidden),
        vectors.hidden,
        min(count, len(sample)),
        quantizer,
        library.METRIC_INNER_PRODUCT,
    )
    lists.cp.min_points_per_centroid = 1  # prevents warnings for the small indexes in tests
    lists.train(units)
    return lists


def _unit_blocks(vectors: LayerVectors) -> Iterator[tuple[Array, Array]]:
    """Yield (indices, float32 unit vectors) for each block; skip zero and non-finite vectors."""
    for end, batch in zip(vectors.ends, vectors.batches, strict=True):
        for indices, units in batch.units():
            if len(indices):
                yield indices + end - len(batch.rows), units


def _sample(vectors: LayerVectors, count: int) -> Array:
    """Return sorted indices of at most `count` finite nonzero vectors, sampled with a fixed seed."""
    scales = np.concatenate([batch.scales for batch in vectors.batches])
    valid = np.flatnonzero(np.isfinite(scales))
    sample = np.random.default_rng(_SEED).choice(valid, min(count, len(valid)), replace=False)
    return np.sort(sample)


def _tune(lists: faiss.IndexIVF, vectors: LayerVectors, progress: Progress) -> tuple[int, float, int]:
    """Choose the number of lists that a search probes, and measure the recall of such searches.

    The recall is the share of the ten nearest neighbors of a sampled vector that the index finds. The number
    of probes is chosen on the first half of the sample, and the recall is measured on the second half.

    Returns:
        The number of probes, the recall, and the number of vectors on which the recall was measured.
    """
    sample = np.random.default_rng(_SEED).permutation(_sample(vectors, 2 * _QUERIES))
    queries = unit_rows(vectors.take(sample)[2])
    neighbors = _exact_neighbors(vectors, sample, queries, progress)

    def recall(probes: int, selection: slice) -> float:
        return float(np.mean([query_recall(probes, i) for i in range(len(sample))[selection]]))

    def query_recall(probes: int, i: int) -> float:
        candidates = _candidates(lists, queries[i], 4 * (RECALL_COUNT + 1) + 100, probes)
        ranking, _ = vectors.rank(queries[i], candidates[candidates != sample[i]])
        return float(np.isin(neighbors[i], ranking[:RECALL_COUNT]).mean())

    half, probes = len(sample) // 2, min(_MIN_PROBES, lists.nlist)
    while probes < lists.nlist and recall(probes, slice(half)) < _TARGET_RECALL:
        probes *= 2
    return probes, recall(probes, slice(half, None)), len(sample) - half


def _exact_neighbors(vectors: LayerVectors, sample: Array, queries: Array, progress: Progress) -> Array:
    """Return the indices of the ten vectors nearest to each sampled vector, with shape [query, neighbor].

    All vectors are compared in float32, and the best candidates are then ranked in float64.
    """
    count = min(4 * RECALL_COUNT, len(vectors))
    transposed = queries.T.astype(np.float32)
    best_cosines = np.full((count, len(sample)), -np.inf, np.float32)
    best = np.zeros((count, len(sample)), np.int64)
    for indices, units in _unit_blocks(vectors):
        cosines = np.concatenate([best_cosines, units @ transposed])
        block = np.broadcast_to(indices[:, None], (len(indices), len(sample)))
        candidates = np.concatenate([best, block])
        order = np.argpartition(-cosines, count - 1, axis=0)[:count]
        best_cosines = np.take_along_axis(cosines, order, axis=0)
        best = np.take_along_axis(candidates, order, axis=0)
        progress(int(indices[-1]) + 1, len(vectors))
    neighbors = []
    for query, index, candidates in zip(queries, sample, best.T, strict=True):
        ranking, _ = vectors.rank(query, candidates[candidates != index])
        neighbors.append(ranking[:RECALL_COUNT])
    return np.stack(neighbors)


def _faiss() -> Any:
    """Import and return faiss, an optional dependency that only large stores need."""
    extras.require("faiss", "use the option exact, which compares the query with every vector")
    import faiss

    return faiss


_MIN_LENGTH, _MAX_LENGTH = 1e-15, 1e15
"""Supported range of vector norms. The squares of other norms overflow or underflow in float32, so vectors
with such norms are treated like zero vectors. Models do not produce such vectors."""

_BLOCK = 512
"""Number of vectors in a block. A block takes about 0.8 MB, so that it fits in the CPU cache."""


@dataclass(frozen=True, eq=False)
class Hits:
    """The nearest neighbors of a vector, nearest first; ties are in the order of the store.

    Attributes:
        rows: row number of each neighbor, from 1.
        positions: position of each neighbor in its row, from 1.
        cosines: cosine similarity of each neighbor, float64.
    """

    rows: Array
    positions: Array
    cosines: Array

    def __len__(self) -> int:
        return len(self.rows)

    def first(self, count: int) -> Hits:
        """Return the first `count` hits, which are the nearest."""
        return Hits(self.rows[:count], self.positions[:count], self.cosines[:count])


@dataclass(frozen=True)
class MappedFile:
    """A memory-mapped file.

    If the file is truncated, the operating system kills a process that reads beyond its end.

    Attributes:
        path: the file.
        inode, size: inode and size in bytes of the file at the time of mapping.
    """

    path: Path
    inode: int
    size: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Record the inode and the size of a file, before the file is mapped."""
        status = path.stat()
        return cls(path, status.st_ino, status.st_size)

    def check(self) -> None:
        """Check that the file was not truncated; call this method before each access.

        The mapping remains valid if the path was deleted or replaced by another file.

        Raises:
            StoreError: the file became smaller.
        """
        try:
            status = self.path.stat()
        except OSError:
            return
        if status.st_ino == self.inode and status.st_size < self.size:
            raise StoreError(
                f"{self.path} became smaller while it was open ({status.st_size:,} instead of "
                f"{self.size:,} bytes). Restore the file, or build the store again, and then open the "
                "store again."
            )


@dataclass(frozen=True, eq=False)
class VectorBatch:
    """The vectors of a layer in one record batch of an Arrow file, as views of the memory-mapped file.

    Attributes:
        file: the file, which is checked before each access.
        rows: row number of each vector, from 1.
        positions: position of each vector in its row, from 1.
        vectors: the vectors, float32 or float16 of shape [vector, hidden].
    """

    file: MappedFile
    rows: Array
    positions: Array
    vectors: Array

    @cached_property
    def scales(self) -> Array:
        """Reciprocal L2 norm of each vector, float32; NaN if the vector is zero or not finite."""
        squares = np.concatenate([np.einsum("ij,ij->i", block, block) for block in self._blocks()])
        lengths = np.sqrt(squares)
        is_valid = (lengths > _MIN_LENGTH) & (lengths < _MAX_LENGTH)
        scales: Array = np.divide(np.float32(1), lengths, out=np.full_like(lengths, np.nan), where=is_valid)
        return scales

    def units(self) -> Iterator[tuple[Array, Array]]:
        """Yield (0-based indices, float32 unit vectors) for each block; skip zero and non-finite vectors."""
        start = 0
        for block in self._blocks():
            scales = self.scales[start : start + len(block)]
            valid = np.flatnonzero(np.isfinite(scales))
            yield start + valid, block[valid] * scales[valid, None]
            start += len(block)

    def scan(self, query: Array) -> Array:
        """Return the float32 cosine of each vector with a unit vector; see `error_bound` for its error."""
        # Use einsum, because the threads of BLAS and torch would wait for each other on a busy machine.
        cosines = np.concatenate([np.einsum("ij,j->i", block, query) for block in self._blocks()])
        cosines *= self.scales
        return cosines

    def _blocks(self) -> Iterator[Array]:
        """Yield the vectors in blocks, as float32 arrays. Vectors stored in float32 are not copied."""
        for start in range(0, len(self.rows), _BLOCK):
            self.file.check()
            block = self.vectors[start : start + _BLOCK]
            # torch converts float16 five times as fast as NumPy.
            yield block if block.dtype == np.float32 else tensor_view(block).float().numpy()


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
        """Return the row numbers, positions and vectors at `indices`, which may be in any order."""
        batch_numbers = np.searchsorted(self.ends, indices, side="right")
        rows, positions = np.empty(len(indices), np.int64), np.empty(len(indices), np.int32)
        vectors = np.empty((len(indices), self.hidden), self.batches[0].vectors.dtype)
        for number in np.unique(batch_numbers):
            batch, selected = self.batches[number], np.flatnonzero(batch_numbers == number)
            within = indices[selected] - (self.ends[number] - len(batch.rows))
            batch.file.check()
            rows[selected], positions[selected] = batch.rows[within], batch.positions[within]
            vectors[selected] = batch.vectors[within]
        return rows, positions, vectors

    def prepare(self, progress: Progress = no_progress) -> None:
        """Compute and cache the norms of all vectors, which the first search would otherwise compute.

        The norms take 4 bytes per vector.
        """
        for end, batch in zip(self.ends, self.batches, strict=True):
            _ = batch.scales
            progress(int(end), len(self))

    def rank(self, query: Array, indices: Array) -> tuple[Array, Hits]:
        """Rank the vectors at `indices` by their exact cosines with the unit vector `query`.

        Returns:
            The indices of the vectors in rank order, and the vectors as hits with float64 cosines. Zero and
            non-finite vectors are left out.
        """
        rows, positions, vectors = self.take(indices)
        # Sum each row separately: in a matrix product, rounding may depend on the number of rows.
        cosines = np.clip((unit_rows(vectors) * query).sum(axis=1), -1.0, 1.0)
        order = np.lexsort((positions, rows, -cosines))
        order = order[np.isfinite(cosines[order])]
        hits = Hits(*(read_only(column[order]) for column in (rows, positions, cosines)))
        return indices[order], hits


class ExactSearch:
    """An exact search, which compares the query with every vector.

    Args:
        vectors: the vectors of a layer.
        query: the query vector, which must not be all zeros.
    """

    def __init__(self, vectors: LayerVectors, query: Array) -> None:
        self._vectors, self._query = vectors, unit_vector(query, vectors.hidden)
        query32 = self._query.astype(np.float32)
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            cosines = threads.map(lambda batch: batch.scan(query32), vectors.batches)
            self._approximate = np.concatenate([np.empty(0, np.float32), *cosines])
        self._approximate[~np.isfinite(self._approximate)] = -np.inf

    def best(self, count: int) -> Hits:
        """Return the `count` nearest vectors with exact cosines, or all finite nonzero vectors if fewer.

        Only vectors whose approximate cosine is at least the `count`-th largest one minus `2 * error_bound`
        are ranked by their exact cosines. This suffices, because the error of an approximate cosine is at
        most `error_bound`.
        """
        if not len(self._approximate):
            return Hits(*(np.empty(0, dtype) for dtype in (np.int64, np.int32, np.float64)))
        count = min(count, len(self._approximate))
        last = np.partition(self._approximate, -count)[-count]
        threshold = max(last - np.float32(2 * error_bound(self._vectors.hidden)), _BELOW_COSINES)
        _, hits = self._vectors.rank(self._query, np.flatnonzero(self._approximate >= threshold))
        return hits.first(count)


_BELOW_COSINES = -2.0
"""A threshold below every cosine that excludes zero and non-finite vectors, whose cosine is set to -inf."""


def error_bound(hidden: int) -> float:
    """Return an upper bound on the error of the float32 cosines in `ExactSearch`, for any summation order.

    With u = 2⁻²⁴, the error of a sum of n products is at most n u / (1 − n u) times the sum of their absolute
    values (Higham 2002, 3.1). For a vector and a unit vector, that sum is at most the vector's norm, and
    the computed norm has half this relative error. Rounding of the unit vector, the square root, the
    inverse, the product and the subtraction in `ExactSearch.best` adds a few u.

    Args:
        hidden: number of components n.
    """
    rounded = (1.5 * hidden + 16) * 2.0**-24
    return rounded / (1 - rounded)


def unit_vector(vector: Array, hidden: int) -> Array:
    """Return a vector divided by its L2 norm, in float64.

    Raises:
        ShapeError: the vector does not have ``hidden`` components.
        UnavailableError: the vector is all zeros, or not finite.
    """
    if vector.shape != (hidden,):
        raise ShapeError(f"The vector must have shape ({hidden},), not {vector.shape}.")
    if not np.isfinite(vector).all() or not vector.any():
        raise UnavailableError(
            "The vector is all zeros or not finite, so cosines with this vector are undefined."
        )
    unit: Array = unit_rows(vector[None])[0]
    return unit


def _open_batches(file: Path, layer: int) -> Iterator[VectorBatch]:
    try:
        mapped = MappedFile.of(file)
        # The memory mapping remains valid after the file is closed, as long as views of it exist.
        with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                mapped.check()
                yield from _select_layer(mapped, reader.get_batch(number), layer)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise StoreError(
            f"{file} cannot be read as vectors: {error}. Start the run again; complete shards are kept."
        ) from None


def _select_layer(file: MappedFile, batch: pa.RecordBatch, layer: int) -> Iterator[VectorBatch]:
    if any(column.null_count for column in (*batch.columns, batch["vector"].flatten())):
        raise pa.ArrowInvalid("a row, position, layer or vector component is missing")
    layers = batch["layer"].to_numpy()
    span = slice(*np.searchsorted(layers, [layer, layer + 1]).tolist())
    if span.start == span.stop:
        return
    stored = batch["vector"].slice(span.start, span.stop - span.start)
    vectors = stored.flatten().to_numpy().reshape(-1, stored.type.list_size)
    yield VectorBatch(file, batch["row"].to_numpy()[span], batch["position"].to_numpy()[span], vectors)
