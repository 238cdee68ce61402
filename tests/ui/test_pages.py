"""Test all pages in Streamlit's test runner, with valid and invalid input."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_probe
from bert_probe import (
    AttentionSteps,
    Embedding,
    HiddenStates,
    Parameters,
    Pooler,
    Sentences,
    SimilarityCalibration,
    Tokens,
)
from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.retrieval import calibration as calibrations
from bert_probe.analyses.vectors.similarity import Similarity, SimilarityBaseline
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import embeddings, export, state, workbench
from bert_probe.ui.sentence_input import EXAMPLES
from bert_probe.views.head_view import HeadViewData, payload
from bert_probe.views.selection import Options, Selection
from bert_probe.views.text import percentage
from tests.helpers import payloads
from tests.helpers.exactness import assert_repeatable, assert_rounded
from tests.helpers.families import TEXT
from tests.helpers.framed import extract_payloads
from tests.helpers.gate import prove_unless
from tests.helpers.pages import (
    HOSTILE,
    change_url,
    displayed_view,
    error_text,
    open_page,
    page_inputs,
    page_text,
    question_in_url,
    table_of_snippets,
    url_params,
)

COMPUTED = (
    "overview",
    "tokens",
    "attention",
    "heads",
    "steps",
    "embeddings",
    "similarity",
    "compare",
    "context",
    "sentences",
    "search",
    "map",
    "answer",
    "parameters",
    "sizes",
    "vocabulary",
    "positions",
)
PAGES = (*COMPUTED, "changes")
"""All pages; the last one needs a second model to show anything."""
OWN_TEXTS = ("context", "sentences", "search", "parameters", "sizes", "vocabulary", "positions")
TEXT_PAGES = tuple(page for page in COMPUTED if page not in OWN_TEXTS)


@pytest.mark.parametrize("page", COMPUTED)
def test_page_opens_with_computed_example(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    trace_texts = workbench.trace_texts

    def count(*args: Any) -> list[Trace]:
        traced.append(args)
        return trace_texts(*args)

    monkeypatch.setattr(workbench, "trace_texts", count)
    app = open_page(page)
    reads_texts = traced and page not in OWN_TEXTS
    assert page_inputs(app) == ("texts model" if reads_texts else "model"), "the fields that the page reads"
    assert not app.exception
    assert app.title[0].value == page.capitalize()
    assert app.text_area(key="draft_a").value == EXAMPLES[0].a
    assert not error_text(app)
    assert [button.label for button in app.get("download_button")][:4] == ["CSV", "JSON", "PARQUET", "NPZ"]


@pytest.mark.parametrize(
    "page", prove_unless({"overview", "tokens", "attention", "compare", "answer"}, PAGES)
)
def test_pair_opens_on_every_page(page: str) -> None:
    app = open_page(page, a="I like cookies!", b="Do you like them too?", relation="pair")
    assert not app.exception
    assert not error_text(app)
    if page == "tokens":
        assert app.dataframe[-1].value["segment"].tolist() == [0] * 6 + [1] * 7


REFUSED = {
    "": "The text is empty.",
    "   ": "The text contains only spaces.",
    "\u200b": "has no tokens",
    "word " * 600: "The text has 602 tokens, but this model accepts at most 512. Shorten the text, or turn "
    "on truncation.",
}


@pytest.mark.parametrize(
    ("page", "text"),
    prove_unless(
        lambda case: case[0] == "attention" or (case[1] == "" and case[0] in {"overview", "compare"}),
        product(TEXT_PAGES, REFUSED),
    ),
)
def test_invalid_text_is_reported_and_kept(page: str, text: str) -> None:
    """Test all errors on a single page, because bert_probe/ui/main.py shows them on every page."""
    sentence = REFUSED[text]
    app = open_page(page, a=text)
    assert not app.exception
    assert sentence in error_text(app)
    assert app.text_area(key="draft_a").value == text


def test_truncation_accepts_long_text_and_is_reported() -> None:
    app = open_page("tokens", a="word " * 600, truncate="1")
    assert not app.exception
    assert "The text was truncated by 90 tokens" in app.warning[0].value
    assert app.metric[0].value == "512"


@pytest.mark.parametrize("page", prove_unless({"attention", "sizes", "vocabulary", "changes"}, PAGES))
def test_unavailable_model_is_reported_on_every_page(page: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nonsense"}')
    app = open_page(page, a="Some words", model=str(tmp_path))
    assert not app.exception
    assert "is not a model type of transformers" in error_text(app)
    assert app.text_area(key="draft_a").value == "Some words"


@pytest.mark.gate(cases=9)
@pytest.mark.parametrize("page", PAGES)
def test_hostile_text_is_not_rendered_as_markdown(page: str) -> None:
    app = open_page(page, a=HOSTILE, b=HOSTILE)
    assert not app.exception
    markdown = "\n".join(element.value for part in (app.markdown, app.caption) for element in part)
    for piece in ("<img", "**bold**", "$x^2$", ":red[no]", "](http"):
        assert piece not in markdown


def test_spreadsheet_csv_option_changes_files_and_snippets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    downloads: dict[str, Callable[[], bytes]] = {}
    monkeypatch.setattr(export, "_download", lambda _label, name, make: downloads.__setitem__(name, make))
    app = open_page(a="= a", layer="1", head="1", show="table")
    assert downloads["attention-layer1-head1.csv"]().startswith(b"token,[CLS],=,a,[SEP]\n")
    caption = " ".join(element.value for element in app.caption)
    assert "spreadsheet may run a text that begins with = as a formula" in caption
    app.checkbox(key="csv_safe_Attention").check().run()
    assert not app.exception
    assert downloads["attention-layer1-head1.csv"]().startswith(b"token,[CLS],'=,a,[SEP]\n")
    with zipfile.ZipFile(io.BytesIO(downloads["attention-all.zip"]())) as archive:
        assert b"'=" in archive.read("attention.csv")
    python, shell, http = (element.value for element in app.code)
    assert python.endswith('.save("attention.csv", csv_safe=True)')
    assert "--csv-safe" in shell
    assert http.startswith("curl http://127.0.0.1:8501/api/v1/attention --json ")


def test_displayed_pictures_are_downloaded_as_page(monkeypatch: pytest.MonkeyPatch) -> None:
    downloads: dict[str, Callable[[], bytes]] = {}
    monkeypatch.setattr(export, "_download", lambda _label, name, make: downloads.__setitem__(name, make))
    open_page(a="we left", layer="1", head="1", show="heatmap")
    (payload,) = extract_payloads(downloads["attention-layer1-head1.html"]().decode())
    described, arrays = payloads.read_payload(payload)
    assert described["caption"] == "Attention in layer 1, head 1"
    assert arrays["values"].shape == (4, 4)


def test_run_shows_new_text_and_updates_url() -> None:
    app = open_page("tokens")
    app.text_area(key="draft_a").set_value("Mehdi loves AI")
    app.text_area(key="draft_b").set_value("")
    next(button for button in app.button if button.label == "Run").click().run()
    assert app.dataframe[-1].value["token"].tolist() == ["[CLS]", "me", "##hdi", "loves", "ai", "[SEP]"]
    assert app.query_params["a"] == "Mehdi loves AI"
    assert "b" not in app.query_params


def test_url_opens_same_view() -> None:
    app = open_page(a="we left the ground", layer="2", head="7", show="table", specials="0", renormalize="1")
    assert displayed_view(app).layer == 2
    frame = app.dataframe[0].value
    checkpoint = shared_cache.open_checkpoint("", "")
    weights = checkpoint.trace("we left the ground").attention(1, 6)[1:-1, 1:-1]
    expected = weights / weights.sum(axis=1, keepdims=True)
    assert_repeatable(frame.iloc[:, 1:], expected)
    assert_rounded(frame["row sum"], np.ones(len(frame)), len(frame))


def test_whole_words_merge_their_tokens() -> None:
    app = open_page(a="Mehdi loves AI", layer="2", head="3", show="table", words="1")
    frame = app.dataframe[0].value
    assert list(frame.columns) == ["row sum", "0 [CLS]", "1 Mehdi", "3 loves", "4 AI", "5 [SEP]"]
    pieces = shared_cache.open_checkpoint("", "").trace("Mehdi loves AI").attention(1, 2)
    assert_repeatable(frame.iloc[1, 2], pieces[1:3, 1:3].sum(axis=1).mean())
    assert_rounded(frame["row sum"], np.ones(len(frame)), len(pieces))


@pytest.mark.parametrize(("key", "value"), [("layer", "77"), ("layer", "x"), ("head", "0"), ("show", "nope")])
def test_unknown_view_in_url_is_reported(key: str, value: str) -> None:
    app = open_page(a="we left", **{key: value})
    assert not app.exception
    assert "There is no" in page_text(app)
    assert app.query_params.get(key, [""])[0] != value


def test_options_of_page_stay_in_url_of_other_pages() -> None:
    app = open_page(a="we left", layer="2", vector_layer="3", show="heatmap")
    app.switch_page("../../pages/similarity.py").run()
    assert app.slider(key="vector_layer").value == 3
    assert app.query_params["layer"] == "2"
    app.switch_page("../../pages/attention.py").run()
    assert displayed_view(app).layer == 2


def test_similarity_of_two_texts_is_compared_with_reference_sentences(minilm: Checkpoint) -> None:
    app = open_page("similarity", a="The boat sinks", b="The ship goes down")
    score = float(Sentences("model").of(minilm, ("The boat sinks", "The ship goes down")).scores[0, 1])
    assert app.metric[0].value == f"{score:.4f}"
    reference = SimilarityCalibration("model").of(minilm, calibrations.reference_sentences())
    share = percentage(100 * float((reference.random < score).mean()))
    sentence = f"**{score:.4f}** is higher than the cosine of **{share}** of random pairs of 50 short English"
    assert sentence in page_text(app)
    assert "random pairs of" not in page_text(open_page("similarity", a="The boat sinks"))


def test_option_of_page_applies_immediately_on_another() -> None:
    app = open_page("similarity", a="we left", part="vectors", vector_layer="3")
    app.switch_page("../../pages/embeddings.py").run()
    assert "layer=3" in app.get("code")[0].value
    app.slider(key="vector_layer").set_value(2).run()
    assert "layer=2" in app.get("code")[0].value
    app.switch_page("../../pages/similarity.py").run()
    assert "layer=2" in app.get("code")[0].value


def test_change_of_view_does_not_rerun_model(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    original = Checkpoint.trace_encodings

    def counted(self: Checkpoint, encodings: object) -> object:
        passes.append(encodings)
        return original(self, encodings)  # type: ignore[arg-type]

    monkeypatch.setattr(Checkpoint, "trace_encodings", counted)
    app = open_page(a="a sentence that is not in the cache yet", show="heatmap")
    assert len(passes) == 1
    change_url(change_url(app, layer="1"), specials="0")
    assert displayed_view(app) == Selection(1, "mean", Options(specials=False))
    app.switch_page("../../pages/tokens.py").run()
    assert not app.exception
    assert len(passes) == 1


def test_two_texts_are_encoded_once_and_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text is encoded separately, like in the snippets, because a batch would change the last digits."""
    read = []
    original = Checkpoint.trace_encodings

    def noted(self: Checkpoint, encodings: list[Encoding]) -> list[Trace]:
        read.append([encoding.text for encoding in encodings])
        return original(self, encodings)

    monkeypatch.setattr(Checkpoint, "trace_encodings", noted)
    first, other = "first of two new sentences", "second of two new sentences"
    for texts in ({"a": first, "b": other}, {"a": other, "b": first}):
        open_page(**texts)
    assert read == [[first], [other]]


def test_trace_cache_key_includes_truncation() -> None:
    checkpoint = shared_cache.open_checkpoint("", "")
    long = "word " * 600
    assert len(shared_cache.traces(checkpoint, [(long, None)], truncate=True)[0].tokens) == 512
    with pytest.raises(ProbeError):
        shared_cache.traces(checkpoint, [(long, None)], truncate=False)


def test_texts_whose_boundaries_differ_do_not_share_a_trace() -> None:
    checkpoint = shared_cache.open_checkpoint("", "")
    first, second = (
        shared_cache.traces(checkpoint, [text], False)[0] for text in [("a b", "c"), ("a", "b c")]
    )
    assert [*map(str, first.tokens)] != [*map(str, second.tokens)]


def test_baseline_cache_key_includes_config(family_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folders = family_folder("bert"), tmp_path / "two heads"
    shutil.copytree(*folders)
    config = json.loads((folders[0] / "config.json").read_text())
    (folders[1] / "config.json").write_text(json.dumps(config | {"num_attention_heads": 2}))
    four, two = (shared_cache.open_checkpoint(str(folder), "") for folder in folders)
    assert four.description.weights_sha256 == two.description.weights_sha256
    first, other = (
        shared_cache.answers.of(SimilarityBaseline().of, checkpoint) for checkpoint in (four, two)
    )
    assert first.unrelated.mean != other.unrelated.mean
    assert shared_cache.answers.of(SimilarityBaseline().of, four) is first


@pytest.mark.parametrize("relation", ["compare", "pair"])
def test_similarity_url_contains_question_of_page(relation: str) -> None:
    address = {"vector_layer": "2", "similarity_specials": "1", "similarity_show": "table"}
    app = open_page("similarity", a="we left", b="they left", relation=relation, **address)
    checkpoint = shared_cache.open_checkpoint("", "")
    question = question_in_url(app, Similarity)
    assert question == Similarity(2, specials=True)
    texts: list[shared_cache.Text] = [("we left", "they left")]
    texts = texts if relation == "pair" else [("we left", None), ("they left", None)]
    result = question.of(*shared_cache.traces(checkpoint, texts, truncate=False))
    assert app.dataframe[0].value.to_numpy().tolist() == result.cosines.tolist()
    assert result.python == app.get("code")[0].value


def test_escape_covers_markdown_syntax() -> None:
    assert state.escape("*a* <b> $c$ :d:") == r"\*a\* \<b\> \$c\$ \:d\:"
    assert state.escape("[a] ![b](c) `d` _e_") == r"\[a\] \!\[b\]\(c\) \`d\` \_e\_"


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize(
    ("page", "address"),
    [
        ("tokens", {}),
        ("attention", {"layer": "2", "head": "3"}),
        ("steps", {"layer": "2", "head": "3", "query": "4"}),
        ("similarity", {}),
        ("similarity", {"similarity_specials": "1", "vector_layer": "0"}),
        ("embeddings", {"part": "vectors", "vector_layer": "1"}),
        ("embeddings", {"embedding_token": "3"}),
        ("embeddings", {"part": "pooler"}),
        ("parameters", {}),
    ],
)
@pytest.mark.parametrize("b", prove_unless({"--help"}, ["", "--help"]))
def test_python_and_shell_snippets_produce_same_table(
    page: str, address: dict[str, str], b: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    app = open_page(page, a='-5 degrees, it\'s "cold"', b=b, **address)
    table_of_snippets(app, capfdbinary)


@pytest.mark.parametrize(
    ("page", "address", "kind"),
    [
        ("tokens", {}, Tokens),
        ("steps", {}, AttentionSteps),
        ("steps", {"layer": "2", "head": "3", "query": "4", "key": "9"}, AttentionSteps),
        ("embeddings", {}, Embedding),
        ("embeddings", {"embedding_token": "3"}, Embedding),
        ("embeddings", {"part": "vectors"}, HiddenStates),
        ("embeddings", {"part": "vectors", "vector_layer": "0"}, HiddenStates),
        ("embeddings", {"part": "pooler"}, Pooler),
        ("parameters", {}, Parameters),
    ],
)
def test_url_equals_address_of_question(page: str, address: dict[str, str], kind: Any) -> None:
    app = open_page(page, a=TEXT, **address)
    assert url_params(app) == {"a": TEXT} | address
    question = question_in_url(app, kind)
    if kind is not Parameters:
        question = question.resolved(shared_cache.open_checkpoint("", "").trace(TEXT))
    if kind is AttentionSteps:
        # In the export menu, the key is not part of the question: its vectors are additional files.
        question = replace(question, key=None)
    assert f"bert_probe.{question!r}.of(" in app.get("code")[0].value


def test_nonexistent_token_in_url_is_reported() -> None:
    app = open_page("embeddings", a=TEXT, embedding_token="99")
    assert not app.exception
    assert "There is no token 99; showing 1 instead." in page_text(app)
    assert "embedding_token" not in app.query_params


def test_input_embedding_names_the_rows_of_the_tables(
    monkeypatch: pytest.MonkeyPatch, family_folder: Callable[[str], Path]
) -> None:
    """The position table of RoBERTa begins with two unused rows, and its segment table has one row."""
    names: list[str] = []
    monkeypatch.setattr(embeddings, "_strips", lambda _, rows, *__: names.extend(rows))
    folder = family_folder("roberta")
    app = open_page(
        "embeddings", model=str(folder), a="we left", b="night", relation="pair", embedding_token="6"
    )
    assert not app.exception
    tokens = bert_probe.load(folder).trace("we left", "night").tokens
    assert tokens[6].segment == 1
    assert names[:3] == [f"word · id {tokens[6].id}", "+ position · row 8", "+ segment · row 0"]


def test_very_long_word_is_drawn_truncated_and_exported_whole() -> None:
    word = "x" * 5_000
    app = open_page(a=f"we {word}", b="", words="1", show="table")
    assert not app.exception
    columns = list(app.dataframe[0].value.columns)
    assert columns[3] == f"2 {'x' * 100}… (5,000 characters)"
    trace = shared_cache.open_checkpoint("", "").trace(f"we {word}")
    picture = HeadViewData(trace, words=True)
    assert b"x" * 101 not in payload(picture, 0, key="")
    assert word in Attention(words=True).of(trace).frame().to_csv()
