"""Test the pages Context and Sentences, which have their own input of many sentences."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_probe
from bert_probe import SentenceMap, Sentences, SimilarityCalibration
from bert_probe.analyses.retrieval import calibration as calibrations
from bert_probe.analyses.vectors import sentences
from bert_probe.analyses.vectors.similarity import SimilarityBaseline
from bert_probe.analyses.vectors.word_in_context import WordInContext, WordInContextResult
from bert_probe.core import extras, files
from bert_probe.runtime import shared_cache
from bert_probe.text.datasets import everyday_topics
from bert_probe.ui import context
from bert_probe.ui.sentence_input import CONTEXT, SENTENCES
from tests.helpers.exactness import assert_repeatable
from tests.helpers.gate import prove_unless
from tests.helpers.opening import open_minilm
from tests.helpers.pages import HOSTILE, error_text, open_page, page_text, question_in_url, table_of_snippets


def click(app: Any, label: str) -> None:
    next(button for button in app.button if button.label == label).click().run()


def expected_contexts(texts: list[str], words: list[str]) -> WordInContextResult:
    """Return the expected result, identical in every digit, because each sentence is encoded separately."""
    checkpoint = shared_cache.open_checkpoint("", "")
    traces = [shared_cache.traces(checkpoint, [(text, None)], truncate=False)[0] for text in texts]
    return WordInContext(words).of(traces, shared_cache.answers.of(SimilarityBaseline().of, checkpoint))


def example_words() -> WordInContextResult:
    texts, words = zip(*CONTEXT, strict=True)
    return expected_contexts(list(texts), list(words))


def test_context_example_is_compared() -> None:
    app = open_page("context")
    frame = app.dataframe[0].value
    expected = example_words().frame()
    assert list(frame) == list(expected)
    assert_repeatable(frame, expected)
    assert app.query_params["context_words"] == "Python\nPython\nsnake\nprogramming"


def test_sentences_are_added_and_removed_and_invalid_lines_reported() -> None:
    app = open_page("context")
    app.text_area(key="context_draft").set_value(f"A python sleeps\n\n{'word ' * 600}\n\u200b\n{HOSTILE}")
    click(app, "Add")
    assert not app.exception
    assert app.text_area(key="context_draft").value == ""
    assert "The text has 602 tokens, but this model accepts at most 512." in error_text(app)
    assert "has no tokens, because" in error_text(app)
    # The word "Python" is preselected in the new sentence. The hostile sentence does not contain this word.
    assert app.dataframe[0].value["b"].max() == 5
    assert "<img" not in "\n".join(part.value for part in (*app.markdown, *app.caption))
    for _ in range(4):
        click(app, "Remove")
    assert app.dataframe == []
    assert "Select a word in at least two sentences" in app.info[0].value
    click(app, "Clear all")
    assert not app.exception
    click(app, "Example")
    assert app.dataframe[0].value["b"].max() == 4


def test_url_restores_sentences_and_words() -> None:
    app = open_page("context", context="a b a\nb a a\nnone of them", context_words="a:2\na:1\nboat")
    result = expected_contexts(["a b a", "b a a"], ["a:2", "a:1"])
    assert_repeatable(app.dataframe[0].value["cosine"], result.curves.ravel())
    assert "This sentence does not contain the word boat" in page_text(app)


def test_excess_sentences_stay_in_the_field() -> None:
    app = open_page("context")
    app.text_area(key="context_draft").set_value("\n".join(f"a python {number}" for number in range(60)))
    click(app, "Add")
    assert app.text_area(key="context_draft").value.splitlines() == [f"a python {n}" for n in range(46, 60)]
    assert f"accepts at most {context.MAX_SENTENCES} sentences" in page_text(app)
    assert app.selectbox(key="context_pairs").value == "1", "only some of a thousand curves"
    assert "context" not in app.query_params or len(app.query_params["context"]) <= 1500


def test_context_is_kept_on_page_change_and_draws_corrected_curves() -> None:
    app = open_page("context", context_scale="corrected", context_pairs="3", vector_layer="2")
    assert not app.exception
    click(app, "Remove")
    app.switch_page("../../pages/tokens.py").run()
    app.switch_page("../../pages/context.py").run()
    assert app.dataframe[0].value["b"].max() == 3
    assert app.slider(key="vector_layer").value == 2


def test_context_url_contains_question_of_page() -> None:
    app = open_page("context", vector_layer="2", layer="4")
    question = question_in_url(app, WordInContext)
    assert question == example_words().showing(layer=2).question
    assert f"{replace(question, layer=None)!r}.of(traces)" in app.get("code")[0].value


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("same", [True, False])
def test_context_snippets_produce_same_table(same: bool, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    arguments = (
        {"context": "-5 pythons, it's a python\na python", "context_words": "python\npython"} if same else {}
    )
    table_of_snippets(open_page("context", **arguments), capfdbinary)


def test_sentences_example_is_compared(minilm: bert_probe.Checkpoint) -> None:
    app = open_page("sentences", sentences_part="nearest")
    result = Sentences("model").of(minilm, SENTENCES)
    frame = app.dataframe[0].value
    assert frame["sentence_a"].tolist()[0] == SENTENCES[2]
    assert frame["cosine"].tolist() == [pair.score for pair in result.compared.nearest()]
    calibration = SimilarityCalibration("model").of(minilm, calibrations.reference_sentences())
    expected = [(calibration.random < score).mean() * 100 for score in frame["cosine"].astype(float)]
    np.testing.assert_allclose(frame["percentile"], expected, atol=1e-9)
    assert "random pairs of 50 short English reference sentences have a cosine below" in page_text(app)
    assert "mean of all tokens, normalized, truncated to 256 tokens" in page_text(app)


@pytest.mark.parametrize(
    ("part", "pooling"),
    prove_unless(
        lambda case: case[0] == "heatmap" or case[1] == "cls",
        product(["heatmap", "table", "map"], ["mean", "cls", "pooler", "max"]),
    ),
)
def test_all_views_open_with_all_poolings(part: str, pooling: str) -> None:
    app = open_page("sentences", sentences_part=part, pooling=pooling, sentences="one\ntwo\nthree\nfour")
    assert not app.exception
    assert not error_text(app)
    if part == "map":
        app.segmented_control(key="sentences_map").set_value("tsne").run()
        assert not app.exception
        assert not error_text(app)
        assert app.header[0].value == "Sentences by t-SNE"


def test_t_sne_of_three_sentences_reports_minimum() -> None:
    app = open_page("sentences", sentences_part="map", sentences_map="tsne", sentences="one\ntwo\nthree")
    assert not app.exception
    assert "This map needs at least 4 sentences, not 3." in error_text(app)


def test_umap_is_offered_if_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_page("sentences", sentences_part="map")
    assert app.segmented_control(key="sentences_map").options == ["PCA", "t-SNE", "UMAP"]
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)
    app = open_page("sentences", sentences_part="map", sentences_map="umap")
    assert app.segmented_control(key="sentences_map").options == ["PCA", "t-SNE"]
    assert "There is no sentences map umap; showing pca instead." in page_text(app)


def test_map_does_not_rerun_model(monkeypatch: pytest.MonkeyPatch) -> None:
    # The nearest pairs also need the scores of the reference sentences.
    app = open_page("sentences", sentences="a map\nof four\nnew\nsentences", sentences_part="nearest")

    def refused(*_args: object) -> None:
        raise AssertionError("the model runs")

    monkeypatch.setattr(sentences, "forward", refused)
    for part in ("table", "map", "nearest"):
        app.segmented_control(key="sentences_part").set_value(part).run()
        assert not app.exception
    app = open_page("sentences", sentences="a map\nof four\nnew\nsentences", sentences_part="map")
    assert not app.exception, "or in another session"


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("address", "question"),
    [
        ({}, Sentences("model", order="tree")),
        ({"sentences_part": "table", "sentences_order": "given"}, Sentences("model")),
        ({"sentences_part": "nearest", "pooling": "mean"}, Sentences(show="nearest")),
        (
            {"sentences_part": "nearest", "sentences_count": "3", "pooling": "cls"},
            Sentences("cls", "nearest", count=3),
        ),
        ({"sentences_part": "map"}, SentenceMap("pca", "model")),
        ({"sentences_part": "map", "sentences_map": "tsne", "pooling": "max"}, SentenceMap("tsne", "max")),
    ],
)
def test_sentences_url_contains_question_of_page(
    address: dict[str, str], question: Sentences | SentenceMap
) -> None:
    app = open_page("sentences", **address)
    assert question_in_url(app, type(question)) == question
    assert app.get("code")[0].value.endswith(f"{question!r}.of(checkpoint, sentences).table()")


def test_table_has_requested_order(minilm: bert_probe.Checkpoint) -> None:
    result = Sentences("model", order="tree").of(minilm, SENTENCES)
    app = open_page("sentences", sentences_part="table")
    assert list(app.dataframe[0].value) == [f"{i + 1} {SENTENCES[i]}" for i in result.order]
    table = open_page("sentences", sentences_part="table", sentences_order="given").dataframe[0].value
    assert_repeatable(table.to_numpy(), result.compared.scores)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "There are no sentences. Write one sentence per line."),
        ("only one", "A single sentence cannot be ordered. Use at least two sentences."),
        ("fine\n\u200b", "Sentence 2: The text has no tokens, because"),
        ("a\n" * 2001, "There are more than 2,000 sentences, the limit of this page"),
    ],
)
def test_invalid_sentences_are_reported_and_kept(text: str, sentence: str) -> None:
    app = open_page("sentences")
    app.text_area(key="sentences_draft").set_value(text)
    click(app, "Compare")
    assert not app.exception
    assert sentence in error_text(app)
    assert app.text_area(key="sentences_draft").value == text
    app.switch_page("../../pages/tokens.py").run()
    app.switch_page("../../pages/sentences.py").run()
    assert app.text_area(key="sentences_draft").value == text
    click(app, "Example")
    assert not error_text(app)


def test_long_sentence_is_truncated_only_with_model_pooling() -> None:
    long = f"short\n{'word ' * 600}"
    app = open_page("sentences")
    app.text_area(key="sentences_draft").set_value(long)
    click(app, "Compare")
    assert "1 sentences were truncated" in app.warning[0].value
    app = open_page("sentences", pooling="mean")
    app.text_area(key="sentences_draft").set_value(long)
    click(app, "Compare")
    assert "Sentence 2: The text has 602 tokens, but this model accepts at most 512." in error_text(app)


def test_hostile_sentences_are_not_rendered_as_markdown() -> None:
    for part in ("heatmap", "table", "nearest", "map"):
        app = open_page("sentences", sentences=f"{HOSTILE}\n{HOSTILE} again\nthird", sentences_part=part)
        assert not app.exception
        markdown = "\n".join(element.value for group in (app.markdown, app.caption) for element in group)
        assert "<img" not in markdown


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("part", prove_unless({"heatmap", "map"}, ["heatmap", "nearest", "map", "tsne"]))
def test_sentences_snippets_read_exported_file(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    address = (
        {"sentences_part": "map", "sentences_map": "tsne"} if part == "tsne" else {"sentences_part": part}
    )
    app = open_page("sentences", **address)
    monkeypatch.chdir(tmp_path)
    Path("sentences.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    frame = table_of_snippets(app, capfdbinary)
    result = Sentences("model").of(open_minilm(), SENTENCES)
    arrays = {
        "heatmap": result.showing(order="tree"),
        "nearest": result.showing(show="nearest", count=50),
        "map": SentenceMap("pca", "model").of_vectors(result),
        "tsne": SentenceMap("tsne", "model").of_vectors(result),
    }
    assert files.to_bytes(frame, "csv") == files.to_bytes(arrays[part].table(), "csv")


def test_sentences_are_colored_by_label_or_cluster(minilm: bert_probe.Checkpoint) -> None:
    app = open_page("sentences", sentences_from="sample", sentences_part="map")
    table = app.dataframe[0].value
    assert table["label"].tolist() == [str(row.label) for row in everyday_topics().rows]
    app = open_page("sentences", sentences_from="sample", sentences_part="map", sentences_color="cluster")
    texts = [str(row.text) for row in everyday_topics().rows]
    expected = SentenceMap("pca", "model", min_cluster=10).of(minilm, texts).frame()
    assert app.dataframe[0].value["cluster"].tolist() == expected["cluster"].tolist()


def test_labels_of_a_table_belong_to_its_sentences() -> None:
    app = open_page("sentences", sentences_from="file", sentences_part="map", sentences_color="label")
    app.session_state["sentences_file"] = ("a.csv", b"text,label\none boat,sea\na map,land\ntwo boats,sea\n")
    app.run()
    assert app.dataframe[0].value["label"].tolist() == ["sea", "land", "sea"]
    app.session_state["sentences_file"] = ("b.csv", b"text,label\none boat,sea\n,land\ntwo boats,sea\n")
    app.run()
    assert "label" not in app.dataframe[0].value
