"""Nearest vectors: what a plain loop in float64 finds, whatever is rounded; what an index finds of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_probe.corpus.search import vector_index
from bert_probe.corpus.search.neighbors import ExactSearch, Hits, LayerVectors, error
from bert_probe.corpus.search.vector_index import RECALLED, VectorIndex
from bert_probe.errors import OutOfMemoryError, ShapeError, StoreError, UnavailableError
from tests.helpers.gate import examples

DIGEST = "0123456789abcdef" * 4


def written(folder: Path, shards: Sequence[np.ndarray], layers: Sequence[int] = (6,)) -> list[Path]:
    """Files as a store has them: of each shard the vectors of every layer, those of later ones negated."""
    files = []
    for number, vectors in enumerate(shards):
        count, hidden = vectors.shape
        whole = np.concatenate([vectors * (-1) ** place for place in range(len(layers))])
        numbers = pa.array(whole.ravel().astype(vectors.dtype))
        table = pa.table(
            {
                "row": np.tile(1000 * number + np.arange(count) // 3 + 1, len(layers)),
                "position": np.tile((np.arange(count) % 3 + 1).astype(np.int32), len(layers)),
                "layer": np.repeat(np.array(layers, np.int16), count),
                "vector": pa.FixedSizeListArray.from_arrays(numbers, hidden),
            }
        )
        files.append(folder / f"{number:05}.arrow")
        with pa.OSFile(str(files[-1]), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
    return files


def looped(files: Sequence[Path], layer: int, query: np.ndarray) -> list[tuple[float, int, int]]:
    """All cosines by a loop, largest first, then as they stand in the store."""
    found = []
    for file in files:
        for one in pa.ipc.open_file(pa.memory_map(str(file))).read_all().to_pylist():
            vector = np.array(one["vector"], np.float64)
            if one["layer"] == layer and vector.any():
                cosine = vector @ query / np.sqrt(vector @ vector) / np.sqrt(query @ query)
                found.append((-cosine, one["row"], one["position"]))
    return [(-cosine, row, position) for cosine, row, position in sorted(found)]


def assert_found(hits: Hits, expected: list[tuple[float, int, int]]) -> None:
    """The same cosines in the same order; whose they are, but for those that float64 cannot tell apart."""
    assert len(hits) == len(expected)
    np.testing.assert_allclose(hits.cosines, [one[0] for one in expected], rtol=0, atol=1e-14)
    cosine_of = {one[1:]: one[0] for one in expected}
    for row, position, cosine in zip(hits.rows, hits.positions, hits.cosines, strict=True):
        assert abs(cosine_of.get((row, position), expected[-1][0]) - cosine) < 1e-14


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float16]), st.integers(1, 200))
def test_a_scan_finds_what_a_loop_finds(
    tmp_path_factory: pytest.TempPathFactory, seed: int, dtype: type, count: int
) -> None:
    rng = np.random.default_rng(seed)
    shards: list[np.ndarray] = [rng.normal(scale=3, size=(size, 8)).astype(dtype) for size in (70, 1, 55)]
    shards[0][5] = shards[2][7] = shards[0][2]
    shards[2][3] = 0
    files = written(tmp_path_factory.mktemp("vectors"), shards, layers=(0, 6))
    query = rng.normal(size=8)
    for layer in (0, 6):
        hits = ExactSearch(LayerVectors(files, layer), query).best(count)
        assert_found(hits, looped(files, layer, query)[:count])


def test_the_order_is_exact_where_float32_cannot_tell(tmp_path: Path) -> None:
    """Cosines that differ by less than the scan rounds; each is found, in its place."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=384)
    near = base + 1e-4 * rng.normal(size=(300, 384))
    files = written(tmp_path, [near.astype(np.float32), rng.normal(size=(90, 384)).astype(np.float32)])
    vectors = LayerVectors(files, 6)
    expected = looped(files, 6, base)[:20]
    assert expected[0][0] - expected[-1][0] < error(384)
    hits = ExactSearch(vectors, base).best(20)
    assert [*zip(hits.rows.tolist(), hits.positions.tolist(), strict=True)] == [one[1:] for one in expected]


@pytest.mark.parametrize("size", [1e-13, 1.0, 1e13])
def test_a_scan_is_off_by_no_more_than_is_said(tmp_path: Path, size: float) -> None:
    rng = np.random.default_rng(1)
    vectors = (size * np.exp(rng.normal(size=(150, 64)))).astype(np.float32)
    files = written(tmp_path, [vectors])
    query = np.exp(rng.normal(size=64))
    scan = ExactSearch(LayerVectors(files, 6), query)
    plain = vectors.astype(np.float64)
    exact = plain @ query / np.linalg.norm(plain, axis=1) / np.linalg.norm(query)
    assert np.abs(scan._about - exact).max() < error(64) / 2
    assert_found(scan.best(10), looped(files, 6, query)[:10])


def test_by_hand(tmp_path: Path) -> None:
    vectors = np.array([[3, 4], [-1, 0], [0, 2], [0, 0], [np.inf, 1]], np.float32)
    hits = ExactSearch(LayerVectors(written(tmp_path, [vectors]), 6), np.array([5.0, 0.0])).best(9)
    assert hits.cosines.tolist() == [0.6, 0.0, -1.0]
    assert hits.rows.tolist() == [1, 1, 1]
    assert hits.positions.tolist() == [1, 3, 2]


def test_equal_vectors_are_ordered_by_row_and_position(tmp_path: Path) -> None:
    vectors = np.tile(np.array([[3, 4]], np.float32), (5, 1))
    hits = ExactSearch(LayerVectors(written(tmp_path, [vectors]), 6), np.array([5.0, 0.0])).best(5)
    assert hits.rows.tolist() == [1, 1, 1, 2, 2]
    assert hits.positions.tolist() == [1, 2, 3, 1, 2]


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    files = written(tmp_path, [np.eye(4, dtype=np.float32)])
    vectors = LayerVectors(files, 6)
    for nothing in (np.zeros(4), np.full(4, np.nan)):
        with pytest.raises(UnavailableError, match="no direction"):
            ExactSearch(vectors, nothing)
    with pytest.raises(ShapeError, match=r"\(4,\) is needed"):
        ExactSearch(vectors, np.ones(5))
    assert len(LayerVectors(files, 5)) == 0
    other = written(tmp_path / "..", [np.eye(3, dtype=np.float32)])
    with pytest.raises(ShapeError, match="different lengths"):
        LayerVectors([*files, *other], 6)
    files[0].write_bytes(files[0].read_bytes()[:100])
    with pytest.raises(StoreError, match="cannot be read as vectors"):
        LayerVectors(files, 6)
    with pytest.raises(StoreError, match="cannot be read as vectors"):
        LayerVectors([tmp_path / "none.arrow"], 6)


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Vectors about 40 centres, and one of zeros."""
    rng = np.random.default_rng(2)
    centres = rng.normal(size=(40, 16))
    vectors = (np.repeat(centres, 30, axis=0) + 0.4 * rng.normal(size=(1200, 16))).astype(np.float32)
    vectors[100] = 0
    return written(tmp_path_factory.mktemp("clouds"), [vectors[:700], vectors[700:]])


def test_an_index_finds_what_it_says(clouds: list[Path], tmp_path: Path) -> None:
    vectors = LayerVectors(clouds, 6)
    told: list[tuple[int, int]] = []
    index = VectorIndex.of(tmp_path, DIGEST, 6, vectors, lambda *one: told.append(one))
    assert told == sorted(told)
    assert told[-1] == (2400, 2400)
    about = index.about
    assert (about.vectors, about.lists, about.recall_of) == (1199, 32, 100)
    found = []
    for place in range(7, 1200, 24):
        query = vectors.take(np.array([place]))[2][0].astype(np.float64)
        hits, exact = (
            search(RECALLED + 1) for search in (index.search(query), ExactSearch(vectors, query).best)
        )
        true = {*zip(exact.rows[1:].tolist(), exact.positions[1:].tolist(), strict=True)}
        found.append(len(true & {*zip(hits.rows.tolist(), hits.positions.tolist(), strict=True)}) / RECALLED)
    assert about.recall >= 0.95
    assert np.mean(found) == pytest.approx(about.recall, abs=0.05)
    assert len(index.search(query)(5000)) == 1199  # more lists are searched than is usual


def test_the_recall_is_that_of_the_lists_that_are_searched(clouds: list[Path], tmp_path: Path) -> None:
    """With one list of many it would be far less; with all it is what rounding to 8 bits leaves."""
    vectors = LayerVectors(clouds, 6)
    index = VectorIndex.of(tmp_path, DIGEST, 6, vectors)
    places = vector_index._drawn(vectors, 50)
    queries = vectors.take(places)[2]
    queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    true = vector_index._nearest(vectors, places, queries, lambda *_: None)
    for place, query, ten in zip(places, queries, true, strict=True):
        exact, _ = vectors.exactly(query.astype(np.float64), np.delete(np.arange(1200), place))
        np.testing.assert_array_equal(ten, exact[:10])
        every = vector_index._places(index._lists, query, 60, index.about.lists)
        assert np.isin(ten, every).all()


def test_an_index_is_made_once_and_again_where_it_does_not_fit(clouds: list[Path], tmp_path: Path) -> None:
    vectors, folder = LayerVectors(clouds, 6), tmp_path / "index"

    def made(digest: str) -> bool:
        told: list[int] = []
        VectorIndex.of(folder, digest, 6, vectors, lambda done, _: told.append(done))
        return bool(told)

    assert made(DIGEST)
    assert not made(DIGEST)
    lists, about = (folder / f"06-{DIGEST[:16]}{ending}" for ending in (".faiss", ".json"))
    lists.write_bytes(lists.read_bytes()[:-1])
    assert made(DIGEST)
    whole = lists.read_bytes()
    lists.write_bytes(b"\0" * len(whole))
    with pytest.raises(StoreError, match="is broken"):
        made(DIGEST)
    about.write_text("[]")
    assert made(DIGEST)
    about.write_text(about.read_text().replace(DIGEST, DIGEST[::-1]))
    assert made(DIGEST)
    assert made(DIGEST[::-1])  # the store has grown
    assert {one.stem for one in folder.iterdir()} == {f"06-{DIGEST[::-1][:16]}"}


def test_changed_index_is_a_difference(clouds: list[Path], tmp_path: Path) -> None:
    VectorIndex.of(tmp_path, DIGEST, 6, LayerVectors(clouds, 6))
    (file,) = vector_index.index_files(tmp_path)
    assert vector_index.problem(file) == ""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert vector_index.problem(file) == "was changed: its SHA-256 is another"
    file.write_bytes(content[:-1])
    assert vector_index.problem(file) == "is not the index that its description is about"


def test_an_index_is_whole_or_not_there(
    clouds: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = LayerVectors(clouds, 6)

    def ended(done: int, _: int) -> None:
        if done > 1200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        VectorIndex.of(tmp_path / "index", DIGEST, 6, vectors, ended)
    assert [*(tmp_path / "index").iterdir()] == []
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot be written: .* with exact"):
        VectorIndex.of(tmp_path / "file", DIGEST, 6, vectors)
    with monkeypatch.context() as patched:
        patched.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 50_000}))
        with pytest.raises(OutOfMemoryError, match="1,200 vectors"):
            VectorIndex.of(tmp_path / "index", DIGEST, 6, vectors)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UnavailableError, match=r"bert-probe\[index\]"):
        VectorIndex.of(tmp_path / "index", DIGEST, 6, vectors)
