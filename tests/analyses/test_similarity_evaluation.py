"""Test evaluation on scored pairs: parity with SciPy and sentence-transformers, and hand-computed cases."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import stats

from bert_probe import SimilarityEvaluation
from bert_probe.analyses.evaluation import measures, similarity_evaluation, vector_comparison
from bert_probe.analyses.evaluation.vector_comparison import VectorFormat
from bert_probe.analyses.vectors.similarity import scores_of_rows
from bert_probe.errors import InvalidFileError, ProbeError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import no_progress
from bert_probe.text.datasets import to_file
from bert_probe.text.labeled_texts import LabeledTexts, parse_labeled_texts

TEXTS = ["a red boat", "the boat is red", "boats sail", "it rains", "he cooks rice", "rice with fish"]


def pairs(rows: list[tuple[str, str, object]], groups: tuple[str, ...] = ()) -> LabeledTexts:
    """Return scored text pairs; if groups are given, the table has an additional column "group"."""
    header = "text_a,text_b,score" + (",group" if groups else "")
    lines = [",".join(map(str, row)) for row in rows]
    lines = [f"{line},{group}" for line, group in zip(lines, groups, strict=True)] if groups else lines
    return parse_labeled_texts("\n".join([header, *lines]).encode(), "pairs.csv")


ROWS = [(TEXTS[i], TEXTS[j], (7 * i + 3 * j) % 6 / 2) for i in range(6) for j in range(i)]


def test_bootstrap_equals_scipy_on_each_resample() -> None:
    random = np.random.default_rng(1)
    labels = random.integers(0, 3, 9).astype(float)  # ties
    scores = random.normal(size=(1, 9)).round(1)
    expected = []
    for weights in np.concatenate(list(measures.resample_weights(9)))[:200]:
        rows = np.repeat(np.arange(9), weights)
        if len({*labels[rows]}) < 2 or len({*scores[0, rows]}) < 2:
            expected.append((np.nan, np.nan))
            continue
        x, y = labels[rows], scores[0, rows]
        expected.append((stats.spearmanr(x, y).statistic, stats.pearsonr(x, y).statistic))
    actual = measures.bootstrap_correlations(labels, scores)[:200, 0]
    np.testing.assert_allclose(actual, expected, atol=1e-12)


def test_interval_of_a_mean_is_that_of_the_binomial_distribution() -> None:
    # The mean of n resampled zeros and ones has the distribution Binomial(n, share) / n.
    values = np.array([1.0] * 30 + [0.0] * 70)
    low, high = measures.interval(measures.bootstrap_means(values))
    expected = stats.binom.ppf([0.025, 0.975], 100, 0.3) / 100
    np.testing.assert_allclose((low, high), expected, atol=0.0101)
    assert measures.interval(measures.bootstrap_means(np.ones(5))) == (1.0, 1.0)
    assert np.isnan(measures.interval(np.array([np.nan]))).all()


def test_correlations_are_those_of_sentence_transformers(minilm: Checkpoint) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    data = pairs(ROWS)
    result = SimilarityEvaluation().of(minilm, data)
    first, second = (
        model_side.astype(np.float32) for model_side in (result.models[0].first, result.models[0].second)
    )

    class PairEncoderStub:
        """A stub for a sentence-transformers model that returns the vectors that BERT Probe computed."""

        similarity_fn_name = "cosine"

        def encode(self, texts: list[str], **_: object) -> np.ndarray:
            return first if texts == [row.text for row in data.rows] else second

    evaluator = EmbeddingSimilarityEvaluator(
        [row.text for row in data.rows],
        [str(row.pair) for row in data.rows],
        [float(str(row.label)) for row in data.rows],
        write_csv=False,
        main_similarity="cosine",
        similarity_fn_names=["cosine"],
    )
    evaluator.store_metrics_in_model_card_data = lambda *_: None  # type: ignore[method-assign]
    expected = evaluator(PairEncoderStub())  # type: ignore[arg-type]
    table = result.table().set_index("measure")
    assert table.loc["cosine_spearman", "value"] == pytest.approx(expected["spearman_cosine"], abs=1e-6)
    assert table.loc["cosine_pearson", "value"] == pytest.approx(expected["pearson_cosine"], abs=1e-6)
    assert (table["low"] <= table["value"]).all()
    assert (table["value"] <= table["high"]).all()


def test_groups_and_errors(minilm: Checkpoint) -> None:
    groups = tuple("news" if i < 12 else "few" if i == 12 else "flat" for i in range(15))
    rows = [(a, b, 1 if i > 12 else score) for i, (a, b, score) in enumerate(ROWS)]
    data = pairs(rows, groups)
    assert parse_labeled_texts(to_file(data), "pairs.csv").digest == data.digest != pairs(rows).digest
    result = SimilarityEvaluation().of(minilm, data)
    table = result.table()
    assert list(table["group"].unique()) == ["all", "few", "flat", "news"]
    alone = SimilarityEvaluation().of(minilm, pairs(rows[:12])).table()
    group = table[table["group"] == "news"].reset_index(drop=True)
    np.testing.assert_allclose(group[["value", "low"]], alone[["value", "low"]], atol=1e-6)
    assert table[table["group"] == "flat"]["value"].isna().all()
    assert result.notes == (
        "The correlation is undefined for few, flat: fewer than 3 pairs, or equal scores.",
    )
    worst = result.showing(show="pairs").table()
    assert (np.diff(worst["error"].abs()) <= 1e-12).all()
    # Percentiles of scores and percentiles of labels have the same mean.
    assert worst["error"].sum() == pytest.approx(0, abs=1e-9)


def test_a_group_named_all_leaves_the_total_alone(minilm: Checkpoint) -> None:
    groups = tuple("all" if i < 6 else "rest" for i in range(15))
    result = SimilarityEvaluation().of(minilm, pairs(ROWS, groups))
    plain = SimilarityEvaluation().of(minilm, pairs(ROWS))
    assert result.finding == plain.finding
    table = result.table()
    assert list(table["group"].unique()) == ["all pairs", "all", "rest"]
    assert list(table["pairs"][::4]) == [15, 6, 9]
    np.testing.assert_array_equal(
        table[["value", "low", "high"]][:4], plain.table()[["value", "low", "high"]]
    )


def test_groups_are_bounded_and_can_be_canceled(minilm: Checkpoint) -> None:
    rows = [(a, b, i % 3) for i, (a, b, _) in enumerate(ROWS * 41)]
    many = tuple(f"g{i // 3}" for i in range(len(rows)))
    with pytest.raises(
        UnavailableError, match='The column "group" has 205 different values, but at most 200 groups'
    ):
        SimilarityEvaluation().of(minilm, pairs(rows, many))
    calls: list[tuple[int, int]] = []
    few = tuple(f"g{i // 3}" for i in range(15))
    result = SimilarityEvaluation(curve=True).of(
        minilm, pairs(ROWS, few), other=minilm, progress=lambda done, total: calls.append((done, total))
    )
    # Progress is reported at least once for all pairs, for each of 5 groups, 9 formats, and 2 models.
    assert calls.count((60, 60)) >= 1 + 5 + 9 + 2
    assert result.nbytes < 100_000 + sum(m.first.nbytes + m.second.nbytes for m in result.models)


def test_intervals_are_those_of_paired_resamples() -> None:
    random = np.random.default_rng(3)
    labels, scores = random.normal(size=12), random.normal(size=(4, 12))
    resamples = measures.bootstrap_correlations(labels, scores).reshape(-1, 2, 4)
    summary = similarity_evaluation._summarize(labels, [scores[:2], scores[2:]], no_progress)
    for measure in range(4):
        for model in range(2):
            samples = resamples[:, model, measure]
            assert tuple(summary.intervals[model, measure]) == measures.interval(samples)
        change = resamples[:, 1, measure] - resamples[:, 0, measure]
        assert tuple(summary.change_intervals[1, measure]) == measures.interval(change)


def test_an_undefined_correlation_is_explained(minilm: Checkpoint) -> None:
    data = pairs([("a", "b", 0), ("a", "b", 1), ("a", "b", 2)])
    result = SimilarityEvaluation().of(minilm, data, other=minilm)
    reason = "undefined, because the model gives all pairs the same score"
    assert result.finding == (
        f"Spearman's correlation of the cosine with the labels of 3 pairs is {reason}; the correlation of "
        f"the other model is {reason.replace('the model', 'it')}."
    )
    assert result.table()["value"].isna().all()
    assert result.notes


def test_resampled_correlations_stay_within_their_bounds() -> None:
    values = np.array([0.1, 0.2, 0.3, 0.7, 1.1])
    samples = measures.bootstrap_correlations(values, np.stack([3 * values, -values / 3]))
    assert np.nanmax(samples) == 1
    assert np.nanmin(samples) == -1


def test_a_model_compared_with_itself_and_with_fewer_dimensions(minilm: Checkpoint) -> None:
    result = SimilarityEvaluation(curve=True).of(minilm, pairs(ROWS), other=minilm)
    assert (result.table()["difference"] == 0).all()
    assert (result.table()[["difference_low", "difference_high"]] == 0).all(axis=None)
    assert result.wins == (0, len(ROWS), 0)
    assert (result.showing(show="moved").table()["moved"] == 0).all()
    assert list(result.showing(show="vectors").table()["value"]) == pytest.approx([1, 1, 1])
    curve = result.showing(show="curve").table()
    assert list(curve["dimensions"]) == [8, 16, 32, 64, 128, 256, 384, 384, 384]
    assert list(curve["bytes_per_vector"][-3:]) == [1536, 384, 48]
    full = result.table()["value"][2]
    assert curve["spearman"][6] == full
    short = SimilarityEvaluation(dimensions=64).of(minilm, pairs(ROWS)).table()
    assert curve["spearman"][3] == pytest.approx(short["value"][0], abs=1e-6)


def test_equal_hamming_distances_are_ties() -> None:
    draw = np.random.default_rng(0)
    form = VectorFormat(384, "binary")
    first, second = (draw.normal(size=(200, 384)) for _ in range(2))
    values = scores_of_rows(form.convert(first), form.convert(second), form.similarity("cosine"))
    distances = ((first > 0) != (second > 0)).sum(axis=1)
    np.testing.assert_array_equal(values, 384 - 2 * distances)


def test_int8_levels_are_those_of_sentence_transformers_and_binary_counts_bits() -> None:
    from sentence_transformers.util.quantization import quantize_embeddings

    vectors = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)
    codes = quantize_embeddings(vectors, "uint8").astype(np.float32)
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    decoded = VectorFormat(16, "int8").convert(vectors)
    np.testing.assert_allclose(decoded, low + (codes + 0.5) * (high - low) / 255, atol=1e-5)
    assert np.abs(decoded - vectors).max() <= ((high - low) / 255 / 2).max() * 1.01
    signs = VectorFormat(16, "binary").convert(vectors)
    bits = quantize_embeddings(vectors, "ubinary")
    hamming = np.unpackbits(bits[0] ^ bits[1]).sum()
    assert signs[0] @ signs[1] / 16 == 1 - 2 * hamming / 16


def test_neighbors_by_hand() -> None:
    # The nearest neighbors of the points `a` on a line are 1→2, 2→1, 4→2, 9→4 and 19→9.
    # In `b`, the last point is 0.5 instead of 19, so its nearest neighbor is 1.
    a = np.array([[1.0], [2.0], [4.0], [9.0], [19.0]])
    b = np.array([[1.0], [2.0], [4.0], [9.0], [0.5]])
    first, second = (np.concatenate(list(vector_comparison._neighbors(x, "euclidean", 1))) for x in (a, b))
    assert first.ravel().tolist() == [1, 0, 1, 2, 3]
    assert second.ravel().tolist() == [4, 0, 1, 2, 0]
    assert vector_comparison._mutual_pairs(first) == {(0, 1)}
    assert vector_comparison._mutual_pairs(second) == {(0, 4)}
    result = vector_comparison.compare_vectors(a, a * 2, "euclidean", "euclidean", "abcde")
    assert result.cka == pytest.approx(1)
    assert (result.overlap == 1).all()
    assert not result.changed_neighbors()[["lost", "gained"]].any(axis=None)


def test_changed_neighbors_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last point moves from 19 to 0.5, so only the neighbors of the first and the last point change."""
    monkeypatch.setattr(vector_comparison, "NEIGHBORS", 1)
    a = np.array([[1.0], [2.0], [4.0], [9.0], [19.0]])
    b = np.array([[1.0], [2.0], [4.0], [9.0], [0.5]])
    result = vector_comparison.compare_vectors(a, b, "euclidean", "euclidean", "vwxyz")
    frame = result.changed_neighbors()
    assert frame.head(2).to_numpy().tolist() == [["v", 0, "w", "z"], ["z", 0, "y", "v"]]
    assert list(frame["overlap"]) == [0, 0, 1, 1, 1]
    assert result.order.tolist() == [0, 4, 1, 2, 3]
    assert result.maps is not None
    # The principal component of one-dimensional vectors is their only dimension.
    for layout, vectors in zip(result.maps, (a, b), strict=True):
        np.testing.assert_allclose(layout.points[:, 0], (vectors - vectors.mean()).ravel(), atol=1e-6)
    assert vector_comparison.compare_vectors(a, b * 0, "euclidean", "euclidean", "vwxyz").maps is None


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (ROWS[:2], UnavailableError, "2 pairs are too few for a correlation. Use at least 3"),
        ([(a, b, 2) for a, b, _ in ROWS], UnavailableError, "All 15 pairs have the same score, 2"),
        ("text_a,text_b,label\na,b,x\nc,d,y\n", InvalidFileError, "the label 'x' is not a number"),
        ("text,label\na,1\nb,2\n", TextError, "has single texts"),
    ],
)
def test_unusable_pairs_are_refused(
    minilm: Checkpoint, data: object, error: type[ProbeError], message: str
) -> None:
    table = parse_labeled_texts(data.encode(), "a.csv") if isinstance(data, str) else pairs(data)
    with pytest.raises(error, match=message):
        SimilarityEvaluation().of(minilm, table)


def test_missing_parts_are_explained(minilm: Checkpoint) -> None:
    result = SimilarityEvaluation().of(minilm, pairs(ROWS))
    with pytest.raises(UnavailableError, match=r"Evaluate with curve=True \(--curve\)"):
        result.showing(show="curve").table()
    for show in ("moved", "vectors"):
        with pytest.raises(UnavailableError, match="There is no second model"):
            result.showing(show=show).table()
