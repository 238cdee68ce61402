"""Test the nearest-neighbor search and its index: parity with a loop in float64."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_probe.corpus import vector_index
from bert_probe.corpus.vector_index import (
    RECALL_COUNT,
    ExactSearch,
    Hits,
    LayerVectors,
    VectorIndex,
    error_bound,
)
from bert_probe.errors import OutOfMemoryError, ShapeError, StoreError, UnavailableError
from tests.helpers.gate import examples

DIGEST = "0123456789abcdef" * 4


def write_vectors(folder: Path, shards: Sequence[np.ndarray], layers: Sequence[int] = (6,)) -> list[Path]:
    """Write the vector files of a store, one per shard; the sign of the vectors alternates between layers."""
    files = []
    for number, vectors in enumerate(shards):
        count, hidden = vectors.shape
        complete = np.concatenate([vectors * (-1) ** place for place in range(len(layers))])
        numbers = pa.array(complete.ravel().astype(vectors.dtype))
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


def loop_cosines(files: Sequence[Path], layer: int, query: np.ndarray) -> list[tuple[float, int, int]]:
    """Return all cosines, computed with a loop, in descending order. Ties keep the store's order."""
    result = []
    for file in files:
        for row in pa.ipc.open_file(pa.memory_map(str(file))).read_all().to_pylist():
            vector = np.array(row["vector"], np.float64)
            if row["layer"] == layer and vector.any():
                cosine = vector @ query / np.sqrt(vector @ vector) / np.sqrt(query @ query)
                result.append((-cosine, row["row"], row["position"]))
    return [(-cosine, row, position) for cosine, row, position in sorted(result)]


def assert_found(hits: Hits, expected: list[tuple[float, int, int]]) -> None:
    """Assert that the ranked cosines are equal; the order of rows may differ between tied cosines."""
    assert len(hits) == len(expected)
    np.testing.assert_allclose(hits.cosines, [match[0] for match in expected], rtol=0, atol=1e-14)
    cosine_of = {match[1:]: match[0] for match in expected}
    for row, position, cosine in zip(hits.rows, hits.positions, hits.cosines, strict=True):
        assert abs(cosine_of.get((row, position), expected[-1][0]) - cosine) < 1e-14


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float16]), st.integers(1, 200))
def test_exact_search_matches_loop(
    tmp_path_factory: pytest.TempPathFactory, seed: int, dtype: type, count: int
) -> None:
    rng = np.random.default_rng(seed)
    shards: list[np.ndarray] = [rng.normal(scale=3, size=(size, 8)).astype(dtype) for size in (70, 1, 55)]
    shards[0][5] = shards[2][7] = shards[0][2]
    shards[2][3] = 0
    files = write_vectors(tmp_path_factory.mktemp("vectors"), shards, layers=(0, 6))
    query = rng.normal(size=8)
    for layer in (0, 6):
        hits = ExactSearch(LayerVectors(files, layer), query).best(count)
        assert_found(hits, loop_cosines(files, layer, query)[:count])


def test_ranking_is_exact_beyond_float32(tmp_path: Path) -> None:
    """Cosines that differ by less than the rounding error of the float32 scan are ranked correctly."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=384)
    near = base + 1e-4 * rng.normal(size=(300, 384))
    files = write_vectors(tmp_path, [near.astype(np.float32), rng.normal(size=(90, 384)).astype(np.float32)])
    vectors = LayerVectors(files, 6)
    expected = loop_cosines(files, 6, base)[:20]
    assert expected[0][0] - expected[-1][0] < error_bound(384)
    hits = ExactSearch(vectors, base).best(20)
    assert [*zip(hits.rows.tolist(), hits.positions.tolist(), strict=True)] == [
        match[1:] for match in expected
    ]


@pytest.mark.parametrize("size", [1e-13, 1.0, 1e13])
def test_scan_error_is_within_bound(tmp_path: Path, size: float) -> None:
    rng = np.random.default_rng(1)
    vectors = (size * np.exp(rng.normal(size=(150, 64)))).astype(np.float32)
    files = write_vectors(tmp_path, [vectors])
    query = np.exp(rng.normal(size=64))
    scan = ExactSearch(LayerVectors(files, 6), query)
    plain = vectors.astype(np.float64)
    exact = plain @ query / np.linalg.norm(plain, axis=1) / np.linalg.norm(query)
    assert np.abs(scan._approximate - exact).max() < error_bound(64) / 2
    assert_found(scan.best(10), loop_cosines(files, 6, query)[:10])


def test_search_matches_manual_example(tmp_path: Path) -> None:
    vectors = np.array([[3, 4], [-1, 0], [0, 2], [0, 0], [np.inf, 1]], np.float32)
    hits = ExactSearch(LayerVectors(write_vectors(tmp_path, [vectors]), 6), np.array([5.0, 0.0])).best(9)
    assert hits.cosines.tolist() == [0.6, 0.0, -1.0]
    assert hits.rows.tolist() == [1, 1, 1]
    assert hits.positions.tolist() == [1, 3, 2]


def test_equal_vectors_are_ranked_by_row_and_position(tmp_path: Path) -> None:
    vectors = np.tile(np.array([[3, 4]], np.float32), (5, 1))
    hits = ExactSearch(LayerVectors(write_vectors(tmp_path, [vectors]), 6), np.array([5.0, 0.0])).best(5)
    assert hits.rows.tolist() == [1, 1, 1, 2, 2]
    assert hits.positions.tolist() == [1, 2, 3, 1, 2]


def test_invalid_vectors_are_refused(tmp_path: Path) -> None:
    files = write_vectors(tmp_path, [np.eye(4, dtype=np.float32)])
    vectors = LayerVectors(files, 6)
    for nothing in (np.zeros(4), np.full(4, np.nan)):
        with pytest.raises(UnavailableError, match="cosines with this vector are undefined"):
            ExactSearch(vectors, nothing)
    with pytest.raises(ShapeError, match=r"must have shape \(4,\)"):
        ExactSearch(vectors, np.ones(5))
    assert len(LayerVectors(files, 5)) == 0
    other = write_vectors(tmp_path / "..", [np.eye(3, dtype=np.float32)])
    with pytest.raises(ShapeError, match="different sizes"):
        LayerVectors([*files, *other], 6)
    files[0].write_bytes(files[0].read_bytes()[:100])
    with pytest.raises(StoreError, match="cannot be read as vectors"):
        LayerVectors(files, 6)
    with pytest.raises(StoreError, match="cannot be read as vectors"):
        LayerVectors([tmp_path / "none.arrow"], 6)


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write vectors around 40 centers, and one zero vector."""
    rng = np.random.default_rng(2)
    centres = rng.normal(size=(40, 16))
    vectors = (np.repeat(centres, 30, axis=0) + 0.4 * rng.normal(size=(1200, 16))).astype(np.float32)
    vectors[100] = 0
    return write_vectors(tmp_path_factory.mktemp("clouds"), [vectors[:700], vectors[700:]])


def test_index_has_stated_recall(clouds: list[Path], tmp_path: Path) -> None:
    vectors = LayerVectors(clouds, 6)
    events: list[tuple[int, int]] = []
    index = VectorIndex.of(tmp_path, DIGEST, 6, vectors, lambda *counts: events.append(counts))
    assert events == sorted(events)
    assert events[-1] == (2400, 2400)
    metadata = index.metadata
    assert (metadata.vectors, metadata.lists, metadata.recall_of) == (1199, 32, 100)
    result = []
    for place in range(7, 1200, 24):
        query = vectors.take(np.array([place]))[2][0].astype(np.float64)
        hits, exact = (
            search(RECALL_COUNT + 1) for search in (index.search(query), ExactSearch(vectors, query).best)
        )
        true = {*zip(exact.rows[1:].tolist(), exact.positions[1:].tolist(), strict=True)}
        result.append(
            len(true & {*zip(hits.rows.tolist(), hits.positions.tolist(), strict=True)}) / RECALL_COUNT
        )
    assert metadata.recall >= 0.95
    assert np.mean(result) == pytest.approx(metadata.recall, abs=0.05)
    # Searching for 5,000 neighbors probes more lists than the default.
    assert len(index.search(query)(5000)) == 1199


def test_measured_recall_matches_probed_lists(clouds: list[Path], tmp_path: Path) -> None:
    """With one probed list, recall is much lower; with all lists, only 8-bit quantization lowers it."""
    vectors = LayerVectors(clouds, 6)
    index = VectorIndex.of(tmp_path, DIGEST, 6, vectors)
    places = vector_index._sample(vectors, 50)
    queries = vectors.take(places)[2]
    queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    true = vector_index._exact_neighbors(vectors, places, queries, lambda *_: None)
    for place, query, ten in zip(places, queries, true, strict=True):
        exact, _ = vectors.rank(query.astype(np.float64), np.delete(np.arange(1200), place))
        np.testing.assert_array_equal(ten, exact[:10])
        every = vector_index._candidates(index._lists, query, 60, index.metadata.lists)
        assert np.isin(ten, every).all()


def test_only_outdated_indexes_of_the_layer_are_removed(clouds: list[Path], tmp_path: Path) -> None:
    vectors, folder = LayerVectors(clouds, 6), tmp_path / "index"
    folder.mkdir()
    outdated = [folder / f"06-{'0' * 16}{ending}" for ending in (".faiss", ".json")]
    others = [
        folder / name
        for name in (
            "06-june.pdf",
            "06-.txt",
            f"06-{'g' * 16}.json",
            f"06-{'0' * 16}.txt",
            f"05-{'0' * 16}.json",
        )
    ]
    for file in (*outdated, *others):
        file.touch()
    VectorIndex.of(folder, DIGEST, 6, vectors)
    assert not any(file.exists() for file in outdated)
    assert all(file.exists() for file in others)


def test_index_is_not_written_through_a_link(clouds: list[Path], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "index").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="is a symbolic link, and nothing is written"):
        VectorIndex.of(tmp_path / "index", DIGEST, 6, LayerVectors(clouds, 6))
    assert not any((tmp_path / "elsewhere").iterdir())


def test_index_is_rebuilt_only_when_outdated(clouds: list[Path], tmp_path: Path) -> None:
    vectors, folder = LayerVectors(clouds, 6), tmp_path / "index"

    def build(digest: str) -> bool:
        events: list[int] = []
        VectorIndex.of(folder, digest, 6, vectors, lambda done, _: events.append(done))
        return bool(events)

    assert build(DIGEST)
    assert not build(DIGEST)
    lists, description = (folder / f"06-{DIGEST[:16]}{ending}" for ending in (".faiss", ".json"))
    lists.write_bytes(lists.read_bytes()[:-1])
    assert build(DIGEST)
    complete = lists.read_bytes()
    lists.write_bytes(b"\0" * len(complete))
    with pytest.raises(StoreError, match="is broken"):
        build(DIGEST)
    description.write_text("[]")
    assert build(DIGEST)
    description.write_text(description.read_text().replace(DIGEST, DIGEST[::-1]))
    assert build(DIGEST)
    assert build(DIGEST[::-1])  # The digest changes when the store grows.
    assert {file.stem for file in folder.iterdir()} == {f"06-{DIGEST[::-1][:16]}"}


def test_changed_index_is_reported(clouds: list[Path], tmp_path: Path) -> None:
    VectorIndex.of(tmp_path, DIGEST, 6, LayerVectors(clouds, 6))
    (file,) = vector_index.index_files(tmp_path)
    assert vector_index.problem(file) == ""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert vector_index.problem(file) == "was changed: its SHA-256 differs"
    file.write_bytes(content[:-1])
    assert vector_index.problem(file) == "does not match the description in its metadata"


def test_search_refuses_vectors_that_shrink_while_open(tmp_path: Path) -> None:
    """Reading the missing part of a mapped file would terminate the process with SIGBUS."""
    random = np.random.default_rng(0)
    files = write_vectors(tmp_path, [random.normal(size=(3000, 8)).astype(np.float32)])
    vectors = LayerVectors(files, 6)
    size = files[0].stat().st_size
    message = re.escape(
        f"{files[0]} became smaller while it was open (100 instead of {size:,} bytes). Restore the file, "
        "or build the store again, and then open the store again."
    )
    os.truncate(files[0], 100)
    with pytest.raises(StoreError, match=f"^{message}$"):
        ExactSearch(vectors, np.ones(8))
    with pytest.raises(StoreError, match=f"^{message}$"):
        vectors.take(np.array([2999]))


def test_replaced_or_deleted_vectors_remain_readable(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    files = write_vectors(tmp_path, [random.normal(size=(3000, 8)).astype(np.float32)])
    vectors, query = LayerVectors(files, 6), np.ones(8)
    expected = ExactSearch(vectors, query).best(5).cosines
    other = tmp_path / "other"
    other.write_bytes(b"short")
    other.replace(files[0])
    assert ExactSearch(vectors, query).best(5).cosines.tolist() == expected.tolist()
    files[0].unlink()
    assert ExactSearch(vectors, query).best(5).cosines.tolist() == expected.tolist()


def test_index_that_shrinks_while_open_is_refused(clouds: list[Path], tmp_path: Path) -> None:
    """If faiss threads read the file after it has shrunk, the process would be terminated."""
    vectors = LayerVectors(clouds, 6)
    VectorIndex.of(tmp_path, DIGEST, 6, vectors)
    file = vector_index.index_files(tmp_path)[0]
    content = file.read_bytes()
    for _ in range(30):
        file.unlink()
        file.write_bytes(content)
        search = VectorIndex.of(tmp_path, DIGEST, 6, vectors).search(np.ones(vectors.hidden))
        assert len(search(3)) == 3
        os.truncate(file, 100)
        with pytest.raises(StoreError, match="became smaller while it was open"):
            search(3)


def test_index_is_written_atomically(
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
    with pytest.raises(StoreError, match=r"cannot be written: .* use the option exact"):
        VectorIndex.of(tmp_path / "file", DIGEST, 6, vectors)
    with monkeypatch.context() as patched:
        patched.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 50_000}))
        with pytest.raises(OutOfMemoryError, match="1,200 vectors"):
            VectorIndex.of(tmp_path / "index", DIGEST, 6, vectors)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UnavailableError) as caught:
        VectorIndex.of(tmp_path / "index", DIGEST, 6, vectors)
    assert str(caught.value) == (
        'faiss is not installed. Install it with pip install "bert-probe[index]", or use the option '
        "exact, which compares the query with every vector."
    )
