"""Test score thresholds: parity with scikit-learn, and hand-computed cases."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from bert_probe import ScoreThreshold, Sentences, read_labeled_texts
from bert_probe.analyses.evaluation import measures
from bert_probe.analyses.evaluation.measures import RESAMPLES
from bert_probe.analyses.retrieval import threshold
from bert_probe.analyses.retrieval.threshold import MEASURES, ThresholdCurve
from bert_probe.analyses.vectors import sentences
from bert_probe.analyses.vectors.pooling import resolve_pooling
from bert_probe.analyses.vectors.sentences import encode_texts
from bert_probe.analyses.vectors.similarity import cosine_of_rows, scores_of_rows
from bert_probe.errors import InvalidFileError, ProbeError, SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Cancelled
from bert_probe.text.labeled_texts import LabeledTexts, parse_labeled_texts
from tests.helpers.gate import prove_unless
from tests.helpers.memory import measure_peak

SCORES = np.array([0.9, 0.8, 0.8, 0.6, 0.5, 0.3])
POSITIVE = np.array([True, False, True, True, False, False])
TEXTS = (
    "a boat sails",
    "boats at sea",
    "the night sky",
    "a map",
    "maps of rivers",
    "he reads",
    "nobody sleeps",
)


def pairs(labels: list[object], column: str = "label") -> LabeledTexts:
    rows = [f"{TEXTS[i % 7]},{TEXTS[(3 * i + 1) % 7]} {i},{label}" for i, label in enumerate(labels)]
    return parse_labeled_texts("\n".join([f"text_a,text_b,{column}", *rows]).encode(), "pairs.csv")


def test_curve_by_hand() -> None:
    """At the threshold 0.8, two pairs with this score are accepted; at 0.6, precision is 3/4 and recall 1."""
    curve = ThresholdCurve.of(SCORES, POSITIVE)
    assert curve.thresholds.tolist() == [0.9, 0.8, 0.6, 0.5, 0.3]
    assert curve.precision.tolist() == [1, 2 / 3, 3 / 4, 3 / 5, 3 / 6]
    assert curve.recall.tolist() == [1 / 3, 2 / 3, 1, 1, 1]
    assert curve.f1 == pytest.approx([1 / 2, 2 / 3, 6 / 7, 3 / 4, 2 / 3])
    assert curve.average_precision == pytest.approx(1 / 3 * 1 + 1 / 3 * 2 / 3 + 1 / 3 * 3 / 4)
    best = {p: curve.thresholds[threshold._choose(curve, p)] for p in (None, 0.5, 0.7, 0.75, 0.9)}
    assert best == {None: 0.6, 0.5: 0.3, 0.7: 0.6, 0.75: 0.6, 0.9: 0.9}
    with pytest.raises(UnavailableError, match=r"precision of 0\.9: the highest is 0\.5000, at 0\.2000"):
        threshold._choose(ThresholdCurve.of(np.array([0.9, 0.2]), np.array([False, True])), 0.9)


def test_of_several_thresholds_with_the_largest_f1_the_lowest_is_chosen() -> None:
    curve = ThresholdCurve.of(np.array([4.0, 3, 2, 1]), np.array([True, False, False, True]))
    assert curve.f1.tolist() == [2 / 3, 1 / 2, 2 / 5, 2 / 3]
    assert curve.thresholds[threshold._choose(curve, None)] == 1


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("seed", range(4))
def test_curve_equals_scikit_learn(seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = np.round(random.normal(size=90), 1 + seed % 2)  # rounded scores have many ties
    positive = scores + random.normal(size=90) > 0.5
    curve = ThresholdCurve.of(scores, positive)
    precision, recall, thresholds = metrics.precision_recall_curve(positive, scores)
    np.testing.assert_array_equal(curve.thresholds[::-1], thresholds)
    np.testing.assert_allclose(curve.precision[::-1], precision[:-1], rtol=1e-15)
    np.testing.assert_allclose(curve.recall[::-1], recall[:-1], rtol=1e-15)
    f1 = [metrics.f1_score(positive, scores >= value) for value in thresholds]
    np.testing.assert_allclose(curve.f1[::-1], f1, rtol=1e-14)
    assert curve.average_precision == pytest.approx(
        metrics.average_precision_score(positive, scores), abs=1e-14
    )
    assert curve.thresholds[threshold._choose(curve, None)] == thresholds[int(np.argmax(f1))]


@pytest.mark.parametrize("precision", prove_unless({0.8}, [None, 0.8]))
def test_resamples_equal_scikit_learn(precision: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    scores = np.round(random.normal(size=12), 1)
    positive = scores + random.normal(size=12) > 0.8
    monkeypatch.setattr(threshold, "RESAMPLES", 60)
    monkeypatch.setattr(measures, "_BLOCK_NUMBERS", 25 * 12)  # three blocks of at most 25 resamples
    expected = []
    for weights in np.concatenate(list(measures.resample_weights(12, 60))):
        assert weights.sum() == 12
        a, b = np.repeat(scores, weights), np.repeat(positive, weights)
        if not b.any():
            continue
        p, r, thresholds = metrics.precision_recall_curve(b, a)
        f1 = np.array([metrics.f1_score(b, a >= value) for value in thresholds])
        if precision is not None and not (p[:-1] >= precision).any():
            continue
        best = int(np.argmax(f1 if precision is None else p[:-1] >= precision))
        average = metrics.average_precision_score(b, a)
        expected.append([thresholds[best], p[best], r[best], f1[best], average])
    actual = threshold._bootstrap(scores, positive, precision)
    np.testing.assert_allclose(actual.values, expected, atol=1e-12)
    assert actual.undefined == 60 - len(expected) > 0
    assert actual.interval("recall") == tuple(np.percentile(np.array(expected)[:, 2], (2.5, 97.5)))


def test_bootstrap_of_many_pairs_needs_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threshold, "RESAMPLES", 20)
    random = np.random.default_rng(0)
    scores, steps = random.normal(size=100_000), []
    with measure_peak() as peak:
        threshold._bootstrap(scores, scores > 0, None, lambda done, total: steps.append((done, total)))
        assert peak() < 100e6  # All resamples at once would need at least 200 MB.
    assert steps[0] == (5, 20)
    assert steps[-1] == (20, 20)


@pytest.mark.prove
def test_scores_and_encoding_of_many_pairs_need_little_memory(minilm: Checkpoint) -> None:
    vectors = np.random.default_rng(0).normal(size=(20_000, 200)).astype(np.float32)
    with measure_peak() as peak:
        values = scores_of_rows(vectors, vectors[::-1], "cosine")
        assert peak() < 60e6  # A float64 copy of both sets of vectors would need 64 MB.
    rows = slice(7_000, 7_010)
    assert np.array_equal(values[rows], cosine_of_rows(vectors[rows], vectors[::-1][rows]))
    config = resolve_pooling(minilm, "mean")
    texts = [TEXTS[index % 7] * 4 for index in range(4_000)]
    with measure_peak() as peak:
        encoded = encode_texts(minilm, config, texts, False, "Text {:,}".format)
        assert peak() - 2 * encoded.vectors.nbytes < 2e6  # at most 500 bytes per text
    assert encoded.vectors.shape == (4_000, 384)


def test_scoring_pairs_can_be_cancelled_at_every_stage(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation can be cancelled while texts are tokenized or encoded and while pairs are resampled."""
    monkeypatch.setattr(sentences, "_PROGRESS_CHARACTERS", 20)
    data, calls = pairs([1, 0, 0, 1]), []

    def cancel_at(limit: int) -> None:
        def progress(done: int, total: int) -> None:
            calls.append(done / total)
            if len(calls) > limit:
                raise Cancelled

        calls.clear()
        ScoreThreshold().of(minilm, data, progress=progress)

    cancel_at(1_000)
    assert calls == sorted(calls)
    assert calls.count(1.0) > 1  # progress is reported after the last text and after each block of resamples
    for limit in range(len(calls)):
        with pytest.raises(Cancelled):
            cancel_at(limit)


def test_scores_are_those_of_sentences(minilm: Checkpoint) -> None:
    labels = [1, 0, 0, 1, 0, 1, 0, 0]
    data = pairs(labels)
    result = ScoreThreshold(pooling="model", dimensions=64).of(minilm, data)
    a, b = (
        Sentences("model", show="vectors", dimensions=64).of(minilm, texts).vectors.astype(np.float64)
        for texts in ([row.text for row in data.rows], [str(row.pair) for row in data.rows])
    )
    expected = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    np.testing.assert_allclose(result.scores, expected, atol=1e-12)
    table = result.table().set_index("measure")
    assert list(table.index) == list(MEASURES)
    f1 = [metrics.f1_score(labels, expected >= value) for value in sorted(expected)]
    assert table.loc["f1", "value"] == pytest.approx(max(f1), abs=1e-12)
    assert result.threshold == pytest.approx(sorted(expected)[int(np.argmax(f1))], abs=1e-12)
    assert (table["low"] <= table["high"]).all()
    assert result.metadata["resamples"] == RESAMPLES >= 1_000
    again = ScoreThreshold(pooling="model", dimensions=64).of(minilm, data)
    assert again.table().equals(result.table())
    table = result.showing(show="pairs").table()
    assert list(table["predicted"]) == list(expected >= result.threshold - 1e-12)
    assert len(result.showing(show="curve").table()) == len(set(expected))


def test_graded_labels_and_a_column_named_score(minilm: Checkpoint) -> None:
    grades = pairs([5, 0, 3.5, 1, 4, 2], "score")
    assert grades.kind == "number"
    result = ScoreThreshold(positive_from=3.5, precision=0.4).of(minilm, grades)
    assert result.positive.tolist() == [True, False, True, False, True, False]
    assert result.measures["precision"] >= 0.4
    assert not any(precision >= 0.4 for precision in result.curve.precision[result.chosen_index + 1 :])
    with pytest.raises(SelectionError, match=r"The labels are graded, from 0 to 5\. Pass positive_from"):
        ScoreThreshold().of(minilm, grades)


@pytest.mark.parametrize(
    ("data", "fields", "error", "message"),
    [
        (pairs([1, 1, 1]), {}, UnavailableError, "All 3 pairs match: their labels are 1 to 1"),
        (pairs([0, 0]), {}, UnavailableError, "All 2 pairs do not match"),
        (pairs([2, 3]), {"positive_from": 4}, UnavailableError, "a pair matches if its label is at least 4"),
        (pairs(["yes", 1, "no"]), {}, InvalidFileError, "2 errors: line 2: the label 'yes' is not a number"),
        (pairs(["1_0", 0]), {}, InvalidFileError, "line 2: the label '1_0' is not a number"),
        (pairs([1, 0], "labels"), {}, TextError, "Each pair has several labels"),
        (parse_labeled_texts(b"text,label\na,1\nb,0", "a.csv"), {}, TextError, "has single texts"),
    ],
)
def test_unusable_labels_are_refused(
    minilm: Checkpoint, data: LabeledTexts, fields: dict[str, float], error: type[ProbeError], message: str
) -> None:
    with pytest.raises(error, match=message):
        ScoreThreshold(**fields).of(minilm, data)  # type: ignore[arg-type]


def test_the_reader_is_public() -> None:
    with pytest.raises(TextError, match="cannot be opened"):
        read_labeled_texts("no-such-pairs.csv")
