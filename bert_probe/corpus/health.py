"""Corpus health: duplicates, outliers, hubs, clusters, isotropy and intrinsic dimension of vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.retrieval.calibration import random_pair_scores, reference_sentences
from bert_probe.analyses.retrieval.scorers import search_pooling
from bert_probe.analyses.vectors.layouts import cluster, cluster_words
from bert_probe.analyses.vectors.pooling import DOCUMENT_PROMPTS, available_poolings, resolve_pooling
from bert_probe.analyses.vectors.sentences import POOLING, encode_texts
from bert_probe.analyses.vectors.similarity import iso_score, scores_of_rows
from bert_probe.core.field_types import Choice, Number, Optional
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.corpus.vector_files import VectorFile, VectorSet
from bert_probe.corpus.vector_formats import ArrayFile
from bert_probe.corpus.vector_search import SAME_VECTOR
from bert_probe.errors import EmptyTextError, SelectionError, TextError, TooLongError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.preflight import reserved_memory
from bert_probe.model.progress import Progress, final_progress, no_progress, run_cancellable
from bert_probe.model.trace import Array, read_only

TABLES = ("summary", "duplicates", "outliers", "hubs", "clusters", "spectrum", "rows")
OUTLIER_SCORE = 3.5
"""Smallest modified z-score of an outlier (Iglewicz and Hoaglin 1993)."""
HUB_FACTOR = 10
"""A row is a hub if it has more than this many times the average number of occurrences in neighbor lists."""
DUPLICATE_SHARE = 0.25
"""Maximum cosine distance of near duplicates, divided by that at `DUPLICATE_PERCENTILE` of random pairs."""
DUPLICATE_PERCENTILE = 99.9
MAX_COMPONENTS = 8192
"""Maximum number of principal components; their computation takes time cubic in this number."""
MAX_VALUE = 1e100
"""Maximum norm of a vector; the variances of longer vectors might overflow in float64."""
THRESHOLD_SOURCES = {
    "question": "",
    "model": "calibrated with reference sentences",
    "vectors": "calibrated with random pairs of these vectors",
}
"""Source of the duplicate threshold (the question, a model, or the vectors) → its description."""
_CHECKED_TEXTS = 8
"""Number of texts that are encoded again to check that the model computed the vectors."""
_BLOCK_ROWS = 4096
"""Number of rows in a block whose cosines with another block are computed at once."""
_MAX_CANDIDATES = 16
"""Maximum mean number of candidates per row; with more candidates, `topk` is faster than sorting them."""
_BLOCK_NUMBERS = 1 << 20
"""Maximum number of values that are converted to float64 at once."""
_DISCARDED = 0.1
"""TwoNN discards this share of the distance ratios, the largest ones (Facco et al. 2017)."""


@question("corpus health", command="corpus health", is_analysis=False)
class CorpusHealth(Question):
    """Find duplicates, outliers and hubs among the vectors of texts, and describe their geometry.

    Rows without a usable vector (zero or not finite) are listed but left out of all measures.

    Attributes:
        neighbors: number k of nearest neighbors, by cosine.
        threshold: minimum cosine of near duplicates. By default, the cosine distance of near duplicates is at
            most a quarter of the distance at the 99.9th percentile of the cosines of random pairs. The pairs
            consist of reference sentences if the model is known, otherwise of rows.
        pooling: pooling with which the model computed the vectors; by default, the pooling that the store or
            the model's files declare.
        min_cluster: smallest number of rows in a cluster (HDBSCAN).
        show: the table to return: measures of the whole corpus ("summary"), groups of "duplicates",
            "outliers", "hubs", "clusters", the variance of each principal component ("spectrum"), or the
            measures of all "rows".
    """

    inputs = VectorFile()

    neighbors: int = param(Number(2, 100), default=10, about="Number of nearest neighbors.")
    threshold: float | None = param(
        Optional(Number(-1, 1, integer=False)),
        default=None,
        about="Minimum cosine of two rows that count as near duplicates.",
    )
    pooling: str | None = param(
        Optional(POOLING), default=None, about="Pooling of the model that calibrates the threshold."
    )
    min_cluster: int = param(Number(2, 10_000), default=15, about="Minimum number of rows in a cluster.")
    show: str = param(
        Choice(TABLES), default="summary", display_only=True, key="health_show", about="Table to show."
    )

    def of(
        self,
        vectors: VectorSet,
        checkpoint: Checkpoint | None = None,
        progress: Progress = no_progress,
    ) -> CorpusHealthResult:
        """Measure the vectors of a set.

        Args:
            vectors: the result of `read_vectors`.
            checkpoint: the model that computed the vectors, to calibrate the threshold with it; None to
                calibrate the threshold with the vectors.
            progress: called with the number of compared pairs of blocks and the total.

        Raises:
            TextError: there are too few rows with a vector.
            SelectionError: the model did not compute the vectors.
            UnavailableError: the cosine is undefined for all pairs of rows; see also `Sentences.of`.
        """
        norms = _norms(vectors.vectors, final_progress(progress, 0))  # the total of all steps is unknown
        rows = np.flatnonzero(np.isfinite(norms) & (norms > 0))
        if len(rows) <= self.neighbors + 1:
            raise TextError(
                f"{len(rows):,} rows have a vector with a norm above 0 and up to {MAX_VALUE:g}, but at "
                f"least {self.neighbors + 2} are needed for {self.neighbors} neighbors. Use more vectors, or "
                "choose fewer neighbors."
            )
        smaller = min(len(rows), vectors.vectors.shape[1])
        if smaller > MAX_COMPONENTS:
            raise TextError(
                f"{len(rows):,} vectors of size {vectors.vectors.shape[1]:,} have {smaller:,} principal "
                f"components, but at most {MAX_COMPONENTS:,} are allowed. Use vectors with fewer "
                "dimensions."
            )
        # Reserve memory for two copies of the vectors, for matrices of products, and for the results per row.
        size = 2 * vectors.vectors.nbytes + 32 * smaller**2 + 16 * (self.neighbors + 8) * len(rows)
        with reserved_memory(size, vectors.name, "Use fewer vectors."):
            return self._measure(vectors, rows, norms, checkpoint, progress)

    def _measure(
        self,
        vectors: VectorSet,
        rows: Array,
        norms: Array,
        checkpoint: Checkpoint | None,
        progress: Progress,
    ) -> CorpusHealthResult:
        before, after = final_progress(progress, 0), final_progress(progress, block_pairs(len(rows)))
        unit = np.empty((len(rows), vectors.vectors.shape[1]), vectors.vectors.dtype)
        for block in _blocks(unit, before):
            unit[block] = vectors.vectors[rows[block]] / norms[rows[block], None]
        source = "question" if self.threshold is not None else "vectors" if checkpoint is None else "model"
        record, threshold = vectors.record(), self.threshold
        if threshold is None:
            if checkpoint is not None:
                record = replace(record, model=checkpoint.provenance())
                random_scores = self._reference_scores(vectors, rows, checkpoint, before)
            else:
                random_scores = random_pair_scores(unit, "cosine", before)
            distance = 1 - float(np.percentile(random_scores, DUPLICATE_PERCENTILE))
            threshold = 1 - DUPLICATE_SHARE * distance
        neighbors, scores = nearest_neighbors(unit, self.neighbors, progress)
        outlier_scores = modified_z_scores(1 - scores.mean(axis=1, dtype=np.float64))
        occurrences = np.bincount(neighbors.ravel(), minlength=len(rows))
        sample, labels = run_cancellable(partial(cluster, unit, self.min_cluster), after)
        is_complete = len(rows) == len(vectors)
        variances = principal_variances(vectors.vectors if is_complete else vectors.vectors[rows], after)
        return CorpusHealthResult(
            self,
            record,
            vectors,
            read_only(rows),
            threshold,
            source,
            read_only(group_duplicates(unit, neighbors, scores, threshold, after)),
            read_only(scores[:, 0]),
            read_only(outlier_scores),
            read_only(occurrences),
            read_only(sample),
            read_only(labels),
            read_only(variances),
            {
                "mean_cosine": mean_cosine(unit, after),
                "iso_score": iso_score(variances),
                "intrinsic_dimension": two_nn(unit, neighbors, after),
                "hub_skewness": skewness(occurrences),
                "duplicate_threshold": threshold,
            },
        )

    def _reference_scores(
        self, vectors: VectorSet, rows: Array, checkpoint: Checkpoint, progress: Progress
    ) -> Array:
        """Return the sorted cosines of random pairs of reference sentences, encoded like the vectors."""
        pooling = self.pooling or vectors.pooling or available_poolings(checkpoint)[0]
        checkpoint = checkpoint.snapshot()
        name = f"{checkpoint.description.name} with the pooling {pooling}"
        remedy = "Choose the model and the pooling that computed the vectors, or no model."
        configs = [resolve_pooling(checkpoint, pooling)]
        if pooling == "model":  # sentence-transformers encodes documents with another prompt than other texts
            configs.append(search_pooling(checkpoint, None, DOCUMENT_PROMPTS, None))
        texts = vectors.texts or ()
        checked = list(islice((row for row in rows if texts and texts[row].strip()), _CHECKED_TEXTS))
        difference = ""
        for config in configs:
            encode = partial(encode_texts, checkpoint, config, truncate=True, name="Sentence {:,}".format)
            reference = encode(reference_sentences(), progress=progress).vectors
            size, expected = vectors.vectors.shape[1], reference.shape[1]
            if size != expected:
                raise SelectionError(
                    f"The vectors of {vectors.name} have {size:,} dimensions, but those of {name} have "
                    f"{expected:,}. {remedy}"
                )
            try:
                own = encode([texts[row] for row in checked]).vectors if checked else None
            except (EmptyTextError, TooLongError):
                own = None  # skip the comparison: a text has no tokens, or too many
            if own is None:
                return random_pair_scores(reference, "cosine")
            cosines = scores_of_rows(np.asarray(vectors.vectors[np.array(checked)]), own, "cosine")
            if (cosines >= SAME_VECTOR).all():
                return random_pair_scores(reference, "cosine")
            worst = int(np.argmin(cosines))
            row = f"for the text of row {checked[worst] + 1:,}"
            difference = difference or f"{row}, the cosine similarity is {cosines[worst]:.3f}"
        raise SelectionError(f"The vectors of {vectors.name} are not those of {name}: {difference}. {remedy}")


@dataclass(frozen=True, eq=False, repr=False)
class CorpusHealthResult(Result):
    """Health measures of a set of vectors.

    Attributes:
        vectors: the vectors that were measured.
        rows: indices of the rows with a usable vector. `groups`, `nearest`, `outlier_scores` and
            `occurrences` have one value for each row in `rows`.
        threshold: minimum cosine of near duplicates.
        threshold_source: a name in `THRESHOLD_SOURCES`.
        groups: index of each row's group of duplicates; −1 for a row without duplicates.
        nearest: cosine of each row with its nearest neighbor.
        outlier_scores: modified z-score of the mean cosine distance to the nearest neighbors.
        occurrences: k-occurrences: for each row, the number of rows that have it among their nearest
            neighbors.
        sample: indices into `rows` of the rows that were clustered.
        labels: cluster of each row of the sample, from 0; −1 for rows outside all clusters.
        variances: variance along each principal component, in descending order.
        measures: measures of the whole set, by name.
    """

    question: CorpusHealth
    vectors: VectorSet
    rows: Array
    threshold: float
    threshold_source: str
    groups: Array
    nearest: Array
    outlier_scores: Array
    occurrences: Array
    sample: Array
    labels: Array
    variances: Array
    measures: Mapping[str, float]

    @property
    def outlier_threshold(self) -> float:
        """The score above which a row is an outlier: `OUTLIER_SCORE`, or sqrt(2 ln n) if that is larger.

        sqrt(2 ln n) is about the expected maximum of n standard normal values (Donoho and Johnstone 1994).
        """
        return max(OUTLIER_SCORE, float(np.sqrt(2 * np.log(len(self.rows)))))

    @property
    def hub_threshold(self) -> int:
        """The number of occurrences above which a row is a hub."""
        return HUB_FACTOR * self.question.neighbors

    @property
    def outliers(self) -> Array:
        """Indices into `rows` of the outliers, sorted by descending score."""
        selected = np.flatnonzero(self.outlier_scores > self.outlier_threshold)
        return np.asarray(selected[np.argsort(-self.outlier_scores[selected], kind="stable")])

    @property
    def hubs(self) -> Array:
        """Indices into `rows` of the hubs, sorted by descending number of occurrences."""
        selected = np.flatnonzero(self.occurrences > self.hub_threshold)
        return np.asarray(selected[np.argsort(-self.occurrences[selected], kind="stable")])

    @property
    def finding(self) -> str:
        """A sentence with the number of duplicates, outliers and hubs, and a sentence about the clusters."""
        duplicates, groups = int((self.groups >= 0).sum()), int(self.groups.max(initial=-1)) + 1
        grouped = f"in {groups:,} group{'' if groups == 1 else 's'} " if groups else ""
        source = ", ".join(filter(None, [f"{self.threshold:.3f}", THRESHOLD_SOURCES[self.threshold_source]]))
        sampled = "" if len(self.sample) == len(self.rows) else f"a sample of {len(self.sample):,} of "
        return (
            f"Of {len(self.rows):,} rows, {duplicates:,} are near duplicates {grouped}(cosine of at least "
            f"{source}). The numbers of outliers and hubs are {len(self.outliers):,} and {len(self.hubs):,}. "
            f"The number of clusters is {int(self.labels.max(initial=-1)) + 1:,}; they contain "
            f"{np.mean(self.labels >= 0):.0%} of {sampled}the rows."
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The measures of the whole corpus, and the source of the threshold."""
        return {**self.summary(), "duplicate_threshold_source": self.threshold_source}

    def summary(self) -> dict[str, float]:
        """Return the numbers of rows, groups and clusters, and the measures of the set as a whole."""
        texts, dropped = self.vectors.texts, self.vectors.dropped
        counts = {
            "rows": len(self.vectors.vectors),
            "rows_without_vector": len(self.vectors.vectors) - len(self.rows),
            "duplicate_groups": int(self.groups.max(initial=-1)) + 1,
            "duplicate_rows": int((self.groups >= 0).sum()),
            "outliers": len(self.outliers),
            "hubs": len(self.hubs),
            "clusters": int(self.labels.max(initial=-1)) + 1,
            "clustered_rows": int((self.labels >= 0).sum()),
        }
        if texts is not None:
            counts["empty_texts"] = sum(not text.strip() for text in texts)
        if dropped is not None:
            counts["truncated_rows"] = int((dropped > 0).sum())
        return counts | dict(self.measures)

    def frame(self) -> pd.DataFrame:
        """Return the selected table; see `CorpusHealth.show`."""
        show = self.question.show
        if show == "summary":
            values = self.summary()
            return pd.DataFrame({"measure": [*values], "value": [float(value) for value in values.values()]})
        if show == "clusters":
            return self._clusters()
        if show == "spectrum":
            return self._spectrum()
        selected = {
            "duplicates": np.flatnonzero(self.groups >= 0)[
                np.argsort(self.groups[self.groups >= 0], kind="stable")
            ],
            "outliers": self.outliers,
            "hubs": self.hubs,
            "rows": np.arange(len(self.rows)),
        }[show]
        return self._listed(selected)

    def _listed(self, selected: Array) -> pd.DataFrame:
        rows = self.rows[selected]
        columns: dict[str, Any] = {
            "row": rows + 1,
            "id": [self.vectors.ids[row] for row in rows],
            "duplicate_group": self.groups[selected] + 1,
            "nearest_cosine": self.nearest[selected],
            "outlier_score": self.outlier_scores[selected],
            "occurrences": self.occurrences[selected],
            "cluster": self._clusters_of_rows[selected],
        }
        if self.vectors.dropped is not None:
            columns["tokens_dropped"] = self.vectors.dropped[rows]
        if self.vectors.texts is not None:
            columns["text"] = [self.vectors.texts[row] for row in rows]
        return pd.DataFrame(columns)

    @property
    def _clusters_of_rows(self) -> Array:
        """Cluster number of each row, from 1; 0 for no cluster, and NaN for rows outside the sample."""
        clusters = np.full(len(self.rows), np.nan)
        clusters[self.sample] = self.labels + 1
        return clusters

    def _spectrum(self) -> pd.DataFrame:
        """Return a table of the variance of each principal component, its share, and the cumulative share."""
        total = self.variances.sum()
        share = self.variances / total if total else np.full(len(self.variances), np.nan)
        columns = {"variance": self.variances, "share": share, "cumulative_share": share.cumsum()}
        return pd.DataFrame({"component": np.arange(1, len(share) + 1), **columns})

    def _clusters(self) -> pd.DataFrame:
        counts = np.bincount(self.labels[self.labels >= 0], minlength=int(self.labels.max(initial=-1)) + 1)
        columns: dict[str, Any] = {"cluster": np.arange(1, len(counts) + 1), "rows": counts}
        texts = self.vectors.texts
        if texts is not None:
            sampled = [texts[row] for row in self.rows[self.sample]]
            columns["words"] = [" ".join(words) for words in cluster_words(sampled, self.labels)]
        return pd.DataFrame(columns)


def nearest_neighbors(vectors: Array, count: int, progress: Progress = no_progress) -> tuple[Array, Array]:
    """Return the exact nearest neighbors of each row and their cosines, both of shape [row, count].

    Neighbors are row indices, sorted by descending cosine; the order of ties is arbitrary. The product of
    each pair of blocks is computed only once and used for the rows of both blocks.

    Args:
        vectors: L2-normalized vectors, shape [row, size], with more than `count` rows.
        count: number of neighbors.
        progress: called with the number of finished pairs of blocks and the total.
    """
    rows = torch.from_numpy(np.require(vectors, requirements="W"))
    number = len(rows)
    scores = np.full((number, count), -np.inf, dtype=vectors.dtype)
    neighbors = np.full((number, count), -1, dtype=np.int64)
    starts = range(0, number, _BLOCK_ROWS)
    total, done = block_pairs(number), 0
    # Reuse the memory: allocating memory for each product would take as long as the comparisons.
    memory = torch.empty(min(number, _BLOCK_ROWS) ** 2, dtype=rows.dtype)
    masks = [np.empty(len(memory), dtype=np.bool_) for _ in range(2)]
    with ThreadPoolExecutor(len(masks)) as pool:
        for first in starts:
            for second in starts[first // _BLOCK_ROWS :]:
                a, b = rows[first : first + _BLOCK_ROWS], rows[second : second + _BLOCK_ROWS]
                product = torch.mm(a, b.T, out=memory[: len(a) * len(b)].view(len(a), len(b)))
                if first == second:
                    product.fill_diagonal_(-np.inf)
                update = partial(_update, scores, neighbors, product.numpy())
                # The updates can run in parallel, because they change different rows.
                updates = [(first, second, 1), (second, first, 0)][: 1 + (first != second)]
                list(pool.map(lambda values, mask, update=update: update(*values, mask), updates, masks))
                done += 1
                progress(done, total)
    return neighbors, scores


def block_pairs(count: int) -> int:
    """Return the number of pairs of blocks for `count` rows: the total that `nearest_neighbors` reports."""
    blocks = -(-count // _BLOCK_ROWS)
    return blocks * (blocks + 1) // 2


def _update(
    scores: Array, neighbors: Array, block: Array, start: int, offset: int, axis: int, mask: Array
) -> None:
    """Update the nearest neighbors of some rows, in place, with the cosines in a block.

    Args:
        scores, neighbors: cosines and row indices of the neighbors found so far, shape [row, count].
        block: matrix of the cosines between the rows to update and their candidates.
        start: index of the first row to update.
        offset: row index of the first candidate.
        axis: axis of the candidates in the block.
        mask: memory for a Boolean array of the size of the block; its contents are overwritten.
    """
    length, count = block.shape[1 - axis], scores.shape[1]
    current = scores[start : start + length, -1]
    is_higher = mask[: block.size].reshape(block.shape)
    np.greater(block, np.expand_dims(current, axis), out=is_higher)
    if np.count_nonzero(is_higher) > _MAX_CANDIDATES * length:
        lines = torch.from_numpy(block if axis == 1 else block.T).contiguous()
        best, indices = lines.topk(min(count, block.shape[axis]), dim=1)
        values, columns = best.numpy().ravel(), indices.numpy().ravel()
        rows = np.repeat(np.arange(length), best.shape[1])
    else:
        rows, columns = np.divmod(np.flatnonzero(is_higher), block.shape[1])
        values = block[rows, columns]
        rows, columns = (rows, columns) if axis == 1 else (columns, rows)
    changed = np.flatnonzero(np.bincount(rows, minlength=length))
    lines = np.r_[np.repeat(changed, count), rows]
    values = np.r_[scores[start + changed].ravel(), values]
    indices = np.r_[neighbors[start + changed].ravel(), columns + offset]
    order = np.lexsort((-values, lines))
    starts = np.searchsorted(lines[order], changed)
    best = order[starts[:, None] + np.arange(count)]
    scores[start + changed], neighbors[start + changed] = values[best], indices[best]


def modified_z_scores(values: Array) -> Array:
    """Return 0.6745 (x − median) / median absolute deviation for each value x; 0 if the deviation is 0."""
    deviations = values - np.median(values)
    spread = float(np.median(np.abs(deviations)))
    return np.zeros_like(values) if not spread else np.asarray(0.6744897501960817 * deviations / spread)


def group_duplicates(
    unit: Array, neighbors: Array, scores: Array, threshold: float, progress: Progress = no_progress
) -> Array:
    """Return the duplicate group of each row; −1 for a row without duplicates.

    Two rows are in the same group if a chain of rows connects them whose cosines are at least `threshold`.
    Groups are numbered from 0 in the order of their first rows.

    Args:
        unit: L2-normalized vectors, shape [row, size].
        neighbors, scores: the result of `nearest_neighbors`.
        threshold: minimum cosine of two duplicates.
        progress: see `_blocks`.
    """
    # Because of rounding, the computed cosine of equal vectors may be slightly below 1.
    limit = threshold - 4 * np.finfo(scores.dtype).eps
    first, column = np.nonzero(scores >= limit)
    labels = _components(len(neighbors), first, neighbors[first, column])
    # A pair that neither of its rows has among its neighbors is missing, which requires that all neighbors of
    # both are duplicates.
    full = np.flatnonzero(scores[:, -1] >= limit)
    pairs = [np.empty((0, 2), np.int64)]
    for block in _blocks(unit[full], progress):
        for other in range(0, block.stop, _BLOCK_ROWS):
            rows, columns = full[block], full[other : other + _BLOCK_ROWS]
            is_new = labels[rows][:, None] != labels[columns]
            found = np.nonzero(is_new & (unit[rows] @ unit[columns].T >= limit))
            pairs.append(np.unique(np.stack([labels[rows[found[0]]], labels[columns[found[1]]]], 1), axis=0))
    labels = _components(len(neighbors), *np.concatenate(pairs).T)[labels]
    is_group = np.bincount(labels)[labels] > 1
    groups = np.full(len(neighbors), -1)
    _, order, inverse = np.unique(labels[is_group], return_index=True, return_inverse=True)
    groups[is_group] = np.argsort(np.argsort(order))[inverse]
    return groups


def _components(count: int, first: Array, second: Array) -> Array:
    """Return the component label of each of `count` nodes that edges from `first` to `second` connect."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(first)), (first, second)), shape=(count, count))
    labels: Array = connected_components(graph, directed=False)[1]
    return labels


def _blocks(vectors: Array | ArrayFile, progress: Progress) -> Iterator[slice]:
    """Yield slices of rows with at most `_BLOCK_NUMBERS` values each; `progress` can cancel the loop."""
    size = max(1, _BLOCK_NUMBERS // vectors.shape[1])
    for start in range(0, len(vectors), size):
        progress(start, len(vectors))
        yield slice(start, min(start + size, len(vectors)))


def mean_cosine(unit: Array, progress: Progress = no_progress) -> float:
    """Return the mean cosine of all pairs of different rows of L2-normalized vectors.

    The mean is computed from the norm of the sum of all rows, without computing the cosine of each pair.
    """
    count = len(unit)
    total, squares = np.zeros(unit.shape[1]), 0.0
    for rows in _blocks(unit, progress):
        total += unit[rows].sum(axis=0, dtype=np.float64)
        squares += float(np.square(unit[rows].astype(np.float64)).sum())
    return (float(np.square(total).sum()) - squares) / (count * (count - 1))


def principal_variances(vectors: Array | ArrayFile, progress: Progress = no_progress) -> Array:
    """Return the variances along the principal components in descending order (Pearson 1901)."""
    rows, size = vectors.shape
    if rows < size:
        # The smaller Gram matrix has the same positive eigenvalues as the covariance matrix.
        products = np.zeros((rows, rows))
        columns = np.asarray(vectors).T
        for block in _blocks(columns, progress):
            centered = columns[block] - columns[block].mean(axis=1, dtype=np.float64, keepdims=True)
            products += centered.T @ centered
    else:
        mean = np.zeros(size)
        for block in _blocks(vectors, progress):
            mean += vectors[block].sum(axis=0, dtype=np.float64) / rows
        products = np.zeros((size, size))
        for block in _blocks(vectors, progress):
            centered = vectors[block] - mean
            products += centered.T @ centered
    products /= rows - 1
    # PyTorch computes the eigenvalues three times as fast as NumPy.
    variances = run_cancellable(lambda: torch.linalg.eigvalsh(torch.from_numpy(products)).numpy(), progress)
    return np.asarray(np.maximum(np.r_[variances[::-1], np.zeros(size - len(variances))], 0))


def _norms(vectors: Array | ArrayFile, progress: Progress) -> Array:
    """Return the norm of each row in float64; infinity if it is above `MAX_VALUE` or not a number."""
    norms = np.empty(len(vectors))
    for rows in _blocks(vectors, progress):
        with np.errstate(over="ignore"):
            norms[rows] = np.linalg.norm(vectors[rows].astype(np.float64), axis=1)
    return np.where(norms <= MAX_VALUE, norms, np.inf)


def two_nn(unit: Array, neighbors: Array, progress: Progress = no_progress) -> float:
    """Return the TwoNN estimate of the intrinsic dimension (Facco et al. 2017); NaN if too few rows differ.

    μ is the distance of a row to its second nearest neighbor divided by the distance to the nearest, and F
    is the empirical distribution function of μ. The dimension is the slope of the regression through the
    origin of −log(1 − F(μ)) on log μ for the lower 90% of μ. Rows with a duplicate (μ = ∞) are left out.

    Args:
        unit: L2-normalized vectors, shape [row, size].
        neighbors: indices of the nearest neighbors of each row, shape [row, count].
        progress: called with the number of processed rows and the total.
    """
    first, second = np.empty(len(unit)), np.empty(len(unit))
    for rows in _blocks(unit, progress):
        exact = unit[rows].astype(np.float64)
        for distances, column in ((first, 0), (second, 1)):
            distances[rows] = np.linalg.norm(exact - unit[neighbors[rows, column]], axis=1)
    is_distinct = first > 1e-6
    ratios = np.sort(np.maximum(second[is_distinct] / first[is_distinct], 1.0))
    count = int(len(ratios) * (1 - _DISCARDED))
    x, y = np.log(ratios[:count]), -np.log1p(-np.arange(1, count + 1) / len(ratios))
    denominator = float(x @ x)
    return float(x @ y) / denominator if denominator else float("nan")


def skewness(occurrences: Array) -> float:
    """Return the skewness of the k-occurrences (Radovanović et al. 2010); NaN if all are equal."""
    from scipy.stats import skew

    return float(skew(occurrences)) if occurrences.std() else float("nan")
