"""Comparisons of sentence vectors without labels: shorter formats, and the neighbors of two models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.comparison.layer_similarity import linear_cka
from bert_probe.analyses.evaluation.measures import bootstrap_means, interval
from bert_probe.analyses.vectors.pooling import offered_dimensions
from bert_probe.analyses.vectors.similarity import scores
from bert_probe.errors import UnavailableError, memory_errors
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sentence_modules import SentenceModel
from bert_probe.model.trace import Array, read_only

FLOAT32, INT8, BINARY = "float32", "int8", "binary"


@dataclass(frozen=True)
class VectorFormat:
    """A storage format for vectors.

    Attributes:
        dimensions: number of dimensions; the first ones are kept.
        precision: "float32", "int8" or "binary".
    """

    dimensions: int
    precision: str = FLOAT32

    @property
    def bytes_per_vector(self) -> int:
        """Size of a vector in bytes."""
        bits = {FLOAT32: 32, INT8: 8, BINARY: 1}[self.precision]
        return -(-self.dimensions * bits // 8)

    def similarity(self, similarity: str) -> str:
        """Return the score of vectors in this format; see `convert` for binary vectors."""
        return "cosine" if self.precision == BINARY else similarity

    def convert(self, vectors: Array, reference: Array | None = None) -> Array:
        """Return vectors, [text, dimension], as they are read back from this format, [text, dimensions].

        - int8: each dimension is rounded to one of 256 levels between the smallest and the largest value of
          the reference, as `quantize_embeddings` of sentence-transformers does, and read back as the middle
          of its level; values outside are clipped.
        - binary: the sign, 1 for values above 0 and −1 otherwise. The cosine of two sign vectors is
          1 − 2 · Hamming distance ÷ dimensions.

        Args:
            reference: vectors whose range defines the levels of int8; by default, the vectors themselves.
        """
        shortened = vectors[:, : self.dimensions]
        if self.precision == BINARY:
            return np.where(shortened > 0, np.float32(1), np.float32(-1))
        if self.precision == FLOAT32:
            return shortened
        base = (vectors if reference is None else reference)[:, : self.dimensions]
        low, high = base.min(axis=0), base.max(axis=0)
        steps = (high - low) / 255
        divisors = np.where(steps > 0, steps, 1)
        codes = np.clip(np.floor((shortened - low) / divisors), 0, 255)
        decoded: Array = ((codes + 0.5) * steps + low).astype(vectors.dtype)
        return decoded


def vector_formats(size: int, model: SentenceModel | None) -> Iterator[VectorFormat]:
    """Yield the formats to compare: several numbers of dimensions, and all dimensions in int8 and binary.

    Args:
        size: number of dimensions of the full vectors.
        model: the pooling with which a checkpoint was trained, whose Matryoshka dimensions are included.
    """
    trained: Sequence[int] = () if model is None else model.trained_dimensions
    for dimensions in offered_dimensions(size, None, [number for number in trained if number <= size]):
        yield VectorFormat(dimensions)
    yield from (VectorFormat(size, precision) for precision in (INT8, BINARY))


NEIGHBORS = 10
"""Number of nearest neighbors of each text that are compared."""
MAX_TEXTS = 20_000
"""Maximum number of texts that are compared with each other; of more texts, the first are used."""
_BLOCK_NUMBERS = 4_000_000


@dataclass(frozen=True, eq=False)
class VectorComparison:
    """Agreement of two models on the neighbors of the same texts.

    Attributes:
        overlap: share of the nearest neighbors of each text that both models have, [text], 0 to 1.
        mutual_overlap: number of mutual neighbors of each text that both models have, divided by the number
            that at least one model has, [text]; NaN for a text without mutual neighbors. Two texts are mutual
            neighbors if each is among the nearest of the other.
        cka: linear CKA of the vectors, 0 to 1; NaN if all vectors of a model are equal.
        neighbors: number of nearest neighbors of each text.
        texts: the texts.
        first, second: indices of the nearest texts by each model, [text, neighbor], the nearest first.
    """

    overlap: Array
    mutual_overlap: Array
    cka: float
    neighbors: int
    texts: tuple[str, ...]
    first: Array
    second: Array

    def changed_neighbors(self) -> pd.DataFrame:
        """Return a row per text, those with the fewest common neighbors first: text, overlap, lost, gained.

        lost is the nearest text that only the first model has among its nearest neighbors, and gained the
        nearest that only the second model has; "" if there is none.
        """
        order = np.argsort(self.overlap, kind="stable")
        columns: dict[str, Any] = {
            "text": [self.texts[row] for row in order],
            "overlap": self.overlap[order],
        }
        for name, own, others in (("lost", self.first, self.second), ("gained", self.second, self.first)):
            nearest = (next((i for i in own[row] if i not in others[row]), None) for row in order)
            columns[name] = ["" if index is None else self.texts[index] for index in nearest]
        return pd.DataFrame(columns)

    def frame(self) -> pd.DataFrame:
        """Return a row per measure: measure, value, low, high, note.

        The 95% intervals come from resampling the texts, whose neighbors are not computed again.
        """
        rows = []
        for name, values in (
            (f"overlap of nearest {self.neighbors}", self.overlap),
            (f"overlap of mutual nearest {self.neighbors}", self.mutual_overlap),
        ):
            defined = values[~np.isnan(values)]
            bounds = interval(bootstrap_means(defined)) if len(defined) else (np.nan, np.nan)
            rows.append((name, defined.mean() if len(defined) else np.nan, *bounds, ""))
        note = "no interval: a repeated text changes the CKA itself"
        rows.append(("CKA", self.cka, np.nan, np.nan, note))
        return pd.DataFrame(rows, columns=["measure", "value", "low", "high", "note"])


def compare_vectors(
    a: Array,
    b: Array,
    similarity_a: str,
    similarity_b: str,
    texts: Sequence[str],
    progress: Progress = no_progress,
) -> VectorComparison:
    """Compare the vectors of two models, [text, dimension], whose numbers of dimensions may differ.

    Args:
        similarity_a, similarity_b: the score by which each model compares vectors.
        texts: the texts.
        progress: called with the number of texts of a model whose neighbors are known, and the total.

    Raises:
        UnavailableError: there are fewer than three texts.
        OutOfMemoryError: the scores need more memory than is available.
    """
    if len(a) < 3:
        raise UnavailableError(f"{len(a)} texts have too few neighbors. Use at least 3 different texts.")
    a, b = a[:MAX_TEXTS], b[:MAX_TEXTS]
    count = min(NEIGHBORS, len(a) - 1)
    with memory_errors("Comparing these texts needs more memory than is available. Use fewer texts."):
        first, second = (
            np.concatenate(list(_neighbors(vectors, similarity, count, progress)))
            for vectors, similarity in ((a, similarity_a), (b, similarity_b))
        )
    overlap = np.array([len(np.intersect1d(x, y)) for x, y in zip(first, second, strict=True)]) / count
    pairs = [_mutual_pairs(neighbors) for neighbors in (first, second)]
    return VectorComparison(
        overlap,
        _pair_overlap(pairs[0], pairs[1], len(a)),
        linear_cka(a, b),
        count,
        tuple(map(str, texts[: len(a)])),
        read_only(first),
        read_only(second),
    )


def _neighbors(
    vectors: Array, similarity: str, count: int, progress: Progress = no_progress
) -> Iterator[Array]:
    """Yield the indices of the nearest other rows, [row, count], in blocks of rows. The first of equally
    near rows come first.
    """
    block = max(1, _BLOCK_NUMBERS // len(vectors))
    for start in range(0, len(vectors), block):
        progress(start, len(vectors))
        rows = np.arange(start, min(start + block, len(vectors)))
        values = scores(vectors[rows], vectors, similarity)
        values = np.where(np.isnan(values), -np.inf, values)
        values[np.arange(len(rows)), rows] = -np.inf
        order = np.argsort(-values, axis=1, kind="stable")
        # The row itself is sorted to the end, among undefined scores.
        yield np.stack(
            [part[part != row][:count] for part, row in zip(order[:, : count + 1], rows, strict=True)]
        )


def _mutual_pairs(neighbors: Array) -> set[tuple[int, int]]:
    """Return the pairs of rows that are neighbors of each other, each with the smaller index first."""
    directed = {(row, int(other)) for row, others in enumerate(neighbors) for other in others}
    return {(a, b) for a, b in directed if a < b and (b, a) in directed}


def _pair_overlap(first: set[tuple[int, int]], second: set[tuple[int, int]], count: int) -> Array:
    shared, total = np.zeros(count), np.zeros(count)
    for pairs, target in ((first & second, shared), (first | second, total)):
        for pair in pairs:
            target[list(pair)] += 1
    overlap: Array = np.divide(shared, total, out=np.full(count, np.nan), where=total > 0)
    return overlap
