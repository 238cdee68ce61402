"""Test the Evaluate page: its results equal the library's, links to other pages, and unreadable files."""

from __future__ import annotations

from typing import Any

import pytest

import bert_probe
from bert_probe.analyses.evaluation import retrieval_evaluation
from bert_probe.core.evaluation_inputs import JudgedQueries
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.datasets import everyday_topics, sample_pairs, sample_search
from bert_probe.ui import labeled_inputs
from tests.helpers import questions
from tests.helpers.pages import error_text, open_page, page_text


def tables(app: Any) -> list[Any]:
    return [element.value for element in app.dataframe]


def test_scored_pairs_of_one_and_two_models(minilm: Checkpoint) -> None:
    app = open_page("evaluate", evaluate_curve="1", evaluate_pairs_from="file")
    assert "Choose a table of text pairs" in app.info[0].value
    app.session_state["evaluate_pairs_file"] = labeled_inputs.read_evaluation_file(
        "pairs", "pairs.csv", questions.PAIRS.encode()
    )
    app.run()
    (pairs,) = questions.scored_pairs(minilm)[1:]
    expected = bert_probe.SimilarityEvaluation(curve=True).of(minilm, pairs)
    assert expected.finding in page_text(app).replace("\\", "")
    assert tables(app)[0]["value"].tolist() == expected.table()["value"].tolist()
    assert tables(app)[-1]["spearman"].tolist() == expected.showing(show="curve").table()["spearman"].tolist()
    app.session_state["evaluate_pairs_file"] = labeled_inputs.read_evaluation_file(
        "pairs", "pairs.csv", b"text_a,text_b\na,b\n"
    )
    app.run()
    assert "has the columns text_a, text_b" in error_text(app)


def test_selected_row_that_the_data_lack_is_ignored() -> None:
    """Streamlit keeps the selection if a table's data are replaced by fewer rows."""
    app = open_page("evaluate", evaluate_pairs_from="file")
    app.session_state["evaluate_pairs_file"] = labeled_inputs.read_evaluation_file(
        "pairs", "pairs.csv", questions.PAIRS.encode()
    )
    app.run()
    for row, is_shown in ((1, True), (43, False)):
        app.session_state["evaluate_pair_rows"] = {"selection": {"rows": [row], "columns": [], "cells": []}}
        app.run()
        assert not app.exception
        assert ("The selected pair on other pages" in page_text(app)) == is_shown


def test_search_against_bm25(minilm: Checkpoint) -> None:
    app = open_page("evaluate", evaluate_part="search", evaluate_search_from="file")
    assert "Choose documents, queries and judgments" in app.info[0].value
    data = questions.judged_queries(minilm)[1:]
    for (name, file), rows in zip(JudgedQueries().files.items(), data, strict=True):
        del file
        app.session_state[f"evaluate_{name}_file"] = labeled_inputs.EvaluationFile(name, rows)
    app.run()
    expected = bert_probe.RetrievalEvaluation(("bi-encoder", "bm25")).of(minilm, *data)
    assert tables(app)[0]["value"].tolist() == expected.table()["value"].tolist()
    assert tables(app)[1]["query"].tolist() == expected.showing(show="queries").table()["query"].tolist()


def test_too_many_queries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval_evaluation, "MAX_QUERIES", 2)
    app = open_page("evaluate", evaluate_part="search")
    assert "Use fewer queries, or the command line." in error_text(app)


def test_sample_sentences_by_default(minilm: Checkpoint) -> None:
    app = open_page("evaluate", evaluate_part="labels")
    expected = bert_probe.LabelEvaluation().of(minilm, everyday_topics())
    assert expected.finding in page_text(app).replace("\\", "")
    assert tables(app)[0]["value"].tolist() == pytest.approx(expected.table()["value"].tolist())


def test_sample_pairs_by_default(minilm: Checkpoint) -> None:
    app = open_page("evaluate")
    expected = bert_probe.SimilarityEvaluation().of(minilm, sample_pairs())
    assert expected.finding in page_text(app).replace("\\", "")
    assert tables(app)[0]["value"].tolist() == pytest.approx(expected.table()["value"].tolist())


def test_sample_search(minilm: Checkpoint) -> None:
    app = open_page("evaluate", evaluate_part="search")
    expected = bert_probe.RetrievalEvaluation(("bi-encoder", "bm25")).of(minilm, *sample_search())
    assert tables(app)[0]["value"].tolist() == pytest.approx(expected.table()["value"].tolist())
    assert not expected.notes
    assert not app.warning


def test_broken_documents_are_skipped_with_a_count(minilm: Checkpoint) -> None:
    app = open_page("evaluate", evaluate_part="search", evaluate_search_from="file")
    documents, queries, judgments = sample_search()
    lines = [document.line for document in documents]
    lines.insert(2, '{"_id": "empty", "text": ""}')
    files = {
        "documents": ("corpus.jsonl", "\n".join(lines)),
        "queries": ("queries.jsonl", "\n".join(query.line for query in queries)),
        "judgments": ("qrels.tsv", judgments.content.decode()),
    }
    for name, (file, content) in files.items():
        app.session_state[f"evaluate_{name}_file"] = labeled_inputs.read_evaluation_file(
            name, file, content.encode()
        )
    app.run()
    assert "1 broken row was skipped: line 3: the title and the text are both missing" in app.warning[
        0
    ].value.replace("\\", "")
    expected = bert_probe.RetrievalEvaluation(("bi-encoder", "bm25")).of(
        minilm, documents, queries, judgments
    )
    assert tables(app)[0]["value"].tolist() == pytest.approx(expected.table()["value"].tolist())
