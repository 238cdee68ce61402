"""Test calibration of similarity scores: percentiles of random pairs and of nearest neighbors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import pdist

import bert_probe
from bert_probe import Sentences, SentenceSimilarity, SimilarityCalibration
from bert_probe.analyses.retrieval import calibration
from bert_probe.analyses.retrieval.calibration import (
    PERCENTILES,
    histogram_range,
    percentile_of,
    random_pair_scores,
)
from bert_probe.errors import EmptyTextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.ui.figures import score_histogram, threshold_histograms
from tests.helpers import sentence_models
from tests.helpers.proteins import save_esm

TEXTS = ("a boat on the river", "a ship on the river", "nobody can read", "the map", "a map", "the map")


def test_percentiles_equal_those_of_all_pairs(minilm: Checkpoint) -> None:
    result = SimilarityCalibration("model").of(minilm, TEXTS)
    scores = Sentences("model").of(minilm, TEXTS).scores.astype(np.float64)
    pairs = scores[np.triu_indices(len(TEXTS), k=1)]
    np.fill_diagonal(scores, -1)
    table = result.table()
    assert list(table["percentile"]) == list(PERCENTILES)
    np.testing.assert_allclose(table["random_pairs"], np.percentile(pairs, PERCENTILES), atol=1e-6)
    neighbors = np.percentile(scores.max(axis=1), PERCENTILES)
    np.testing.assert_allclose(table["nearest_neighbors"], neighbors, atol=1e-6)
    assert result.percentile(-2) == 0
    assert result.percentile(2) == 100
    middle = float(np.sort(pairs)[7:9].mean())
    assert result.percentile(middle) == pytest.approx(100 * 8 / 15)
    assert np.isnan(result.percentile(float("nan")))


@pytest.mark.parametrize(
    ("similarity", "metric"), [("cosine", "cosine"), ("euclidean", "euclidean"), ("manhattan", "cityblock")]
)
def test_pairs_equal_scipy(similarity: str, metric: str) -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    expected = -pdist(vectors.astype(np.float64), metric) + (similarity == "cosine")
    np.testing.assert_allclose(random_pair_scores(vectors, similarity), np.sort(expected), atol=1e-12)
    products = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    np.testing.assert_allclose(
        random_pair_scores(vectors, "dot"), np.sort(products[np.triu_indices(20, k=1)]), atol=1e-12
    )


def test_sample_of_pairs_is_close_to_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(1).normal(size=(300, 8))
    every = random_pair_scores(vectors, "cosine")
    monkeypatch.setattr(calibration, "MAX_PAIRS", 20_000)
    sample = random_pair_scores(vectors, "cosine")
    assert (len(every), len(sample)) == (44_850, 20_000)
    assert sample.max() < 1 - 1e-9, "no vector is paired with itself"
    for score in (-0.5, 0.0, 0.5):  # The standard error of a percentile is at most 0.35 percentage points.
        assert percentile_of(score, sample) == pytest.approx(percentile_of(score, every), abs=2)


def test_sample_of_neighbors_is_found_among_all_texts(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = SimilarityCalibration().of(minilm, TEXTS).nearest
    monkeypatch.setattr(calibration, "MAX_NEIGHBORS", 3)
    monkeypatch.setattr(calibration, "_BLOCK_NUMBERS", 2 * len(TEXTS))
    some = SimilarityCalibration().of(minilm, TEXTS).nearest
    assert len(some) == 3
    assert np.isclose(some[:, None], every[None], atol=1e-6).any(axis=1).all()


def test_vectors_of_zeros_are_left_out() -> None:
    vectors = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    np.testing.assert_allclose(random_pair_scores(vectors, "cosine"), [np.sqrt(0.5)])
    neighbors = calibration.nearest_neighbors(vectors, "cosine")[1]
    np.testing.assert_allclose(neighbors, [np.nan, np.sqrt(0.5), np.sqrt(0.5)])
    with pytest.raises(UnavailableError, match="no pair of texts"):
        random_pair_scores(vectors[:2], "cosine")


def test_too_few_sentences_are_refused(minilm: Checkpoint) -> None:
    with pytest.raises(UnavailableError, match="at least two texts"):
        SimilarityCalibration().of(minilm, ["a boat"])
    with pytest.raises(EmptyTextError):
        SimilarityCalibration().of(minilm, [])


def test_result_is_calibrated_with_the_reference_sentences(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "reference_sentences", lambda: TEXTS)
    random = SimilarityCalibration("model").of(minilm, TEXTS).random
    pair = SentenceSimilarity().of(*map(minilm.trace, TEXTS[:2]))
    calibrations: dict[Hashable, calibration.SimilarityCalibrationResult] = {}
    about = calibration.calibrate_result(pair, minilm, calibrations=calibrations).metadata["calibration"]
    assert about["percentile"] == pytest.approx(100 * (random < pair.score).mean())
    assert (about["sentences"], about["random_pairs"], about["score"]) == (6, 15, pair.score)
    histogram = about["histogram"]
    edges = np.linspace(histogram["low"], histogram["high"], len(histogram["percent"]) + 1)
    np.testing.assert_allclose(histogram["percent"], 100 * np.histogram(random, edges)[0] / 15, atol=1e-9)
    assert min(edges[0], edges[-1]) <= pair.score <= edges[-1]
    many = calibration.calibrate_result(
        Sentences("model").of(minilm, TEXTS), minilm, calibrations=calibrations
    )
    assert "score" not in many.metadata["calibration"]
    assert many.metadata["calibration"]["percentiles"]["95"] == pytest.approx(np.percentile(random, 95))
    assert len(calibrations) == 1, "the reference sentences are encoded once for both results"


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 0), (1.0, 1 + 2**-52), (1 - 2**-24, 1.0), (-3e300, -3e300), (1e300, 1e300), (2e-310, 3e-310)],
)
def test_histogram_range_has_room_for_bins(low: float, high: float) -> None:
    start, end = histogram_range([high, low])
    counts, edges = np.histogram([low, high], bins=48, range=(start, end))
    assert counts.sum() == 2
    assert (np.diff(edges) > 0).all()


def test_histograms_of_nearly_equal_scores_are_drawn() -> None:
    values = np.sort(np.linspace(1 - 2**-53, 1 + 2**-52, 200))
    assert sum(score_histogram(values, {"threshold": 1.0}, "cosine").data[0].y) == pytest.approx(100)
    positive = np.arange(200) % 2 == 0
    figure = threshold_histograms(values, positive, 1.0, (np.nan, np.nan), "cosine")
    assert sum(figure.data[0].y) == pytest.approx(100)


@pytest.mark.parametrize(("prompt", "names"), [("query", ("query", "passage")), (None, ("query", "passage"))])
def test_texts_with_different_prompts_are_compared_with_such_pairs(
    prompt: str | None,
    names: tuple[str, str],
    family_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The default prompt of the checkpoint is "query". All 30 ordered pairs of different texts are scored."""
    monkeypatch.setattr(calibration, "reference_sentences", lambda: TEXTS)
    folder = sentence_models.save("prompts", family_folder("bert"), tmp_path / "model")
    checkpoint = bert_probe.load(folder)
    result = SentenceSimilarity(prompt=prompt, pair_prompt="passage").of(*map(checkpoint.trace, TEXTS[:2]))
    question = calibration.calibration_of(result, checkpoint)
    assert (question.prompt, question.pair_prompt) == names
    reference = sentence_models.reference(folder)
    queries, passages = (reference.encode([*TEXTS], prompt_name=name).astype(float) for name in names)
    scores = (queries / np.linalg.norm(queries, axis=1)[:, None]) @ (
        passages / np.linalg.norm(passages, axis=1)[:, None]
    ).T
    is_pair = ~np.eye(len(TEXTS), dtype=bool)
    reports: list[tuple[int, int]] = []
    answer = question.of(checkpoint, TEXTS, progress=lambda *report: reports.append(report))
    np.testing.assert_allclose(answer.random, np.sort(scores[is_pair]), atol=1e-6)
    nearest = np.where(is_pair, scores, -np.inf).max(axis=1)
    np.testing.assert_allclose(answer.nearest, np.sort(nearest), atol=1e-6)
    assert reports[0] == (0, 10), "two encodings of five different texts"
    assert (10, 10) in reports
    assert reports[-1] == (12, 12), "the comparison of two times six texts"
    facts = calibration.calibrate_result(result, checkpoint).metadata["calibration"]
    assert (facts["random_pairs"], facts["prompts"]) == (30, ["where is: ", "boat: "])
    assert facts["percentile"] == pytest.approx(100 * (scores[is_pair] < result.score).mean(), abs=4)
    same = SentenceSimilarity(prompt="passage", pair_prompt="passage").of(*map(checkpoint.trace, TEXTS[:2]))
    assert calibration.calibration_of(same, checkpoint).pair_prompt is None
    assert question.of(checkpoint, TEXTS).metadata["pair_recipe"]["prefix"] == "boat: "


def test_prompt_that_no_name_selects_is_explained(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """The default prompt is named "query". If a prompt is selected by this name, the task "query" is selected
    too."""
    folder = sentence_models.save("router with the encoder", family_folder("bert"), tmp_path / "model")
    checkpoint = bert_probe.load(folder)
    result = SentenceSimilarity(pair_prompt="document").of(*map(checkpoint.trace, TEXTS[:2]))
    with pytest.raises(UnavailableError, match=r"of one of the two texts .* Choose a prompt for each text"):
        calibration.calibration_of(result, checkpoint)
    assert calibration.calibrate_result(result, checkpoint) is result
    by_name = SentenceSimilarity(prompt="query", pair_prompt="document").of(*map(checkpoint.trace, TEXTS[:2]))
    assert calibration.calibration_of(by_name, checkpoint).pair_prompt == "document"


def test_sequences_are_not_compared_with_english_sentences(tmp_path: Path) -> None:
    checkpoint = bert_probe.load(save_esm(tmp_path))
    sequences = ("MKTAYIAKQR", "MKTAYIAKQV")
    result = Sentences("mean").of(checkpoint, sequences)
    with pytest.raises(UnavailableError, match="The reference sentences are English"):
        calibration.calibration_of(result, checkpoint)
    assert calibration.calibrate_result(result, checkpoint) is result
    own = SimilarityCalibration().of(checkpoint, [*sequences, "GGGGAAAA"])
    assert len(own.random) == 3
