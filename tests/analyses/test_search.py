"""Test search: parity of scores and ranks with sentence-transformers, and of BM25 with its formula."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import bert_probe
from bert_probe import Document, Search, SearchExplanation
from bert_probe.analyses.retrieval.scorers import BM25, K1, B, words_of
from bert_probe.analyses.retrieval.search import IndexedDocuments
from bert_probe.analyses.retrieval.search_explanation import TokenContributions
from bert_probe.errors import EmptyTextError, ProbeError, SelectionError, TextError, TooLongError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text import sentence_files
from bert_probe.text.documents import documents_in_text
from tests.helpers import sentence_models

DOCUMENTS = (
    "A boat crosses the river at night, and the boat sinks.",
    "Nobody can read a map at night.",
    Document("They carry grain across the river.", "barges", "Barges and boats"),
    "Rivers flow into the sea.",
    "A boat crosses the river at night, and the boat sinks!",
)
QUERY = "boats that cross a river"


def test_scores_equal_sentence_transformers(minilm: Checkpoint) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(minilm.folder), device="cpu", local_files_only=True)
    texts = [str(document) for document in DOCUMENTS]
    expected = model.similarity(model.encode_query([QUERY]), model.encode_document(texts))[0]
    result = Search(QUERY).of(minilm, DOCUMENTS)
    np.testing.assert_allclose(result.scores["bi-encoder"], expected, atol=1e-6)
    order = np.argsort(-expected.numpy(), kind="stable")
    names = ["1", "2", "barges", "4", "5"]
    table = result.table()
    assert list(table["document"]) == [names[index] for index in order]
    assert list(table["rank"]) == [1, 2, 3, 4, 5]
    assert table.loc[table["document"] == "barges", "title"].tolist() == ["Barges and boats"]


@pytest.mark.parametrize("name", ["prompts", "no prompt pooled"])
def test_default_prompts_equal_those_of_sentence_transformers(
    name: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    layout = next(key for key in sentence_models.LAYOUTS if key.startswith(name))
    sentence_models.save(layout, family_folder(sentence_models.LAYOUTS[layout].family), tmp_path / "model")
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert {"query", "passage"} <= model.prompts.keys()
    checkpoint = bert_probe.load(tmp_path / "model")
    documents = ["a boat", "night night", "map of the river"]
    with torch.no_grad():
        expected = model.similarity(model.encode_query(["a map"]), model.encode_document(documents))[0]
    result = Search("a map").of(checkpoint, documents)
    np.testing.assert_allclose(result.scores["bi-encoder"], expected, atol=1e-5)
    other = Search("a map", prompt="none", document_prompt="passage").of(checkpoint, documents)
    assert np.abs(other.scores["bi-encoder"] - result.scores["bi-encoder"]).max() > 1e-4


def bm25(query: str, documents: list[str]) -> list[float]:
    """Return the scores of Lucene's BM25 (Kamphuis et al. 2020), computed in float64."""
    bags = [words_of(document) for document in documents]
    average = sum(map(len, bags)) / len(bags)
    totals = []
    for bag in bags:
        total = 0.0
        for word in words_of(query):
            frequency = sum(word in other for other in bags)
            if not frequency:
                continue
            idf = math.log(1 + (len(bags) - frequency + 0.5) / (frequency + 0.5))
            count = bag.count(word)
            total += idf * count / (count + K1 * (1 - B + B * len(bag) / average))
        totals.append(total)
    return totals


@pytest.mark.parametrize("query", [QUERY, "boat boat RIVER", "unknown words", "?!", "the sea"])
def test_bm25_equals_its_formula(minilm: Checkpoint, query: str) -> None:
    result = Search(query, ("bm25",)).of(minilm, DOCUMENTS)
    np.testing.assert_allclose(result.scores["bm25"], bm25(query, list(map(str, DOCUMENTS))), rtol=1e-5)


def test_bm25_of_documents_without_words_is_zero(minilm: Checkpoint) -> None:
    assert Search(QUERY, ("bm25",)).of(minilm, ["?!", "…"]).scores["bm25"].tolist() == [0, 0]


def test_ranks_and_agreement_by_hand(minilm: Checkpoint) -> None:
    result = Search(QUERY, ("bm25", "bi-encoder"), count=2).of(minilm, DOCUMENTS)
    for scorer, scores in result.scores.items():
        expected = [
            1 + sum(other > score or (other == score and j < i) for j, other in enumerate(scores))
            for i, score in enumerate(scores)
        ]
        assert result.ranks[scorer].tolist() == expected
    table = result.table()
    assert [*table] == [
        *("rank", "document", "score", "bi_encoder_score", "bi_encoder_rank", "percentile"),
        *("tokens_dropped", "title", "text"),
    ]
    assert len(table) == 2
    (agreement,) = result.agreement
    a, b = (np.argsort(np.argsort(scores)) for scores in result.scores.values())
    assert agreement.overlap == 5
    assert agreement.spearman == pytest.approx(np.corrcoef(a, b)[0, 1], abs=0.06)  # Ties share a rank.


def test_percentile_counts_lower_pairs_of_documents(minilm: Checkpoint) -> None:
    vectors = bert_probe.Sentences("model", show="vectors").of(minilm, list(map(str, DOCUMENTS))).vectors
    first, second = np.triu_indices(len(DOCUMENTS), k=1)
    pairs = (vectors[first].astype(np.float64) * vectors[second]).sum(axis=1)
    table = Search(QUERY).of(minilm, DOCUMENTS).table()
    for row in table.itertuples():
        assert row.percentile == pytest.approx(100 * np.mean(pairs < row.score))
    assert len(set(table["percentile"])) > 1
    assert np.isnan(Search(QUERY).of(minilm, ["a boat"]).table()["percentile"]).all()


def test_undefined_agreement_is_null(minilm: Checkpoint) -> None:
    result = Search("zebra", ("bi-encoder", "bm25")).of(minilm, DOCUMENTS)
    assert result.metadata["agreement"][0]["spearman"] is None


def test_indexed_documents_give_the_same_result(minilm: Checkpoint) -> None:
    question = Search(QUERY, ("bi-encoder", "bm25"))
    index = question.index(minilm, DOCUMENTS)
    assert isinstance(index, IndexedDocuments)
    again, expected = (question.of(minilm, documents) for documents in (index, DOCUMENTS))
    assert again.table().equals(expected.table())
    assert again.provenance == expected.provenance
    for other in (Search(QUERY, dimensions=8), Search(QUERY, document_prompt="none", dimensions=9)):
        with pytest.raises(SelectionError, match="indexed with other options"):
            other.of(minilm, index)
    with pytest.raises(SelectionError, match="indexed with other options"):
        Search(QUERY).of(minilm, Search(QUERY, ("bm25",)).index(minilm, DOCUMENTS))


def test_documents_beyond_the_limit_of_the_model_are_marked(minilm: Checkpoint) -> None:
    result = Search(QUERY).of(minilm, ["boat " * 400, "a boat"])
    assert result.dropped == (400 + 2 - 256, 0)
    assert sorted(result.table()["tokens_dropped"]) == [0, 146]
    assert result.provenance["tokens_dropped"] == 146


def test_dimensions_are_the_first_ones(minilm: Checkpoint) -> None:
    vectors = bert_probe.Sentences("model", show="vectors").of(minilm, [QUERY, *map(str, DOCUMENTS)]).vectors
    parts = vectors[:, :16].astype(np.float64)
    parts /= np.linalg.norm(parts, axis=1, keepdims=True)
    result = Search(QUERY, dimensions=16).of(minilm, DOCUMENTS)
    np.testing.assert_allclose(result.scores["bi-encoder"], parts[1:] @ parts[0], atol=1e-6)


@pytest.mark.parametrize(
    ("documents", "error", "sentence"),
    [
        ([], EmptyTextError, "no documents"),
        ("a boat", TextError, "not a string"),
        ([Document("a", "x"), Document("b", "x")], TextError, "1 and 2 have the same ID, 'x'"),
        (["a boat", "\ud800"], TextError, "Document 2: "),
        (["a boat", "a " * 200_000], TooLongError, "Document 2: "),
    ],
)
def test_invalid_documents_are_refused(
    minilm: Checkpoint, documents: list[str], error: type[ProbeError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        Search(QUERY).of(minilm, documents)


@pytest.mark.parametrize(
    "fields",
    [
        {"query": " "},
        {"query": 3},
        {"scorers": ()},
        {"scorers": ("tf-idf",)},
        {"count": 0},
        {"dimensions": 0},
    ],
)
def test_invalid_fields_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ProbeError):
        Search(**({"query": QUERY} | fields))  # type: ignore[arg-type]


def test_disagreements_are_ordered_by_difference_of_ranks(minilm: Checkpoint) -> None:
    result = Search(QUERY, ("bi-encoder", "bm25")).of(minilm, DOCUMENTS)
    ranks = [result.ranks[name] for name in result.question.scorers]
    differences = np.abs(ranks[0] - ranks[1])
    order = result.disagreements("bi-encoder", "bm25")
    assert sorted(order) == [index for index in range(len(DOCUMENTS)) if differences[index]]
    assert list(differences[order]) == sorted(differences[differences > 0], reverse=True)


@pytest.mark.parametrize("options", [{}, {"dimensions": 32}])
def test_contributions_of_tokens_add_up_to_the_score(minilm: Checkpoint, options: dict[str, int]) -> None:
    result = Search(QUERY, **options).of(minilm, DOCUMENTS)
    for index, name in enumerate(["1", "2", "barges", "4", "5"]):
        explained = SearchExplanation(QUERY, name, **options).of(minilm, DOCUMENTS)
        assert explained.off < 1e-12
        assert explained.scores[0] == pytest.approx(float(result.scores["bi-encoder"][index]), abs=1e-6)
        table = explained.table()
        assert set(table["document"]) == {name}
        assert table["contribution"].sum() == pytest.approx(explained.scores[0], abs=1e-12)


def test_a_contribution_is_a_product_of_two_states(minilm: Checkpoint) -> None:
    """With mean pooling, the contribution of tokens i and j is sᵢ·sⱼ / (n m ‖A‖ ‖B‖)."""
    (part,) = SearchExplanation(QUERY, "4").of(minilm, DOCUMENTS).contributions
    assert isinstance(part, TokenContributions)
    a, b = (minilm.trace(text).vectors(-1).astype(np.float64) for text in (QUERY, DOCUMENTS[3]))
    norm = np.linalg.norm(a.mean(axis=0)) * np.linalg.norm(b.mean(axis=0)) * len(a) * len(b)
    np.testing.assert_allclose(part.values, a @ b.T / norm, atol=1e-7)
    specials = part.values[[0, -1]].sum() + part.values[1:-1][:, [0, -1]].sum()
    assert part.specials_share == pytest.approx(specials, abs=1e-12)


@pytest.mark.parametrize("name", ["prompts", "no prompt pooled"])
def test_contributions_with_prompts_add_up_to_the_score(
    name: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    layout = next(key for key in sentence_models.LAYOUTS if key.startswith(name))
    sentence_models.save(layout, family_folder(sentence_models.LAYOUTS[layout].family), tmp_path / "model")
    checkpoint = bert_probe.load(tmp_path / "model")
    documents = ["a boat", "night night", "map of the river"]
    for options in ({}, {"prompt": "none", "document_prompt": "passage"}):
        result = Search("a map", **options).of(checkpoint, documents)
        explained = SearchExplanation("a map", "3", "1", **options).of(checkpoint, documents)
        assert explained.off < 1e-10
        expected = result.scores["bi-encoder"][[2, 0]]
        np.testing.assert_allclose(explained.scores, expected, atol=1e-5)
        difference = explained.by_query["difference"].sum()
        assert difference == pytest.approx(explained.scores[0] - explained.scores[1], abs=1e-10)


def test_terms_of_bm25_add_up_to_its_score(minilm: Checkpoint) -> None:
    query = "the boat the river unknown"
    texts = [str(document) for document in DOCUMENTS]
    expected = bm25(query, texts)
    for index, name in enumerate(["1", "2", "barges", "4", "5"]):
        explained = SearchExplanation(query, name, scorer="bm25").of(minilm, DOCUMENTS)
        assert explained.table()["contribution"].sum() == pytest.approx(expected[index], abs=1e-12)
        assert explained.off < 1e-6
    table = SearchExplanation(query, "1", scorer="bm25").of(minilm, DOCUMENTS).table().set_index("term")
    assert table.loc["the", ["query_count", "count", "documents"]].tolist() == [2, 2, 4]
    assert table.loc["unknown", "contribution"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"document": "9"}, "There is no document with the ID '9'"),
        ({"document": "1", "against": "9"}, "There is no document with the ID '9'"),
        ({"document": "2", "against": "2"}, "Choose two different documents"),
    ],
)
def test_unknown_documents_are_refused(minilm: Checkpoint, options: dict[str, str], message: str) -> None:
    with pytest.raises(SelectionError, match=message):
        SearchExplanation(QUERY, **options).of(minilm, DOCUMENTS)


def test_a_score_that_is_not_a_sum_is_refused(family_folder: Callable[[str], Path], tmp_path: Path) -> None:
    layout = "max"
    sentence_models.save(layout, family_folder(sentence_models.LAYOUTS[layout].family), tmp_path / "model")
    with pytest.raises(ProbeError, match="is not a sum over token pairs"):
        SearchExplanation("a map").of(bert_probe.load(tmp_path / "model"), ["a boat", "night"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one\n two \nthree", ["one", "two", "three"]),
        ("one\ntwo\n \t\nthree\n\n", ["one\ntwo", "three"]),
        ("one\n\n", ["one"]),
        (" \n ", []),
    ],
)
def test_documents_of_a_typed_text(text: str, expected: list[str]) -> None:
    assert documents_in_text(text) == expected


def test_compressed_documents_equal_the_plain_file(tmp_path: Path) -> None:
    rows = '{"_id": "a", "title": "Boats", "text": "They float."}\n{"_id": "b", "text": "Night."}\n'
    for name, content in {"corpus.jsonl": rows, "corpus.txt": "one\ntwo\n"}.items():
        (tmp_path / name).write_text(content)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
        plain, unpacked = (bert_probe.read_documents(tmp_path / file) for file in (name, f"{name}.gz"))
        assert [document.line for document in unpacked] == [document.line for document in plain]


@pytest.mark.parametrize(
    "content",
    [b"no gzip at all", gzip.compress(b"one\ntwo\n" * 99)[:-12]],
    ids=["not compressed", "truncated"],
)
def test_a_damaged_compressed_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "corpus.txt.gz").write_bytes(content)
    with pytest.raises(TextError, match="cannot be decompressed"):
        bert_probe.read_documents(tmp_path / "corpus.txt.gz")


def test_the_decompressed_size_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_files, "MAX_BYTES", 1_000)
    (tmp_path / "corpus.txt.gz").write_bytes(gzip.compress(b"one\n" * 1_000))
    with pytest.raises(TextError, match="is larger than"):
        bert_probe.read_documents(tmp_path / "corpus.txt.gz")


def test_terms_are_counted_once_for_all_words_of_a_query() -> None:
    class Words(list[str]):
        def __contains__(self, word: object) -> bool:
            raise AssertionError(f"searched for {word}")

    index = BM25(DOCUMENTS)
    expected = index.terms(QUERY, 0)
    index._words = [Words(words) for words in index._words]
    assert index.terms(QUERY, 0).equals(expected)
    assert expected["contribution"].sum() == pytest.approx(index.score(QUERY)[0], rel=1e-6)


def test_explanation_gives_the_same_table_again(minilm: Checkpoint) -> None:
    result = SearchExplanation(QUERY, scorer="bm25").of(minilm, DOCUMENTS)
    assert result.table().equals(result.table())
    assert "document" not in result.contributions[0].frame()
