"""Test the Search page: the ranking and its explanation equal the library's, and invalid input is refused."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

import bert_probe
from bert_probe.errors import TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.server import paths
from bert_probe.text.labeled_texts import parse_labeled_texts
from bert_probe.ui import attribution, labeled_inputs, search, sentence_input
from bert_probe.ui.sentence_input import DOCUMENTS, QUERY
from bert_probe.views.text import percentage
from tests.helpers import families, multi_vector_models
from tests.helpers.pages import HOSTILE, MARKDOWN, error_text, open_page, page_text


def tables(app: Any) -> list[Any]:
    return [element.value for element in app.dataframe]


def test_the_ranking_is_that_of_the_library(minilm: Checkpoint) -> None:
    app = open_page("search", search_compare="bm25")
    expected = bert_probe.Search(QUERY, ("bi-encoder", "bm25")).of(minilm, DOCUMENTS)
    ranking_table = tables(app)[0]
    assert list(ranking_table["document"]) == list(expected.table()["document"])
    assert list(ranking_table["score"]) == pytest.approx(list(expected.table()["score"]), abs=1e-6)
    assert list(ranking_table["bm25_rank"]) == list(expected.table()["bm25_rank"])
    best = int(expected.order[0])
    score, percentile = expected.scores["bi-encoder"][best], expected.percentile(best)
    assert f"**{score:.4f}**, higher than **{percentage(percentile)}** of random pairs" in page_text(app)
    median = np.median(expected.scores["bi-encoder"])
    assert f"half of your 12 documents score below **{median:.4f}**" in page_text(app)
    (agreement,) = expected.agreement
    assert f"share **{agreement.overlap} of their first 10 documents**" in page_text(app)
    assert "rank correlation of the 12 documents that both score is" in page_text(app)
    assert "the sum of all 126 cells equals the cosine" in page_text(app)


def test_bm25_alone_encodes_nothing_and_shows_its_terms(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bert_probe.analyses.retrieval import search as ranking

    def fail(*_: Any) -> None:
        raise AssertionError("the model is not needed")

    monkeypatch.setattr(ranking, "encode_texts", fail)
    documents = ("boats on a river", "a map of the river", "night")
    app = open_page("search", search_scorers="bm25", search_query="river map", documents="\n".join(documents))
    assert not app.exception
    terms = tables(app)[1]
    expected = bert_probe.SearchExplanation("river map", "2", scorer="bm25").of(minilm, documents)
    assert sorted(terms["contribution"]) == sorted(expected.table()["contribution"])
    assert f"the contributions add up to **{expected.scores[0]:.4f}**" in page_text(app)


def test_documents_are_encoded_once_for_several_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    from bert_probe.analyses.retrieval import search as ranking

    encoded = []
    original: Any = ranking.__dict__["encode_texts"]

    def note(checkpoint: Checkpoint, config: Any, texts: Any, *arguments: Any) -> Any:
        encoded.append(len(texts))
        return original(checkpoint, config, texts, *arguments)

    monkeypatch.setattr(ranking, "encode_texts", note)
    app = open_page("search", documents="red boats at night\nblue maps by day\ngreen rivers")
    for query in ("a map", "a river", "a map"):
        app.text_input(key="search_query").set_value(query).run()
    assert encoded.count(3) == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"documents": " "}, "There are no documents"),
        ({"documents": "one", "search_query": "\u200b"}, "has no tokens"),
    ],
)
def test_input_that_cannot_be_used_is_explained_and_kept(parameters: dict[str, str], message: str) -> None:
    app = open_page("search", **parameters)
    assert not app.exception
    assert message in error_text(app)
    assert app.text_area(key="documents_draft").value == parameters["documents"]


def test_an_empty_query_is_no_error() -> None:
    app = open_page("search")
    app.text_input(key="search_query").set_value("  ").run()
    assert [box.value for box in app.info] == ["Type a query."]
    assert not error_text(app)


@pytest.mark.parametrize(("own", "query"), [("  ", "I cannot log in"), ("boats", "boats")])
def test_the_example_fills_an_empty_query_only(own: str, query: str) -> None:
    app = open_page("search")
    app.text_input(key="search_query").set_value(own).run()
    next(button for button in app.button if button.label == "Example" and not button.disabled).click().run()
    assert app.text_input(key="search_query").value == query


def test_a_long_document_is_marked(minilm: Checkpoint) -> None:
    app = open_page("search", documents="a boat\n" + "river " * 400)
    assert "1 of 2 documents exceed the maximum length of the model" in app.warning[0].value
    expected = bert_probe.Search(QUERY).of(minilm, ["a boat", "river " * 400]).table()
    assert list(tables(app)[0]["tokens_dropped"]) == list(expected["tokens_dropped"])
    assert "too few documents" in page_text(app)


def test_hostile_documents_and_queries_are_shown_as_text() -> None:
    app = open_page("search", documents="\n".join([HOSTILE, *MARKDOWN]), search_query=HOSTILE)
    assert not app.exception
    assert not error_text(app)
    assert "<img" not in "".join(element.value for element in app.markdown)
    shaded = next(element.proto.body for element in app.get("html") if "shaded-text" in element.proto.body)
    assert "<img" not in shaded
    assert "&lt;" in shaded


def test_a_limit_on_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_input, "MAX_DOCUMENTS", 2)
    app = open_page("search", documents="a\nb\nc")
    assert "There are more than 2 documents, the limit of this page" in error_text(app)


@pytest.mark.parametrize(
    ("limit", "message"),
    [("MAX_DOCUMENTS", "more than 2 documents"), ("max_bytes", "d.txt.gz is larger than")],
)
def test_nothing_of_a_file_beyond_a_limit_is_kept(
    limit: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentence_input, limit, 2 if limit == "MAX_DOCUMENTS" else lambda: 200)
    content = gzip.compress(b"the same line\n" * 1000)
    file = sentence_input._read_documents("d.txt.gz", content)
    assert isinstance(file.documents, TextError)
    assert message in str(file.documents)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0%"),
        (96.97, "97.0%"),
        (99.97, "99.9%"),
        (100.0, "100.0%"),
        (float("nan"), "an undefined share"),
    ],
)
def test_only_a_score_above_all_pairs_is_above_all(value: float, text: str) -> None:
    assert percentage(value) == text


@pytest.mark.prove
def test_long_documents_are_those_of_the_library(minilm: Checkpoint) -> None:
    texts = ["A boat. " + "word " * 300 + "end.", "The boat sinks. Nobody reads."]
    page = {"documents": "\n".join(texts), "search_query": "a boat"}
    app = open_page("search", **page)
    audit = bert_probe.TruncationAudit(show="lost").of(minilm, texts)
    assert audit.finding in page_text(app)
    table = next(frame for frame in tables(app) if "lost" in frame)
    assert table["lost"].tolist() == [audit.lost[0].text]
    for view, button, question, column in (
        ("chunks", "Rank by chunks", bert_probe.ChunkedSearch("a boat"), "chunk_score"),
        ("positions", "Remove sentences", bert_probe.PositionEffect("a boat"), None),
    ):
        app = open_page("search", long_view=view, **page)
        next(element for element in app.button if element.label == button).click().run()
        assert not app.exception
        result: Any = question.of(minilm, texts)
        if column is None:
            assert result.finding in page_text(app)
        else:
            matching_table = next(frame for frame in tables(app) if column in frame)
            assert list(matching_table[column]) == pytest.approx(list(result.frame()[column]), abs=1e-6)


def test_vectors_of_documents_are_ranked_and_explained(
    minilm: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = bert_probe.Sentences("model").of(minilm, DOCUMENTS).vectors
    ids = [f"kb-{number}" for number in range(len(DOCUMENTS))]
    np.savez(tmp_path / "help.npz", vectors=vectors, ids=ids, texts=DOCUMENTS)
    np.save(tmp_path / "alone.npy", vectors)
    content = (tmp_path / "help.npz").read_bytes()
    expected = bert_probe.VectorSearch(QUERY).of(minilm, bert_probe.read_vectors(tmp_path / "help.npz"))
    app = open_page("search", documents_from="file")
    app.session_state["documents_file"] = sentence_input._read_documents("help.npz", content)
    app.run()
    assert not app.exception
    assert list(tables(app)[0]["document"]) == [document.id for document in expected.documents]
    assert list(tables(app)[0]["percentile"]) == pytest.approx(list(expected.frame()["percentile"]))
    assert "The document vectors were not computed by BERT Probe." in page_text(app)
    share = percentage(expected.percentile(0))
    assert (
        f"**{expected.scores[0]:.4f}**, higher than **{share}** of random pairs of the vectors"
        in page_text(app)
    )
    assert "the sum of all 126 cells equals the cosine" in page_text(app)
    monkeypatch.setattr(paths, "_store_folders", [tmp_path])
    app = open_page("search", documents_from="vectors", vectors="alone.npy")
    assert not app.exception
    assert list(tables(app)[0]["document"]) == [
        str(ids.index(name) + 1) for name in expected.frame()["document"]
    ]
    assert "The file has no text for this document" in page_text(app)
    assert "text" not in tables(app)[0]
    app = open_page("search", documents_from="file")
    lines = b'{"vector": [1, 2, 3, 4, 5, 6, 7]}\n' * 2
    app.session_state["documents_file"] = sentence_input._read_documents("other.jsonl", lines)
    app.run()
    assert "The vectors of other.jsonl have 7 dimensions" in error_text(app)


def test_uploaded_vectors_are_not_parsed_in_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_probe.corpus.vector_files.parse_vectors", None)
    line = b'{"vector": [1, 2]}\n'
    assert sentence_input._read_documents("a.jsonl", line).documents == line


def test_broken_rows_of_a_file_are_listed_and_can_be_skipped() -> None:
    content = b"_id,text\nx,A boat sails.\ny,One,too many\nz,The night sky.\n"
    app = open_page("search", documents_from="file", search_query="boat", search_scorers="bm25")
    app.session_state["documents_file"] = sentence_input._read_documents("a.csv", content)
    app.run()
    assert "a.csv has an error: line 3: the row has 3 cells, but the header has 2" in error_text(app)
    app.checkbox(key="documents_skip_broken").check().run()
    assert not error_text(app)
    assert list(tables(app)[0]["document"]) == ["x", "z"]
    assert "1 broken row was skipped" in app.warning[0].value


def test_words_that_swap_the_selected_documents(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = (
        "Nothing of this kind.",
        "The report describes zebras.",
        "The report describes zebra stripes.",
    )
    monkeypatch.setattr(search, "_table", lambda _: (1, 2))
    app = open_page("search", search_query="zebras", documents="\n".join(documents))
    button = next(button for button in app.button if button.label == "Find words that change the order")
    button.click().run()
    assert not app.exception
    expected = bert_probe.RankSwap("zebras", "2", "3").of(minilm, documents)
    removal = expected.changes["remove"]
    scores = f"{removal.verified[1]:.4f} and {removal.verified[0]:.4f}"
    assert (
        f"Without **{removal.words[0]}**, document 3 ranks above document 2 (scores {scores})."
        in page_text(app)
    )
    assert "This is the smallest set." in page_text(app)
    table = next(frame for frame in tables(app) if "margin" in frame)
    assert list(table["margin"]) == pytest.approx(list(removal.margins), abs=1e-6)


def test_a_threshold_from_labeled_pairs(minilm: Checkpoint) -> None:
    rows = "boat,a small boat,4\nboat,the night,0\nsky,the night sky,3\nsky,a map,1\nmap,maps,2\n"
    content = f"text_a,text_b,label\n{rows}".encode()
    app = open_page("search")
    app.session_state["threshold_file"] = labeled_inputs.read_evaluation_file("pairs", "pairs.csv", content)
    app.run()
    assert not app.exception
    pairs = parse_labeled_texts(content, "pairs.csv")
    expected = bert_probe.ScoreThreshold(pooling="model", positive_from=2).of(minilm, pairs)
    assert f"Pairs with a cosine of at least **{expected.threshold:.4f}** are predicted" in page_text(app)
    assert "Of the 5 pairs, 3 are labeled as matches." in page_text(app)
    table = next(frame for frame in tables(app) if "measure" in frame)
    assert list(table["low"]) == pytest.approx(list(expected.table()["low"]), abs=1e-6)
    app.session_state["threshold_file"] = labeled_inputs.read_evaluation_file(
        "pairs", "pairs.csv", b"text,label\na,1\nb,0\n"
    )
    app.run()
    assert "has single texts" in error_text(app)


def test_late_interaction_of_an_untrained_model_shows_its_matches_and_says_so(minilm: Checkpoint) -> None:
    app = open_page("search", search_scorers="late-interaction", search_compare="bm25")
    assert not app.exception
    scorers = ("late-interaction", "bm25")
    expected = bert_probe.Search(QUERY, scorers).of(minilm, DOCUMENTS)
    ranking = tables(app)[0]
    assert list(ranking["document"]) == list(expected.table()["document"])
    assert list(ranking["score"]) == pytest.approx(list(expected.table()["score"]), abs=1e-5)
    text = page_text(app)
    assert expected.notes[0] in text
    best = expected.documents[int(expected.order[0])].id
    explained = bert_probe.SearchExplanation(QUERY, best, scorer=scorers[0]).of(minilm, DOCUMENTS)
    assert f"outlined maxima add up to the MaxSim of **{explained.scores[0]:.4f}**" in text
    matches = next(table for table in tables(app) if "word" in table)
    assert list(matches["word"]) == list(explained.table()["word"])
    assert "Late interaction and BM25 share" in text


def test_a_late_interaction_model_offers_its_scorer_and_prompts(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = multi_vector_models.save("PyLate", family_folder("bert"), tmp_path / "model")
    checkpoint = bert_probe.load(folder)
    documents = ["a boat", "the wide river"]
    for prompt in ("query", "none"):
        app = open_page("search", model=str(folder), documents="\n".join(documents), search_prompt=prompt)
        assert not app.exception
        result = bert_probe.Search(QUERY, ("late-interaction",), prompt=prompt).of(checkpoint, documents)
        assert list(tables(app)[0]["score"]) == pytest.approx(list(result.table()["score"]), abs=1e-4)
        assert "not trained for late interaction" not in page_text(app)


def test_a_cross_encoder_scores_pairs_and_leads_to_their_attributions(tmp_path: Path) -> None:
    model = transformers.BertForSequenceClassification(families.config("bert", num_labels=1))
    families.randomize(model, 1)
    model.save_pretrained(tmp_path)
    families.save_tokenizer("bert", tmp_path)
    documents = ["a boat", "the wide river"]
    app = open_page("search", model=str(tmp_path), documents="\n".join(documents))
    assert not app.exception
    expected = bert_probe.Search(QUERY, ("cross-encoder",)).of(bert_probe.load(tmp_path), documents)
    assert list(tables(app)[0]["score"]) == pytest.approx(list(expected.table()["score"]), abs=1e-5)
    assert "Compute attributions of the pair instead" in page_text(app)


def test_words_that_swap_documents_of_a_cross_encoder_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = transformers.BertForSequenceClassification(families.config("bert", num_labels=1))
    families.randomize(model, 1)
    model.save_pretrained(tmp_path)
    families.save_tokenizer("bert", tmp_path)
    monkeypatch.setattr(search, "_table", lambda _: (0, 1))
    app = open_page("search", model=str(tmp_path), documents="a boat\nthe wide river")
    assert "Find words that change the order" in [button.label for button in app.button]


def test_a_score_is_attributed_to_input_words_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(attribution, "show_input_pairs", lambda *arguments: calls.append(arguments))
    documents = ("The clock is slow.", "A boat sails.")
    app = open_page("search", search_query="boats", documents="\n".join(documents))
    assert not app.exception
    ((traces, question),) = calls
    assert [trace.encoding.text for trace in traces] == ["boats", documents[1]]
    assert question == bert_probe.SimilarityAttribution()


def test_store_with_sentence_vectors_is_searched(
    minilm: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "help.txt").write_text("\n".join(DOCUMENTS), "utf-8")
    question = bert_probe.IngestConfig(keep=("sentence_vectors",))
    store = bert_probe.build_corpus(minilm, question, [tmp_path / "help.txt"], tmp_path / "help")
    expected = bert_probe.VectorSearch(QUERY).of(minilm, bert_probe.read_vectors(store.folder))
    monkeypatch.setattr(paths, "_store_folders", [tmp_path])
    app = open_page("search", documents_from="vectors", vectors="help")
    assert not app.exception
    assert list(tables(app)[0]["text"]) == list(expected.frame()["text"])
    assert "computed elsewhere" not in page_text(app)
    assert "the sum of all 126 cells equals the cosine" in page_text(app)
    assert not app.warning


def test_incomplete_store_is_announced(
    minilm: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_event: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "help.txt").write_text("\n".join(DOCUMENTS), "utf-8")
    question = bert_probe.IngestConfig(keep=("sentence_vectors",))
    files = [tmp_path / "help.txt"]
    with suppress(KeyboardInterrupt):
        bert_probe.build_corpus(minilm, question, files, tmp_path / "help", shard_rows=5, on_shard=stop)
    monkeypatch.setattr(paths, "_store_folders", [tmp_path])
    app = open_page("search", documents_from="vectors", vectors="help")
    assert len(tables(app)[0]) == 5
    (warning,) = app.warning
    assert f"This store is incomplete: it contains 5 of {len(DOCUMENTS)} sentences" in warning.value
