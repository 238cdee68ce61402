"""Exact search for the documents whose stored vectors are most similar to the vector of a query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, starmap
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.retrieval.calibration import MAX_PAIRS, pair_indices, pair_scores, percentile_of
from bert_probe.analyses.retrieval.scorers import PromptedSearch
from bert_probe.analyses.vectors.pooling import PoolingConfig
from bert_probe.analyses.vectors.sentences import encode_texts
from bert_probe.analyses.vectors.similarity import score, scores, scores_of_rows
from bert_probe.core import frames
from bert_probe.core.field_types import Number, Text
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.core.result import Result
from bert_probe.corpus.vector_files import DocumentVectors, VectorSet
from bert_probe.corpus.vector_formats import ArrayFile
from bert_probe.errors import EmptyTextError, SelectionError, TooLongError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, final_progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.documents import Document

ELSEWHERE = (
    "The document vectors were not computed by BERT Probe. The scores are meaningful only if this model "
    "computed the vectors, with the same prompts."
)
SAME_VECTOR = 0.99
"""Minimum cosine at which a stored vector is considered equal to the vector computed from its text. Vectors
that were quantized to 8 bits reach this value; vectors of other models do not."""
_BLOCK_NUMBERS = 1 << 18
"""Maximum number of values in a block. A block that was read from an .npy file should still be in the CPU
cache when it is multiplied."""


@question("vector search", command="search")
class VectorSearch(PromptedSearch):
    """The documents whose stored vectors are most similar to the vector of a query.

    The vectors are read from a corpus store, or from a file that another program may have written.

    The scores are the bi-encoder scores of `Search`. The search is exact: scores in the data type of the
    vectors select all candidates that may be among the best within rounding error, and the candidates are
    ranked in float64.

    Attributes:
        query: the query.
        count: number of documents in the table.
        prompt, dimensions: see `PromptedSearch`.
        document_prompt: prompt for documents. With this prompt, the text of the best document is encoded and
            compared with the stored vector.
    """

    inputs = DocumentVectors()

    query: str = param(Text(), positional=True, about="The query.")
    count: int = param(
        Number(1, 1_000), default=10, key="search_count", about="Number of documents in the table."
    )

    def of(
        self,
        checkpoint: Checkpoint,
        vectors: VectorSet | IndexedVectors,
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> VectorSearchResult:
        """Return the documents with the highest scores.

        Args:
            checkpoint: the model.
            vectors: the result of `read_vectors`, or of `index` for this model.
            truncate: whether to truncate a query that is too long instead of raising an error.
            progress: called with the number of indexed vectors and their total.

        Raises:
            SelectionError: the vectors have another number of dimensions than the query, or are the sentence
                vectors of a store with another model or pooling; see also `resolve_pooling`.
            TextError, EmptyTextError, TooLongError: the query cannot be encoded.
            UnavailableError, CheckpointError: see `resolve_pooling`.
            StoreError: the file changed after it was opened.
        """
        checkpoint = checkpoint.snapshot()
        recipe = self.query_pooling(checkpoint)
        encoded = encode_texts(checkpoint, recipe, [self.query], truncate, lambda _: "The query")
        stored = vectors.vectors if isinstance(vectors, IndexedVectors) else vectors
        document_recipe = self.document_pooling(checkpoint)
        if stored.origin is not None:
            stored.origin.check(stored.name, checkpoint, document_recipe)
        _check_dimensions(stored, encoded.vectors.shape[1], checkpoint)
        if not isinstance(vectors, IndexedVectors):
            vectors = self.index(checkpoint, vectors, progress)
        if vectors.similarity != recipe.similarity:
            raise SelectionError(
                "The vectors were indexed for another model. Index the vectors again with this model."
            )
        order, values = vectors.best(encoded.vectors[0], self.count)
        documents = tuple(stored.document(row) for row in order)
        return VectorSearchResult(
            self,
            InputRecord(
                checkpoint.provenance(),
                sentences={
                    "file": stored.name,
                    "sentences": len(stored),
                    "vectors_sha256": stored.digest,
                    "tokens_dropped": encoded.dropped[0],
                },
            ),
            documents,
            read_only(values),
            vectors.pair_scores,
            None if stored.dropped is None else tuple(int(stored.dropped[row]) for row in order),
            int(np.isnan(vectors.scales).sum()),
            recipe,
            None if stored.origin is not None else stored.note or ELSEWHERE,
            _agreement(checkpoint, document_recipe, documents, stored.vectors[order]),
        )

    def index(
        self, checkpoint: Checkpoint, vectors: VectorSet, progress: Progress = no_progress
    ) -> IndexedVectors:
        """Compute data that does not depend on the query: norms of the vectors, and scores of random pairs.

        See `of` for the arguments and errors.
        """
        similarity = self.document_pooling(checkpoint).similarity
        scales = np.empty(len(vectors), np.float64)
        for rows, stored in _blocks(vectors):
            progress(rows.start, len(vectors))
            block = stored.astype(np.float64)
            lengths = np.sqrt(np.einsum("ij,ij->i", block, block))
            is_valid = np.isfinite(lengths) & (lengths > 0)
            scales[rows] = np.divide(1, lengths, out=np.full_like(lengths, np.nan), where=is_valid)
        progress(len(vectors), len(vectors))
        valid = np.flatnonzero(~np.isnan(scales))
        if not len(valid):
            raise UnavailableError(
                f"All vectors of {vectors.name} are zero, not finite, or so large that their norms "
                "overflow. Choose another file."
            )
        first, second = pair_indices(len(valid))
        values = pair_scores(
            vectors.vectors,
            similarity,
            valid[first],
            valid[second],
            final_progress(progress, len(vectors)),
        )
        pairs = read_only(np.sort(values)) if len(values) else None
        return IndexedVectors(vectors, similarity, read_only(scales), pairs)


def _blocks(vectors: VectorSet, selection: range | None = None) -> Iterator[tuple[slice, Array]]:
    """Yield (slice of rows, vectors) for each block. The vectors are valid until the next block is requested.

    Args:
        selection: the rows to read, consecutive and in ascending order; by default, all rows.
    """
    matrix, selection = vectors.vectors, range(len(vectors)) if selection is None else selection
    if isinstance(matrix, ArrayFile):
        yield from matrix.blocks(_BLOCK_NUMBERS, selection)
        return
    size = max(1, _BLOCK_NUMBERS // matrix.shape[1])
    for start in range(selection.start, selection.stop, size):
        rows = slice(start, min(start + size, selection.stop))
        yield rows, matrix[rows]


def _check_dimensions(vectors: VectorSet, size: int, checkpoint: Checkpoint) -> None:
    actual = vectors.vectors.shape[1]
    if actual != size:
        raise SelectionError(
            f"The vectors of {vectors.name} have {actual:,} dimensions, but the vectors of "
            f"{checkpoint.description.name} have {size:,} with these options. Choose the model that "
            "computed the vectors, and the number of dimensions to which they were truncated."
        )


def _agreement(
    checkpoint: Checkpoint, recipe: PoolingConfig, documents: tuple[Document, ...], vectors: Array
) -> float | None:
    """Return the cosine of the first stored vector with the vector that the model computes for its text.

    Return None if the first document has no text, or if the model cannot encode the text.
    """
    text = next((str(document) for document in documents[:1]), "")
    if not text.strip():
        return None
    try:
        encoded = encode_texts(checkpoint, recipe, [text], True, lambda _: "The text")
    except (EmptyTextError, TooLongError):
        return None
    value = score(vectors[0].astype(np.float64), encoded.vectors[0].astype(np.float64), "cosine")
    return None if np.isnan(value) else value


@dataclass(frozen=True, eq=False)
class IndexedVectors:
    """Vectors with precomputed data for a search; returned by `VectorSearch.index`.

    Attributes:
        vectors: the vectors.
        similarity: name of the similarity function, one of `SIMILARITIES`.
        scales: reciprocal norm of each vector, float64; NaN if the vector is zero or not finite.
        pair_scores: sorted scores of random pairs of valid vectors; None if there is only one.
    """

    vectors: VectorSet
    similarity: str
    scales: Array
    pair_scores: Array | None

    @property
    def cache_key(self) -> tuple[Any, ...]:
        """Cache key that identifies the vectors and the similarity function."""
        return type(self), self.vectors.cache_key, self.similarity

    def best(self, query: Array, count: int) -> tuple[Array, Array]:
        """Return the indices of the vectors with the highest scores, best first, and their float64 scores.

        Ties are in the order of the vectors. Zero and non-finite vectors are left out.

        Args:
            query: the vector of the query, with shape [size].
            count: maximum number of vectors.
        """
        query = query.astype(np.float64)
        is_product = self.similarity in ("cosine", "dot")
        approximate, bounds = self._products(query) if is_product else self._distances(query)
        valid = np.flatnonzero(~np.isnan(approximate))
        if len(valid) > count:
            lower = (approximate - bounds)[valid]
            threshold = np.partition(lower, -count)[-count]
            valid = valid[(approximate + bounds)[valid] >= threshold]
        if not is_product:
            values = approximate[valid]
        else:
            values = np.empty(len(valid))
            size = max(1, _BLOCK_NUMBERS // len(query))
            for start in range(0, len(valid), size):
                block = self.vectors.vectors[valid[start : start + size]]
                repeated = np.broadcast_to(query, block.shape)
                values[start : start + size] = scores_of_rows(repeated, block, self.similarity)
        order = np.argsort(-values, kind="stable")[:count]
        return valid[order], values[order]

    def _products(self, query: Array) -> tuple[Array, Array | float]:
        """Return the score of each vector, computed in the vectors' data type, and a bound on its error.

        The error of a dot product of n components is at most n u ‖v‖ ‖q‖, where u is the unit roundoff, up to
        second-order terms (Higham 2002, section 3.1). Adding 8 to n accounts for the rounding of the query
        and the scale.
        """
        dtype = self.vectors.vectors.dtype
        length = float(np.linalg.norm(query))
        unit = query / length if length else query
        products = np.empty(len(self.vectors), dtype)
        converted = unit.astype(dtype)

        def multiply(selection: range) -> None:
            with np.errstate(over="ignore", invalid="ignore"):
                for rows, block in _blocks(self.vectors, selection):
                    # Use einsum, because the threads of BLAS would wait for each other on a busy machine.
                    np.einsum("ij,j->i", block, converted, out=products[rows])

        blocks = -(-len(products) * len(query) // _BLOCK_NUMBERS)
        threads = min(blocks, torch.get_num_threads())
        limits = np.linspace(0, len(products), threads + 1).astype(int).tolist()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(multiply, starmap(range, pairwise(limits))))
        with np.errstate(over="ignore", invalid="ignore"):
            share = (len(query) + 8) * float(np.finfo(dtype).eps)
            if self.similarity == "cosine":
                products *= self.scales.astype(dtype)
                return self._usable(products), share
            bounds = share * length / self.scales
            return self._usable(products * length), bounds

    def _usable(self, approximate: Array) -> Array:
        """Set scores of zero and non-finite vectors to NaN, and all other non-finite scores to infinity."""
        is_valid = ~np.isnan(self.scales)
        approximate[is_valid & ~np.isfinite(approximate)] = np.inf
        approximate[~is_valid] = np.nan
        return approximate

    def _distances(self, query: Array) -> tuple[Array, float]:
        values = [scores(query[None], block, self.similarity)[0] for _, block in _blocks(self.vectors)]
        distances = np.concatenate(values).astype(np.float64)
        distances[np.isnan(self.scales)] = np.nan
        return distances, 0.0

    @property
    def nbytes(self) -> int:
        """Size of the vectors in memory and of the precomputed data, in bytes."""
        own = 0 if isinstance(self.vectors.vectors, ArrayFile) else self.vectors.vectors.nbytes
        return own + self.scales.nbytes + 8 * MAX_PAIRS + 60 * len(self.vectors)


@dataclass(frozen=True, eq=False, repr=False)
class VectorSearchResult(Result):
    """The documents whose stored vectors have the highest scores for a query.

    Attributes:
        documents: the documents, best first. Their text is "" if the file has no texts.
        scores: score of each document in `documents`, float64.
        pair_scores: sorted scores of random pairs of valid vectors; None if there is only one.
        dropped: number of tokens truncated from each document, if the file has this column.
        without_vector: number of zero and non-finite vectors, which are left out.
        recipe: the pooling configuration of the query.
        source_note: a sentence about the origin of the vectors; None for the sentence vectors of a store,
            whose model and pooling have been checked.
        agreement: cosine of the stored vector of the best document with the vector that the model computes
            for its text; None if there is no text, or if the model cannot encode it.
    """

    question: VectorSearch
    documents: tuple[Document, ...]
    scores: Array
    pair_scores: Array | None
    dropped: tuple[int, ...] | None
    without_vector: int
    recipe: PoolingConfig
    source_note: str | None
    agreement: float | None

    def percentile(self, rank: int) -> float:
        """Return the percentage of random pairs of vectors with a lower score than the document at `rank`."""
        if self.pair_scores is None:
            return float("nan")
        return percentile_of(float(self.scores[rank]), self.pair_scores)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the origin of the vectors and about excluded vectors."""
        left_out = (
            f"{self.without_vector:,} vectors are zero or not finite. These vectors are excluded."
            if self.without_vector
            else ""
        )
        source = "" if self.source_note is None else f"{self.source_note}{self._check}"
        return tuple(filter(None, (source, left_out)))

    @property
    def is_same_model(self) -> bool | None:
        """Whether `agreement` shows that the model computed the stored vectors; None if there is no text."""
        return None if self.agreement is None else self.agreement >= SAME_VECTOR

    @property
    def _check(self) -> str:
        """A sentence that compares the best document's stored vector with the vector of its text."""
        if self.agreement is None:
            return ""
        cosine = (
            "the cosine between its stored vector and the vector computed from its text is "
            f"{self.agreement:.4f}"
        )
        if self.is_same_model:
            return f" For the best document, the stored and the computed vector agree: {cosine}."
        return (
            f" For the best document, the stored and the computed vector do not agree: {cosine}, so the "
            "scores are probably meaningless. Choose the model and the prompts with which the vectors "
            "were computed."
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pooling of the query, the notes, and the agreement."""
        agreement = {} if self.agreement is None else {"cosine_with_text_of_best": self.agreement}
        return {"recipe": self.recipe.about, "notes": list(self.notes), **agreement}

    def frame(self) -> pd.DataFrame:
        """Return the documents as a table with one row per document.

        Columns: rank, document (ID), score, percentile (percentage of random pairs of vectors with a lower
        score), tokens_dropped (if the file has this column), text.
        """
        dropped = {} if self.dropped is None else {"tokens_dropped": list(self.dropped)}
        return pd.DataFrame(
            {
                "rank": np.arange(1, len(self.documents) + 1),
                "document": frames.plain_strings([document.id for document in self.documents]),
                "score": self.scores,
                "percentile": [self.percentile(rank) for rank in range(len(self.documents))],
                **dropped,
                "text": frames.plain_strings([document.text for document in self.documents]),
            }
        )

    @property
    def nbytes(self) -> int:
        """Size of the scores and the documents in bytes."""
        pairs = 0 if self.pair_scores is None else self.pair_scores.nbytes
        return pairs + self.scores.nbytes + sum(map(len, self.documents))
