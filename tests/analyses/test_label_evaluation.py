"""Test classification and clustering of frozen vectors: parity with scikit-learn."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from bert_probe import LabelEvaluation, Sentences
from bert_probe.analyses.evaluation import label_evaluation, measures
from bert_probe.errors import ProbeError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.datasets import everyday_topics
from bert_probe.text.labeled_texts import LabeledTexts, parse_labeled_texts


def texts(count: int = 8) -> LabeledTexts:
    """Return the first ``count`` sample sentences of each topic."""
    rows = [row for label in everyday_topics().labels for row in everyday_topics().rows if row.label == label]
    step = len(rows) // len(everyday_topics().labels)
    return LabeledTexts.of(
        "classes", [row for start in range(0, len(rows), step) for row in rows[start : start + count]]
    )


def test_measures_are_those_of_scikit_learn(minilm: Checkpoint) -> None:
    data = texts()
    result = LabelEvaluation(curve=True, folds=4, dimensions=64).of(minilm, data, other=minilm)
    vectors = (
        Sentences("model", show="vectors", dimensions=64).of(minilm, [row.text for row in data.rows]).vectors
    )
    labels = np.array([data.labels.index(str(row.label)) for row in data.rows])
    split = StratifiedKFold(4, shuffle=True, random_state=0)
    model = LogisticRegression(max_iter=2000)
    probabilities = cross_val_predict(model, vectors, labels, cv=split, method="predict_proba")
    np.testing.assert_array_equal(result.models[0].probabilities, probabilities)
    assert result.models[0].probabilities.dtype == probabilities.dtype
    predicted = probabilities.argmax(axis=1)
    clusters = KMeans(len(data.labels), n_init=10, random_state=0).fit(vectors).labels_
    table = result.table().set_index("measure")
    expected = {
        "accuracy": metrics.accuracy_score(labels, predicted),
        "macro_f1": metrics.f1_score(labels, predicted, average="macro"),
        "v_measure": metrics.v_measure_score(labels, clusters),
    }
    for name, value in expected.items():
        assert table.loc[name, "value"] == pytest.approx(value, abs=1e-9)
    assert (table[["difference", "difference_low", "difference_high"]] == 0).all(axis=None)
    confusion = result.showing(show="confusion").table().iloc[:, 1:].to_numpy()
    assert (confusion == metrics.confusion_matrix(labels, predicted)).all()
    curve = result.showing(show="curve").table()
    assert curve["accuracy"][curve["dimensions"] == 64].iloc[0] == table.loc["accuracy", "value"]
    worst = result.showing(show="texts").table()
    assert (np.diff(worst["probability"]) >= 0).all()
    assert (result.showing(show="moved").table()["moved"] == 0).all()


def test_equal_texts_are_in_the_same_fold(minilm: Checkpoint) -> None:
    """Copies of held-out texts in the training split would make random labels predictable."""
    labels = np.random.default_rng(0).choice(["a", "b", "c"], 60)
    distinct = [replace(row, label=str(label)) for row, label in zip(texts(20).rows, labels, strict=False)]
    rows = [row for row in distinct for _ in range(3)]
    result = LabelEvaluation().of(minilm, LabeledTexts.of("classes", rows))
    vectors = Sentences("model", show="vectors").of(minilm, [row.text for row in distinct]).vectors
    expected = np.empty((len(distinct), 3))
    strata = [row.label for row in distinct]
    for training, held_out in StratifiedKFold(5, shuffle=True, random_state=0).split(distinct, strata):
        model = LogisticRegression(max_iter=2000).fit(
            np.repeat(vectors[training], 3, axis=0), np.repeat(np.array(strata)[training], 3)
        )
        expected[held_out] = model.predict_proba(vectors[held_out])
    np.testing.assert_allclose(result.models[0].probabilities, np.repeat(expected, 3, axis=0), atol=1e-6)
    conflict = [*rows, *(replace(row, label="d") for row in distinct)]
    with pytest.raises(UnavailableError, match=r"1 classes have only one text.*: d\. Texts that are equal"):
        LabelEvaluation().of(minilm, LabeledTexts.of("classes", conflict))


def test_texts_with_equal_tokens_are_in_the_same_fold(minilm: Checkpoint) -> None:
    """Variants in case and spaces, and different unknown characters, would make random labels predictable."""
    labels = np.random.default_rng(0).choice(["a", "b", "c"], 60)
    distinct = [replace(row, label=str(label)) for row, label in zip(texts(20).rows, labels, strict=False)]
    rows = [
        replace(row, text=f"{text} {emoji}")
        for row in distinct
        for text, emoji in ((row.text, "\U0001f600"), (f" {row.text.upper()} ", "\U0001f621"))
    ]
    same = [replace(row, text=f"{row.text} \U0001f600") for row in distinct for _ in range(2)]
    result, expected = (
        LabelEvaluation().of(minilm, LabeledTexts.of("classes", part)) for part in (rows, same)
    )
    np.testing.assert_array_equal(result.models[0].probabilities, expected.models[0].probabilities)
    cased = LabelEvaluation().of(minilm, LabeledTexts.of("classes", rows), other=minilm)
    np.testing.assert_array_equal(result.models[0].probabilities, cased.models[0].probabilities)
    pairs = [row for index, row in enumerate(rows) if index % 2 or row is rows[0]]
    single = [*pairs, replace(rows[2], label="d"), replace(rows[3], label="d")]
    with pytest.raises(UnavailableError, match=r"1 classes have only one text.*: d\. Texts that are equal"):
        LabelEvaluation().of(minilm, LabeledTexts.of("classes", single))


def test_resamples_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(2)
    labels, clusters = random.integers(0, 3, 20), random.integers(0, 3, 20)
    probabilities = random.dirichlet(np.ones(3), 20)
    model = label_evaluation.ClassifiedTexts(None, np.empty((20, 1)), probabilities, clusters)  # type: ignore[arg-type]
    weights = next(measures.resample_weights(20, 30))
    actual = label_evaluation._measures(weights, labels, model)
    for row, values in zip(weights, actual, strict=True):
        drawn = np.repeat(np.arange(20), row)
        predicted = model.predicted[drawn]
        assert values[0] == pytest.approx(metrics.accuracy_score(labels[drawn], predicted))
        assert values[1] == pytest.approx(metrics.f1_score(labels[drawn], predicted, average="macro"))
        assert values[3] == pytest.approx(metrics.v_measure_score(labels[drawn], clusters[drawn]), abs=1e-9)


def test_clusters_are_those_of_a_single_k_means() -> None:
    random = np.random.default_rng(4)
    for count, size in ((40, 3), (60, 7), (12, 20)):
        vectors = random.normal(size=(count, 5)).astype(np.float32)
        calls: list[tuple[int, int]] = []
        clusters = label_evaluation._clusters(
            vectors,
            size,
            lambda done, total, calls=calls: calls.append((done, total)),  # type: ignore[misc]
        )
        expected = KMeans(min(size, count), n_init=10, random_state=0).fit(vectors).labels_
        assert metrics.adjusted_rand_score(clusters, expected) == 1
        assert calls == [(start, 10) for start in range(10)]


def test_blocks_of_resamples_are_bounded_by_the_numbers_of_a_measure() -> None:
    values = np.random.default_rng(5).normal(size=30)
    sizes, calls = [], []

    def mean(weights: np.ndarray) -> np.ndarray:
        sizes.append(len(weights))
        return weights @ values / 30

    actual = measures.bootstrap(mean, 30, lambda done, total: calls.append((done, total)), size=200**2)
    np.testing.assert_allclose(actual, measures.bootstrap_means(values), rtol=1e-12)
    assert max(sizes) <= measures._BLOCK_NUMBERS / 200**2
    assert calls[-1] == (2000, 2000)
    assert len(calls) == len(sizes)


@pytest.mark.prove
def test_memory_of_many_classes_is_bounded(minilm: Checkpoint) -> None:
    rows = [f"a{i % 7} b{i % 3},c{i // 3}" for i in range(240)]
    data = parse_labeled_texts("\n".join(["text,label", *rows]).encode(), "texts.csv")
    tracemalloc.start()
    try:
        LabelEvaluation(pooling="mean", dimensions=8).of(minilm, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A contingency table of each of 2,000 resamples takes 2,000 · 80² · 8 B = 102 MB.
    assert peak < 80e6


def test_every_fold_and_format_can_be_canceled(minilm: Checkpoint) -> None:
    data = texts(3)
    calls: list[tuple[int, int]] = []
    result = LabelEvaluation(curve=True, folds=3, dimensions=16).of(
        minilm, data, progress=lambda done, total: calls.append((done, total))
    )
    formats = len(result.showing(show="curve").table())
    total = 2 * len(data.rows)
    # Progress is reported for 3 folds and a bootstrap per format, then for the bootstrap of the measures.
    assert calls.count((total, total)) >= formats * (3 + 1) + 1
    assert len({done for done, total in calls if total == 2 * 3}) >= 3  # progress of the 3 folds


def test_too_many_texts_for_a_server_are_refused(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    data = texts(3)
    LabelEvaluation().check_limits(minilm, data, False, None)
    monkeypatch.setattr(label_evaluation, "MAX_PROBABILITIES", 2 * len(data.rows))
    with pytest.raises(
        UnavailableError, match=r"evaluates at most 6 texts with .* classes, not .*\. Use fewer texts"
    ):
        LabelEvaluation().check_limits(minilm, data, False, None)


def test_calibration_error_by_hand() -> None:
    # Two predictions have confidence 0.9, and one is correct: a gap of 0.4.
    # Two predictions have confidence 0.6, and both are correct: a gap of 0.4.
    probabilities = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]])
    model = label_evaluation.ClassifiedTexts(None, np.empty((4, 1)), probabilities, np.zeros(4, int))  # type: ignore[arg-type]
    labels = np.array([0, 1, 0, 0])
    assert label_evaluation._calibration_errors(np.ones((1, 4)), model, labels)[0] == pytest.approx(0.4)
    certain = label_evaluation.ClassifiedTexts(None, np.empty((2, 1)), np.eye(2), np.zeros(2, int))  # type: ignore[arg-type]
    assert label_evaluation._calibration_errors(np.ones((1, 2)), certain, np.array([0, 1]))[0] == 0
    assert label_evaluation._bins(certain).tolist() == [14, 14]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("text,label\na,x\nb,x\n", UnavailableError, "The texts have 1 class. Use texts of 2 to"),
        ("text,label\na,x\nb,x\nc,y\n", UnavailableError, "1 classes have only one text.*: y"),
        ("text,label\na,0.5\nb,1.5\n", TextError, "The labels are of the type number"),
        ("text_a,text_b,label\na,b,x\nc,d,y\n", TextError, "has text pairs"),
    ],
)
def test_unusable_labels_are_refused(
    minilm: Checkpoint, content: str, error: type[ProbeError], message: str
) -> None:
    with pytest.raises(error, match=message):
        LabelEvaluation().of(minilm, parse_labeled_texts(content.encode(), "texts.csv"))
