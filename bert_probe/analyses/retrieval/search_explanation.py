"""The contributions that add up to the score of a document for a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.retrieval.late_interaction import (
    UNTRAINED,
    MultiVectorConfig,
    TokenMatches,
    document_config,
    encode_tokens,
    query_config,
)
from bert_probe.analyses.retrieval.scorers import BM25, NOT_A_SUM, PromptedSearch
from bert_probe.analyses.retrieval.search import (
    BI_ENCODER,
    BM25_SCORER,
    CROSS_ENCODER,
    LATE_INTERACTION,
    SCORERS,
    IndexedDocuments,
)
from bert_probe.analyses.vectors.pooling import (
    PoolingConfig,
    pair_contributions,
    prompt_positions,
    text_vector,
    token_parts,
    trace_pooled,
    why_not_a_sum,
)
from bert_probe.analyses.vectors.similarity import score
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Name, Optional, Text
from bert_probe.core.inputs import Documents
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.core.result import Result, SortOrder
from bert_probe.errors import SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import token_strings
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.documents import Document, as_documents


@question("search explanation", command="explain")
class SearchExplanation(PromptedSearch):
    """The contributions that add up to a document's score for a query.

    The bi-encoder has one contribution for each pair of a query token and a document token; a SparseEncoder
    has one for each term of its vocabulary. Late interaction has one for each query token: the similarity to
    its best match among the document tokens. BM25 has one for each word of the query. The score of a
    cross-encoder cannot be split into contributions.

    Attributes:
        query: the query.
        document: ID of the document; by default, the first document. A document without an ID is identified
            by its number, counted from 1.
        against: ID of a second document to compare with.
        scorer: a name in `SCORERS`.
        prompt, document_prompt, dimensions: see `PromptedSearch`.
    """

    inputs = Documents()

    query: str = param(Text(), positional=True, about="The query.")
    document: str | None = param(
        Optional(Name()), default=None, about="ID of the document; by default, the first one."
    )
    against: str | None = param(
        Optional(Name()), default=None, about="ID of a second document to compare with."
    )
    scorer: str = param(Choice(SCORERS), default=BI_ENCODER, about="The scorer to explain.")

    def of(
        self, checkpoint: Checkpoint, documents: Sequence[str] | IndexedDocuments, truncate: bool = False
    ) -> SearchExplanationResult:
        """Explain the score of one document, or of two.

        Args:
            checkpoint: the model.
            documents: all documents of the search, or the result of `Search.index` for them. BM25 needs the
                word frequencies of all documents; the bi-encoder reads only the explained documents.
            truncate: truncate texts that are too long instead of raising an error.

        Raises:
            SelectionError: there is no document with a selected ID, or both IDs are the same.
            UnavailableError: the score is not a sum over token pairs, because the similarity function or the
                pooling is not linear, or because the scorer is a cross-encoder; see also `resolve_pooling`.
            TextError, EmptyTextError, TooLongError: a text cannot be encoded.
        """
        if self.scorer == CROSS_ENCODER:
            raise UnavailableError(NOT_A_SUM)
        checkpoint = checkpoint.snapshot()
        texts = documents.documents if isinstance(documents, IndexedDocuments) else as_documents(documents)
        indices = self._indices(texts)
        explained = [texts[index] for index in indices]
        parts: tuple[Contributions, ...]
        recipe = token_config = None
        if self.scorer == BM25_SCORER:
            index = documents.bm25 if isinstance(documents, IndexedDocuments) else BM25(texts)
            scores = index.score(self.query)
            parts = tuple(
                TermContributions(index.terms(self.query, position), float(scores[position]))
                for position in indices
            )
            dropped = 0
        elif self.scorer == LATE_INTERACTION:
            token_config = query_config(checkpoint, self.prompt)
            parts = self._matches(checkpoint, token_config, explained, truncate)
            dropped = sum(part.document.encoding.dropped for part in parts if isinstance(part, TokenMatches))
        else:
            recipe = self.query_pooling(checkpoint)
            parts, dropped = self._contributions(checkpoint, recipe, explained, truncate)
        record = InputRecord.of_documents(checkpoint, texts, dropped)
        return SearchExplanationResult(self, record, texts, indices, parts, recipe, token_config)

    def _contributions(
        self, checkpoint: Checkpoint, recipe: PoolingConfig, documents: Sequence[Document], truncate: bool
    ) -> tuple[tuple[Contributions, ...], int]:
        """Return the contributions of the bi-encoder, and the number of tokens truncated from the documents.

        Args:
            recipe: the pooling configuration of the query.
        """
        document_recipe = self.document_pooling(checkpoint)
        query = trace_pooled(checkpoint, self.query, recipe, truncate)
        traces = [trace_pooled(checkpoint, document, document_recipe, truncate) for document in documents]
        dropped = sum(trace.encoding.dropped for trace in traces)
        model = checkpoint.sentence_model
        if model is not None and model.is_sparse and recipe.similarity in ("cosine", "dot"):
            names = token_strings(checkpoint.encoder.tokenizer, range(model.size))
            return tuple(_sparse(query, recipe, trace, document_recipe, names) for trace in traces), dropped
        return tuple(
            TokenContributions.of(query, recipe, trace, document_recipe) for trace in traces
        ), dropped

    def _matches(
        self, checkpoint: Checkpoint, config: MultiVectorConfig, documents: Sequence[Document], truncate: bool
    ) -> tuple[TokenMatches, ...]:
        """Return the contributions of late interaction.

        Args:
            config: the configuration that maps the query to one vector per token.
        """
        if self.dimensions is not None:
            raise SelectionError(f"{LATE_INTERACTION} does not truncate vectors. Omit dimensions.")
        of_documents = document_config(checkpoint, self.document_prompt)
        query = encode_tokens(checkpoint, config, self.query, truncate)
        return tuple(
            TokenMatches.of(
                query, encode_tokens(checkpoint, of_documents, document, truncate), config.similarity
            )
            for document in documents
        )

    def _indices(self, texts: Sequence[Document]) -> tuple[int, ...]:
        by_id = {document.id: index for index, document in enumerate(texts)}
        first = texts[0].id if self.document is None else self.document
        names = [first] if self.against is None else [first, self.against]
        for name in names:
            if name not in by_id:
                raise SelectionError(
                    f"There is no document with the ID {name[:100]!r}. A document without an ID is "
                    "identified by its number, counted from 1."
                )
        if first == self.against:
            raise SelectionError(
                f"Both documents have the ID {first[:100]!r}. Choose two different documents."
            )
        return tuple(by_id[name] for name in names)


@dataclass(frozen=True, eq=False)
class TokenContributions:
    """The contributions to a bi-encoder's score, one for each pair of tokens.

    Attributes:
        query, document: traces of the query and of the document, each with its prompt.
        values: contribution of each pair of tokens, float64 [token of the query, token of the document].
        prompt_positions: positions of the tokens of the prompt in the query and in the document.
        score: the score of the two vectors, float64.
        score_name: readable name of the score.
    """

    query: Trace
    document: Trace
    values: Array
    prompt_positions: tuple[tuple[int, ...], tuple[int, ...]]
    score: float
    score_name: str

    @classmethod
    def of(
        cls, query: Trace, recipe: PoolingConfig, document: Trace, document_recipe: PoolingConfig
    ) -> TokenContributions:
        """Compute the contribution of each pair of a query token and a document token.

        Raises:
            UnavailableError: the score is not a sum over token pairs, or a vector is zero.
        """
        if reason := why_not_a_sum(recipe):
            raise UnavailableError(f"{reason} The contributions to the score cannot be shown.")
        sides = ((query, recipe), (document, document_recipe))
        first_parts, second_parts = (token_parts(trace.vectors(-1), pooling) for trace, pooling in sides)
        first, second = (text_vector(trace, pooling) for trace, pooling in sides)
        return cls(
            query,
            document,
            pair_contributions(first_parts, second_parts, recipe.similarity),
            (prompt_positions(query.tokens, recipe), prompt_positions(document.tokens, document_recipe)),
            score(first, second, recipe.similarity),
            recipe.score_name,
        )

    @property
    def percent(self) -> Array:
        """The contributions times 100, so that they fit into a heatmap cell with two decimals."""
        return read_only(100 * self.values)

    @property
    def of_document(self) -> Array:
        """Sum of the contributions over all query tokens, of shape [document token]."""
        return read_only(self.values.sum(axis=0))

    @property
    def off(self) -> float:
        """The absolute difference between the sum of the contributions and the score."""
        return abs(float(self.values.sum()) - self.score)

    @property
    def specials_share(self) -> float:
        """The sum of the contributions of pairs with a special token."""
        words = [[not token.special for token in trace.tokens] for trace in (self.query, self.document)]
        return float(self.values.sum() - self.values[np.ix_(*words)].sum())

    def by_query(self) -> pd.DataFrame:
        """Return the sum over all document tokens for each query token: columns term, contribution."""
        names = frames.plain_strings([token.display for token in self.query.tokens])
        return pd.DataFrame({"term": names, "contribution": self.values.sum(axis=1)})

    def frame(self) -> pd.DataFrame:
        """Return one row for each pair: query_token, query_position, token, position, contribution."""
        queries, documents = self.query.tokens, self.document.tokens
        count = len(documents)
        return pd.DataFrame(
            {
                "query_token": frames.plain_strings(
                    [token.display for token in queries for _ in range(count)]
                ),
                "query_position": np.repeat(np.arange(len(queries)), count),
                "token": frames.plain_strings([token.display for token in documents] * len(queries)),
                "position": np.tile(np.arange(count), len(queries)),
                "contribution": self.values.ravel(),
            }
        )


@dataclass(frozen=True, eq=False)
class TermContributions:
    """The contributions to a score of BM25 or of a SparseEncoder, one for each term.

    Attributes:
        terms: one row for each term, with the columns term and contribution, and with further columns that
            depend on the scorer.
        score: the score of the document, float64.
    """

    terms: pd.DataFrame
    score: float

    @property
    def off(self) -> float:
        """The absolute difference between the sum of the contributions and the score."""
        return abs(float(self.terms["contribution"].sum()) - self.score)

    def by_query(self) -> pd.DataFrame:
        """Return the contribution of each term: columns term, contribution."""
        return self.terms[["term", "contribution"]]

    def frame(self) -> pd.DataFrame:
        """Return one row for each term, as a copy of `terms`."""
        return self.terms.copy()


Contributions = TokenContributions | TermContributions | TokenMatches


def _sparse(
    query: Trace, recipe: PoolingConfig, document: Trace, document_recipe: PoolingConfig, names: Sequence[str]
) -> TermContributions:
    """Return the contribution of each term that query and document share, largest first."""
    a, b = (
        text_vector(trace, pooling).astype(np.float64)
        for trace, pooling in ((query, recipe), (document, document_recipe))
    )
    norm = 1.0
    if recipe.similarity == "cosine" and not (norm := float(np.linalg.norm(a) * np.linalg.norm(b))):
        raise UnavailableError(
            "The query or the document has a zero vector, so the cosine is undefined. Use another text."
        )
    products = a * b / norm
    order = np.argsort(-np.abs(products), kind="stable")
    shared = order[products[order] != 0].tolist()
    return TermContributions(
        pd.DataFrame(
            {
                "term": frames.plain_strings([names[index] for index in shared]),
                "query_weight": a[shared],
                "document_weight": b[shared],
                "contribution": products[shared],
            }
        ),
        score(a, b, recipe.similarity),
    )


@dataclass(frozen=True, eq=False, repr=False)
class SearchExplanationResult(Result):
    """The contributions to the score of one document, or of two.

    Attributes:
        documents: all documents of the search.
        indices: indices of the explained documents, from 0.
        contributions: the contributions to the score of each explained document.
        recipe: the pooling configuration of the query; None without the bi-encoder.
        token_config: the configuration that maps the query to one vector per token; None without late
            interaction.
    """

    question: SearchExplanation
    documents: tuple[Document, ...]
    indices: tuple[int, ...]
    contributions: tuple[Contributions, ...]
    recipe: PoolingConfig | None
    token_config: MultiVectorConfig | None = None

    @property
    def explained(self) -> tuple[Document, ...]:
        """The documents whose scores are explained."""
        return tuple(self.documents[index] for index in self.indices)

    @property
    def scores(self) -> tuple[float, ...]:
        """The score of each explained document."""
        return tuple(part.score for part in self.contributions)

    @property
    def largest(self) -> float:
        """The largest absolute contribution of a token of an explained document; 0 without tokens."""
        parts = [part for part in self.contributions if not isinstance(part, TermContributions)]
        return max((float(np.abs(part.of_document).max()) for part in parts), default=0.0)

    @property
    def difference(self) -> float:
        """The score of the first document minus the score of the second; 0 if only one is explained."""
        return self.scores[0] - self.scores[-1]

    @property
    def off(self) -> float:
        """The largest absolute difference between a score and the sum of its contributions."""
        return max(part.off for part in self.contributions)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the limits of the contributions."""
        return () if self.token_config is None or self.token_config.is_trained else (UNTRAINED,)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The documents as JSON lines, the form in which view files store them."""
        return tuple(document.line for document in self.documents)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pooling, and the score of each explained document."""
        pooling: dict[str, Any] = {} if self.recipe is None else {"recipe": self.recipe.about}
        if self.token_config is not None:
            pooling |= {"query": self.token_config.about}
        if self.notes:
            pooling |= {"notes": list(self.notes)}
        scores = {document.id: score for document, score in zip(self.explained, self.scores, strict=True)}
        return {**pooling, "scores": scores}

    @cached_property
    def by_query(self) -> pd.DataFrame:
        """The contribution of each token or term of the query, to each explained document.

        Columns: term, contribution; for two documents also against (the contribution to the score of the
        second document) and difference. The differences add up to the difference of the scores. With late
        interaction also match and against_match, the words of the documents that match the token best.
        """
        tables = [part.by_query() for part in self.contributions]
        if len(tables) == 1:
            return tables[0]
        a, b = tables
        if list(a["term"]) == list(b["term"]):
            match = {"against_match": b["match"]} if "match" in b else {}
            both = a.assign(**match, against=b["contribution"])
        else:
            both = a.merge(
                b.rename(columns={"contribution": "against"}), how="outer", on="term", sort=False
            ).fillna({"contribution": 0.0, "against": 0.0})
        return both.assign(difference=both["contribution"] - both["against"])

    @property
    def sort_order(self) -> SortOrder | None:
        """How the terms of each document are sorted in the table; None if its rows are tokens."""
        is_sorted = isinstance(self.contributions[0], TermContributions)
        return SortOrder("contribution", by_magnitude=True, within="document") if is_sorted else None

    def frame(self) -> pd.DataFrame:
        """Return one row for each contribution.

        Columns: document (ID); for the bi-encoder query_token, query_position, token, position (from 0);
        for late interaction the same columns, word (the word that contains the document token) and
        similarity; for a SparseEncoder term, query_weight, document_weight; for BM25 term, query_count and
        count (occurrences in the query and in the document), documents (number of documents with the term),
        idf; and contribution. The contributions of a document add up to its score.
        """
        tables = []
        for document, part in zip(self.explained, self.contributions, strict=True):
            table = part.frame()
            table.insert(0, "document", frames.plain_strings([document.id] * len(table)))
            tables.append(table)
        return pd.concat(tables, ignore_index=True)
