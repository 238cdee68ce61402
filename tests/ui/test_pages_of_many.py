"""The pages with sentences of their own, Context and Sentences, through Streamlit's test runner."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import bert_probe
from bert_probe import SentenceMap, Sentences
from bert_probe.analyses.vectors import sentences
from bert_probe.analyses.vectors.similarity_baseline import SimilarityBaseline
from bert_probe.analyses.vectors.word_in_context import WordInContext, WordInContextResult
from bert_probe.core import extras, files
from bert_probe.runtime import shared_cache
from bert_probe.ui import context
from bert_probe.ui.examples import CONTEXT, SENTENCES
from tests.helpers.exactness import assert_alike
from tests.helpers.gate import prove_unless
from tests.helpers.pages import HOSTILE, asked_by, opened, refusal, said, table_of_both_codes


def click(app: Any, label: str) -> None:
    next(button for button in app.button if button.label == label).click().run()


def in_context(texts: list[str], words: list[str]) -> WordInContextResult:
    """What the page says of words, to the last digit: each sentence was read by itself."""
    checkpoint = shared_cache.open_checkpoint("", "")
    traces = [shared_cache.traces(checkpoint, [(text, None)], truncate=False)[0] for text in texts]
    return WordInContext(words).of(traces, shared_cache.answers.of(SimilarityBaseline().of, checkpoint))


def example_words() -> WordInContextResult:
    texts, words = zip(*CONTEXT, strict=True)
    return in_context(list(texts), list(words))


def test_the_context_example_is_compared() -> None:
    app = opened("context")
    frame = app.dataframe[0].value
    expected = example_words().frame()
    assert list(frame) == list(expected)
    assert_alike(frame, expected)
    assert app.query_params["context_words"] == "Python\nPython\nsnake\nprogramming"


def test_sentences_are_added_and_removed_and_bad_ones_said_beside_the_others() -> None:
    app = opened("context")
    app.text_area(key="context_draft").set_value(f"A python sleeps\n\n{'word ' * 600}\n\u200b\n{HOSTILE}")
    click(app, "Add")
    assert not app.exception
    assert app.text_area(key="context_draft").value == ""
    assert "602 tokens; this model accepts 512." in refusal(app)
    assert "holds no character" in refusal(app)
    # Python is chosen in the new sentence too; the hostile one has no such word and waits for a click.
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


def test_the_address_brings_sentences_and_words() -> None:
    app = opened("context", context="a b a\nb a a\nnone of them", context_words="a:2\na:1\nboat")
    found = in_context(["a b a", "b a a"], ["a:2", "a:1"])
    assert_alike(app.dataframe[0].value["cosine"], found.curves.ravel())
    assert "There is no word boat here" in said(app)


def test_more_sentences_than_fit_stay_in_the_field() -> None:
    app = opened("context")
    app.text_area(key="context_draft").set_value("\n".join(f"a python {number}" for number in range(60)))
    click(app, "Add")
    assert app.text_area(key="context_draft").value.splitlines() == [f"a python {n}" for n in range(46, 60)]
    assert f"{context.MAX_SENTENCES} sentences, the maximum of this page" in said(app)
    assert app.selectbox(key="context_pairs").value == "1", "not all of a thousand curves"
    assert "context" not in app.query_params or len(app.query_params["context"]) <= 1500


def test_context_is_kept_over_pages_and_corrected_curves_are_drawn() -> None:
    app = opened("context", context_scale="corrected", context_pairs="3", vector_layer="2")
    assert not app.exception
    click(app, "Remove")
    app.switch_page("../../pages/tokens.py").run()
    app.switch_page("../../pages/context.py").run()
    assert app.dataframe[0].value["b"].max() == 3
    assert app.slider(key="vector_layer").value == 2


def test_context_s_address_asks_what_the_page_shows() -> None:
    app = opened("context", vector_layer="2", layer="4")
    asked = asked_by(app, WordInContext)
    assert asked == example_words().showing(layer=2).question
    assert f"{replace(asked, layer=None)!r}.of(traces)" in app.get("code")[0].value


@pytest.mark.parametrize("same", [True, False])
def test_context_s_two_codes_make_the_same_table(
    same: bool, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    given = (
        {"context": "-5 pythons, it's a python\na python", "context_words": "python\npython"} if same else {}
    )
    table_of_both_codes(opened("context", **given), capfdbinary)


def test_the_sentences_example_is_compared(minilm: bert_probe.Checkpoint) -> None:
    app = opened("sentences", sentences_part="nearest")
    found = Sentences("model").of(minilm, SENTENCES)
    frame = app.dataframe[0].value
    assert frame["sentence_a"].tolist()[0] == SENTENCES[2]
    assert frame["cosine"].tolist() == [pair.cosine for pair in found.compared.nearest()]
    assert "mean of all tokens, truncated to 256 tokens, normalized" in said(app)


@pytest.mark.parametrize(
    ("part", "pooling"),
    prove_unless(
        lambda case: case[0] == "heatmap" or case[1] == "cls",
        product(["heatmap", "table", "map"], ["mean", "cls", "pooler", "max"]),
    ),
)
def test_every_part_opens_with_every_pooling(part: str, pooling: str) -> None:
    app = opened("sentences", sentences_part=part, pooling=pooling, sentences="one\ntwo\nthree\nfour")
    assert not app.exception
    assert not refusal(app)
    if part == "map":
        app.segmented_control(key="sentences_map").set_value("tsne").run()
        assert not app.exception
        assert not refusal(app)
        assert app.header[0].value == "Sentences by t-SNE"


def test_t_sne_of_three_sentences_says_what_it_needs() -> None:
    app = opened("sentences", sentences_part="map", sentences_map="tsne", sentences="one\ntwo\nthree")
    assert not app.exception
    assert "This map needs at least 4 sentences (given: 3)." in refusal(app)


def test_umap_is_offered_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    app = opened("sentences", sentences_part="map")
    assert app.segmented_control(key="sentences_map").options == ["PCA", "t-SNE", "UMAP"]
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)
    app = opened("sentences", sentences_part="map", sentences_map="umap")
    assert app.segmented_control(key="sentences_map").options == ["PCA", "t-SNE"]
    assert "There is no sentences map umap here; showing pca." in said(app)


def test_a_map_runs_the_model_no_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    app = opened("sentences", sentences="a map\nof four\nnew\nsentences")

    def refused(*_given: object) -> None:
        raise AssertionError("the model runs")

    monkeypatch.setattr(sentences, "forward", refused)
    for part in ("nearest", "map", "table"):
        app.segmented_control(key="sentences_part").set_value(part).run()
        assert not app.exception
    app = opened("sentences", sentences="a map\nof four\nnew\nsentences", sentences_part="map")
    assert not app.exception, "nor for another session"


@pytest.mark.parametrize(
    ("address", "asked"),
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
def test_the_address_asks_what_the_sentences_page_shows(
    address: dict[str, str], asked: Sentences | SentenceMap
) -> None:
    app = opened("sentences", **address)
    assert asked_by(app, type(asked)) == asked
    assert app.get("code")[0].value.endswith(f"{asked!r}.of(checkpoint, sentences).table()")


def test_the_table_is_ordered_as_asked(minilm: bert_probe.Checkpoint) -> None:
    found = Sentences("model", order="tree").of(minilm, SENTENCES)
    app = opened("sentences", sentences_part="table")
    assert list(app.dataframe[0].value) == [f"{i + 1} {SENTENCES[i]}" for i in found.order]
    given = opened("sentences", sentences_part="table", sentences_order="given").dataframe[0].value
    assert_alike(given.to_numpy(), found.compared.cosines)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "No sentences were given. Write one per line."),
        ("only one", "One sentence cannot be ordered. Give two or more."),
        ("fine\n\u200b", "Sentence 2: The text holds no character"),
        ("a\n" * 2001, "2,001 sentences, but this page accepts at most 2,000"),
    ],
)
def test_bad_sentences_are_refused_and_kept(text: str, sentence: str) -> None:
    app = opened("sentences")
    app.text_area(key="sentences_draft").set_value(text)
    click(app, "Compare")
    assert not app.exception
    assert sentence in refusal(app)
    assert app.text_area(key="sentences_draft").value == text
    app.switch_page("../../pages/tokens.py").run()
    app.switch_page("../../pages/sentences.py").run()
    assert app.text_area(key="sentences_draft").value == text
    click(app, "Example")
    assert not refusal(app)


def test_a_long_sentence_is_cut_by_the_model_s_own_pooling_and_refused_by_others() -> None:
    long = f"short\n{'word ' * 600}"
    app = opened("sentences")
    app.text_area(key="sentences_draft").set_value(long)
    click(app, "Compare")
    assert "1 sentences were truncated" in app.warning[0].value
    app = opened("sentences", pooling="mean")
    app.text_area(key="sentences_draft").set_value(long)
    click(app, "Compare")
    assert "Sentence 2: 602 tokens; this model accepts 512." in refusal(app)


def test_hostile_sentences_are_never_read_as_markdown() -> None:
    for part in ("heatmap", "table", "nearest", "map"):
        app = opened("sentences", sentences=f"{HOSTILE}\n{HOSTILE} again\nthird", sentences_part=part)
        assert not app.exception
        markdown = "\n".join(element.value for group in (app.markdown, app.caption) for element in group)
        assert "<img" not in markdown


@pytest.mark.parametrize("part", prove_unless({"heatmap", "map"}, ["heatmap", "nearest", "map", "tsne"]))
def test_sentences_two_codes_read_the_exported_file(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    address = (
        {"sentences_part": "map", "sentences_map": "tsne"} if part == "tsne" else {"sentences_part": part}
    )
    app = opened("sentences", **address)
    monkeypatch.chdir(tmp_path)
    Path("sentences.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    frame = table_of_both_codes(app, capfdbinary)
    found = Sentences("model").of(bert_probe.load(), SENTENCES)
    shown = {
        "heatmap": found.showing(order="tree"),
        "nearest": found.showing(show="nearest", count=50),
        "map": SentenceMap("pca", "model").of_vectors(found),
        "tsne": SentenceMap("tsne", "model").of_vectors(found),
    }
    assert files.to_bytes(frame, "csv") == files.to_bytes(shown[part].table(), "csv")
