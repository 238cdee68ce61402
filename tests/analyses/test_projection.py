"""Test maps of sentences, and of existing vectors."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bert_probe import SentenceMap, Sentences
from bert_probe.analyses.vectors import layouts, sentences
from bert_probe.analyses.vectors.layouts import PointLayout
from bert_probe.core import files
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.ui.sentence_input import SENTENCES


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_map_of_existing_vectors_runs_no_model(
    method: str, minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = SentenceMap(method, "model")
    full = question.of(minilm, SENTENCES)
    result = Sentences("model").of(minilm, SENTENCES)

    def refused(*_args: object) -> None:
        raise AssertionError("the model runs")

    monkeypatch.setattr(sentences, "forward", refused)
    again = question.of_vectors(result)
    assert np.array_equal(again.layout.points, full.layout.points)
    assert again.provenance == full.provenance
    assert (again.python, again.shell) == (full.python, full.shell)
    assert files.to_bytes(again.table(), "json") == files.to_bytes(full.table(), "json")


def test_clusters_are_those_of_scikit_learn(minilm: Checkpoint) -> None:
    from sklearn.cluster import HDBSCAN

    vectors = Sentences("model").of(minilm, SENTENCES)
    result = SentenceMap("pca", "model", min_cluster=2).of_vectors(vectors)
    unit = vectors.vectors / np.linalg.norm(vectors.vectors, axis=1, keepdims=True)
    expected = HDBSCAN(min_cluster_size=2, min_samples=2, copy=True).fit_predict(unit)
    assert result.frame()["cluster"].tolist() == (expected + 1).tolist()
    assert expected.max() >= 1
    golf = {result.frame()["cluster"][row] for row, text in enumerate(SENTENCES) if "golf" in text}
    assert golf <= {0.0} or "golf" in result.cluster_words[int(golf.pop()) - 1]
    assert len(result.metadata["cluster_words"]) == expected.max() + 1
    assert list(SentenceMap("pca", "model").of_vectors(vectors).frame()) == ["number", "x", "y", "sentence"]


def test_table_of_map_has_method_metadata(minilm: Checkpoint) -> None:
    result = SentenceMap("pca", "model").of(minilm, [*SENTENCES, "word " * 300])
    expected = layouts.pca(Sentences("model").of(minilm, [*SENTENCES, "word " * 300]).vectors)
    frame = result.table()
    assert list(frame) == ["number", "x", "y", "sentence"]
    assert frame["number"].tolist() == list(range(1, 12))
    assert np.array_equal(frame[["x", "y"]].to_numpy(), expected.points)
    assert frame["sentence"].tolist()[:10] == list(SENTENCES)
    description = frame.attrs["provenance"]
    assert description["question"] == {
        "analysis": "sentence map",
        "method": "pca",
        "pooling": "model",
        "prompt": None,
        "dimensions": None,
        "min_cluster": None,
    }
    assert description["facts"]["explained_variance"] == list(expected.explained or ())
    assert description["facts"]["tokens_dropped_of_sentence"] == {"11": 46}
    assert description["facts"]["recipe"]["vector_modules"] == [{"kind": "Normalize"}]
    assert json.loads(files.to_bytes(frame, "json"))


def test_t_sne_has_settings_without_explained_variance(minilm: Checkpoint) -> None:
    result = SentenceMap("tsne").of(minilm, SENTENCES)
    assert result.metadata["perplexity"] == 3
    assert result.metadata["seed"] == 0
    assert "explained_variance" not in result.metadata


def test_similar_sentences_are_neighbors_in_every_map(minilm: Checkpoint) -> None:
    for method in ("pca", "tsne"):
        points = SentenceMap(method, "model").of(minilm, SENTENCES).layout.points
        distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
        np.fill_diagonal(distances, np.inf)
        assert distances[2].argmin() == 3, method


def test_vectors_of_another_pooling_raise(minilm: Checkpoint) -> None:
    result = Sentences("cls").of(minilm, SENTENCES)
    with pytest.raises(SelectionError, match="pooled by cls, not by mean"):
        SentenceMap("tsne").of_vectors(result)


def test_too_few_sentences_and_unknown_methods_raise(minilm: Checkpoint) -> None:
    with pytest.raises(UnavailableError, match="needs at least 2 sentences"):
        SentenceMap().of(minilm, ["alone"])
    with pytest.raises(UnavailableError, match="at least 4 sentences"):
        SentenceMap("tsne").of(minilm, ["one", "two", "three"])
    with pytest.raises(SelectionError, match="method must be pca, tsne or umap, not 'som'"):
        SentenceMap("som")


def test_unequal_numbers_of_points_and_sentences_raise_error(minilm: Checkpoint) -> None:
    result = SentenceMap().of(minilm, SENTENCES)
    with pytest.raises(ShapeError, match="must have 10 points, one per sentence, not 3"):
        replace(result, layout=PointLayout(np.zeros((3, 2), np.float32)))


def test_progress_is_reported_during_layout(minilm: Checkpoint) -> None:
    result: list[tuple[int, int]] = []
    SentenceMap("tsne").of(minilm, SENTENCES, progress=lambda done, total: result.append((done, total)))
    assert result[0] == (0, 10)
    assert result[-2:] == [(10, 10), (10, 10)]
