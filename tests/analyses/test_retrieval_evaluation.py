"""Test evaluation of rankings: hand-computed cases, parity with sentence-transformers, and invalid files."""

from __future__ import annotations

import gzip
import io
import os
import warnings
from collections.abc import Iterator
from functools import partial
from math import log2
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from bert_probe import RetrievalEvaluation, Search, read_judgments, read_retrieval_data
from bert_probe.analyses.evaluation import retrieval_evaluation
from bert_probe.analyses.evaluation.measures import BLOCK, MEASURES, evaluate_rankings
from bert_probe.analyses.evaluation.retrieval_evaluation import _order
from bert_probe.errors import (
    EmptyTextError,
    InvalidFileError,
    ProbeError,
    SelectionError,
    TextError,
    UnavailableError,
)
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.documents import DocumentList, parse_documents
from bert_probe.text.retrieval_data import Judgments, parse_judgments

CORPUS = (
    "Two boats cross the wide river.",
    "A ship sails on the sea.",
    "He cooks rice with fish.",
    "The map of the town is old.",
    "It rains in the mountains.",
    "Fish swim in the river.",
)
QUERIES = {"q1": "boats on a river", "q2": "a meal with rice", "q3": "weather", "q4": "nothing judged"}
GRADES = {"q1": {"d0": 1, "d5": 1}, "q2": {"d2": 1, "d4": 0}, "q3": {"d4": 1}}


def as_list(texts: dict[str, str]) -> DocumentList:
    lines = "".join(f'{{"_id": "{name}", "text": "{text}"}}\n' for name, text in texts.items())
    return parse_documents(io.BytesIO(lines.encode()), "file.jsonl")


DOCUMENTS = as_list({f"d{number}": text for number, text in enumerate(CORPUS)})


def test_measures_by_hand() -> None:
    # The ranking is a, b, c, d.
    # The relevant documents are b (grade 2), d (grade 1), and x (grade 1), which is not ranked.
    values = evaluate_rankings(
        [np.array([0, 1, 2, 3])], ["a", "b", "c", "d", "x"], [{"b": 2, "d": 1, "x": 1}]
    )
    dcg = 2 / log2(3) + 1 / log2(5)
    ideal = 2 / log2(2) + 1 / log2(3) + 1 / log2(4)
    expected = [dcg / ideal, 2 / 3, 2 / 3, 1 / 2, (1 / 2 + 2 / 4) / 3]
    np.testing.assert_allclose(values[0], expected, atol=1e-7)  # trec_eval rounds gains to float32.


def test_rankings_are_evaluated_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    import ir_measures

    random = np.random.default_rng(0)
    documents = [f"d{number}" for number in range(30)]
    rankings = [random.permutation(30)[: random.integers(0, 30)] for _ in range(250)]
    grades = [{f"d{row}": int(random.integers(0, 3)) for row in random.permutation(30)[:5]} for _ in rankings]
    run = {
        str(query): {documents[row]: -float(rank) for rank, row in enumerate(ranking)}
        for query, ranking in enumerate(rankings)
    }
    expected = np.zeros((250, len(MEASURES)))
    measures = [ir_measures.parse_measure(name) for name in MEASURES.values()]
    calculate = ir_measures.iter_calc
    qrels = {str(query): judged for query, judged in enumerate(grades)}
    for metric in calculate(measures, qrels, run):
        expected[int(metric.query_id), measures.index(metric.measure)] = metric.value
    blocks, calls = [], []

    def counted(measures: object, qrels: dict[str, object], run: dict[str, object]) -> Iterator[object]:
        blocks.append(len(run))
        return calculate(measures, qrels, run)

    monkeypatch.setattr(ir_measures, "iter_calc", counted)
    actual = evaluate_rankings(rankings, documents, grades, lambda done, total: calls.append((done, total)))
    np.testing.assert_array_equal(actual, expected)
    assert len(blocks) == 3
    assert max(blocks) <= BLOCK
    assert calls == [(0, 250), (100, 250), (200, 250)]


@pytest.mark.parametrize("order", [1, -1])
def test_bm25_does_not_rank_documents_without_a_word_of_the_query(minilm: Checkpoint, order: int) -> None:
    texts = {"d0": "cats purr", "d1": "dogs bark", "d2": "the sun", "d3": "the moon"}
    documents = as_list(dict(list(texts.items())[::order]))
    queries = as_list({"q1": "zebra", "q2": "the moon"})
    judgments = Judgments.of({"q1": {"d0": 1}, "q2": {"d2": 1}})
    result = RetrievalEvaluation(("bm25",)).of(minilm, documents, queries, judgments)
    assert result.systems[0].values[0].tolist() == [0] * len(MEASURES)
    assert [ranks.tolist() for ranks in result.systems[0].ranks] == [[0], [2]]
    assert [len(first) for first in result.systems[0].first] == [0, 2]
    assert result.showing(show="failures").table()["outranked_by"].tolist() == [""]


def test_only_the_first_documents_of_a_ranking_are_kept(minilm: Checkpoint) -> None:
    documents = as_list({f"d{number}": "a boat" for number in range(40)})
    queries = as_list({f"q{number}": "a boat" for number in range(120)})
    judgments = Judgments.of({query.id: {"d0": 1} for query in queries})
    calls: list[tuple[int, int]] = []
    result = RetrievalEvaluation(("bm25",)).of(
        minilm, documents, queries, judgments, progress=lambda done, total: calls.append((done, total))
    )
    first = result.systems[0].first
    assert all(part.base is None and len(part) == 10 for part in first)
    assert result.nbytes > sum(part.nbytes for part in first)
    assert len(calls) > len(queries)  # the evaluation can be cancelled at every query


def test_too_many_queries_for_a_server_are_refused(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = (minilm, DOCUMENTS, as_list(QUERIES), Judgments.of(GRADES), False, None)
    RetrievalEvaluation().check_limits(*inputs)
    monkeypatch.setattr(retrieval_evaluation, "MAX_SCORES", 20)
    with pytest.raises(UnavailableError, match=r"at most 3 queries on 6 documents, not 4\."):
        RetrievalEvaluation().check_limits(*inputs)


def test_a_scorer_given_twice_is_refused() -> None:
    for question in (RetrievalEvaluation, partial(Search, "query")):
        with pytest.raises(SelectionError, match="scorers has 'bm25' more than once"):
            question(scorers=("bm25", "bm25"))


def test_query_without_a_vector_is_named(minilm: Checkpoint) -> None:
    queries = as_list({"good": "a boat", "odd": "[SEP]"})
    judgments = Judgments.of({"good": {"d0": 1}, "odd": {"d1": 1}})
    with pytest.raises(TextError, match=r"^Query odd: No token of the query has a vector\."):
        RetrievalEvaluation(("late-interaction",)).of(minilm, DOCUMENTS, queries, judgments)


def test_equal_scores_keep_the_order_of_the_documents() -> None:
    # trec_eval would resolve ties by descending ID, so that z precedes b.
    order = _order(np.array([0.5, np.nan, 0.5, 0.7]))
    assert order.tolist() == [3, 0, 2]
    values = evaluate_rankings([order], ["b", "n", "z", "a"], [{"b": 1}])
    assert values[0, list(MEASURES).index("mrr@10")] == 1 / 2


def test_rankings_are_those_of_search(minilm: Checkpoint) -> None:
    judgments, queries = Judgments.of(GRADES), as_list(QUERIES)
    scorers = ("bi-encoder", "bm25", "late-interaction")
    result = RetrievalEvaluation(scorers, curve=True).of(minilm, DOCUMENTS, queries, judgments)
    assert [system.scorer for system in result.systems] == list(scorers)
    for number, query in enumerate(list(QUERIES)[:3]):
        expected = Search(QUERIES[query], scorers).of(minilm, DOCUMENTS)
        for system in result.systems:
            # BM25 does not rank documents without a word of the query.
            is_ranked = (system.scorer != "bm25") | (expected.scores[system.scorer] > 0)
            ranks = np.where(is_ranked, expected.ranks[system.scorer], 0)
            assert system.ranks[number].tolist() == [
                ranks[row] for row, name in enumerate(DOCUMENTS) if GRADES[query].get(f"d{row}", 0) > 0
            ]
    assert result.notes == ("Queries without a relevant document (excluded): 1.",)
    table = result.table()
    assert len(table) == 15
    assert table["difference"].notna().sum() == 10
    assert (table["low"] <= table["value"] + 1e-12).all()
    counts = table[["better", "equal", "worse"]].dropna().sum(axis=1)
    assert (counts == 3).all()
    curve = result.showing(show="curve").table()
    assert curve["ndcg@10"][6] == pytest.approx(table["value"][0])
    assert list(curve["precision"])[-3:] == ["float32", "int8", "binary"]
    assert list(result.showing(show="queries").table()["query"]).__len__() == 3


@pytest.fixture
def shuffled() -> tuple[DocumentList, Judgments]:
    """Return twenty documents similar to the query, followed by a relevant document that ranks last."""
    texts = {f"d{number}": f"{CORPUS[number % 6]} {number}" for number in range(20)}
    return as_list({**texts, "far": "An unrelated text."}), Judgments.of({"q1": {"far": 1, "lost": 1}})


def test_failures_name_what_outranks_them(
    minilm: Checkpoint, shuffled: tuple[DocumentList, Judgments]
) -> None:
    documents, judgments = shuffled
    result = RetrievalEvaluation(("bi-encoder", "bm25")).of(minilm, documents, as_list(QUERIES), judgments)
    failures = result.showing(show="failures").table()
    assert list(failures["document"]) == ["far"]
    assert failures["rank"][0] == 21
    best = Search(QUERIES["q1"]).of(minilm, documents).order[0]
    assert failures["outranked_by"][0] == documents[best].id
    assert "Judgments of documents that are not in the file of documents" in result.notes[1]
    # A relevant document that is not in the file counts as not retrieved.
    recall = result.table().set_index("measure")["value"]["recall@100"].iloc[0]
    assert recall == 0.5


def test_a_model_compared_with_itself(minilm: Checkpoint) -> None:
    data = (DOCUMENTS, as_list(QUERIES), Judgments.of(GRADES))
    result = RetrievalEvaluation(("bi-encoder", "bm25")).of(minilm, *data, other=minilm)
    assert [(system.model, system.scorer) for system in result.systems] == [
        (0, "bi-encoder"),
        (0, "bm25"),
        (1, "bi-encoder"),
    ]
    assert (result.table()["difference"][-5:] == 0).all()
    assert list(result.showing(show="vectors").table()["value"]) == pytest.approx([1, 1, 1])


def test_figures_are_those_of_sentence_transformers(minilm: Checkpoint) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
        from sentence_transformers.util import cos_sim
    result = RetrievalEvaluation().of(minilm, DOCUMENTS, as_list(QUERIES), Judgments.of(GRADES))
    indexed = Search("q").index(minilm, DOCUMENTS)
    query = Search("q").query_pooling(minilm)
    assert indexed.encoded is not None
    from bert_probe.analyses.vectors.sentences import encode_texts

    texts = [*CORPUS, *QUERIES.values()]
    vectors = encode_texts(minilm, query, texts, False, str).vectors
    rows = dict(zip(texts, vectors, strict=True))

    class RetrievalEncoderStub:
        """A stub for a sentence-transformers model, with precomputed vectors."""

        model_card_data = None
        similarity_fn_name = "cosine"

        def encode_query(self, texts: list[str], **_: object) -> np.ndarray:
            return np.stack([rows[text] for text in texts])

        encode_document = encode_query

    evaluator = InformationRetrievalEvaluator(
        QUERIES,
        {document.id: str(document) for document in DOCUMENTS},
        {name: {d for d, grade in grades.items() if grade > 0} for name, grades in GRADES.items()},
        precision_recall_at_k=[10, 100],
        map_at_k=[1000],
        write_csv=False,
        score_functions={"cosine": cos_sim},
    )
    expected = evaluator.compute_metrices(RetrievalEncoderStub())["cosine"]  # type: ignore[arg-type]
    actual = dict(zip(MEASURES, result.systems[0].values.mean(axis=0), strict=True))
    np.testing.assert_allclose(
        list(actual.values()),
        [
            expected["ndcg@k"][10],
            expected["recall@k"][10],
            expected["recall@k"][100],
            expected["mrr@k"][10],
            expected["map@k"][1000],
        ],
        atol=1e-6,
    )


def test_folder_and_formats(tmp_path: Path) -> None:
    tmp_path.joinpath("corpus.jsonl.gz").write_bytes(
        gzip.compress("".join(f"{document.line}\n" for document in DOCUMENTS).encode())
    )
    with pytest.raises(TextError, match=r"has none of queries\.jsonl"):
        read_retrieval_data(tmp_path)
    tmp_path.joinpath("queries.jsonl").write_text('{"_id": "q1", "text": "boats"}\n')
    tmp_path.joinpath("qrels").mkdir()
    judgments = Judgments.of(GRADES)
    tmp_path.joinpath("qrels", "test.tsv").write_bytes(judgments.content)
    documents, queries, read = read_retrieval_data(tmp_path)
    assert (len(documents), len(queries)) == (6, 1)
    assert read.digest == judgments.digest
    trec = "q1 0 d0 1\nq1 0 d5 1\nq2 0 d2 1\nq2 0 d4 0\nq3 0 d4 1\n"
    assert parse_judgments(trec.encode(), "qrels").digest == judgments.digest
    with pytest.raises(TextError, match="is not a folder"):
        read_retrieval_data(tmp_path / "missing")
    with pytest.raises(TextError, match="is not a folder"):
        read_retrieval_data(tmp_path / ("x" * 256))
    with (
        patch.object(os, "access", return_value=False),
        pytest.raises(TextError, match="cannot be opened: Permission denied"),
    ):
        read_retrieval_data(tmp_path)
    tmp_path.joinpath("empty.tsv").write_bytes(b"")
    with pytest.raises(EmptyTextError, match="has no judgments"):
        read_judgments(tmp_path / "empty.tsv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q1\td0\n", "the line has 2 columns, but must have 3 or 4"),
        ("q1\td0\tgood\n", "the score 'good' is not an integer"),
        ("q1\td0\t0.5\n", "is not an integer"),
        ("q1\td0\tnan\n", "is not an integer"),
        ("q1\td0\t1\nq1\td0\t2\n", "line 2: an earlier line already judges query q1 and document d0"),
    ],
)
def test_broken_judgments_are_refused(content: str, message: str) -> None:
    with pytest.raises(InvalidFileError, match=message):
        parse_judgments(content.encode(), "qrels.tsv")


@pytest.mark.parametrize(
    ("grades", "error", "message"),
    [
        (
            {"q1": {"d0": 0}},
            UnavailableError,
            "1 of 4 queries are judged, but none has a document with a score",
        ),
        (
            {"other": {"d0": 1}},
            UnavailableError,
            "None of the query IDs occurs in the judgments, whose first query",
        ),
        ({"q1": {"x": 1}}, UnavailableError, "No ID of a judged document occurs in the documents"),
    ],
)
def test_data_without_relevant_documents_are_refused(
    minilm: Checkpoint, grades: dict[str, dict[str, int]], error: type[ProbeError], message: str
) -> None:
    with pytest.raises(error, match=message):
        RetrievalEvaluation().of(minilm, DOCUMENTS, as_list(QUERIES), Judgments.of(grades))
