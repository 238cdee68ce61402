"""An approximate nearest neighbor index over a layer's vectors, for stores too large for exact search.

The index is an inverted file (IVF; Sivic and Zisserman 2003): about as many lists as the square root of the
number of vectors, each with a centroid, and vectors quantized to 8 bits per component. A search probes the
lists with the nearest centroids, and reranks their candidates by exact cosines. The number of probed lists is
chosen by the recall of the ten nearest neighbors for sampled vectors of the store; the reported recall is
measured on other vectors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import psutil

from bert_probe.analyses.vectors.cosine import unit_rows
from bert_probe.core import extras
from bert_probe.corpus.manifest import read_bytes
from bert_probe.corpus.search.neighbors import Hits, LayerVectors, unit_vector
from bert_probe.corpus.store import atomic_path, write_json
from bert_probe.errors import OutOfMemoryError, StoreError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array

if TYPE_CHECKING:
    import faiss

RECALL_COUNT = 10
"""Number k of nearest neighbors in the measured recall@k."""

_QUERIES = 100
"""Number of vectors sampled to choose the number of probed lists; as many others measure the recall."""
_TARGET_RECALL = 0.98
"""Recall at which the number of probed lists is not increased further."""
_SAMPLES_PER_LIST = 64
"""Number of training vectors for the centroids, per list."""
_MIN_PROBES = 8
_SEED = 0
_INDEX_ENDING, _METADATA_ENDING = ".faiss", ".json"


@dataclass(frozen=True)
class IndexMetadata:
    """The content of the JSON file next to an index.

    Attributes:
        digest: the digest of the store that the index was built from.
        layer: layer of the vectors; 0 is the output of the embeddings.
        vectors: number of indexed vectors; vectors without a direction are left out.
        lists: number of lists.
        probes: number of lists that a search probes.
        recall: mean recall of the ten nearest neighbors, 0 to 1.
        recall_of: number of vectors on which the recall was measured.
        bytes: size of the index file.
        sha256: digest of the index file.
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
    """A memory-mapped index.

    Attributes:
        metadata: description of the index, see `IndexMetadata`.
    """

    def __init__(self, lists: faiss.IndexIVF, metadata: IndexMetadata, vectors: LayerVectors) -> None:
        self._lists, self.metadata, self._vectors = lists, metadata, vectors

    @classmethod
    def of(
        cls, folder: Path, digest: str, layer: int, vectors: LayerVectors, progress: Progress = no_progress
    ) -> Self:
        """Open the index of a store's layer, or build it if it is missing or outdated.

        Args:
            folder: the folder of the store's indexes.
            digest: the digest of the store; an index with another digest is outdated and rebuilt.
            layer: layer of the vectors; 0 is the output of the embeddings.
            vectors: the vectors of this layer.
            progress: called with the number of processed vectors and their total while the index is built.

        Raises:
            UnavailableError: faiss is not installed.
            StoreError: the folder cannot be written, or the index is broken.
            OutOfMemoryError: there is not enough memory to build the index.
        """
        _faiss()
        file = folder / f"{layer:02}-{digest[:16]}{_INDEX_ENDING}"
        metadata = _read_metadata(file)
        if metadata is None or (metadata.digest, metadata.layer) != (digest, layer):
            try:
                metadata = _build(file, digest, layer, vectors, progress)
            except OSError as error:
                raise StoreError(
                    f"{folder} cannot be written: {error.strerror or error}. A store of this size is "
                    "searched with an index. Free some space, or use the option exact, which needs no index."
                ) from None
        return cls(_open_index(file), metadata, vectors)

    def search(self, query: Array) -> Callable[[int], Hits]:
        """Return a function that maps a count to approximate neighbors of a query vector [hidden]."""
        unit = unit_vector(query, self._vectors.hidden)
        return lambda count: self._best(unit, count)

    def _best(self, unit: Array, count: int) -> Hits:
        """Return the `count` nearest of many candidates; probe more lists if there are too few candidates."""
        probes = self.metadata.probes
        while True:
            candidates = _candidates(self._lists, unit, 4 * count + 100, probes)
            if len(candidates) >= min(count, self.metadata.vectors) or probes >= self.metadata.lists:
                break
            probes *= 4
        _, hits = self._vectors.rank(unit, candidates)
        return hits.first(count)


def _candidates(lists: faiss.IndexIVF, unit: Array, count: int, probes: int) -> Array:
    """Return indices of vectors that are approximately nearest to a unit vector."""
    parameters = _faiss().SearchParametersIVF(nprobe=min(probes, lists.nlist))
    _, labels = lists.search(unit[None].astype(np.float32), min(count, lists.ntotal), params=parameters)
    candidates: Array = labels[0][labels[0] >= 0]
    return candidates


def _build(file: Path, digest: str, layer: int, vectors: LayerVectors, progress: Progress) -> IndexMetadata:
    """Build an index atomically, and remove outdated indexes of the layer."""
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
    for other in file.parent.glob(f"{layer:02}-*"):
        if other.stem != file.stem:
            other.unlink(missing_ok=True)
    return metadata


def _read_metadata(file: Path) -> IndexMetadata | None:
    """Return the metadata of an index, which are written last; None if the index is incomplete."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError, StoreError):
        metadata = IndexMetadata(**json.loads(read_bytes(file.with_suffix(_METADATA_ENDING))))
        if file.is_file() and file.stat().st_size == metadata.bytes:
            return metadata
    return None


def index_files(folder: Path) -> list[Path]:
    """Return the files of all indexes in a folder, in order."""
    return sorted(folder.glob(f"*{_INDEX_ENDING}"))


def problem(file: Path) -> str:
    """Return what is wrong with an index file, as a phrase after its name; "" if nothing is wrong."""
    metadata = _read_metadata(file)
    if metadata is None:
        return "does not match its description"
    return "" if _sha256(file) == metadata.sha256 else "was changed: its SHA-256 differs"


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _open_index(file: Path) -> faiss.IndexIVF:
    library = _faiss()
    try:
        lists: faiss.IndexIVF = library.read_index(str(file), library.IO_FLAG_MMAP)
    except RuntimeError:
        raise StoreError(f"{file} is broken. Delete it; it will be rebuilt.") from None
    return lists


def _check_memory(vectors: LayerVectors) -> None:
    """Check the free memory. An index needs 1 byte per component and 8 per vector, twice while it grows."""
    needed, free = 2 * len(vectors) * (vectors.hidden + 8), psutil.virtual_memory().available
    if needed > free:
        raise OutOfMemoryError(
            f"Building an index of {len(vectors):,} vectors needs {needed / 1e9:.1f} GB of memory, but "
            f"{free / 1e9:.1f} GB are free. Free some memory, or use the option exact, which needs no index."
        )


def _train(vectors: LayerVectors) -> faiss.IndexIVF:
    """Return an empty index with trained centroids."""
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
    lists.cp.min_points_per_centroid = 1  # no warnings for the small indexes of tests
    lists.train(units)
    return lists


def _unit_blocks(vectors: LayerVectors) -> Iterator[tuple[Array, Array]]:
    """Yield blocks of (indices, unit vectors in float32) of all vectors that have a direction."""
    for end, batch in zip(vectors.ends, vectors.batches, strict=True):
        for indices, units in batch.units():
            if len(indices):
                yield indices + end - len(batch.rows), units


def _sample(vectors: LayerVectors, count: int) -> Array:
    """Return sorted indices of at most `count` random vectors that have a direction; the seed is fixed."""
    scales = np.concatenate([batch.scales for batch in vectors.batches])
    valid = np.flatnonzero(np.isfinite(scales))
    sample = np.random.default_rng(_SEED).choice(valid, min(count, len(valid)), replace=False)
    return np.sort(sample)


def _tune(lists: faiss.IndexIVF, vectors: LayerVectors, progress: Progress) -> tuple[int, float, int]:
    """Choose the number of probed lists, and measure the recall.

    Each sampled vector is searched for its ten nearest neighbors. The first half of the sample chooses the
    number of probes, the second half measures the recall.

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
    """Return the ten nearest other vectors of each sampled vector, as indices [query, neighbor].

    All vectors are compared in float32; the best candidates are then ranked in float64.
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
    """Import faiss, which only large stores need."""
    extras.require("faiss", "use the option exact, which compares with every vector")
    import faiss

    return faiss
