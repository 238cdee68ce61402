"""Search: the documents that are most similar to a query, by one or more scorers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from bert_probe.analyses.retrieval.calibration import MAX_PAIRS, percentile_of, random_pair_scores
from bert_probe.analyses.retrieval.late_interaction import (
    UNTRAINED,
    MultiVectorConfig,
    TokenVectors,
    document_config,
    encode_documents,
    encode_tokens,
    maxsim,
    query_config,
)
from bert_probe.analyses.retrieval.scorers import BM25, K1, B, PromptedSearch, cross_encoder_head, pair_scores
from bert_probe.analyses.vectors.pooling import PoolingConfig
from bert_probe.analyses.vectors.sentences import TextVectors, encode_texts, name_text_errors
from bert_probe.analyses.vectors.similarity import scores
from bert_probe.core import frames
from bert_probe.core.extras import require
from bert_probe.core.field_types import Choices, Number, Text
from bert_probe.core.inputs import Documents
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, UnavailableError, memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.documents import Document, DocumentList, as_documents

BI_ENCODER, LATE_INTERACTION, CROSS_ENCODER, BM25_SCORER = (
    "bi-encoder",
    "late-interaction",
    "cross-encoder",
    "bm25",
)
SCORERS: Mapping[str, str] = {
    BI_ENCODER: "Similarity of the vectors of query and document.",
    LATE_INTERACTION: "MaxSim: the maximum similarity of each query token to a document token, summed or "
    "averaged over the query tokens.",
    CROSS_ENCODER: "Score of query and document encoded together; reranks the top documents of another "
    "scorer.",
    BM25_SCORER: "Words that query and document share, weighted by inverse document frequency; no model is "
    "needed.",
}
"""Name of a scorer → what it computes."""
OVERLAP = 10
"""Maximum number of top-ranked documents of two scorers whose overlap is reported."""
_OTHER_OPTIONS = (
    "The documents were indexed with other options. Index the documents with the options of this question."
)


@question("search")
class Search(PromptedSearch):
    """The documents that are most similar to a query.

    For a checkpoint with its own pooling, the vectors equal those of sentence-transformers' `encode_query`
    and `encode_document`; otherwise, they are the mean of the last hidden states. Token vectors come from a
    late-interaction model, or else are the last hidden states (see `document_config`).

    Attributes:
        query: the query.
        scorers: names in `SCORERS`. The first scorer ranks the documents.
        candidates: number of documents that the cross-encoder reranks: the top-ranked documents of the first
            scorer that is not the cross-encoder, or of BM25 if there is no other scorer. The cross-encoder
            does not score further documents.
        count: number of documents in the table.
        prompt, document_prompt, dimensions: see `PromptedSearch`.
    """

    inputs = Documents()

    query: str = param(Text(), positional=True, about="The query.")
    scorers: Sequence[str] = param(
        Choices(SCORERS), default=(BI_ENCODER,), about="Scorers; the first scorer ranks the documents."
    )
    candidates: int = param(
        Number(1),
        default=100,
        about="Number of top-ranked documents of another scorer that the cross-encoder reranks.",
    )
    count: int = param(
        Number(1),
        default=10,
        display_only=True,
        key="search_count",
        about="Number of documents in the table.",
    )

    def of(
        self,
        checkpoint: Checkpoint,
        documents: Sequence[str] | IndexedDocuments,
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> SearchResult:
        """Score every document.

        Args:
            checkpoint: the model.
            documents: the documents, or the result of `index` for them with this model and the same prompt,
                dimensions and truncation of documents.
            truncate: truncate texts that are too long instead of raising an error. A checkpoint that defines
                a maximum length always truncates.
            progress: called with the number of distinct documents, or of pairs of the cross-encoder, done and
                the total.

        Raises:
            TextError, EmptyTextError, TooLongError: there are no documents, two documents have the same ID,
                or a text cannot be encoded.
            SelectionError: the documents were indexed with other options; see also `resolve_pooling`.
            UnavailableError, CheckpointError: see `resolve_pooling` and `cross_encoder_head`; also if the
                package of a scorer is missing.
            OutOfMemoryError: a batch or the vectors need more memory than is available.
        """
        checkpoint = checkpoint.snapshot()
        if not isinstance(documents, IndexedDocuments):
            documents = self.index(checkpoint, documents, truncate, progress)
        values, dropped = self.scores(checkpoint, documents, truncate, progress)
        return SearchResult(
            self,
            InputRecord.of_documents(checkpoint, documents.documents, sum(dropped)),
            documents.documents,
            {name: read_only(values[name]) for name in self.scorers},
            documents.pair_scores if BI_ENCODER in values else None,
            self.query_pooling(checkpoint) if BI_ENCODER in values else None,
            documents.recipe,
            query_config(checkpoint, self.prompt) if LATE_INTERACTION in values else None,
            documents.token_config,
            dropped,
        )

    def scores(
        self,
        checkpoint: Checkpoint,
        documents: IndexedDocuments,
        truncate: bool = False,
        progress: Progress = no_progress,
        bi_encoder_scores: Array | None = None,
    ) -> tuple[dict[str, Array], tuple[int, ...]]:
        """Return the scores of every document, and the number of tokens truncated from each document.

        For the other arguments and the errors, see `of`.

        Args:
            documents: the result of `index`.
            bi_encoder_scores: scores of the bi-encoder, [document], if they were computed before.

        Returns:
            The scores of the documents, [document], by scorer; NaN for documents that are not scored.
        """
        values: dict[str, Array] = {}
        dropped = documents.dropped
        if BM25_SCORER in self.scorers:
            values[BM25_SCORER] = documents.bm25.score(self.query)
        if BI_ENCODER in self.scorers:
            values[BI_ENCODER] = (
                self._bi_encoder(checkpoint, documents, self.query_pooling(checkpoint), truncate)
                if bi_encoder_scores is None
                else bi_encoder_scores
            )
        if LATE_INTERACTION in self.scorers:
            config = query_config(checkpoint, self.prompt)
            values[LATE_INTERACTION] = self._late_interaction(checkpoint, documents, config, truncate)
        if CROSS_ENCODER in self.scorers:
            values[CROSS_ENCODER], dropped = self._cross_encoder(checkpoint, documents, values, progress)
        return values, dropped

    def _bi_encoder(
        self, checkpoint: Checkpoint, documents: IndexedDocuments, recipe: PoolingConfig, truncate: bool
    ) -> Array:
        if documents.encoded is None or documents.recipe != self.document_pooling(checkpoint):
            raise SelectionError(_OTHER_OPTIONS)
        query = encode_texts(checkpoint, recipe, [self.query], truncate, lambda _: "The query")
        with memory_errors(
            "The vectors of these documents need more memory than is available. Use fewer documents."
        ):
            values: Array = scores(query.vectors, documents.encoded.vectors, recipe.similarity)[0]
        return values

    def _late_interaction(
        self, checkpoint: Checkpoint, documents: IndexedDocuments, config: MultiVectorConfig, truncate: bool
    ) -> Array:
        self._check_dimensions()
        expected = document_config(checkpoint, self.document_prompt)
        if documents.tokens is None or documents.token_config != expected:
            raise SelectionError(_OTHER_OPTIONS)
        with name_text_errors("The query"):
            query = encode_tokens(checkpoint, config, self.query, truncate)
        return maxsim(query.vectors, documents.tokens, config.similarity)

    def _cross_encoder(
        self,
        checkpoint: Checkpoint,
        documents: IndexedDocuments,
        values: Mapping[str, Array],
        progress: Progress,
    ) -> tuple[Array, tuple[int, ...]]:
        """Return each document's cross-encoder score, and the number of tokens truncated from each document.

        The score is NaN for documents that the cross-encoder does not rerank.

        Args:
            values: scores of the documents by the other scorers, by name of the scorer.
        """
        rows = np.arange(len(documents.documents))
        if len(rows) > self.candidates:
            name = self.candidates_by
            first_scores = values[name] if name in values else documents.bm25.score(self.query)
            rows = np.sort(np.argsort(-first_scores, kind="stable")[: self.candidates])
        texts = [documents.documents[row] for row in rows]
        names = [f"Document {row + 1:,}" for row in rows]
        scores_of_rows, truncated = pair_scores(checkpoint, self.query, texts, names, progress)
        all_scores = np.full(len(documents.documents), np.nan, scores_of_rows.dtype)
        all_scores[rows] = scores_of_rows
        dropped = np.array(documents.dropped, np.int64)
        dropped[rows] = np.maximum(dropped[rows], truncated)
        return all_scores, tuple(dropped.tolist())

    @property
    def candidates_by(self) -> str:
        """Name of the scorer whose top-ranked documents the cross-encoder reranks."""
        return next((name for name in self.scorers if name != CROSS_ENCODER), BM25_SCORER)

    def index(
        self,
        checkpoint: Checkpoint,
        documents: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> IndexedDocuments:
        """Compute all data that does not depend on the query, so that further queries take milliseconds.

        For the arguments and the errors, see `of`.
        """
        checkpoint, texts = checkpoint.snapshot(), as_documents(documents)
        needs_candidates = self.scorers == (CROSS_ENCODER,) and len(texts) > self.candidates
        if BM25_SCORER in self.scorers or needs_candidates:
            require("bm25s")
        if CROSS_ENCODER in self.scorers:
            # raise an error for an unsupported model before the documents are encoded
            cross_encoder_head(checkpoint)
        name = "Document {:,}".format
        encoded = recipe = tokens = token_config = None
        if BI_ENCODER in self.scorers:
            recipe = self.document_pooling(checkpoint)
            encoded = encode_texts(checkpoint, recipe, texts, truncate, name, progress)
        if LATE_INTERACTION in self.scorers:
            self._check_dimensions()
            token_config = document_config(checkpoint, self.document_prompt)
            tokens = encode_documents(checkpoint, token_config, texts, truncate, name, progress)
        return IndexedDocuments(texts, encoded, recipe, tokens, token_config)

    def _check_dimensions(self) -> None:
        if self.dimensions is not None:
            raise SelectionError(
                f"dimensions is {self.dimensions:,}, but {LATE_INTERACTION} does not support truncated "
                "vectors. Omit dimensions."
            )


@dataclass(frozen=True, eq=False)
class IndexedDocuments:
    """Documents with the vectors that their scores need; returned by `Search.index`.

    Attributes:
        documents: the documents.
        encoded: vectors of the documents; None if no scorer needs them.
        recipe: the pooling configuration of the vectors.
        tokens: vectors of the documents' tokens; None if no scorer needs them.
        token_config: the configuration that maps documents to one vector per token.
    """

    documents: DocumentList
    encoded: TextVectors | None
    recipe: PoolingConfig | None
    tokens: TokenVectors | None = None
    token_config: MultiVectorConfig | None = None

    @property
    def dropped(self) -> tuple[int, ...]:
        """Number of tokens truncated from each document, by the scorer that truncates most."""
        parts = [part.dropped for part in (self.encoded, self.tokens) if part is not None]
        return tuple(map(max, *parts, (0,) * len(self.documents))) if parts else (0,) * len(self.documents)

    @cached_property
    def pair_scores(self) -> Array | None:
        """Sorted bi-encoder scores of random pairs of documents; None if no pair has a score."""
        if self.encoded is None or self.recipe is None:
            return None
        try:
            return random_pair_scores(self.encoded.vectors, self.recipe.similarity)
        except UnavailableError:
            return None

    @cached_property
    def bm25(self) -> BM25:
        """The BM25 index of the documents.

        Raises:
            UnavailableError: the package bm25s is not installed.
        """
        return BM25(self.documents)

    @property
    def nbytes(self) -> int:
        """Estimated size of the documents, their vectors and their BM25 index in bytes."""
        parts = [part.vectors for part in (self.encoded, self.tokens) if part is not None]
        vectors = sum(part.nbytes for part in parts)
        return vectors + 8 * MAX_PAIRS + 20 * sum(map(len, self.documents))


@dataclass(frozen=True, eq=False, repr=False)
class SearchResult(Result):
    """The score of every document by every scorer.

    Attributes:
        documents: the documents, in their original order.
        scores: score of each document by each scorer, of shape [document].
        pair_scores: sorted scores of random pairs of documents by the bi-encoder; None without the
            bi-encoder, or if there is no pair.
        recipe: the pooling configuration of the query; None without the bi-encoder.
        document_recipe: the pooling configuration of the documents.
        token_config: the configuration that maps the query to one vector per token; None without late
            interaction.
        document_token_config: the configuration that maps documents to one vector per token; None without
            late interaction.
        dropped: number of tokens truncated from each document.
    """

    question: Search
    documents: tuple[Document, ...]
    scores: Mapping[str, Array]
    pair_scores: Array | None
    recipe: PoolingConfig | None
    document_recipe: PoolingConfig | None
    token_config: MultiVectorConfig | None
    document_token_config: MultiVectorConfig | None
    dropped: tuple[int, ...]

    def __post_init__(self) -> None:
        count = len(self.documents)
        if tuple(self.scores) != self.question.scorers or len(self.dropped) != count:
            raise ShapeError(
                f"scores must have the keys {', '.join(self.question.scorers)}, and dropped must have "
                f"{count} entries, one per document, not {', '.join(self.scores)} and {len(self.dropped)} "
                "entries."
            )
        for name, values in self.scores.items():
            if values.shape != (count,):
                raise ShapeError(f"The {name} scores must have shape ({count},), not {values.shape}.")

    @cached_property
    def ranks(self) -> Mapping[str, Array]:
        """Rank of each document, from 1, [document], by scorer.

        Tied documents keep their original order, and documents without a score come last.
        """
        return {name: rank_documents(values) for name, values in self.scores.items()}

    @cached_property
    def order(self) -> Array:
        """Indices of the documents, from 0, in the order in which the first scorer ranks them."""
        return np.argsort(self.ranks[self.question.scorers[0]])

    @property
    def sentences(self) -> tuple[str, ...]:
        """The documents as JSON lines, the form in which view files store them."""
        return tuple(document.line for document in self.documents)

    @cached_property
    def agreement(self) -> tuple[Agreement, ...]:
        """Rank agreement of each pair of scorers."""
        pairs = combinations(self.question.scorers, 2)
        return tuple(Agreement.of(a, b, self.ranks, self.scores) for a, b in pairs)

    @property
    def truncated(self) -> tuple[int, ...]:
        """Indices of the documents that were truncated, from 0."""
        return tuple(index for index, count in enumerate(self.dropped) if count)

    @property
    def without_match(self) -> int:
        """Number of documents that contain no word of the query, so that their BM25 score is 0."""
        return int((self.scores[BM25_SCORER] == 0).sum()) if BM25_SCORER in self.scores else 0

    def disagreements(self, a: str, b: str) -> Array:
        """Return the documents that two scorers rank differently, the largest rank difference first.

        Only documents that both score, and that are among the first `OVERLAP` of at least one of the scorers,
        are returned.

        Args:
            a, b: names of the scorers.

        Returns:
            Indices of the documents, from 0.
        """
        first, second = self.ranks[a], self.ranks[b]
        has_both = ~np.isnan(self.scores[a] + self.scores[b])
        is_compared = has_both & (np.minimum(first, second) <= OVERLAP)
        differences = np.where(is_compared, np.abs(first - second), 0)
        order = np.argsort(-differences, kind="stable")
        return order[differences[order] > 0]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pooling configurations, the parameters of BM25, and the rank agreement of the scorers."""
        poolings = {"recipe": self.recipe, "document_recipe": self.document_recipe}
        configs = {"query": self.token_config, "document": self.document_token_config}
        vectors = {name: config.about for name, config in configs.items() if config is not None}
        agreement = {"agreement": [pair.about for pair in self.agreement]}
        return {
            **{name: recipe.about for name, recipe in poolings.items() if recipe is not None},
            **({LATE_INTERACTION: vectors} if vectors else {}),
            **({BM25_SCORER: {"k1": K1, "b": B}} if BM25_SCORER in self.scores else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
            **(agreement if self.agreement else {}),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the limits of the scores."""
        untrained = self.token_config is not None and not self.token_config.is_trained
        return ((UNTRAINED,) if untrained else ()) + ((self._without_score,) if self._without_score else ())

    @property
    def _without_score(self) -> str:
        """A sentence about documents that the cross-encoder has not scored; "" if there are none."""
        if CROSS_ENCODER not in self.scores:
            return ""
        missing = int(np.isnan(self.scores[CROSS_ENCODER]).sum())
        if not missing:
            return ""
        return (
            f"The cross-encoder has scored only the top {len(self.documents) - missing:,} documents of "
            f"{self.question.candidates_by}; the other {missing:,} have no score."
        )

    @property
    def median(self) -> float:
        """Median bi-encoder score of the documents; NaN if no score is defined."""
        return float(np.median(self._defined)) if len(self._defined) else float("nan")

    @property
    def best(self) -> float:
        """Highest bi-encoder score of a document; NaN if no score is defined."""
        return float(self._defined.max()) if len(self._defined) else float("nan")

    @property
    def _defined(self) -> Array:
        values = self.scores[BI_ENCODER]
        defined: Array = values[~np.isnan(values)]
        return defined

    def percentile(self, document: int) -> float:
        """Return the percentage of random document pairs that score lower than the query and a document.

        Args:
            document: index of the document, from 0.
        """
        if self.pair_scores is None:
            return float("nan")
        return percentile_of(float(self.scores[BI_ENCODER][document]), self.pair_scores)

    def frame(self) -> pd.DataFrame:
        """Return the top-ranked documents of the first scorer.

        Columns: rank, document (ID), score; for each further scorer, its score and rank with the scorer's
        name, such as bm25_score and bm25_rank; after the score of the bi-encoder, percentile: the percentage
        of random pairs of documents with a lower score than the query and the document, NaN for a single
        document; tokens_dropped, title, text.
        """
        best = self.order[: self.question.count]
        first = self.question.scorers[0]
        documents = [self.documents[index] for index in best]
        columns: dict[str, Any] = {}
        for name in self.question.scorers:
            prefix = "" if name == first else name.replace("-", "_") + "_"
            columns[f"{prefix}score"] = self.scores[name][best]
            columns |= {f"{prefix}rank": self.ranks[name][best]} if prefix else {}
            columns |= (
                {"percentile": [self.percentile(index) for index in best]} if name == BI_ENCODER else {}
            )
        return pd.DataFrame(
            {
                "rank": np.arange(1, len(best) + 1),
                "document": frames.plain_strings([document.id for document in documents]),
                **columns,
                "tokens_dropped": [self.dropped[index] for index in best],
                "title": frames.plain_strings([document.title for document in documents]),
                "text": frames.plain_strings([document.text for document in documents]),
            }
        )

    @property
    def nbytes(self) -> int:
        """Size of the scores and the documents in bytes."""
        arrays = [*self.scores.values(), *([] if self.pair_scores is None else [self.pair_scores])]
        return sum(values.nbytes for values in arrays) + sum(map(len, self.documents))


def rank_documents(scores: Array) -> Array:
    """Return the rank of each document by its score, from 1, int64 [document].

    Tied documents keep their original order, and documents with an undefined score come last.
    """
    ranks = np.empty(len(scores), np.int64)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return ranks


@dataclass(frozen=True)
class Agreement:
    """Rank agreement of two scorers.

    Attributes:
        a, b: names of the scorers.
        documents: number of documents that both scorers score.
        spearman: Spearman's rank correlation over these documents, −1 to 1; NaN if it is undefined.
        overlap: number of documents among the first `max_overlap` of both rankings.
        max_overlap: `OVERLAP`, or the number of documents that a scorer scores if it is smaller.
    """

    a: str
    b: str
    documents: int
    spearman: float
    overlap: int
    max_overlap: int

    @classmethod
    def of(cls, a: str, b: str, ranks: Mapping[str, Array], scores: Mapping[str, Array]) -> Agreement:
        """Compare two scorers by the ranks and scores of all documents."""
        first, second = scores[a], scores[b]
        depth = min(OVERLAP, *(int((~np.isnan(values)).sum()) for values in (first, second)))
        has_both = np.isfinite(first) & np.isfinite(second)
        first, second = first[has_both], second[has_both]
        is_defined = len(first) > 1 and all(np.ptp(values) > 0 for values in (first, second))
        spearman = float(spearmanr(first, second).statistic) if is_defined else float("nan")
        overlap = int(((ranks[a] <= depth) & (ranks[b] <= depth)).sum())
        return cls(a, b, len(first), spearman, overlap, depth)

    @property
    def about(self) -> dict[str, Any]:
        """The agreement as JSON values; an undefined correlation is None."""
        spearman = None if np.isnan(self.spearman) else self.spearman
        return {
            "scorers": [self.a, self.b],
            "documents": self.documents,
            "spearman": spearman,
            "overlap": self.overlap,
            "overlap_of": self.max_overlap,
        }
