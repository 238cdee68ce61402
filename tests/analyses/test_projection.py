"""Maps: principal components by hand and against scikit-learn, UMAP repeatable and stoppable."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bert_probe import Map, pca_map, umap_map
from bert_probe.errors import ShapeError, UnavailableError


def test_components_by_hand() -> None:
    # Along (3, 4)/5 the places are −5, 0, 5; across it nothing.
    found = pca_map(np.array([[1, 1], [4, 5], [7, 9]], np.float32))
    np.testing.assert_allclose(found.points, [[-5, 0], [0, 0], [5, 0]], atol=1e-6)
    assert found.explained == pytest.approx((1, 0), abs=1e-12)
    turned = pca_map(np.array([[7, 9], [4, 5], [1, 1]], np.float32))
    np.testing.assert_allclose(turned.points, found.points[::-1], atol=1e-6, err_msg="the sign is fixed")


def test_components_are_scikit_learn_s_but_for_the_sign() -> None:
    from sklearn.decomposition import PCA

    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32) * np.arange(1, 9)
    ours, theirs = pca_map(vectors), PCA(2)
    points = theirs.fit_transform(vectors.astype(np.float64))
    np.testing.assert_allclose(np.abs(ours.points), np.abs(points), atol=1e-4)
    assert ours.explained == pytest.approx(tuple(theirs.explained_variance_ratio_), abs=1e-6)


@given(
    hnp.arrays(np.float32, st.tuples(st.integers(2, 8), st.integers(1, 5)), elements=st.integers(-50, 50)),
    st.floats(-100, 100, width=16),
)
def test_where_the_origin_lies_changes_nothing(vectors: np.ndarray, shift: float) -> None:
    if (vectors == vectors[0]).all():
        with pytest.raises(UnavailableError, match="equal"):
            pca_map(vectors)
        return
    one, other = pca_map(vectors), pca_map(vectors + np.float32(shift))
    assert one.explained == pytest.approx(other.explained, abs=1e-4)
    spread = np.linalg.norm(one.points[:, None] - one.points[None], axis=-1)
    true = np.linalg.norm(vectors[:, None].astype(float) - vectors[None], axis=-1)
    assert (spread <= true + 1e-3).all(), "a plane shows no distance too large"


def test_umap_repeats_reports_and_can_be_stopped() -> None:
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(2, 16)) * 4
    vectors = (centres[np.arange(24) % 2] + rng.normal(size=(24, 16)) / 4).astype(np.float32)
    told: list[tuple[int, int]] = []
    found = umap_map(vectors, lambda done, total: told.append((done, total)))
    assert found.method == "umap"
    assert found.explained is None
    assert found.points.shape == (24, 2)
    assert np.array_equal(umap_map(vectors).points, found.points)
    assert told[-1][0] == told[-1][1]
    assert len(told) > 100
    inside = np.linalg.norm(found.points[0] - found.points[2])
    assert inside < np.linalg.norm(found.points[0] - found.points[1]), "two groups stay two"

    class StopError(Exception):
        pass

    def stop(done: int, _total: int) -> None:
        if done > 5:
            raise StopError

    # In a thread of its own, as on the page: a lock left behind would let no other thread draw a bar.
    with ThreadPoolExecutor(1) as pool, pytest.raises(StopError):
        pool.submit(umap_map, vectors, stop).result()
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(umap_map, vectors, lambda *_: None)
        assert np.array_equal(again.result(timeout=60).points, found.points)


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(UnavailableError, match="pip install umap-learn"):
        umap_map(np.ones((3, 3), np.float32))


def test_too_few_vectors_and_wrong_shapes_are_refused() -> None:
    with pytest.raises(UnavailableError, match="2 sentences or more"):
        pca_map(np.ones((1, 3), np.float32))
    with pytest.raises(UnavailableError, match="3 sentences or more"):
        umap_map(np.ones((2, 3), np.float32))
    with pytest.raises(ShapeError):
        pca_map(np.ones(3, np.float32))
    with pytest.raises(ShapeError):
        Map(np.ones((3, 3), np.float32), "pca")
