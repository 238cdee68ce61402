"""Maps of sentences: from their vectors on, or of vectors that are there; both the same."""

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
from bert_probe.ui.examples import SENTENCES


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_a_map_of_vectors_that_are_there_runs_no_model_and_is_the_same(
    method: str, minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = SentenceMap(method, "model")
    whole = asked.of(minilm, SENTENCES)
    found = Sentences("model").of(minilm, SENTENCES)

    def refused(*_given: object) -> None:
        raise AssertionError("the model runs")

    monkeypatch.setattr(sentences, "forward", refused)
    again = asked.of_vectors(found)
    assert np.array_equal(again.layout.points, whole.layout.points)
    assert again.provenance == whole.provenance
    assert (again.python, again.shell) == (whole.python, whole.shell)
    assert files.to_bytes(again.table(), "json") == files.to_bytes(whole.table(), "json")


def test_the_table_of_a_map_says_how_it_was_made(minilm: Checkpoint) -> None:
    found = SentenceMap("pca", "model").of(minilm, [*SENTENCES, "word " * 300])
    expected = layouts.pca(Sentences("model").of(minilm, [*SENTENCES, "word " * 300]).vectors)
    frame = found.table()
    assert list(frame) == ["number", "x", "y", "sentence"]
    assert frame["number"].tolist() == list(range(1, 12))
    assert np.array_equal(frame[["x", "y"]].to_numpy(), expected.points)
    assert frame["sentence"].tolist()[:10] == list(SENTENCES)
    about = frame.attrs["provenance"]
    assert about["question"] == {"analysis": "sentence map", "method": "pca", "pooling": "model"}
    assert about["facts"]["explained_variance"] == list(expected.explained or ())
    assert about["facts"]["tokens_dropped_of_sentence"] == {"11": 46}
    assert about["facts"]["recipe"]["normalised"]
    assert json.loads(files.to_bytes(frame, "json"))


def test_t_sne_names_its_settings_and_no_variance(minilm: Checkpoint) -> None:
    found = SentenceMap("tsne").of(minilm, SENTENCES)
    assert found.metadata["perplexity"] == 3
    assert found.metadata["seed"] == 0
    assert "explained_variance" not in found.metadata


def test_alike_sentences_are_neighbours_in_every_map(minilm: Checkpoint) -> None:
    for method in ("pca", "tsne"):
        points = SentenceMap(method, "model").of(minilm, SENTENCES).layout.points
        distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
        np.fill_diagonal(distances, np.inf)
        assert distances[2].argmin() == 3, method


def test_vectors_of_another_pooling_are_refused(minilm: Checkpoint) -> None:
    found = Sentences("cls").of(minilm, SENTENCES)
    with pytest.raises(SelectionError, match="pooled by cls, not by mean"):
        SentenceMap("tsne").of_vectors(found)


def test_few_sentences_and_unknown_methods_are_refused(minilm: Checkpoint) -> None:
    with pytest.raises(UnavailableError, match="needs at least 2 sentences"):
        SentenceMap().of(minilm, ["alone"])
    with pytest.raises(UnavailableError, match="at least 4 sentences"):
        SentenceMap("tsne").of(minilm, ["one", "two", "three"])
    with pytest.raises(SelectionError, match="no method som; use pca, tsne or umap"):
        SentenceMap("som")


def test_points_and_sentences_are_as_many(minilm: Checkpoint) -> None:
    found = SentenceMap().of(minilm, SENTENCES)
    with pytest.raises(ShapeError, match="10 sentences do not match 3 points"):
        replace(found, layout=PointLayout(np.zeros((3, 2), np.float32)))


def test_progress_goes_on_while_it_is_laid_out(minilm: Checkpoint) -> None:
    told: list[tuple[int, int]] = []
    SentenceMap("tsne").of(minilm, SENTENCES, report=lambda done, total: told.append((done, total)))
    assert told[0] == (0, 10)
    assert told[-2:] == [(10, 10), (10, 10)]
