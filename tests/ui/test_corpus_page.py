"""Test the Corpus page: the stores that it opens, its results, and the input that it refuses."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from bert_probe.corpus.attention_search import AttentionSearch
from bert_probe.corpus.build import build_corpus
from bert_probe.corpus.contexts import NearestContexts, around, unrelated_cosines
from bert_probe.corpus.heads import HeadExamples, HeadHistograms
from bert_probe.corpus.inputs import IngestConfig
from bert_probe.corpus.store import Store, open_corpus
from bert_probe.errors import AddressError, StoreError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.server import paths, sessions
from bert_probe.ui import corpus_stores
from bert_probe.ui.corpus import NEW
from bert_probe.ui.corpus_search import MAX_NAMES, NOTHING, OTHER, context_line, merge_rare
from tests.helpers.broken_stores import rewrite
from tests.helpers.opening import use_empty_checkpoint_cache
from tests.helpers.pages import (
    HOSTILE,
    change_url,
    error_text,
    follow_link,
    page_text,
    table_of_snippets,
    url_params,
)
from tests.helpers.pages import open_page as page
from tests.helpers.treebank import SAILING_FILE, SLEEPING_FILE

TEXTS = (
    "The river bank was muddy.",
    "The bank raised its rates.",
    "A boat left the bank at dawn.",
    "She works at a bank in town.",
    "Rain fell on the river all night.",
    "Rates rose again this year.",
    "The cup is full of water.",
    "We walked along the bank of the river.",
    HOSTILE,
)
LINES, TAGGED, OTHERS = "lin*es [a](b)", "tagged", "small"


@pytest.fixture(scope="module")
def built_stores(
    tmp_path_factory: pytest.TempPathFactory, minilm: Checkpoint, family_folder: Callable[[str], Path]
) -> Path:
    """Return a folder with a store of text lines (one too long), and stores of a treebank by two models."""
    from bert_probe import load

    files, shelf = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("corpora")
    (files / "lines.txt").write_text("\n".join([*TEXTS, "word " * 600]), "utf-8")
    (files / "tagged.conllu").write_text(SAILING_FILE + SLEEPING_FILE, "utf-8")
    config = IngestConfig(layers=(3, 6))
    build_corpus(minilm, config, [files / "lines.txt"], shelf / LINES, shard_rows=4)
    complete = IngestConfig(keep=("profiles", "vectors", "neighbors"))
    build_corpus(minilm, complete, [files / "tagged.conllu"], shelf / TAGGED)
    build_corpus(load(family_folder("bert")), IngestConfig(), [files / "tagged.conllu"], shelf / OTHERS)
    return shelf


@pytest.fixture(autouse=True)
def shelf(built_stores: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder of the stores the configured folder and the working directory."""
    monkeypatch.setenv(paths.STORES_VARIABLE, str(built_stores))
    monkeypatch.chdir(built_stores)
    return built_stores


def corpus(name: str = LINES, **address: str) -> AppTest:
    app = page("corpus", store=name, **address)
    assert not app.exception
    return app


def links(app: AppTest) -> dict[str, dict[str, str]]:
    """Return the URL parameters of the selected row's links, by page."""
    protos: list[Any] = [element.proto for element in app.get("page_link")]
    return {proto.page: dict(parse_qsl(proto.query_string)) for proto in protos}


def press(app: AppTest, label: str) -> AppTest:
    return next(button for button in app.button if button.label == label).click().run()


# ---------------------------------------------------------------- list of stores


def test_empty_page_explains_stores_and_offers_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(paths.STORES_VARIABLE)
    monkeypatch.chdir(tmp_path)
    app = page("corpus", store="../../etc")
    assert not app.exception
    assert "A corpus is a set of sentences" in page_text(app)
    assert r"No store \.\./\.\./etc was found" in page_text(app)
    assert "store" not in url_params(app)
    assert "corpus run" in app.get("code")[0].value
    assert "Build a sample store" in [button.label for button in app.button]
    (tmp_path / paths.DEFAULT_STORES_FOLDER).mkdir()
    assert paths.stores() == {}


@pytest.mark.parametrize("name", ["../../etc", "/etc", "made-../tagged", f"../{TAGGED}", ".", ""])
def test_url_opens_only_offered_stores(name: str, shelf: Path) -> None:
    with pytest.raises(StoreError):
        corpus_stores.open_store(name)
    assert set(corpus_stores.available()) >= {LINES, TAGGED, OTHERS}
    assert corpus_stores.open_store(TAGGED).folder == shelf / TAGGED


@pytest.mark.parametrize("name", ["new", "made-mine"])
def test_stores_may_have_any_name(
    name: str, tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(shelf / TAGGED, tmp_path / name)
    monkeypatch.setenv(paths.STORES_VARIABLE, str(tmp_path))
    app = corpus(name)
    assert not app.exception
    assert app.selectbox(key="store").value == name
    assert corpus_stores.open_store(name).folder == tmp_path / name


def test_store_folder_is_offered_and_equal_names_are_distinguished(
    tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(shelf / TAGGED, tmp_path / "more" / TAGGED)
    monkeypatch.setenv(paths.STORES_VARIABLE, f"{shelf / TAGGED}:{tmp_path / 'more'}:{tmp_path / 'nowhere'}")
    assert paths.stores() == {TAGGED: shelf / TAGGED, f"more · {TAGGED}": tmp_path / "more" / TAGGED}
    with pytest.raises(AddressError, match="There is no folder"):
        paths.set_store_folders([tmp_path / "nowhere"])
    with pytest.raises(AddressError, match="There is no folder"):
        paths.set_store_folders([tmp_path / ("x" * 256)])


@pytest.mark.skipif(sys.platform != "linux", reason="file names of other systems are Unicode")
def test_store_whose_name_is_not_utf_8_is_offered(
    tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    shutil.copytree(shelf / TAGGED, folder)
    np.save(tmp_path / os.fsdecode(b"vectors\xe9.npy"), np.ones((3, 4), np.float32))
    monkeypatch.setenv(paths.STORES_VARIABLE, str(tmp_path))
    assert paths.stores() == {"caf\ufffd": folder}
    assert [*paths.vector_files()] == ["caf\ufffd", "vectors\ufffd.npy"]
    app = corpus("caf\ufffd")
    assert app.selectbox(key="store").value == "caf\ufffd"
    assert "is not UTF-8. Rename the folder." in error_text(app)
    app = page("search", documents_from="vectors", vectors="vectors\ufffd.npy")
    assert not app.exception
    assert "is not UTF-8. Rename the file." in error_text(app)


def test_missing_broken_or_unfinished_store_is_reported(
    tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = corpus(f"{corpus_stores.PREFIX}0123")
    assert "was deleted" in page_text(app)
    assert app.selectbox(key="store").value in paths.stores(), "another store can be selected"
    monkeypatch.setenv(paths.STORES_VARIABLE, str(tmp_path))
    for name in ("part", "cut", "torn"):
        shutil.copytree(shelf / LINES, tmp_path / name)
    (tmp_path / "part" / "shards" / "00002.json").unlink()
    app = corpus("part")
    assert "it contains 8 of 10 sentences, and all results are for these" in page_text(app)
    assert "**8** sentences" in page_text(app)
    (tmp_path / "cut" / "rows" / "00001.parquet").write_bytes(b"")
    assert "missing or truncated" in error_text(corpus("cut"))
    torn: tuple[Any, ...] = ({"format": "bert-probe corpus", "version": 1}, [])
    for manifest in torn:
        (tmp_path / "torn" / "manifest.json").write_text(json.dumps(manifest))
        assert "broken" in error_text(corpus("torn"))


@pytest.mark.parametrize(("table", "part"), [("rows", "near"), ("tokens", "near"), ("profiles", "heads")])
def test_table_with_a_missing_column_is_reported(
    table: str, part: str, tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(paths.STORES_VARIABLE, str(tmp_path))
    shutil.copytree(shelf / LINES, tmp_path / "columns")
    (tmp_path / "columns" / "statistics.parquet").unlink()
    rewrite(tmp_path / "columns", table, lambda content: content.drop_columns(content.column_names[0]))
    assert f"{table}/00000.parquet has unexpected columns" in error_text(corpus("columns", corpus_part=part))
    assert not error_text(corpus("columns", corpus_part="about"))


def test_built_store_is_kept_while_a_page_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = {"a"}
    kept = {"a"}
    monkeypatch.setattr(sessions, "is_connected", lambda session: session in here)
    monkeypatch.setattr(sessions, "_disconnected", kept)
    monkeypatch.setattr(sessions, "current", lambda: "a")
    folder = corpus_stores.new_folder("../x y")
    assert folder.parent.parent == corpus_stores.new_folder("b").parent.parent, "inside the app's own folder"
    (folder / "rows").mkdir(parents=True)
    (folder / "rows" / "a").write_bytes(b"x" * 1000)
    before = corpus_stores.free_bytes()
    name = corpus_stores.register("x", folder, "a")
    assert corpus_stores.free_bytes() <= before
    assert name in corpus_stores.available()
    here.clear()
    corpus_stores.free_bytes()
    assert folder.exists(), "a reload restores it"
    kept.clear()
    corpus_stores.free_bytes()
    assert not folder.parent.exists()
    assert name not in corpus_stores.available()


# ---------------------------------------------------------------- building a store


def upload(name: str, content: bytes) -> AppTest:
    app = page("corpus", store=NEW, corpus_from="file")
    return app.file_uploader(key="corpus_upload").set_value((name, content, "text/plain")).run()


def test_uploaded_file_becomes_store_with_rejected_lines_listed() -> None:
    app = press(
        upload("my <b>.txt", f"One boat.\n{'word ' * 600}\n{HOSTILE}".encode()),
        "Build a store from this file",
    )
    assert not app.exception
    name = url_params(app)["store"]
    assert name.startswith(corpus_stores.PREFIX)
    assert "**2** sentences" in page_text(app)
    assert "**1** rejected" in page_text(app)
    app = corpus(name, corpus_part="about")
    assert "is deleted when no page shows the store any more" in app.info[0].value
    refused = app.dataframe[-1].value
    assert refused["row"].tolist() == [2]
    assert "tokens" in refused["reason"][0]
    assert refused["line"].tolist() == [2]
    assert refused["file"].tolist() == ["my -b-.txt"], "but not its path"
    assert app.selectbox(key="store").value == name
    fresh = upload("a.txt", b"One boat.")
    assert fresh.selectbox(key="store").value == NEW


@pytest.mark.prove
def test_treebank_tags_are_kept_and_large_upload_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = press(upload("a.conllu", SLEEPING_FILE.encode()), "Build a store from this file")
    assert corpus_stores.open_store(url_params(app)["store"]).has("neighbors")
    assert "contain no sentences" in error_text(
        press(upload("a.txt", b"\n\n"), "Build a store from this file")
    )
    monkeypatch.setattr(corpus_stores, "MAX_ROWS", 2)
    assert "more than 2 sentences" in error_text(
        press(upload("a.txt", b"a\nb\nc"), "Build a store from this file")
    )
    monkeypatch.setattr(corpus_stores, "MAX_TOTAL_BYTES", 0)
    assert "of the storage" in error_text(press(upload("a.txt", b"one\ntwo"), "Build a store from this file"))
    monkeypatch.setattr(corpus_stores, "MAX_FILE_BYTES", 3)
    assert "larger than" in error_text(upload("a.txt", b"one\ntwo"))


# ---------------------------------------------------------------- heads


def test_head_histograms_match_library(shelf: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    app = corpus(TAGGED, measure="entropy_bits")
    result = HeadHistograms("entropy_bits").of(open_corpus(shelf / TAGGED))
    table = app.dataframe[0].value
    assert table["mean"].is_monotonic_decreasing
    best = table.iloc[0]
    assert best["mean"] == result.statistics.means.max()
    assert f"Layer {best['layer']:.0f}, head {best['head']:.0f}" in [element.value for element in app.header]
    assert table_of_snippets(app, capfdbinary).equals(result.table())


def test_bar_opens_its_rows_and_row_links_to_all_pages(shelf: Path) -> None:
    store = open_corpus(shelf / LINES)
    counts = HeadHistograms("first").of(store).statistics.bins[1, 4]
    number = int(counts.argmax()) + 1
    app = corpus(measure="first", corpus_head="2.5", corpus_bin=str(number), corpus_rows="highest")
    expected = HeadExamples((1, 4), "first", "highest", 50, number).of(store)
    listed = app.dataframe[-1].value
    assert listed["row"].tolist() == [sentence.row for sentence in expected.sentences]
    np.testing.assert_array_equal(listed["value"], expected.values)
    assert len(listed) == counts.max()
    pages = links(app)
    assert {"", "attention", "tokens", "heads", "similarity", "answer"} <= pages.keys(), (
        "the overview is the front page"
    )
    assert pages["attention"] == {"a": expected.sentences[0].text, "layer": "2", "head": "5"}
    assert pages["tokens"] == {"a": expected.sentences[0].text}
    target = page("tokens", **pages["tokens"])
    assert target.text_area(key="draft_a").value == expected.sentences[0].text


def test_invalid_url_values_are_reported() -> None:
    app = corpus(measure="first", corpus_head="9.5", corpus_bin="99999", corpus_rows="upside")
    for words in ("no head 9", "no corpus bin 99999", "no corpus rows upside"):
        assert words in page_text(app)
    assert "corpus_head" not in url_params(app)


def test_hostile_text_is_shown_as_text() -> None:
    for part in ("heads", "near", "about"):
        app = corpus(corpus_part=part, corpus_rows="lowest", near_text=HOSTILE)
        assert "<img" not in "\n".join(element.value for element in (*app.markdown, *app.caption)).replace(
            "\\<", ""
        )
    assert r"lin\*es" not in page_text(app), "a name is shown in a selectbox, which does not render Markdown"


# ---------------------------------------------------------------- nearest contexts


def test_nearest_contexts_match_library_and_can_be_searched(shelf: Path, minilm: Checkpoint) -> None:
    address = {"near_text": TEXTS[1], "near_word": "bank", "near_layer": "3", "near_top": "20"}
    app = corpus(corpus_part="near", **address)
    store = open_corpus(shelf / LINES)
    expected = NearestContexts("bank", 3, 20, others=True).of(store, minilm.trace(TEXTS[1]))
    table = app.dataframe[0].value
    np.testing.assert_array_equal(table["cosine"], [context.cosine for context in expected.contexts])
    assert table["word"].tolist()[:3] == ["bank"] * 3
    assert table["row"].tolist() == [context.row for context in expected.contexts]
    assert 2 not in table["row"].tolist(), "the text itself is not among its contexts"
    first = expected.contexts[0]
    pages = links(app)
    assert pages["context"]["context"] == f"{TEXTS[1]}\n{first.at.text}"
    assert pages["context"]["context_words"] == f"bank\n{first.at.word}"
    app = press(app, "Search from this context")
    assert (url_params(app)["near_text"], url_params(app)["near_word"]) == (first.at.text, first.at.word)
    assert app.text_input(key="near_draft").value == first.at.text


def test_contexts_are_colored_by_neighboring_words_of_typed_text() -> None:
    app = corpus(corpus_part="near", near_text=TEXTS[1], near_word="bank", near_by="before")
    table = app.dataframe[0].value
    assert set(table["around"][table["word"] == "bank"]) == {"river", "the", "a"}
    app.text_input(key="near_draft").set_value("A muddy river").run()
    assert url_params(app)["near_text"] == "A muddy river"
    assert url_params(app).get("near_word") is None
    wrong = corpus(corpus_part="near", near_text="A muddy river", near_word="boat")
    assert "The word boat is missing from this text, or occurs more than once" in page_text(wrong)


def test_model_of_store_is_opened_only_after_consent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Another test file may have opened the model.
    use_empty_checkpoint_cache(monkeypatch)
    assert len(corpus(OTHERS).dataframe) == 2
    app = corpus(OTHERS, corpus_part="near", agrees=False)
    assert "This store was built with this model" in page_text(app)
    assert not app.dataframe
    app = press(app, "Open")
    assert not app.exception
    assert len(app.dataframe[0].value) == 4


def test_context_clusters_match_principal_components(shelf: Path) -> None:
    store = open_corpus(shelf / LINES)
    places = tuple((row, position) for row in (1, 2, 3, 4, 8) for position in (2, 3))
    clusters = around(store, 6, places)
    vectors = _vectors(store, 6, places)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    centred = units - units.mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(clusters.points), np.abs(centred @ axes[:2].T), atol=1e-6)
    np.testing.assert_allclose(clusters.explained, (sizes**2 / (sizes**2).sum())[:2])
    assert clusters.groups[0] in clusters.groups
    assert np.bincount(clusters.groups).tolist() == sorted(
        np.bincount(clusters.groups).tolist(), reverse=True
    )
    alone = around(store, 6, places[:1])
    assert (alone.points.tolist(), alone.groups.tolist()) == ([[0.0, 0.0]], [0])
    pairs = unrelated_cosines(store, 6)
    assert pairs is not None
    assert -1 < pairs.mean < pairs.high < 1


def _vectors(store: Store, layer: int, places: tuple[tuple[int, int], ...]) -> Any:
    """Return the stored vectors at the given rows and positions, read one by one."""
    frame = store.table("vectors").to_table().to_pandas()
    frame = frame[frame["layer"] == layer].set_index(["row", "position"])["vector"]
    return np.array([np.asarray(frame[place], np.float64) for place in places])


def test_context_line_aligns_word_with_surroundings() -> None:
    line = context_line("We saw, the bank's “Old” boat", 12, 18)
    assert (line.left, line.word, line.right) == ("We saw, the ", "bank's", " “Old” boat")
    assert (line.before, line.after) == ("the", "“")
    assert context_line("bank", 0, 4).before == context_line("bank", 0, 4).after == NOTHING
    long = context_line("x" * 10**6 + " bank " + "y" * 10**6, 10**6 + 1, 10**6 + 5)
    assert len(long.left) < 100
    assert len(long.right) < 100
    names = [str(number % 9) for number in range(100)]
    assert len({*merge_rare(names)} - {OTHER}) == MAX_NAMES


# ---------------------------------------------------------------- attention search, SQL, description


@pytest.mark.prove
def test_heads_between_tagged_words_are_found(shelf: Path) -> None:
    app = corpus(TAGGED, corpus_part="find", corpus_head="3.9", find_query="DET", find_key="NOUN")
    expected = AttentionSearch((2, 8), "DET", "NOUN", None, 100).of(open_corpus(shelf / TAGGED))
    assert len(expected.sentences)
    table = app.dataframe[0].value
    np.testing.assert_array_equal(table["weight"], expected.weights)
    assert links(app)["attention"]["pins"] == f"query.{expected.queries[0] - 1}"
    app = corpus(TAGGED, corpus_part="find", find_query="", find_key="", corpus_head="1.1")
    app.selectbox(key="find_query").select("").run()
    app = app.selectbox(key="find_key").select("").run()
    assert "Choose a tag" in app.info[0].value
    assert "does not record which words the heads attend to" in corpus(corpus_part="find").info[0].value


def test_sql_query_reads_only_the_store(shelf: Path) -> None:
    app = press(corpus(corpus_part="sql", sql="SELECT count(*) AS n FROM rows"), "Run")
    assert app.dataframe[0].value["n"].tolist() == [len(TEXTS)]
    secret = shelf / TAGGED / "manifest.json"
    refused = press(corpus(corpus_part="sql", sql=f"SELECT * FROM read_text('{secret}')"), "Run")
    assert "The table function 'read_text' is not allowed" in error_text(refused)
    assert not refused.dataframe
    app = corpus(corpus_part="sql")
    assert not app.dataframe, "the query does not run before a click"
    app = press(app, "Run")
    assert len(app.dataframe[0].value) == len(TEXTS)


def test_sql_query_of_link_runs_only_after_click() -> None:
    first, second = "SELECT 1 AS n", "SELECT 2 AS n"
    app = corpus(corpus_part="sql", sql=first)
    field = "corpus_sql_written"
    assert app.text_area(key=field).value == first
    assert "has not been run" in page_text(app)
    assert not app.dataframe
    app = press(app, "Run")
    assert app.dataframe[0].value["n"].tolist() == [1]
    assert "has not been run" not in page_text(app)
    app = change_url(app, sql=second)
    assert app.text_area(key=field).value == second, "the link's query is visible before Run"
    assert not app.dataframe
    app = change_url(app, sql=first)
    assert app.dataframe[0].value["n"].tolist() == [1], "this session has run it before"


@pytest.mark.prove
def test_query_draft_is_kept_while_url_is_unchanged() -> None:
    app = press(corpus(corpus_part="sql", sql="SELECT 1 AS n"), "Run")
    app = app.text_area(key="corpus_sql_written").set_value("SELECT 3 AS n").run()
    assert app.dataframe[0].value["n"].tolist() == [1]
    assert press(app, "Run").dataframe[0].value["n"].tolist() == [3]


def test_query_draft_is_kept_after_link_to_another_text() -> None:
    app = press(corpus(corpus_part="sql", sql="SELECT 1 AS n"), "Run")
    store = app.session_state["address"]["store"]
    app.text_area(key="corpus_sql_written").set_value("SELECT 3 AS n").run()
    follow_link(app, "attention", a="Another text.")
    follow_link(app, "corpus", a="Another text.", store=store, corpus_part="sql")
    assert app.text_area(key="corpus_sql_written").value == "SELECT 3 AS n"
    assert app.dataframe[0].value["n"].tolist() == [1]


def test_about_view_lists_model_files_and_digest(shelf: Path) -> None:
    store = open_corpus(shelf / LINES)
    table = corpus(corpus_part="about").dataframe[0].value.set_index("property")["value"]
    assert table["Digest, SHA-256"] == store.digest
    assert table["Weights, SHA-256"] == store.manifest["model"]["weights_sha256"]
    assert table["Layers with stored vectors"] == "3, 6"
