"""Comparisons of sentence vectors without labels: fewer dimensions, shorter formats, and two models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.comparison.model_similarity import linear_cka
from bert_probe.analyses.evaluation.measures import bootstrap_means, interval
from bert_probe.analyses.retrieval.calibration import nearest_neighbors, pair_indices, pair_scores
from bert_probe.analyses.vectors.layouts import PointLayout, pca
from bert_probe.analyses.vectors.pooling import PROMPT_HELP, PoolingConfig, offered_dimensions, sentence_model
from bert_probe.analyses.vectors.sentences import POOLED, POOLING, Sentences
from bert_probe.analyses.vectors.similarity import scores
from bert_probe.core.field_types import Name, Optional
from bert_probe.core.inputs import SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, UnavailableError, memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, final_progress, no_progress
from bert_probe.model.sentence_modules import SentenceModel
from bert_probe.model.trace import Array, read_only

FLOAT32, INT8, BINARY = "float32", "int8", "binary"
MIN_SENTENCES = 3
"""With fewer sentences, there are fewer than two pairs to correlate."""


@dataclass(frozen=True)
class VectorFormat:
    """A storage format for vectors.

    Attributes:
        dimensions: number of dimensions; vectors are truncated to the first dimensions.
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
        """Return the similarity measure for this format: "cosine" for binary, otherwise ``similarity``."""
        return "cosine" if self.precision == BINARY else similarity

    def convert(self, vectors: Array, reference: Array | None = None) -> Array:
        """Return vectors, [text, dimension], after a round trip through this format, [text, dimensions].

        - int8: each dimension is rounded to one of 256 levels between the smallest and the largest value of
          the reference, as in `quantize_embeddings` of sentence-transformers, and read back as the middle of
          its level; values outside of this range are clipped.
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
        maps: first two principal components of the vectors of each model; None if all vectors of a model are
            equal.
    """

    overlap: Array
    mutual_overlap: Array
    cka: float
    neighbors: int
    texts: tuple[str, ...]
    first: Array
    second: Array
    maps: tuple[PointLayout, PointLayout] | None = None

    @property
    def order(self) -> Array:
        """Indices of the texts, those with the fewest common neighbors first."""
        return np.argsort(self.overlap, kind="stable")

    def changed_neighbors(self) -> pd.DataFrame:
        """Return a row per text, by ascending overlap of the neighbors: text, overlap, lost, gained.

        lost is the nearest text that is a neighbor only in the first model, and gained the nearest text that
        is a neighbor only in the second model; "" if there is none.
        """
        order = self.order
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

        The 95% intervals are computed by resampling the texts, without computing their neighbors again.
        """
        rows = []
        for name, values in (
            (f"overlap of nearest {self.neighbors}", self.overlap),
            (f"overlap of mutual nearest {self.neighbors}", self.mutual_overlap),
        ):
            defined = values[~np.isnan(values)]
            bounds = interval(bootstrap_means(defined)) if len(defined) else (np.nan, np.nan)
            rows.append((name, defined.mean() if len(defined) else np.nan, *bounds, ""))
        note = "CKA has no bootstrap interval, because repeated texts change it"
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
        progress: called with the number of texts whose neighbors have been computed, and the total.

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
        _maps(a, b),
    )


def _maps(a: Array, b: Array) -> tuple[PointLayout, PointLayout] | None:
    try:
        return pca(a), pca(b)
    except UnavailableError:
        return None


def _neighbors(
    vectors: Array, similarity: str, count: int, progress: Progress = no_progress
) -> Iterator[Array]:
    """Yield the indices of each row's nearest other rows, [row, count], in blocks. Ties keep their order."""
    block = max(1, _BLOCK_NUMBERS // len(vectors))
    for start in range(0, len(vectors), block):
        progress(start, len(vectors))
        rows = np.arange(start, min(start + block, len(vectors)))
        values = scores(vectors[rows], vectors, similarity)
        values = np.where(np.isnan(values), -np.inf, values)
        values[np.arange(len(rows)), rows] = -np.inf
        order = np.argsort(-values, axis=1, kind="stable")
        # Give the row itself an undefined score, so that it is sorted to the end.
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


@question("dimensions", command="dimensions")
class DimensionCurve(Question):
    """Agreement of similarity scores before and after vectors are truncated to their first dimensions.

    Models that were trained with Matryoshka representation learning (Kusupati et al. 2022) lose little. The
    cost is measured on unlabeled sentences, by comparison with the scores of the full vectors. With judged
    data, the option curve of `SimilarityEvaluation`, `RetrievalEvaluation` and `LabelEvaluation` measures the
    quality itself, also of int8 and binary vectors.

    Attributes:
        pooling, prompt: see `Sentences`.
    """

    inputs = SentenceList()

    pooling: str = param(POOLING, default="mean", about=POOLED)
    prompt: str | None = param(Optional(Name()), default=None, about=PROMPT_HELP)

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> DimensionCurveResult:
        """Compare the scores of all pairs of sentences at several numbers of dimensions.

        The arguments and errors are those of `Sentences.of`; also:

        Raises:
            UnavailableError: there are fewer than three sentences, or the dimensions of the vectors are the
                words of the vocabulary (a sparse encoder).
        """
        is_own = self.pooling == "model"
        model = sentence_model(checkpoint) if is_own else None
        if model is not None and model.is_sparse:
            raise UnavailableError(
                "The dimensions of this SparseEncoder are the words of the vocabulary, so vectors cannot be "
                "truncated. Choose another pooling."
            )
        if len(sentences) < MIN_SENTENCES:
            raise UnavailableError(
                f"{len(sentences)} sentences are too few for a correlation over pairs. Use at least "
                f"{MIN_SENTENCES} sentences."
            )
        full = None if model is None else model.size
        encoded = Sentences(self.pooling, prompt=self.prompt, dimensions=full).of(
            checkpoint, sentences, truncate, progress
        )
        selected, trained = (None, ()) if model is None else (model.dimensions, model.trained_dimensions)
        sizes = offered_dimensions(encoded.vectors.shape[1], selected, trained)
        final = final_progress(progress, len(sentences))
        costs = _costs(encoded.vectors, encoded.recipe.similarity, sizes, final)
        return DimensionCurveResult(
            self, encoded.inputs, len(sentences), sizes, trained, encoded.recipe, *map(read_only, costs)
        )


def _costs(
    vectors: Array, similarity: str, sizes: Sequence[int], progress: Progress = no_progress
) -> tuple[Array, Array, Array]:
    """Return Pearson's and Spearman's correlation, and the share of unchanged neighbors, for each size."""
    from scipy.stats import spearmanr  # imported here because the import is slow

    first, second = pair_indices(len(vectors))
    full = pair_scores(vectors, similarity, first, second, progress)
    neighbors, best = nearest_neighbors(vectors, similarity, progress)
    rows = []
    for size in sizes:
        part = vectors[:, :size]
        values = pair_scores(part, similarity, first, second, progress)
        is_defined = ~(np.isnan(full) | np.isnan(values))
        a, b = full[is_defined], values[is_defined]
        # The correlation with constant scores is undefined.
        is_varied = len(a) > 1 and np.ptp(a) > 0 and np.ptp(b) > 0
        pearson = np.corrcoef(a, b)[0, 1] if is_varied else np.nan
        spearman = spearmanr(a, b).statistic if is_varied else np.nan
        same = nearest_neighbors(part, similarity, progress)[0] == neighbors
        rows.append((pearson, spearman, same[~np.isnan(best)].mean() if not np.isnan(best).all() else np.nan))
    pearsons, spearmans, shares = np.array(rows).T
    return pearsons, spearmans, shares


@dataclass(frozen=True, eq=False, repr=False)
class DimensionCurveResult(Result):
    """Agreement of the scores at several numbers of dimensions with the scores of the full vectors.

    Attributes:
        count: number of sentences.
        sizes: numbers of dimensions, ascending; the last is that of the full vectors.
        trained: numbers of dimensions for which the model was trained, if its files list any.
        recipe: the pooling configuration of the full vectors.
        pearson, spearman: correlation of the scores of pairs of sentences, of shape [size], −1 to 1; NaN if
            it is undefined.
        same_neighbor: share of the sentences with the same nearest neighbor as for the full vectors, 0 to 1.
    """

    question: DimensionCurve
    inputs: InputRecord
    count: int
    sizes: tuple[int, ...]
    trained: tuple[int, ...]
    recipe: PoolingConfig
    pearson: Array
    spearman: Array
    same_neighbor: Array

    def __post_init__(self) -> None:
        for values in (self.pearson, self.spearman, self.same_neighbor):
            if values.shape != (len(self.sizes),):
                raise ShapeError(
                    f"Each measure must have shape ({len(self.sizes)},), one value per size, not "
                    f"{values.shape}."
                )

    @property
    def finding(self) -> str:
        """A sentence about the largest size that is at most half of the dimensions."""
        half = max(
            (index for index, size in enumerate(self.sizes[:-1]) if size <= self.sizes[-1] / 2), default=0
        )
        return (
            f"With {self.sizes[half]:,} of {self.sizes[-1]:,} dimensions, Spearman's correlation with the "
            f"{self.recipe.score_name} of the full vectors is {self.spearman[half]:.3f}, and "
            f"{self.same_neighbor[half]:.0%} of the {self.count:,} sentences have the same nearest neighbor."
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pooling, and the numbers of dimensions for which the model was trained."""
        return {"recipe": self.recipe.about, "trained_dimensions": list(self.trained)}

    def frame(self) -> pd.DataFrame:
        """Return one row per number of dimensions: dimensions, pearson, spearman, same_neighbor."""
        return pd.DataFrame(
            {
                "dimensions": self.sizes,
                "pearson": self.pearson,
                "spearman": self.spearman,
                "same_neighbor": self.same_neighbor,
            }
        )

    @property
    def nbytes(self) -> int:
        """Size of the table in bytes."""
        return 4 * 8 * len(self.sizes)
