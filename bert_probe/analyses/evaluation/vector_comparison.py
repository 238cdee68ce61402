"""Comparisons of sentence vectors without labels: fewer dimensions, smaller data types, and two models."""

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
from bert_probe.model.lengths import check_list
from bert_probe.model.progress import Progress, final_progress, no_progress
from bert_probe.model.sentence_modules import SentenceModel
from bert_probe.model.trace import Array, read_only

FLOAT32, INT8, BINARY = "float32", "int8", "binary"
MIN_SENTENCES = 3
"""Minimum number of sentences: two sentences form only one pair, for which no correlation is defined."""


@dataclass(frozen=True)
class VectorFormat:
    """A storage format for vectors.

    Attributes:
        dimensions: number of dimensions to which vectors are truncated.
        precision: data type of the stored values: "float32", "int8" or "binary" (1 bit).
    """

    dimensions: int
    precision: str = FLOAT32

    @property
    def bytes_per_vector(self) -> int:
        """Size of a vector in bytes."""
        bits = {FLOAT32: 32, INT8: 8, BINARY: 1}[self.precision]
        return -(-self.dimensions * bits // 8)

    def similarity(self, similarity: str) -> str:
        """Return the similarity measure for this format: "dot" for binary, otherwise ``similarity``.

        The dot product of sign vectors is their cosine times `dimensions`, and is exact, so equal Hamming
        distances are ties.
        """
        return "dot" if self.precision == BINARY else similarity

    def convert(self, vectors: Array, reference: Array | None = None) -> Array:
        """Return vectors encoded in this format and decoded again, shape [text, `dimensions`].

        - int8: each value is quantized to one of 256 levels between the minimum and the maximum of its
          dimension in the reference, as in `quantize_embeddings` of sentence-transformers. Values outside
          this range are clipped. A level is decoded as its midpoint.
        - binary: the sign, 1 for values above 0 and −1 otherwise. The cosine of two sign vectors is
          1 − 2 · Hamming distance ÷ dimensions.

        Args:
            vectors: the vectors to encode, [text, dimension].
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
        model: the checkpoint's sentence-transformers modules, if any; the numbers of dimensions include the
            Matryoshka dimensions for which it was trained.
    """
    trained: Sequence[int] = () if model is None else model.trained_dimensions
    for dimensions in offered_dimensions(size, None, [number for number in trained if number <= size]):
        yield VectorFormat(dimensions)
    yield from (VectorFormat(size, precision) for precision in (INT8, BINARY))


NEIGHBORS = 10
"""Number of nearest neighbors of each text that are compared."""
MAX_TEXTS = 20_000
"""Maximum number of texts that are compared with each other; further texts are ignored."""
_BLOCK_NUMBERS = 4_000_000


@dataclass(frozen=True, eq=False)
class VectorComparison:
    """Agreement of two models on the nearest neighbors of the same texts.

    Attributes:
        overlap: share of the nearest neighbors of each text in which both models agree, [text], 0 to 1.
        mutual_overlap: number of mutual neighbors of each text in both models, divided by the number in at
            least one model, [text], 0 to 1; NaN for a text without mutual neighbors. Two texts are mutual
            neighbors if each is among the nearest neighbors of the other.
        cka: linear CKA of the vectors, 0 to 1; NaN if all vectors of a model are equal.
        neighbors: number of nearest neighbors that are compared for each text.
        texts: the compared texts.
        first, second: indices of the nearest neighbors in each model, nearest first, [text, neighbor].
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
        """Indices of the texts, [text], sorted by ascending overlap."""
        return np.argsort(self.overlap, kind="stable")

    def changed_neighbors(self) -> pd.DataFrame:
        """Return a table with one row per text, sorted by ascending overlap: text, overlap, lost, gained.

        ``lost`` is the nearest neighbor in the first model that is not a neighbor in the second model.
        ``gained`` is the nearest neighbor in the second model that is not a neighbor in the first model. If
        there is no such neighbor, the value is "".
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
        """Return a table with one row per measure: measure, value, low, high, note.

        The bootstrap resamples the texts, but does not recompute their neighbors; low and high are the bounds
        of the 95% interval.
        """
        rows = []
        for name, values in (
            (f"overlap of the {self.neighbors} nearest neighbors", self.overlap),
            (f"overlap of mutual neighbors among the {self.neighbors} nearest", self.mutual_overlap),
        ):
            defined = values[~np.isnan(values)]
            bounds = interval(bootstrap_means(defined)) if len(defined) else (np.nan, np.nan)
            rows.append((name, defined.mean() if len(defined) else np.nan, *bounds, ""))
        note = "CKA has no bootstrap interval, because repeated texts change CKA"
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
    """Compare the nearest neighbors of the same texts in the vectors of two models.

    Args:
        a, b: vectors of each model, [text, dimension]; the numbers of dimensions may differ.
        similarity_a, similarity_b: name of each model's similarity function.
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
    """Yield the indices of the nearest neighbors of each row, in blocks of shape [row, count].

    A row is not its own neighbor. Ties keep their order.
    """
    block = max(1, _BLOCK_NUMBERS // len(vectors))
    for start in range(0, len(vectors), block):
        progress(start, len(vectors))
        rows = np.arange(start, min(start + block, len(vectors)))
        values = scores(vectors[rows], vectors, similarity)
        values = np.where(np.isnan(values), -np.inf, values)
        values[np.arange(len(rows)), rows] = -np.inf
        order = np.argsort(-values, axis=1, kind="stable")
        # Remove the row itself by its index, because it may be tied with rows whose score is undefined.
        yield np.stack(
            [part[part != row][:count] for part, row in zip(order[:, : count + 1], rows, strict=True)]
        )


def _mutual_pairs(neighbors: Array) -> set[tuple[int, int]]:
    """Return the pairs of rows that are among each other's neighbors, with the smaller index first.

    Args:
        neighbors: indices of the neighbors of each row, [row, neighbor].
    """
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
    """Correlation of similarity scores before and after sentence vectors are truncated.

    Truncation changes the scores little if the model was trained with Matryoshka representation learning
    (Kusupati et al. 2022). The correlation is measured on unlabeled sentences. With labeled data, the option
    curve of `SimilarityEvaluation`, `RetrievalEvaluation` and `LabelEvaluation` measures the quality of
    truncated vectors directly, and also that of int8 and binary vectors.

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

        For the arguments and further errors, see `Sentences.of`.

        Raises:
            UnavailableError: there are fewer than three sentences, or the model is a sparse encoder, whose
                dimensions are the words of the vocabulary.
        """
        is_own = self.pooling == "model"
        model = sentence_model(checkpoint) if is_own else None
        if model is not None and model.is_sparse:
            raise UnavailableError(
                "The dimensions of this SparseEncoder are the tokens of the vocabulary, so vectors cannot be "
                "truncated. Choose another pooling."
            )
        check_list(sentences, "sentence")
        sentences = list(sentences)
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
    """Return the agreement of truncated vectors with the full vectors for each number of dimensions.

    The result is three arrays of shape [size]: Pearson's and Spearman's correlation of the scores of the
    pairs that `pair_indices` returns, and the share of vectors with the same nearest neighbor.
    """
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
        # The correlation is undefined for constant scores.
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
        sizes: the numbers of dimensions, ascending; the last is that of the full vectors.
        trained: numbers of dimensions for which the model was trained, according to its files.
        recipe: the pooling configuration of the full vectors.
        pearson, spearman: correlation of the scores of all pairs of sentences, or of 200,000 random pairs,
            with the scores of the full vectors, shape [size], −1 to 1; NaN if undefined.
        same_neighbor: share of the sentences with the same nearest neighbor as with the full vectors, among
            those whose neighbor is defined, shape [size], 0 to 1; NaN if there are none.
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
        """A sentence that gives the agreement after truncation to at most half of the dimensions."""
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
        """Return a table with one row per entry of `sizes`: dimensions, pearson, spearman, same_neighbor."""
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
