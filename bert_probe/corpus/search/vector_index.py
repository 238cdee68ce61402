"""An index of a layer's vectors, for stores that are too large to look at every vector of.

Vectors are put into as many lists as the root of their number, each into that of the nearest of as many
centres (IVF; Sivic and Zisserman 2003), as 8 bits a number; a search looks at the lists whose centres are
nearest, and what it brings is ordered anew by the exact cosines. How many lists is chosen by what is found of
the ten truly nearest, for some vectors of the store itself; what is said of it is measured with others.
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
from bert_probe.corpus.manifest import read_bytes
from bert_probe.corpus.search.neighbors import Hits, LayerVectors, direction
from bert_probe.corpus.store import beside, write_json
from bert_probe.errors import OutOfMemoryError, StoreError, UnavailableError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array

if TYPE_CHECKING:
    import faiss

RECALLED = 10
"""Of so many of the nearest it is counted how many an index finds."""

_QUERIES = 100
"""Vectors that choose how many lists are searched, and as many others that the recall is stated of."""
_ENOUGH = 0.98
"""Recall at which no more lists are added."""
_SAMPLE = 64
"""Vectors a list from which the centres are made."""
_SEED = 0


@dataclass(frozen=True)
class IndexMetadata:
    """What is written beside an index.

    Attributes:
        digest: of the store that it was made of.
        layer: from 0, which is the output of the embeddings.
        vectors: how many it holds: those that have a direction.
        lists, probes: how many lists there are, and are searched.
        recall: share of the ten nearest that are found, and of how many vectors of the store it is the mean.
        bytes: of its file.
        sha256: of its file.
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
    """An index in a file, whose lists are read where they lie.

    Attributes:
        about: what is said of it.
    """

    def __init__(self, lists: faiss.IndexIVF, about: IndexMetadata, vectors: LayerVectors) -> None:
        self._lists, self.about, self._vectors = lists, about, vectors

    @classmethod
    def of(
        cls, folder: Path, digest: str, layer: int, vectors: LayerVectors, report: Progress = no_progress
    ) -> Self:
        """The index of a store's layer: the one that is there, or a new one.

        Args:
            folder: where indexes of the store lie.
            digest: of the store; an index of another state of it is made anew.

        Raises:
            UnavailableError: the library that makes it is not there.
            StoreError: the folder cannot be written, or holds a broken index.
        """
        _faiss()
        file = folder / f"{layer:02}-{digest[:16]}{_LISTS}"
        about = _said(file)
        if about is None or (about.digest, about.layer) != (digest, layer):
            try:
                about = _made(file, digest, layer, vectors, report)
            except OSError as error:
                raise StoreError(
                    f"{folder} cannot be written: {error.strerror or error}. An index is needed for so many "
                    "vectors; make room, or ask with exact, which looks at each of them."
                ) from None
        return cls(_read(file), about, vectors)

    def search(self, query: Array) -> Callable[[int], Hits]:
        """Called with a number, it gives as many of the nearest that are found."""
        unit = direction(query, self._vectors.hidden)
        return lambda count: self._best(unit, count)

    def _best(self, unit: Array, count: int) -> Hits:
        """Several times as many are looked at as are wanted, in more lists if need be."""
        probes = self.about.probes
        while True:
            places = _places(self._lists, unit, 4 * count + 100, probes)
            if len(places) >= min(count, self.about.vectors) or probes >= self.about.lists:
                break
            probes *= 4
        _, hits = self._vectors.exactly(unit, places)
        return hits.first(count)


def _places(lists: faiss.IndexIVF, unit: Array, count: int, probes: int) -> Array:
    """Places of vectors that seem nearest."""
    wanted = _faiss().SearchParametersIVF(nprobe=min(probes, lists.nlist))
    _, found = lists.search(unit[None].astype(np.float32), min(count, lists.ntotal), params=wanted)
    places: Array = found[0][found[0] >= 0]
    return places


def _made(file: Path, digest: str, layer: int, vectors: LayerVectors, report: Progress) -> IndexMetadata:
    """An index in its place, written whole or not at all; those of the layer that were there before go."""
    _check_room(vectors)
    vectors.prepare()
    count = 2 * len(vectors)
    with beside(file) as part:
        _write(part, vectors, lambda done, _: report(done, count))
        lists = _read(part)
        measured = _measured(lists, vectors, lambda done, _: report(len(vectors) + done, count))
        size, sha256 = part.stat().st_size, _sha256(part)
        about = IndexMetadata(digest, layer, lists.ntotal, lists.nlist, *measured, size, sha256)
    write_json(file.with_suffix(_ABOUT), asdict(about))
    for other in file.parent.glob(f"{layer:02}-*"):
        if other.stem != file.stem:
            other.unlink(missing_ok=True)
    return about


_LISTS, _ABOUT = ".faiss", ".json"


def _said(file: Path) -> IndexMetadata | None:
    """What is said of an index, which is written last; None where none is whole."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError, StoreError):
        about = IndexMetadata(**json.loads(read_bytes(file.with_suffix(_ABOUT))))
        if file.is_file() and file.stat().st_size == about.bytes:
            return about
    return None


def index_files(folder: Path) -> list[Path]:
    """Return the files of all indexes in a folder, in order."""
    return sorted(folder.glob(f"*{_LISTS}"))


def problem(file: Path) -> str:
    """Return what is wrong with the file of an index, of which every byte is read; "" if nothing is."""
    about = _said(file)
    if about is None:
        return "is not the index that its description is about"
    return "" if _sha256(file) == about.sha256 else "was changed: its SHA-256 is another"


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read(file: Path) -> faiss.IndexIVF:
    library = _faiss()
    try:
        lists: faiss.IndexIVF = library.read_index(str(file), library.IO_FLAG_MMAP)
    except RuntimeError:
        raise StoreError(f"{file} is broken. Take it away, and it is made again.") from None
    return lists


def _write(file: Path, vectors: LayerVectors, report: Progress) -> None:
    """Put all vectors into lists, in memory, and these into a file."""
    lists = _trained(vectors)
    for places, units in _units(vectors):
        lists.add_with_ids(units, places)
        report(int(places[-1]) + 1, len(vectors))
    _faiss().write_index(lists, str(file))


def _check_room(vectors: LayerVectors) -> None:
    """Refuse what memory cannot hold: a byte a number, and 8 for each vector; lists grow by doubling.

    Raises:
        OutOfMemoryError: there is less.
    """
    need, free = 2 * len(vectors) * (vectors.hidden + 8), psutil.virtual_memory().available
    if need > free:
        raise OutOfMemoryError(
            f"An index of {len(vectors):,} vectors is made in {need / 1e9:.1f} GB of memory, and "
            f"{free / 1e9:.1f} GB are free. Free some, or ask with exact, which needs no index."
        )


def _trained(vectors: LayerVectors) -> faiss.IndexIVF:
    """Lists with their centres, and nothing in them."""
    library = _faiss()
    count = max(1, 2 ** round(np.log2(len(vectors)) / 2))
    sample = _drawn(vectors, _SAMPLE * count)
    units = unit_rows(vectors.take(sample)[2]).astype(np.float32)
    centres = library.IndexFlatIP(vectors.hidden)
    kind = library.ScalarQuantizer.QT_8bit
    lists: faiss.IndexIVF = library.IndexIVFScalarQuantizer(
        centres, vectors.hidden, min(count, len(sample)), kind, library.METRIC_INNER_PRODUCT
    )
    lists.cp.min_points_per_centroid = 1  # small ones are made by tests, and said nothing of
    lists.train(units)
    return lists


def _units(vectors: LayerVectors) -> Iterator[tuple[Array, Array]]:
    """Places of the vectors that have a direction, and they of length 1 in float32, some at a time."""
    for end, part in zip(vectors.ends, vectors.parts, strict=True):
        for places, units in part.units():
            if len(places):
                yield places + end - len(part.rows), units


def _drawn(vectors: LayerVectors, count: int) -> Array:
    """So many places of vectors that have a direction, or all, in order; the same ones each time."""
    scales = np.concatenate([part.scales for part in vectors.parts])
    plain = np.flatnonzero(np.isfinite(scales))
    drawn = np.random.default_rng(_SEED).choice(plain, min(count, len(plain)), replace=False)
    return np.sort(drawn)


def _measured(lists: faiss.IndexIVF, vectors: LayerVectors, report: Progress) -> tuple[int, float, int]:
    """How many lists are to be searched, the recall then, and of how many vectors that is the mean.

    A vector is asked for the ten others that are nearest to it; the first half of the vectors chooses.
    """
    places = np.random.default_rng(_SEED).permutation(_drawn(vectors, 2 * _QUERIES))
    queries = unit_rows(vectors.take(places)[2])
    true = _nearest(vectors, places, queries, report)

    def recall(probes: int, some: slice) -> float:
        return float(np.mean([found(probes, one) for one in range(len(places))[some]]))

    def found(probes: int, one: int) -> float:
        seen = _places(lists, queries[one], 4 * (RECALLED + 1) + 100, probes)
        order, _ = vectors.exactly(queries[one], seen[seen != places[one]])
        return float(np.isin(true[one], order[:RECALLED]).mean())

    half, probes = len(places) // 2, min(_FEWEST, lists.nlist)
    while probes < lists.nlist and recall(probes, slice(half)) < _ENOUGH:
        probes *= 2
    return probes, recall(probes, slice(half, None)), len(places) - half


_FEWEST = 8
"""Lists that are searched at least."""


def _nearest(vectors: LayerVectors, places: Array, queries: Array, report: Progress) -> Array:
    """Of each query, itself a vector of the store, the places of the ten others that are nearest.

    All vectors are looked at; a few more than ten are then compared in float64.
    """
    count = min(4 * RECALLED, len(vectors))
    given = queries.T.astype(np.float32)
    cosines = np.full((count, len(places)), -np.inf, np.float32)
    best = np.zeros((count, len(places)), np.int64)
    for here, units in _units(vectors):
        every = np.concatenate([cosines, units @ given])
        names = np.concatenate([best, np.broadcast_to(here[:, None], (len(here), len(places)))])
        order = np.argpartition(-every, count - 1, axis=0)[:count]
        cosines, best = (np.take_along_axis(one, order, axis=0) for one in (every, names))
        report(int(here[-1]) + 1, len(vectors))
    found = []
    for query, itself, seen in zip(queries, places, best.T, strict=True):
        nearest, _ = vectors.exactly(query, seen[seen != itself])
        found.append(nearest[:RECALLED])
    return np.stack(found)


def _faiss() -> Any:
    """The library, which only large stores need."""
    try:
        import faiss
    except ImportError:
        raise UnavailableError(
            "So many vectors are searched with faiss, which is not installed. Install it with "
            "pip install 'bert-probe[index]', or ask with exact, which looks at each vector."
        ) from None
    return faiss
