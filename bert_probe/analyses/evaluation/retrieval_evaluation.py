"""Evaluation of a search on queries with relevance judgments of documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.evaluation.measures import (
    BLOCK,
    DEPTH,
    MEASURES,
    RESAMPLES,
    bootstrap_means,
    evaluate_rankings,
    interval,
)
from bert_probe.analyses.evaluation.similarity_evaluation import CURVE_HELP, NO_CURVE, NO_OTHER
from bert_probe.analyses.evaluation.vector_comparison import VectorComparison, compare_vectors, vector_formats
from bert_probe.analyses.retrieval.scorers import PromptedSearch
from bert_probe.analyses.retrieval.search import (
    BI_ENCODER,
    BM25_SCORER,
    SCORERS,
    IndexedDocuments,
    Search,
)
from bert_probe.analyses.vectors.sentences import encode_texts, name_text_errors
from bert_probe.analyses.vectors.similarity import scores
from bert_probe.core import frames
from bert_probe.core.evaluation_inputs import JudgedQueries
from bert_probe.core.extras import require
from bert_probe.core.field_types import Choice, Choices, Flag, Number
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, TextError, UnavailableError, memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, final_progress, no_progress, step_progress
from bert_probe.model.trace import Array
from bert_probe.text.documents import Document, DocumentList, as_documents
from bert_probe.text.retrieval_data import Judgments

_BLOCK_NUMBERS = 16_000_000
"""Maximum number of scores that are in memory at once."""
MAX_QUERIES = 10_000
"""Maximum number of queries over HTTP and on a page."""
MAX_SCORES = 50_000_000
"""Maximum number of queries times the number of documents over HTTP and on a page."""
_TABLES = ("summary", "queries", "failures", "vectors", "neighbors", "curve")
_MAX_FAILURES = 10_000


@question("retrieval evaluation", command="evaluate-retrieval")
class RetrievalEvaluation(PromptedSearch):
    """Quality of the rankings of a search, for queries with relevance judgments of documents.

    The measures are nDCG@10, recall@10, recall@100, MRR@10 and MAP of the first 1,000 documents, computed by
    ir-measures for any scorers of `Search`. The 95% bootstrap intervals resample the queries. All other
    scorers, including those of a second model, are compared with the first scorer on the same queries.

    Attributes:
        scorers: names in `SCORERS`. The other scorers are compared with the first one.
        candidates: see `Search`.
        prompt, document_prompt, dimensions: see `PromptedSearch`.
        curve: also evaluate the bi-encoder with fewer dimensions, int8 vectors and binary vectors.
        show: the table to return. "summary" has the measures with intervals; "queries" has the measures of
            each query; "failures" has the relevant documents that are not among the first 10 of the first
            scorer, at most 10,000; "curve" has the measures of each vector format. With a second model,
            "vectors" has the agreement on the nearest neighbors of the documents, and "neighbors" has the
            neighbors that changed.
    """

    inputs = JudgedQueries()

    scorers: Sequence[str] = param(
        Choices(SCORERS),
        default=(BI_ENCODER,),
        about="Scorers; each further scorer is compared with the first.",
    )
    candidates: int = param(
        Number(1),
        default=100,
        about="Number of top-ranked documents of another scorer that the cross-encoder reranks.",
    )
    curve: bool = param(Flag(), default=False, about=CURVE_HELP)
    show: str = param(
        Choice(_TABLES),
        default="summary",
        display_only=True,
        key="retrieval_table",
        about="Table: summary, queries, failures, agreement of the two models' vectors, changed nearest "
        "neighbors, or curve.",
    )

    def of(
        self,
        checkpoint: Checkpoint,
        documents: Sequence[str],
        queries: Sequence[str],
        judgments: Judgments,
        truncate: bool = False,
        other: Checkpoint | None = None,
        progress: Progress = no_progress,
    ) -> RetrievalEvaluationResult:
        """Rank the documents for each query, and evaluate the rankings.

        Args:
            checkpoint: the model.
            documents, queries: documents and queries, as returned by `read_documents`.
            judgments: relevance judgments from `read_judgments`. Queries without a relevant document are left
                out.
            truncate: truncate texts that are too long instead of raising an error.
            other: a model to compare with.
            progress: called with the amount of work done and the total; during the curve and the comparison
                of the documents, all work is reported as done.

        Raises:
            TextError, EmptyTextError, TooLongError: there are no documents or queries, an ID is not unique,
                or a text cannot be encoded.
            UnavailableError: no query has a relevant document; see also `Search.of`.
            SelectionError, CheckpointError, OutOfMemoryError: see `Search.of`.
        """
        require("ir_measures")
        self._check_fields()
        data = _JudgedData.of(as_documents(documents), as_documents(queries), judgments)
        checkpoints = [checkpoint.snapshot(), *([] if other is None else [other.snapshot()])]
        last = final_progress(progress, len(data.queries))
        systems: list[System] = []
        indexes: list[IndexedDocuments] = []
        curve = None
        dropped = 0
        for number, model in enumerate(checkpoints):
            names = tuple(name for name in self.scorers if number == 0 or name != BM25_SCORER)
            step = step_progress(progress, number, len(checkpoints))
            if not names:
                raise SelectionError(
                    f"{BM25_SCORER} does not use a model, so two models cannot be compared with it. Choose "
                    "another scorer."
                )
            search = Search(
                "query",
                names,
                self.candidates,
                10,
                prompt=self.prompt,
                document_prompt=self.document_prompt,
                dimensions=self.dimensions,
            )
            indexed = search.index(model, data.documents, truncate, step_progress(step, 0, 2))
            indexes.append(indexed)
            dropped += sum(indexed.dropped)
            vectors = _query_vectors(search, model, data, truncate) if BI_ENCODER in names else None
            evaluated = _rank(search, model, indexed, data, vectors, truncate, step_progress(step, 1, 2))
            systems += [
                System(number, model.description.name, name, rankings.values, rankings.ranks, rankings.first)
                for name, rankings in evaluated.items()
            ]
            if self.curve and number == 0:
                curve = _curve(model, indexed, vectors, data, last)
        record = InputRecord.of_tagged(
            checkpoints[0],
            {"documents": data.documents, "queries": data.all_queries, "judgments": judgments},
            dropped,
        )
        comparison = None
        if other is not None:
            record = record.with_other_model(InputRecord.of_model(checkpoints[1]))
            comparison = _compare_documents(indexes, last)
        return RetrievalEvaluationResult(self, record, data, tuple(systems), curve, comparison)

    def check_limits(self, *inputs: Any) -> None:
        """Raise UnavailableError for more than `MAX_QUERIES` queries, or more than `MAX_SCORES` scores."""
        documents, queries = (len(as_documents(texts)) for texts in inputs[1:3])
        limit = min(MAX_QUERIES, max(1, MAX_SCORES // max(1, documents)))
        if queries > limit:
            raise UnavailableError(
                f"The app evaluates at most {limit:,} queries on {documents:,} documents, not "
                f"{queries:,}. Use fewer queries, or the command line."
            )

    def _check_fields(self) -> None:
        if self.curve and BI_ENCODER not in self.scorers:
            raise SelectionError(f"The curve needs the scorer {BI_ENCODER}. Add {BI_ENCODER}, or omit curve.")


@dataclass(frozen=True, eq=False)
class _JudgedData:
    """Documents, queries, and relevance judgments.

    Attributes:
        documents: the documents.
        all_queries: all queries of the file.
        queries: the queries that have a relevant document.
        grades: for each query in `queries`, a mapping from the ID of each judged document to its relevance.
        unjudged: number of queries that are left out, because they do not have a relevant document.
        unknown_queries: number of judged queries that are not in the file of queries.
        unknown_documents: number of judgments of documents that are not in the file of documents.
    """

    documents: DocumentList
    all_queries: DocumentList
    queries: tuple[Document, ...]
    grades: tuple[Mapping[str, int], ...]
    unjudged: int
    unknown_queries: int
    unknown_documents: int

    @classmethod
    def of(cls, documents: DocumentList, queries: DocumentList, judgments: Judgments) -> _JudgedData:
        """Select the queries that have a relevant document, and count the judgments that cannot be used.

        Raises:
            TextError: the judgments are not `Judgments`.
            UnavailableError: no query has a relevant document.
        """
        if not isinstance(judgments, Judgments):
            raise TextError("Pass judgments from read_judgments.")
        grades = {query.id: judgments.grades.get(query.id, {}) for query in queries}
        judged = tuple(query for query in queries if any(grade > 0 for grade in grades[query.id].values()))
        if not judged:
            known = sum(query.id in judgments.grades for query in queries)
            reason = (
                f"{known:,} of {len(queries):,} queries are judged, but none has a document with a score "
                "above 0"
                if known
                else "None of the query IDs occurs in the judgments, whose first query is "
                f"{next(iter(judgments.grades))[:60]!r}"
            )
            raise UnavailableError(f"{reason}. Check the IDs and the scores of the judgments.")
        ids = {document.id for document in documents}
        unknown = sum(document not in ids for query in judged for document in grades[query.id])
        if unknown == sum(len(grades[query.id]) for query in judged):
            raise UnavailableError(
                "No ID of a judged document occurs in the documents, so no relevant document can be "
                "found. Check the IDs of the documents and of the judgments."
            )
        return cls(
            documents,
            queries,
            judged,
            tuple(grades[query.id] for query in judged),
            len(queries) - len(judged),
            len(judgments.grades.keys() - {query.id for query in queries}),
            unknown,
        )

    @cached_property
    def ids(self) -> list[str]:
        """The IDs of the documents."""
        return [document.id for document in self.documents]

    @cached_property
    def relevant(self) -> tuple[Array, ...]:
        """For each query, the indices of its relevant documents, ascending."""
        rows = {identifier: row for row, identifier in enumerate(self.ids)}
        return tuple(
            np.array(sorted(rows[name] for name, grade in judged.items() if grade > 0 and name in rows), int)
            for judged in self.grades
        )


class _EvaluatedRankings:
    """Evaluates rankings in blocks, and stores measures, ranks of relevant documents and ten documents."""

    def __init__(self, data: _JudgedData) -> None:
        self._data = data
        self._pending: list[Array] = []
        self._blocks: list[Array] = []
        self._ranks: list[Array] = []
        self._first: list[Array] = []

    def add(self, order: Array) -> None:
        """Add the ranking for the next query: indices of documents, best first."""
        positions = np.zeros(len(self._data.documents), np.int64)
        positions[order] = np.arange(1, len(order) + 1)
        self._ranks.append(positions[self._data.relevant[len(self._ranks)]])
        self._first.append(order[:10].copy())  # copied, because a view keeps the complete ranking
        self._pending.append(order[:DEPTH].copy())
        if len(self._pending) == BLOCK:
            self._evaluate()

    def _evaluate(self) -> None:
        end = len(self._ranks)
        grades = self._data.grades[end - len(self._pending) : end]
        self._blocks.append(evaluate_rankings(self._pending, self._data.ids, grades))
        self._pending = []

    @property
    def values(self) -> Array:
        """The `MEASURES` of each query, [query, measure]."""
        if self._pending:
            self._evaluate()
        return np.concatenate(self._blocks)

    @property
    def ranks(self) -> tuple[Array, ...]:
        """For each query, the rank of each relevant document, from 1; 0 if it is not ranked."""
        return tuple(self._ranks)

    @property
    def first(self) -> tuple[Array, ...]:
        """For each query, the indices of the 10 top-ranked documents."""
        return tuple(self._first)


@dataclass(frozen=True, eq=False)
class System:
    """A scorer of one model, with the measures of its rankings.

    Attributes:
        model: 0 for the first model, 1 for the second model.
        model_name: name of the model.
        scorer: a name in `SCORERS`.
        values: the `MEASURES` of each query, [query, measure].
        ranks: for each query, the rank of each relevant document, from 1; 0 if it is not ranked.
        first: for each query, the indices of the 10 top-ranked documents.
    """

    model: int
    model_name: str
    scorer: str
    values: Array
    ranks: tuple[Array, ...]
    first: tuple[Array, ...]

    @property
    def label(self) -> str:
        """Name used in table columns: the scorer, preceded by "other" for the second model."""
        return f"other {self.scorer}" if self.model else self.scorer


def _query_vectors(search: Search, checkpoint: Checkpoint, data: _JudgedData, truncate: bool) -> Array:
    """Return the bi-encoder vectors of the queries, [query, dimension]."""

    def name(number: int) -> str:
        return f"Query {data.queries[number - 1].id[:60]}"

    return encode_texts(checkpoint, search.query_pooling(checkpoint), data.queries, truncate, name).vectors


def _blocks(queries: Array, documents: Array, similarity: str) -> Iterator[Array]:
    """Yield the scores of all documents for each query, [document], computed in blocks of queries."""
    block = max(1, _BLOCK_NUMBERS // len(documents))
    with memory_errors(
        "The scores of these documents need more memory than is available. Use fewer documents."
    ):
        for start in range(0, len(queries), block):
            yield from scores(queries[start : start + block], documents, similarity)


def _order(values: Array) -> Array:
    """Return document indices by descending score. NaN is left out, and ties keep their order."""
    order = np.argsort(-values, kind="stable")
    ranked: Array = order[~np.isnan(values[order])]
    return ranked


def _rank(
    search: Search,
    checkpoint: Checkpoint,
    indexed: IndexedDocuments,
    data: _JudgedData,
    vectors: Array | None,
    truncate: bool,
    progress: Progress,
) -> dict[str, _EvaluatedRankings]:
    """Rank the documents for each query, and return the evaluated rankings by scorer name."""
    blocks: Iterator[Array | None] = iter([None] * len(data.queries))
    if vectors is not None and indexed.encoded is not None:
        blocks = _blocks(vectors, indexed.encoded.vectors, search.query_pooling(checkpoint).similarity)
    evaluated = {name: _EvaluatedRankings(data) for name in search.scorers}
    for number, (query, own) in enumerate(zip(data.queries, blocks, strict=True)):
        progress(number, len(data.queries))
        query_search = replace(search, query=str(query))
        with name_text_errors(f"Query {query.id[:60]}"):
            values, _ = query_search.scores(checkpoint, indexed, truncate, no_progress, own)
        if BM25_SCORER in values:  # Leave out documents without a word of the query, as search engines do.
            matches = values[BM25_SCORER]
            values[BM25_SCORER] = np.where(matches > 0, matches, np.nan)
        for name, rankings in evaluated.items():
            rankings.add(_order(values[name]))
    progress(len(data.queries), len(data.queries))
    return evaluated


def _curve(
    checkpoint: Checkpoint,
    indexed: IndexedDocuments,
    queries: Array | None,
    data: _JudgedData,
    progress: Progress,
) -> pd.DataFrame:
    """Return a table with nDCG@10 and recall@100 of the bi-encoder for each vector format."""
    assert queries is not None
    assert indexed.encoded is not None
    assert indexed.recipe is not None
    documents, similarity = indexed.encoded.vectors, indexed.recipe.similarity
    rows = []
    for form in vector_formats(documents.shape[1], checkpoint.sentence_model):
        converted = form.convert(queries, documents), form.convert(documents)
        rankings = _EvaluatedRankings(data)
        for number, scores_of_query in enumerate(_blocks(*converted, form.similarity(similarity))):
            progress(number, len(queries))
            rankings.add(_order(scores_of_query))
        values = rankings.values
        row: list[Any] = [form.dimensions, form.precision, form.bytes_per_vector]
        for name in ("ndcg@10", "recall@100"):
            column = values[:, list(MEASURES).index(name)]
            row += [column.mean(), *interval(bootstrap_means(column, progress))]
        rows.append(row)
    names = ["dimensions", "precision", "bytes_per_vector", "ndcg@10", "low", "high"]
    return pd.DataFrame(rows, columns=[*names, "recall@100", "recall_low", "recall_high"])


def _compare_documents(indexes: Sequence[IndexedDocuments], progress: Progress) -> VectorComparison | None:
    """Compare two models' document vectors; return None without vectors or for fewer than 3 documents."""
    first, second = indexes
    if first.encoded is None or second.encoded is None or first.recipe is None or second.recipe is None:
        return None
    if len(first.documents) < 3:
        return None
    similarities = first.recipe.similarity, second.recipe.similarity
    return compare_vectors(
        first.encoded.vectors, second.encoded.vectors, *similarities, first.documents, progress
    )


@dataclass(frozen=True, eq=False, repr=False)
class RetrievalEvaluationResult(Result):
    """The measures of each query, for each scorer.

    Attributes:
        data: the documents, the queries with a relevant document, and their judgments.
        systems: the scorers of the first model, followed by those of the second model.
        curve: table of nDCG@10 and recall@100 for each vector format; None if it was not computed.
        comparison: agreement of two models on the nearest neighbors of the documents; None if not computed.
    """

    question: RetrievalEvaluation
    data: _JudgedData
    systems: tuple[System, ...]
    curve: pd.DataFrame | None
    comparison: VectorComparison | None

    def __post_init__(self) -> None:
        for system in self.systems:
            if system.values.shape != (len(self.data.queries), len(MEASURES)):
                raise ShapeError(
                    f"values must have shape ({len(self.data.queries)}, {len(MEASURES)}), one row per query, "
                    f"not {system.values.shape}."
                )

    @property
    def finding(self) -> str:
        """A sentence that gives nDCG@10 of the first scorer with its interval."""
        low, high = interval(bootstrap_means(self.systems[0].values[:, 0]))
        mean = self.systems[0].values[:, 0].mean()
        return (
            f"nDCG@10 of {self.systems[0].scorer} is {mean:.4f} on {len(self.data.queries):,} queries (95% "
            f"interval {low:.4f} to {high:.4f})."
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about queries and judgments that cannot be evaluated."""
        data = self.data
        parts = (
            (data.unjudged, "Queries without a relevant document (excluded)"),
            (data.unknown_queries, "Judged queries that are not in the file of queries (excluded)"),
            (
                data.unknown_documents,
                "Judgments of documents that are not in the file of documents (relevant documents "
                "count as not retrieved)",
            ),
        )
        return tuple(f"{text}: {count:,}." for count, text in parts if count)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The number of queries, the number of resamples, the number of evaluated ranks, and `notes`."""
        return {
            "queries": len(self.data.queries),
            "resamples": RESAMPLES,
            "depth": DEPTH,
            **({"notes": list(self.notes)} if self.notes else {}),
        }

    def frame(self) -> pd.DataFrame:
        """Return the table that ``show`` of the question selects.

        "summary": model, scorer, measure, value, low, high (the bounds of the 95% interval). All scorers but
        the first also have difference (their value minus that of the first scorer), difference_low,
        difference_high, and the numbers of queries for which they are better, equal and worse.

        "queries": query (ID), text, relevant (number of relevant documents), and for each scorer nDCG@10 and
        the rank of the first relevant document (0 if none is ranked). Rows are sorted by ascending nDCG@10
        or, with several scorers, by the absolute difference between the first two, largest first.

        "failures": query, text, document, grade, rank by the first scorer (0 if not ranked), rank by each
        other scorer, and outranked_by (the ID of the top-ranked irrelevant document). The table has a row for
        each relevant document that is not among the first 10, by descending rank.

        "curve": dimensions, precision, bytes_per_vector, ndcg@10, low, high, recall@100, recall_low,
        recall_high. "vectors", "neighbors": see `VectorComparison`.
        """
        show = self.question.show
        if show == "curve":
            if self.curve is None:
                raise UnavailableError(NO_CURVE)
            return self.curve.copy()
        if show in ("vectors", "neighbors"):
            if self.comparison is None:
                raise UnavailableError(NO_OTHER)
            return self.comparison.frame() if show == "vectors" else self.comparison.changed_neighbors()
        if show == "queries":
            return self._queries()
        return self._failures() if show == "failures" else self._summary()

    def _summary(self) -> pd.DataFrame:
        rows = []
        reference = self.systems[0]
        for index, system in enumerate(self.systems):
            samples = bootstrap_means(system.values)
            changes = system.values - reference.values
            change_samples = bootstrap_means(changes)
            for column, name in enumerate(MEASURES):
                row: dict[str, Any] = {"model": system.model_name, "scorer": system.scorer, "measure": name}
                row["value"] = system.values[:, column].mean()
                row["low"], row["high"] = interval(samples[:, column])
                if index:
                    change = changes[:, column]
                    row["difference"] = change.mean()
                    row["difference_low"], row["difference_high"] = interval(change_samples[:, column])
                    counts = ((change > 0).sum(), (change == 0).sum(), (change < 0).sum())
                    row |= dict(zip(("better", "equal", "worse"), map(int, counts), strict=True))
                rows.append(row)
        return pd.DataFrame(rows)

    def _queries(self) -> pd.DataFrame:
        data = self.data
        columns: dict[str, Any] = {
            "query": frames.plain_strings([query.id for query in data.queries]),
            "text": frames.plain_strings(list(map(str, data.queries))),
            "relevant": [sum(grade > 0 for grade in judged.values()) for judged in data.grades],
        }
        for system in self.systems:
            columns[f"{system.label} ndcg@10"] = system.values[:, 0]
            columns[f"{system.label} first rank"] = [
                int(ranks[ranks > 0].min(initial=len(data.documents) + 1)) % (len(data.documents) + 1)
                for ranks in system.ranks
            ]
        key = self.systems[0].values[:, 0]
        if len(self.systems) > 1:
            key = -np.abs(self.systems[1].values[:, 0] - key)
        return pd.DataFrame(columns).iloc[np.argsort(key, kind="stable")].reset_index(drop=True)

    def _failures(self) -> pd.DataFrame:
        data, (reference, *others) = self.data, self.systems
        rows = []
        for index, (query, rows_of) in enumerate(zip(data.queries, data.relevant, strict=True)):
            wrong = [row for row in reference.first[index].tolist() if row not in set(rows_of.tolist())]
            for place, row in enumerate(rows_of.tolist()):
                rank = int(reference.ranks[index][place])
                if 0 < rank <= 10:
                    continue
                document = data.documents[row]
                rows.append(
                    {
                        "query": query.id,
                        "text": index,
                        "document": document.id,
                        "grade": data.grades[index][document.id],
                        "rank": rank,
                        **{f"{other.label} rank": int(other.ranks[index][place]) for other in others},
                        "outranked_by": data.documents[wrong[0]].id if wrong else "",
                    }
                )
        names = ["query", "text", "document", "grade", "rank", "outranked_by"]
        table = pd.DataFrame(rows, columns=None if rows else names)
        depth = table["rank"].where(table["rank"] > 0, len(data.documents) + 1)
        order = np.argsort(-depth.to_numpy(), kind="stable")
        table = table.iloc[order[:_MAX_FAILURES]].reset_index(drop=True)
        for name in ("query", "document", "outranked_by"):
            table[name] = frames.plain_strings(list(table[name]))
        table["text"] = frames.repeated_texts(data.queries[index] for index in table["text"])
        return table

    @property
    def nbytes(self) -> int:
        """Size of the measures, ranks and texts in bytes."""
        arrays = sum(
            system.values.nbytes + sum(part.nbytes for part in (*system.ranks, *system.first))
            for system in self.systems
        )
        return arrays + sum(map(len, self.data.documents)) + sum(map(len, self.data.all_queries))
