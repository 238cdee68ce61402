"""Sentence vectors, their similarities, and their two-dimensional maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from bert_probe.analyses.vectors.layouts import METHODS, PointLayout, cluster, cluster_words
from bert_probe.analyses.vectors.pooling import (
    DIMENSIONS_HELP,
    POOLINGS,
    PROMPT_HELP,
    PoolingConfig,
    pool,
    resolve_pooling,
)
from bert_probe.analyses.vectors.similarity import cosine, nearest_pairs, scores, unit_rows
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Dimensions, Name, Number, Optional
from bert_probe.core.inputs import SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result, SortOrder
from bert_probe.errors import (
    EmptyTextError,
    SelectionError,
    ShapeError,
    TextError,
    UnavailableError,
    memory_errors,
)
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import ModelInputs
from bert_probe.model.forward import forward, group_by_length
from bert_probe.model.lengths import check_list, check_task_bytes
from bert_probe.model.preflight import reserved_memory
from bert_probe.model.progress import Progress, final_progress, no_progress
from bert_probe.model.trace import Array, read_only

MAX_OPTIMAL_ORDER = 1000

BATCH_TOKENS = 1024
"""Maximum number of padded tokens in a batch. Larger batches exceed CPU caches and need more padding."""

POOLING = Choice(POOLINGS)
POOLED = "Pooling of token vectors; model is the pooling with which the checkpoint was trained."
"""Data type of the token IDs in sort keys: big-endian, so that bytes sort in the same order as IDs."""
_PROGRESS_CHARACTERS = 100_000
"""Number of characters between two reports of progress while texts are tokenized."""
_SCORE_BYTES, _PAIR_BYTES = 24, 400
"""Memory for a score in the matrix or in a hierarchical clustering, and for a pair, as CSV."""
ORDERED = "Order of the rows: the input order, or by similarity (hierarchical clustering)."


class SentencesTable(Choice):
    """Field type of the table to return. In page URLs, "heatmap" and "table" also stand for "scores"."""

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:
        """Parse the name of a table from a string that `write` returned, or from the URL of a page."""
        return super().read(name, "scores" if text in ("heatmap", "table") else text, sizes)


@question("sentences")
class Sentences(Question):
    """Sentence vectors and their pairwise similarity scores.

    Attributes:
        pooling: see `pooling.POOLINGS`. With "model", sentences are truncated to the maximum length in the
            checkpoint's configuration, as in sentence-transformers.
        show: the table to return: "scores" is the similarity matrix, "vectors" the sentence vectors,
            "nearest" the most similar pairs.
        order: order of the rows, "given" or "tree" (see `PairwiseScores.order`). Pairs are always ordered
            by score.
        count: number of pairs for "nearest".
        prompt: name of a prompt of the checkpoint, or "none"; see `resolve_pooling` for the default.
        dimensions: number of dimensions to which the vectors are truncated.
    """

    inputs = SentenceList()

    pooling: str = param(POOLING, default="mean", about=POOLED)
    show: str = param(
        SentencesTable(("scores", "vectors", "nearest")),
        default="scores",
        display_only=True,
        key="sentences_part",
        about="Table: matrix of scores, sentence vectors, or most similar pairs.",
    )
    order: str = param(
        Choice(("given", "tree")), default="given", display_only=True, key="sentences_order", about=ORDERED
    )
    count: int = param(
        Number(1),
        default=50,
        display_only=True,
        key="sentences_count",
        about="Number of pairs with --show nearest.",
    )
    prompt: str | None = param(Optional(Name()), default=None, about=PROMPT_HELP)
    dimensions: int | None = param(Optional(Number(1)), default=None, about=DIMENSIONS_HELP)

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> SentencesResult:
        """Return a vector for each sentence.

        Args:
            truncate: truncate sentences that are too long instead of raising an error.
            progress: called with the number of distinct sentences done and the total.

        Raises:
            TextError, EmptyTextError, TooLongError: there is no sentence, or a sentence cannot be encoded.
            UnavailableError, CheckpointError: see `resolve_pooling`; also if the model in memory changes
                during the computation.
            OutOfMemoryError: a batch needs more memory than is available.
        """
        check_list(sentences, "sentence")
        sentences = tuple(sentences)
        if not sentences:
            raise EmptyTextError("There are no sentences. Write one sentence per line.")
        checkpoint = checkpoint.snapshot()
        config = resolve_pooling(checkpoint, self.pooling, self.prompt, self.dimensions)
        encoded = encode_texts(checkpoint, config, sentences, truncate, "Sentence {:,}".format, progress)
        return SentencesResult(
            self,
            InputRecord.of_sentences(checkpoint, sentences, sum(encoded.dropped)),
            tuple(frames.plain_strings(sentences)),
            PairwiseScores(encoded.vectors, config.similarity),
            config,
            encoded.tokens,
            encoded.dropped,
        )

    def check_memory(self, *inputs: Any) -> None:
        """Raise OutOfMemoryError if the matrix of scores, its order or the pairs do not fit in memory."""
        count = len(inputs[1])
        matrix, pairs = _SCORE_BYTES * count**2, _PAIR_BYTES * min(self.count, count * (count - 1) // 2)
        sizes = {"scores": matrix, "nearest": pairs, "vectors": matrix if self.order == "tree" else 0}
        remedy = "Use fewer sentences, or --show nearest with a smaller --count."
        with reserved_memory(sizes[self.show], f"The table of {count:,} sentences", remedy):
            return

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; ``count`` is included only if the table shows pairs."""
        values = super().to_json()
        if self.show != "nearest":
            values.pop("count")
        return values


@dataclass(frozen=True)
class SentencePair:
    """Indices of two sentences, from 0, and their similarity score."""

    first: int
    second: int
    score: float


@dataclass(frozen=True, eq=False)
class PairwiseScores:
    """Sentence vectors with their scores and dendrogram order, computed once for all tables of a result.

    Attributes:
        vectors: read-only sentence vectors, [sentence, size], float32, or float64 if the model computes in
            float64. The size is that of the hidden states, or a multiple of it if poolings are concatenated.
        similarity: the score of two vectors, from `SIMILARITIES`.
    """

    vectors: Array
    similarity: str = "cosine"

    @cached_property
    def scores(self) -> Array:
        """Similarity score of each pair of sentences, of shape [sentence, sentence].

        Raises:
            OutOfMemoryError: the matrix needs more memory than is available.
        """
        count = len(self.vectors)
        # memory for a float64 matrix and a copy, in GB
        gigabytes = (8 + self.vectors.itemsize) * count**2 / 1e9
        message = (
            f"The scores of {count:,} sentences need {gigabytes:,.1f} GB, more memory than is available. "
            "Use fewer sentences."
        )
        with memory_errors(message):
            return read_only(scores(self.vectors, self.vectors, self.similarity))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Indices of the sentences in an order that puts similar ones next to each other.

        This is the leaf order of hierarchical clustering by average linkage of 1 − cosine (Sokal and
        Michener 1958), with optimal leaf ordering (Bar-Joseph et al. 2001). The computation takes seconds for
        a thousand sentences; for more than `MAX_OPTIMAL_ORDER` sentences, the leaf order is not optimized.

        Raises:
            UnavailableError: there are fewer than two sentences, or a vector is zero.
        """
        if len(self.vectors) < 2:
            raise UnavailableError("A single sentence cannot be ordered. Use at least two sentences.")
        is_cosine = self.similarity == "cosine"
        cosines = self.scores if is_cosine else cosine(self.vectors, self.vectors)
        if not np.isfinite(cosines).all():
            raise UnavailableError(
                "The vector of a sentence is all zeros, so its similarity is undefined. Remove this sentence."
            )
        distances = 1 - cosines.astype(np.float64)
        np.fill_diagonal(distances, 0)
        tree = linkage(
            squareform(distances, checks=False),
            "average",
            optimal_ordering=len(distances) <= MAX_OPTIMAL_ORDER,
        )
        return tuple(int(leaf) for leaf in leaves_list(tree))

    def nearest(self, count: int = 50) -> tuple[SentencePair, ...]:
        """Return the most similar pairs by descending score; tied pairs are in the order of the sentences.

        Raises:
            SelectionError: count is below 1.
            UnavailableError: there are fewer than two sentences.
            OutOfMemoryError: the pairs need more memory than is available.
        """
        if count < 1:
            raise SelectionError(f"count is {count}, but must be at least 1.")
        if len(self.vectors) < 2:
            raise UnavailableError("A single sentence has no pairs. Use at least two sentences.")
        with memory_errors(f"{count:,} pairs need more memory than is available. Use fewer pairs."):
            values, first, second = nearest_pairs(self.vectors, self.similarity, count)
            pairs = zip(first.tolist(), second.tolist(), values.tolist(), strict=True)
            return tuple(SentencePair(*pair) for pair in pairs)


@dataclass(frozen=True, eq=False, repr=False)
class SentencesResult(Result):
    """A vector for each sentence, in the original order of the sentences.

    Attributes:
        sentences: the sentences.
        compared: vectors, scores and order of the sentences.
        recipe: the pooling configuration.
        tokens: number of tokens of each sentence after truncation, including special tokens.
        dropped: number of tokens truncated from each sentence.
        calibration: scores of random pairs of reference sentences; None unless `calibrate_result` has added
            these scores.
    """

    question: Sentences
    sentences: tuple[str, ...]
    compared: PairwiseScores
    recipe: PoolingConfig
    tokens: tuple[int, ...]
    dropped: tuple[int, ...]
    calibration: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        count = len(self.sentences)
        if self.vectors.ndim != 2 or {len(self.vectors), len(self.tokens), len(self.dropped)} != {count}:
            raise ShapeError(
                f"vectors must have {count} rows, one per sentence, not shape {self.vectors.shape}."
            )

    @property
    def vectors(self) -> Array:
        """Sentence vectors, of shape [sentence, hidden]; see `PairwiseScores`."""
        return self.compared.vectors

    @property
    def order(self) -> tuple[int, ...]:
        """Indices of the sentences in the order selected by the question; see `PairwiseScores.order`."""
        return self.compared.order if self.question.order == "tree" else tuple(range(len(self.sentences)))

    @property
    def scores(self) -> Array:
        """Similarity score of each pair of sentences, with rows and columns in `order`."""
        values = self.compared.scores
        return values[np.ix_(self.order, self.order)] if self.question.order == "tree" else values

    @property
    def cut(self) -> tuple[int, ...]:
        """Indices of the truncated sentences."""
        return tuple(index for index, dropped in enumerate(self.dropped) if dropped)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pooling, the number of truncated tokens by sentence number (from 1), and the calibration."""
        cut = {str(index + 1): self.dropped[index] for index in self.cut}
        calibration = {} if self.calibration is None else {"calibration": self.calibration}
        return {"recipe": self.recipe.about, "tokens_dropped_of_sentence": cut, **calibration}

    @property
    def sort_order(self) -> SortOrder | None:
        """The order of the most similar pairs, by descending score; None for the other tables."""
        return SortOrder(self.recipe.similarity) if self.question.show == "nearest" else None

    def frame(self) -> pd.DataFrame:
        """Return the matrix of scores, the vectors, or the most similar pairs, depending on the question.

        Columns of pairs: the score by its name (such as cosine), a, b, sentence_a, sentence_b; a and b are
        sentence numbers from 1.
        """
        if self.question.show == "nearest":
            return self._pairs()
        names = [self.sentences[index] for index in self.order]
        if self.question.show == "vectors":
            return frames.vectors(self.vectors[list(self.order)], names, "sentence")
        return frames.matrix(self.scores, names, names, "sentence")

    def _pairs(self) -> pd.DataFrame:
        pairs = self.compared.nearest(self.question.count)
        return pd.DataFrame(
            {
                self.recipe.similarity: np.array([pair.score for pair in pairs], dtype=self.vectors.dtype),
                "a": [pair.first + 1 for pair in pairs],
                "b": [pair.second + 1 for pair in pairs],
                "sentence_a": frames.repeated_texts(self.sentences[pair.first] for pair in pairs),
                "sentence_b": frames.repeated_texts(self.sentences[pair.second] for pair in pairs),
            }
        )

    @property
    def nbytes(self) -> int:
        """Size in bytes of the vectors and of all scores, which are computed on access."""
        return self.vectors.nbytes + self.vectors.itemsize * len(self.sentences) ** 2


@dataclass(frozen=True, eq=False)
class TextVectors:
    """The vectors of texts.

    Attributes:
        vectors: read-only vectors, [text, hidden]; see `PairwiseScores.vectors`.
        tokens: number of tokens of each text after truncation, including special tokens.
        dropped: number of tokens truncated from each text.
        groups: for each text, a number that is equal for texts with the same tokens.
    """

    vectors: Array
    tokens: tuple[int, ...]
    dropped: tuple[int, ...]
    groups: tuple[int, ...]


def encode_texts(
    checkpoint: Checkpoint,
    config: PoolingConfig,
    texts: Sequence[str],
    truncate: bool,
    name: Callable[[int], str],
    progress: Progress = no_progress,
) -> TextVectors:
    """Return the vector of each text.

    Args:
        truncate: truncate texts that are too long instead of raising an error.
        name: function from the number of a text, from 1, to its name in error messages.
        progress: called with the number of distinct texts done and the total; with 0 and the number of texts
            while they are tokenized.

    Raises:
        TextError, EmptyTextError, TooLongError: a text cannot be encoded.
        OutOfMemoryError: a batch needs more memory than is available.
        UnavailableError: the vectors are too large for a public server.
    """
    distinct: dict[bytes, ModelInputs] = {}  # equal texts are encoded only once
    keys: list[bytes] = []
    dropped: list[int] = []
    characters = 0  # number of characters since the last progress report
    for number, text in enumerate(texts, 1):
        inputs = encode_inputs(
            checkpoint,
            config.text(text),
            config.max_tokens,
            truncate or config.max_tokens is not None,
            name(number),
        )
        keys.append(inputs.key)
        distinct.setdefault(inputs.key, inputs)
        dropped.append(inputs.dropped)
        characters += len(text)
        if characters >= _PROGRESS_CHARACTERS:
            progress(0, len(texts))
            characters = 0
    # Sort the texts so that rounding does not depend on their order.
    order = sorted(distinct, key=lambda key: (len(key), key))
    vectors = pool_inputs(checkpoint, [distinct[key] for key in order], config, progress)
    row_of = {key: row for row, key in enumerate(order)}
    return TextVectors(
        read_only(vectors[[row_of[key] for key in keys]]),
        tuple(len(distinct[key]) for key in keys),
        tuple(dropped),
        tuple(row_of[key] for key in keys),
    )


def pool_inputs(
    checkpoint: Checkpoint, inputs: Sequence[ModelInputs], config: PoolingConfig, progress: Progress
) -> Array:
    """Return the sentence vectors of the model inputs, [text, size], after all modules and truncation."""
    vectors = np.empty((len(inputs), 0), np.float32)
    done = 0
    progress(0, len(inputs))
    for batch in group_by_length([len(text) for text in inputs], BATCH_TOKENS, checkpoint.pads):
        output, mask = forward(checkpoint, [inputs[i] for i in batch])
        pooled = pool(output, mask, config).cpu().numpy()
        if not done:
            # Reserve memory for the vectors, a copy in text order, and a float64 copy for the scores.
            size, texts = len(inputs) * pooled.shape[1], f"{len(inputs):,} texts"
            check_task_bytes(size * pooled.itemsize, texts, "Use fewer texts, or the command line.")
            with reserved_memory(size * (2 * pooled.itemsize + 8), f"Comparing {texts}", "Use fewer texts."):
                vectors = np.empty((len(inputs), pooled.shape[1]), pooled.dtype)
        vectors[batch] = pooled
        done += len(batch)
        progress(done, len(inputs))
    return vectors


def encode_inputs(
    checkpoint: Checkpoint, text: str, max_tokens: int | None, truncate: bool, name: str
) -> ModelInputs:
    """Return the model inputs of a text; errors begin with its name."""
    with name_text_errors(name):
        return checkpoint.encoder.inputs(text, max_tokens, truncate)


@contextmanager
def name_text_errors(name: str) -> Iterator[None]:
    """Prepend the name of a text to error messages about this text."""
    try:
        yield
    except TextError as error:
        raise type(error)(f"{name}: {error}") from None


@question("sentence map", command="sentence-map")
class SentenceMap(Question):
    """A two-dimensional layout of sentence vectors.

    Attributes:
        method: "pca", "tsne" or "umap" (an optional dependency); see `layouts`.
        pooling, prompt, dimensions: see `Sentences`.
        min_cluster: smallest number of sentences in a cluster (HDBSCAN, on the vectors and not on the map);
            None for no clusters.
    """

    inputs = SentenceList()

    method: str = param(Choice(METHODS), default="pca", key="sentences_map", about="Layout method.")
    pooling: str = param(POOLING, default="mean", about=POOLED)
    prompt: str | None = param(Optional(Name()), default=None, about=PROMPT_HELP)
    dimensions: int | None = param(Optional(Number(1)), default=None, about=DIMENSIONS_HELP)
    min_cluster: int | None = param(
        Optional(Number(2, 10_000)),
        default=None,
        key="sentences_cluster",
        about="Minimum number of sentences in a cluster.  [default: no clusters]",
    )

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> SentenceMapResult:
        """Embed the sentences and return their map.

        Args:
            checkpoint, sentences, truncate: see `Sentences.of`.
            progress: see `Sentences.of`; during the layout, all sentences are reported as done.

        Raises:
            ProbeError: see `Sentences.of` and `of_vectors`.
        """
        question = Sentences(self.pooling, prompt=self.prompt, dimensions=self.dimensions)
        vectors = question.of(checkpoint, sentences, truncate, progress)
        count = len(vectors.sentences)
        return self.of_vectors(vectors, final_progress(progress, count))

    def of_vectors(self, vectors: SentencesResult, progress: Progress = no_progress) -> SentenceMapResult:
        """Return the map of sentence vectors that are already computed.

        Args:
            vectors: sentence vectors with the pooling of this question.
            progress: see the method in `layouts`.

        Raises:
            SelectionError: the vectors have a different pooling, prompt or number of dimensions.
            UnavailableError: there are too few different vectors, or UMAP is not installed.
        """
        if vectors.question.pooling != self.pooling:
            raise SelectionError(
                f"These vectors are pooled by {vectors.question.pooling}, not by {self.pooling}. "
                "Use the same pooling for the map."
            )
        if (vectors.question.prompt, vectors.question.dimensions) != (self.prompt, self.dimensions):
            raise SelectionError(
                "These vectors have a different prompt or number of dimensions. Use the same prompt and "
                "number of dimensions for the map."
            )
        layout = METHODS[self.method](vectors.vectors, progress)
        plane = SentenceMapResult(
            replace(self, min_cluster=None), vectors.inputs, vectors.sentences, layout, vectors.metadata
        )
        return plane if self.min_cluster is None else plane.with_clusters(vectors, self.min_cluster)


@dataclass(frozen=True, eq=False, repr=False)
class SentenceMapResult(Result):
    """The points of sentences in a plane, in the original order of the sentences.

    Attributes:
        sentences: the sentences.
        layout: points of the sentences, float32 [sentence, 2], and the parameters of the method.
        pooled: metadata of the sentence vectors.
        clusters: cluster of each sentence, from 0; −1 for no cluster, and −2 for a sentence that was not in
            the sample; see `MAX_CLUSTERED`. None if the question has no ``min_cluster``.
    """

    question: SentenceMap
    sentences: tuple[str, ...]
    layout: PointLayout
    pooled: Mapping[str, Any]
    clusters: Array | None = None

    def __post_init__(self) -> None:
        if len(self.layout.points) != len(self.sentences):
            raise ShapeError(
                f"The layout must have {len(self.sentences)} points, one per sentence, not "
                f"{len(self.layout.points)}."
            )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the pooling, the parameters of the method, and the explained variance."""
        explained = self.layout.explained
        shares = {} if explained is None else {"explained_variance": list(explained)}
        words = {str(number): words for number, words in enumerate(self.cluster_words, 1)}
        clusters = {} if self.clusters is None else {"cluster_words": words}
        return {**self.pooled, **self.layout.settings, **shares, **clusters}

    def with_clusters(self, vectors: SentencesResult, min_cluster: int) -> SentenceMapResult:
        """Return this map with a cluster for each sentence.

        Args:
            vectors: the sentence vectors from which this map was computed.
            min_cluster: smallest number of sentences in a cluster.

        Raises:
            UnavailableError: the vector of a sentence is zero.
        """
        unit = unit_rows(vectors.vectors)
        if not np.isfinite(unit).all():
            raise UnavailableError(
                "The vector of a sentence is all zeros, so the vector has no direction. Remove the sentence."
            )
        rows, labels = cluster(unit, min_cluster)
        clusters = np.full(len(unit), -2)
        clusters[rows] = labels
        question = replace(self.question, min_cluster=min_cluster)
        return replace(self, question=question, clusters=read_only(clusters))

    @property
    def cluster_words(self) -> list[list[str]]:
        """The words that are typical of each cluster; [] without clusters."""
        return [] if self.clusters is None else cluster_words(self.sentences, self.clusters)

    def frame(self) -> pd.DataFrame:
        """Return one row per sentence: number (from 1), x, y, sentence.

        With clusters, the column cluster precedes sentence: from 1, 0 for no cluster, and missing for a
        sentence that was not in the sample.
        """
        columns: dict[str, Any] = {
            "number": range(1, len(self.sentences) + 1),
            "x": self.layout.points[:, 0],
            "y": self.layout.points[:, 1],
        }
        if self.clusters is not None:
            columns["cluster"] = np.where(self.clusters < -1, np.nan, self.clusters + 1)
        return pd.DataFrame({**columns, "sentence": list(self.sentences)})

    @property
    def nbytes(self) -> int:
        """Size of the map's points in bytes."""
        return self.layout.points.nbytes
