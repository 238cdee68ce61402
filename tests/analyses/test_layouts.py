"""Test layouts of points: principal components by hand and by scikit-learn; reproducible t-SNE and UMAP."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bert_probe.analyses.vectors import layouts
from bert_probe.analyses.vectors.layouts import PointLayout, pca, tsne, umap
from bert_probe.analyses.vectors.similarity import unit_rows
from bert_probe.errors import ShapeError, UnavailableError
from tests.helpers.exactness import ULP, assert_exact, assert_rounded, largest
from tests.helpers.gate import examples, prove_unless


def clusters(count: int, groups: int = 3, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors around several centers in turn, shape [count, 16], and the group of each vector."""
    rng = np.random.default_rng(seed)
    groups_of_points = np.arange(count) % groups
    centres = np.eye(16)[:groups] * 4
    return (centres[groups_of_points] + rng.normal(size=(count, 16)) / 8).astype(np.float32), groups_of_points


def apart(points: np.ndarray, groups_of_points: np.ndarray) -> bool:
    """Return whether every point is nearer to all points of its group than to any point outside of it."""
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    same = groups_of_points[:, None] == groups_of_points[None]
    return all(distances[i, same[i]].max() < distances[i, ~same[i]].min() for i in range(len(points)))


def test_pca_equals_hand_computation() -> None:
    # The coordinates along the direction (3, 4)/5 are −5, 0 and 5; along the orthogonal axis, they are 0.
    result = pca(np.array([[1, 1], [4, 5], [7, 9]], np.float32))
    assert_rounded(result.points, [[-5, 0], [0, 0], [5, 0]])
    assert_exact(np.array(result.explained), [1, 0])
    turned = pca(np.array([[7, 9], [4, 5], [1, 1]], np.float32))
    assert_rounded(turned.points, result.points[::-1], label="the sign is fixed")


def test_pca_equals_scikit_learn_up_to_sign() -> None:
    from sklearn.decomposition import PCA

    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32) * np.arange(1, 9)
    ours, theirs = pca(vectors), PCA(2)
    points = theirs.fit_transform(vectors.astype(np.float64))
    assert_rounded(np.abs(ours.points), np.abs(points), 2)
    assert_exact(np.array(ours.explained), theirs.explained_variance_ratio_)


@given(
    hnp.arrays(np.float32, st.tuples(st.integers(2, 8), st.integers(1, 5)), elements=st.integers(-50, 50)),
    st.floats(-100, 100, width=16),
)
def test_layout_does_not_depend_on_the_origin(vectors: np.ndarray, shift: float) -> None:
    if (vectors == vectors[0]).all():
        with pytest.raises(UnavailableError, match="equal"):
            pca(vectors)
        return
    doubles = vectors.astype(np.float64)
    item, other = pca(vectors), pca(doubles + shift)
    assert_exact(np.array(item.explained), other.explained)
    spread = np.linalg.norm(item.points[:, None] - item.points[None], axis=-1)
    true = np.linalg.norm(doubles[:, None] - doubles[None], axis=-1)
    few = 8 * ULP * largest(item.points)
    assert (spread <= true + few).all(), "a projection does not increase distances"


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("count", [12, 60, 150])
def test_t_sne_separates_groups(count: int) -> None:
    vectors, groups_of_points = clusters(count)
    result = tsne(vectors)
    assert result.points.shape == (count, 2)
    assert result.points.dtype == np.float32
    assert result.explained is None
    assert apart(result.points, groups_of_points)
    assert not apart(result.points, np.roll(np.sort(groups_of_points), 1)), "`apart` can return False"


@pytest.mark.prove
def test_t_sne_is_reproducible_with_any_number_of_threads() -> None:
    vectors, _ = clusters(100)
    first = tsne(vectors).points
    assert np.array_equal(tsne(vectors).points, first)
    with ThreadPoolExecutor(2) as pool:
        for again in pool.map(tsne, [vectors, vectors]):
            assert np.array_equal(again.points, first)


@pytest.mark.prove
def test_t_sne_ignores_norms() -> None:
    vectors, groups_of_points = clusters(60)
    lengths = np.random.default_rng(2).uniform(0.01, 100, size=(60, 1)).astype(np.float32)
    assert apart(tsne(vectors * lengths).points, groups_of_points)
    # Multiplication by a power of two is exact, so the result must be identical.
    assert np.array_equal(tsne(vectors * np.float32(2.0**40)).points, tsne(vectors).points)


def test_t_sne_equals_scikit_learn_on_unit_vectors() -> None:
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    vectors, _ = clusters(100)
    rows = unit_rows(vectors)
    start = PCA(2, svd_solver="full").fit_transform(rows)
    ours = tsne(vectors).points
    # The signs of principal components are arbitrary, so each axis is flipped to match.
    start *= np.sign((start * ours).sum(axis=0)) * 1e-4 / start[:, 0].std()
    mapper = TSNE(perplexity=30, init=start.astype(np.float32), random_state=0)
    theirs = mapper.fit_transform(rows.astype(np.float32))
    item, other = (np.linalg.norm(points[:, None] - points[None], axis=-1) for points in (ours, theirs))
    assert np.corrcoef(item.ravel(), other.ravel())[0, 1] > 0.99, "apart from the last digits at the start"


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("count", "perplexity"),
    prove_unless({(4, 1), (61, 20), (91, 30)}, [(4, 1), (10, 3), (61, 20), (91, 30), (200, 30)]),
)
def test_perplexity_is_limited_by_vector_count(count: int, perplexity: float) -> None:
    result = tsne(clusters(count)[0])
    assert result.settings == {"perplexity": perplexity, "seed": 0}
    assert np.isfinite(result.points).all()


@settings(max_examples=examples(30), deadline=None)
@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 5)), elements=st.integers(-3, 3)),
    st.sampled_from([pca, tsne]),
)
def test_extreme_vectors_give_finite_points_or_error(
    vectors: np.ndarray, method: Callable[[np.ndarray], PointLayout]
) -> None:
    directions = np.unique(np.round(unit_rows(vectors[vectors.any(axis=1)]), 5), axis=0)
    if len(vectors) < (2 if method is pca else 4) or (method is tsne and not vectors.any(axis=1).all()):
        refused = True
    else:
        refused = len(directions if method is tsne else np.unique(vectors, axis=0)) == 1
    if refused:
        with pytest.raises(UnavailableError, match=r"\.$"):
            method(vectors)
        return
    result = method(vectors)
    assert result.points.shape == (len(vectors), 2)
    assert np.isfinite(result.points).all()


@pytest.mark.parametrize("method", [tsne, umap])
def test_zero_or_parallel_vectors_raise(method: Callable[[np.ndarray], PointLayout]) -> None:
    vectors, _ = clusters(6)
    with pytest.raises(UnavailableError, match="all zeros"):
        method(np.concatenate([vectors, np.zeros((1, 16), np.float32)]))
    with pytest.raises(UnavailableError, match="have the same direction"):
        method(vectors[:1] * np.arange(1, 7, dtype=np.float32)[:, None])
    with pytest.raises(UnavailableError, match="have the same direction"):
        method(np.repeat(vectors[:1], 6, axis=0))


@pytest.mark.parametrize("method", [pca, tsne, umap])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_vectors_raise(method: Callable[[np.ndarray], PointLayout], bad: float) -> None:
    vectors, _ = clusters(6)
    vectors[2, 3] = bad
    with pytest.raises(UnavailableError, match="contains NaN or infinite values"):
        method(vectors)


def test_duplicate_vectors_have_finite_points() -> None:
    vectors, _ = clusters(20)
    result = tsne(np.concatenate([vectors, vectors[:5]]))
    distances = np.linalg.norm(result.points[:5] - result.points[20:], axis=-1)
    full = np.linalg.norm(result.points.max(axis=0) - result.points.min(axis=0))
    assert (distances < full / 10).all(), "equal vectors are placed together"


@pytest.mark.prove  # Numba takes half a minute to compile UMAP.
def test_umap_is_reproducible_reports_progress_and_can_be_canceled() -> None:
    vectors, groups_of_points = clusters(24, groups=2)
    result: list[tuple[int, int]] = []
    answer = umap(vectors, lambda done, total: result.append((done, total)))
    assert answer.explained is None
    assert answer.settings == {"neighbors": 15, "seed": 0}
    assert answer.points.shape == (24, 2)
    assert np.array_equal(umap(vectors).points, answer.points)
    assert result[-1][0] == result[-1][1]
    assert len(result) > 100
    assert apart(answer.points, groups_of_points)

    class StopError(Exception):
        pass

    def stop(done: int, _total: int) -> None:
        if done > 5:
            raise StopError

    # UMAP runs in a separate thread, as on the page. If a canceled run did not release tqdm's lock, the next
    # run would hang.
    with ThreadPoolExecutor(1) as pool, pytest.raises(StopError):
        pool.submit(umap, vectors, stop).result()
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(umap, vectors, lambda *_: None)
        assert np.array_equal(again.result(timeout=60).points, answer.points)


def test_missing_umap_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert layouts.available_methods() == ("pca", "tsne", "umap")
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(UnavailableError) as caught:
        umap(clusters(3)[0])
    assert str(caught.value) == (
        'umap is not installed. Install it with pip install "bert-probe[umap]", or choose another map.'
    )
    assert layouts.available_methods() == ("pca", "tsne")


@pytest.mark.parametrize(("method", "minimum"), [(pca, 2), (tsne, 4), (umap, 3)])
def test_too_few_vectors_and_wrong_shapes_raise(
    method: Callable[[np.ndarray], PointLayout], minimum: int
) -> None:
    with pytest.raises(UnavailableError, match=rf"needs at least {minimum} sentences, not {minimum - 1}"):
        method(clusters(minimum)[0][: minimum - 1])
    with pytest.raises(ShapeError):
        method(np.ones(3, np.float32))
    with pytest.raises(ShapeError):
        PointLayout(np.ones((3, 3), np.float32))
