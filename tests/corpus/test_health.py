"""Test corpus health: artificially added problems are found, and each measure equals its definition."""

from __future__ import annotations

import csv
import io
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.sparse.csgraph import connected_components

import bert_probe
from bert_probe import CorpusHealth
from bert_probe.analyses.retrieval.calibration import reference_sentences
from bert_probe.analyses.vectors.layouts import _log_odds, cluster_words
from bert_probe.analyses.vectors.similarity import iso_score
from bert_probe.corpus import health
from bert_probe.corpus.health import (
    group_duplicates,
    mean_cosine,
    modified_z_scores,
    nearest_neighbors,
    principal_variances,
    two_nn,
)
from bert_probe.corpus.store import Store
from bert_probe.corpus.vector_files import make_vector_set, parse_vectors
from bert_probe.errors import OutOfMemoryError, SelectionError, TextError
from bert_probe.model import preflight
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Cancelled, no_progress, run_cancellable
from bert_probe.model.sources import BUILT_IN
from tests.helpers.command_line import bert_probe as run
from tests.helpers.memory import measure_peak


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def planted(count: int, seed: int = 0) -> tuple[np.ndarray, dict[str, set[int]]]:
    """Return vectors of 20 topics with 50 duplicates, 20 outliers and 5 hubs, and the indices of each."""
    draw = np.random.default_rng(seed)
    centers = 3 * unit(draw.normal(size=(20, 64)))
    topics = np.arange(count) % 20
    rows = centers[topics] + draw.normal(size=(count, 64)) * 0.2
    order = draw.permutation(count)
    duplicates, originals, outliers, hubs = np.split(order[:125], [50, 100, 120])
    rows[duplicates] = rows[originals] + draw.normal(size=(50, 64)) * 0.005
    rows[outliers] = draw.normal(size=(20, 64))
    # The center of a topic is a hub: the vectors of the topic are closer to it than to each other.
    rows[hubs] = centers[:5]
    return rows.astype(np.float32), {
        "duplicates": {*duplicates, *originals},
        "outliers": {*outliers},
        "hubs": {*hubs},
    }


def test_planted_problems_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 50 duplicates, 20 outliers and 5 hubs among 10,000 rows are all found and listed first.

    The precision is 1 for duplicates and at least 0.75 for outliers. Isotropic noise in 64 dimensions has
    natural hubs, which are listed after the planted ones.
    """
    monkeypatch.setattr("bert_probe.analyses.vectors.layouts.MAX_CLUSTERED", 500)
    rows, expected = planted(10_000)
    result = CorpusHealth().of(make_vector_set("planted", rows))
    for show, indices in expected.items():
        listed = [row - 1 for row in result.showing(show=show).frame()["row"]]
        assert {*listed[: len(indices)]} == indices, show
        assert len(indices) / len(listed) >= {"duplicates": 1, "outliers": 0.75, "hubs": 0.2}[show]
    assert result.summary()["duplicate_groups"] == 50
    assert result.summary()["clusters"] == 20


@pytest.mark.parametrize("block", [7, 20, 64])
def test_neighbors_equal_all_pairs(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_BLOCK_ROWS", block)
    vectors = unit(np.random.default_rng(0).normal(size=(40, 6)))
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    neighbors, scores = nearest_neighbors(vectors, 5)
    order = np.argsort(-cosines, axis=1)[:, :5]
    assert np.array_equal(neighbors, order)
    np.testing.assert_allclose(scores, np.take_along_axis(cosines, order, axis=1), atol=1e-14)


@pytest.mark.parametrize("block", [7, 20])
def test_neighbors_of_equal_rows_are_other_rows(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_BLOCK_ROWS", block)
    neighbors, scores = nearest_neighbors(np.tile(unit(np.ones((1, 4))), (41, 1)), 5)
    np.testing.assert_allclose(scores, 1)
    for row, others in enumerate(neighbors.tolist()):
        assert len({row, *others}) == 6


def test_duplicate_groups_by_hand() -> None:
    """Rows 0, 2 and 3 form a chain of near-duplicates, row 1 has none, and rows 4 and 5 are equal."""
    angles = np.radians([0, 90, 20, 30, 180, 180])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for count in (1, 2, 5):
        groups = group_duplicates(vectors, *nearest_neighbors(vectors, count), 0.9)
        assert groups.tolist() == [0, -1, 0, 0, 1, 1]


@pytest.mark.parametrize("block", [3, 100])
def test_duplicate_groups_equal_components_of_all_pairs(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """More equal rows than neighbors: no row has a row of another group among its neighbors."""
    monkeypatch.setattr(health, "_BLOCK_ROWS", block)
    monkeypatch.setattr(health, "_BLOCK_NUMBERS", 6 * block)
    generator = np.random.default_rng(3)
    for _ in range(20):
        centers = unit(generator.normal(size=(6, 6)))
        close = unit(centers[:3] + 0.1 * generator.normal(size=(3, 6)))
        vectors = np.repeat(np.concatenate([centers, close]), generator.integers(1, 7, 9), axis=0)
        vectors = vectors[generator.permutation(len(vectors))]
        labels = connected_components(vectors @ vectors.T >= 0.9 - 1e-12)[1]
        groups = group_duplicates(vectors, *nearest_neighbors(vectors, 2), 0.9)
        sizes = np.bincount(labels)[labels]
        assert np.array_equal(groups < 0, sizes == 1)
        assert np.array_equal((groups[:, None] == groups)[sizes > 1], (labels[:, None] == labels)[sizes > 1])
        shown = groups[groups >= 0]
        assert list(dict.fromkeys(shown.tolist())) == list(range(shown.max(initial=-1) + 1))


def test_mean_cosine_equals_all_pairs() -> None:
    vectors = unit(np.random.default_rng(1).normal(size=(30, 5)) + 1)
    cosines = (vectors @ vectors.T)[np.triu_indices(30, k=1)]
    assert mean_cosine(vectors) == pytest.approx(cosines.mean(), abs=1e-13)


def test_iso_score_at_its_bounds() -> None:
    """IsoScore is 1 if all dimensions have equal variance, and 0 if only one dimension has variance.

    See Rudman et al. 2022, section 4.
    """
    corners = np.array([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]])
    turned = corners @ np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    assert iso_score(principal_variances(corners)) == pytest.approx(1)
    assert iso_score(principal_variances(corners * [1.0, 0, 0])) == pytest.approx(0, abs=1e-12)
    assert iso_score(principal_variances(turned)) == pytest.approx(1)


def test_spectrum_is_that_of_a_principal_component_analysis() -> None:
    from sklearn.decomposition import PCA

    vectors = np.random.default_rng(3).normal(size=(60, 5)) * [3, 2, 1, 1, 0.1]
    spectrum = CorpusHealth(show="spectrum").of(make_vector_set("random", vectors)).frame()
    expected = PCA().fit(vectors)
    np.testing.assert_allclose(spectrum["variance"], expected.explained_variance_, atol=1e-12)
    np.testing.assert_allclose(spectrum["share"], expected.explained_variance_ratio_, atol=1e-12)
    assert spectrum["cumulative_share"].iloc[-1] == pytest.approx(1)


@pytest.mark.parametrize("dimension", [2, 5])
def test_intrinsic_dimension_of_a_plane(dimension: int) -> None:
    """The points lie on a low-dimensional sphere that is rotated in 30 dimensions."""
    draw = np.random.default_rng(2)
    points = unit(draw.normal(size=(1500, dimension + 1)))
    vectors = points @ np.linalg.qr(draw.normal(size=(30, 30)))[0][: dimension + 1]
    assert two_nn(vectors, nearest_neighbors(vectors, 2)[0]) == pytest.approx(dimension, rel=0.12)


def test_intrinsic_dimension_equals_its_definition() -> None:
    vectors = unit(np.random.default_rng(4).normal(size=(20, 6)))
    distances = np.sort(np.linalg.norm(vectors[:, None] - vectors[None], axis=-1), axis=1)
    ratios = np.sort(distances[:, 2] / distances[:, 1])[:18]  # without the largest tenth
    share = np.arange(1, 19) / 20
    x, y = np.log(ratios), -np.log(1 - share)
    expected = np.linalg.lstsq(x[:, None], y, rcond=None)[0][0]
    assert two_nn(vectors, nearest_neighbors(vectors, 2)[0]) == pytest.approx(expected, rel=1e-9)


def test_modified_z_scores_by_hand() -> None:
    # The median is 3; the absolute deviations 2, 1, 0, 1, 97 have the median 1.
    values = np.array([1.0, 2, 3, 4, 100])
    assert modified_z_scores(values)[-1] == pytest.approx(0.6744897501960817 * 97)
    assert not modified_z_scores(np.ones(4)).any()


def test_cluster_words_are_specific() -> None:
    texts = ["the boat sails", "the boat sinks", "the map shows", "a map of the town", "the the the"]
    first, second = cluster_words(texts, np.array([0, 0, 1, 1, -1]))
    assert first == ["boat", "sails", "sinks"]
    assert second == ["map", "of", "shows", "town"]


def test_score_of_a_cluster_word_by_hand() -> None:
    """The word is 2 of the 6 words of a cluster, and 2 of the 16 words of all texts, which are the prior.

    With the prior, the word is 2 + 2 of 6 + 16 words of the cluster, and 0 + 2 of 10 + 16 other words.
    """
    expected = (np.log(4 / 18) - np.log(2 / 24)) / np.sqrt(1 / 4 + 1 / 2)
    assert _log_odds(2, 6, 2, 16) == pytest.approx(expected)


def test_files_and_command(tmp_path: Path) -> None:
    rows, _ = planted(400)
    rows[3], rows[4] = 0, np.nan
    texts = [f"text {number}" for number in range(399)] + [" "]
    ids = [f"id{number}" for number in range(400)]
    dropped = np.arange(400) % 2
    np.savez(tmp_path / "a.npz", vectors=rows, ids=ids, texts=texts, tokens_dropped=dropped)
    table = pa.table({"id": ids, "text": texts, "vector": rows.tolist(), "tokens_dropped": dropped})
    pq.write_table(table, tmp_path / "a.parquet")
    a, b = (bert_probe.read_vectors(tmp_path / f"a.{ending}") for ending in ("npz", "parquet"))
    assert (a.ids, a.texts) == (b.ids, b.texts)
    np.testing.assert_allclose(a.vectors, b.vectors, rtol=1e-6)
    result = CorpusHealth(show="outliers").of(a)
    summary = result.summary()
    assert (summary["rows_without_vector"], summary["empty_texts"], summary["truncated_rows"]) == (2, 1, 200)
    ended = run("corpus", "health", str(tmp_path / "a.npz"), "--show", "outliers")
    assert ended.status == 0, ended.err
    listed = list(csv.DictReader(io.StringIO(ended.text)))
    assert [row["id"] for row in listed] == list(result.frame()["id"])
    assert result.python.endswith("CorpusHealth(show='outliers').of(vectors).table()")
    assert result.shell.endswith("corpus health --show outliers a.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"values": np.ones((4, 2))}, "has the arrays values"),
        ({"vectors": np.ones(4)}, "shape"),
        ({"vectors": np.ones((4, 2)), "ids": ["a"]}, "4 vectors, but 1 entries in ids"),
        ({"vectors": np.array([["a", "b"]])}, "numbers"),
        ({"vectors": np.ones((4, 2))}, "at least 12 are needed"),
    ],
)
def test_invalid_files(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(TextError, match=message):
        CorpusHealth().of(bert_probe.read_vectors(tmp_path / "a.npz"))


@pytest.mark.parametrize("name", ["a.csv", "a.npz", "a.parquet"])
def test_files_that_are_not_vectors(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"text")
    with pytest.raises(TextError, match="not a"):
        bert_probe.read_vectors(tmp_path / name)


@pytest.mark.prove
def test_means_of_a_store(stores: Callable[[str], Store], tmp_path: Path) -> None:
    """The means of the stored vectors of the last layer equal the sentence vectors with mean pooling."""
    store = stores("tokens")
    vectors = bert_probe.read_vectors(store.folder)
    assert vectors.texts == tuple(document.text for document in store.documents)
    expected = bert_probe.Sentences("mean").of(store.checkpoint(trust=True), list(vectors.texts))
    np.testing.assert_allclose(vectors.vectors, expected.vectors, rtol=1e-5, atol=1e-6)
    assert vectors.ids == tuple(document.id for document in store.documents)
    assert "tokens has no sentence vectors" in vectors.note
    assert "The means of its token vectors in layer 3 are used" in vectors.note
    (tmp_path / "a.parquet").write_bytes(vectors.to_parquet())
    assert bert_probe.read_vectors(tmp_path / "a.parquet").digest == vectors.digest
    assert parse_vectors(vectors.to_parquet(), "a.parquet").digest == vectors.digest


@pytest.mark.prove
def test_threshold_of_a_model(minilm: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threshold is a quarter of the distance at the 99.9th percentile of the cosines of all pairs of
    reference sentences. A store of the built-in model uses this threshold. Vectors of another model or
    pooling are refused.
    """
    texts = [f"Sentence number {number} is here." for number in range(14)]
    vectors = make_vector_set("a.npz", bert_probe.Sentences("model").of(minilm, texts).vectors, texts=texts)
    sentences = reference_sentences()[:40]
    monkeypatch.setattr(health, "reference_sentences", lambda: sentences)
    rows = unit(bert_probe.Sentences("model").of(minilm, sentences).vectors.astype(np.float64))
    cosines = (rows @ rows.T)[np.triu_indices(len(rows), k=1)]
    result = CorpusHealth().of(vectors, minilm)
    assert result.threshold == pytest.approx(1 - (1 - np.percentile(cosines, 99.9)) / 4, abs=1e-6)
    assert result.provenance["weights_sha256"] == minilm.description.weights_sha256
    assert result.python.endswith(
        "bert_probe.load()\nbert_probe.CorpusHealth().of(vectors, checkpoint).table()"
    )
    assert result.shell.endswith(f"corpus health --model {BUILT_IN} a.npz")
    assert "calibrated with random pairs of these vectors" in CorpusHealth().of(vectors).finding
    assert "cosine of at least 0.900)" in CorpusHealth(threshold=0.9).of(vectors, minilm).finding
    with pytest.raises(SelectionError, match=r"not those of .* with the pooling cls: for the text of row"):
        CorpusHealth(pooling="cls").of(vectors, minilm)
    with pytest.raises(SelectionError, match="have 5 dimensions, but those of"):
        CorpusHealth().of(make_vector_set("b.npz", np.ones((14, 5))), minilm)

    file = tmp_path / "lines.txt"
    file.write_text("\n".join(texts), "utf-8")
    store = bert_probe.build_corpus(minilm, bert_probe.IngestConfig(layers=(6,)), [file], tmp_path / "a")
    of_store = CorpusHealth().of(bert_probe.read_vectors(store.folder), minilm)
    ended = run("corpus", "health", str(store.folder))
    assert ended.status == 0, ended.err
    printed = {row["measure"]: float(row["value"]) for row in csv.DictReader(io.StringIO(ended.text))}
    assert printed["duplicate_threshold"] == pytest.approx(of_store.threshold)
    assert of_store.threshold_source == "model"
    refused = run("corpus", "health", "--revision", "main", str(store.folder))
    assert "--revision applies to --model" in refused.err


def test_uploads_are_bounded() -> None:
    """Decompression bombs, arrays that declare more elements than they contain, and pickles are refused."""
    contents = []
    for values, compress in ((np.zeros((300_000, 8), np.float32), True), (np.array([{}], object), False)):
        buffer = io.BytesIO()
        (np.savez_compressed if compress else np.savez)(buffer, vectors=values)
        contents.append(buffer.getvalue())
    header = b"\x93NUMPY\x01\x00v\x00" + b"{'descr':'<f4','fortran_order':False,'shape':(10**9,10**6)}"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("vectors.npy", header.replace(b"10**9,10**6", b"9999999999,99999").ljust(128))
    for content in (*contents, buffer.getvalue(), b"PK\x03\x04"):
        with pytest.raises(TextError, match=r"more than 20 times its size|not a valid NPZ"):
            parse_vectors(content, "a.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"ids": np.array("a")}, r"ids of a\.npz must have shape \(4,\), not \(\)"),
        ({"tokens_dropped": np.array(["x"] * 4)}, "tokens_dropped of a.npz must be whole numbers"),
        ({"tokens_dropped": np.array([1, np.nan, 0, 2])}, "tokens_dropped of a.npz must be whole numbers"),
        ({"tokens_dropped": np.array([1, -1, 0, 2])}, "tokens_dropped of a.npz must be whole numbers"),
        ({"tokens_dropped": np.ones((4, 1))}, r"must have shape \(4,\), not \(4, 1\)"),
    ],
)
def test_columns_of_another_form_are_refused(
    arrays: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", vectors=np.ones((4, 2)), **arrays)
    with pytest.raises(TextError, match=message):
        bert_probe.read_vectors(tmp_path / "a.npz")


def test_memory_is_reserved_for_the_decoded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed file needs memory for its decompressed arrays, which may be much larger than the file."""
    monkeypatch.setattr(preflight, "free_memory", lambda: 1_500_000)
    vectors = np.zeros((1_000, 1_000), np.float32)
    np.savez_compressed(tmp_path / "a.npz", vectors=vectors)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 1_000)
    pq.write_table(pa.table({"vector": lists}), tmp_path / "a.parquet")
    for name in ("a.npz", "a.parquet"):
        assert (tmp_path / name).stat().st_size < 100_000
        with pytest.raises(OutOfMemoryError, match=rf"{name} needs about .* of memory"):
            bert_probe.read_vectors(tmp_path / name)


def test_broken_headers_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, vectors=np.arange(8.0).reshape(4, 2))
    content = buffer.getvalue()
    start = content.index(b"vectors.npy") + 40
    headers = [b"{'descr':'<f4','fortran_order':False,'shape':" + b"(" * 90, b"{'descr': \x0c"]
    files = [content[:start] + b"\xff" * 20 + content[start + 20 :]]
    for header in headers:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("vectors.npy", b"\x93NUMPY\x01\x00\xf0\x00" + header.ljust(240))
        files.append(buffer.getvalue())
    for file in files:
        (tmp_path / "a.npz").write_bytes(file)
        with pytest.raises(TextError, match="not a valid NPZ"):
            bert_probe.read_vectors(tmp_path / "a.npz")


def test_wide_vectors_have_few_components() -> None:
    """With fewer rows than dimensions, the nonzero variances are computed from the Gram matrix."""
    rows = np.random.default_rng(1).normal(size=(20, 50))
    centered = rows - rows.mean(axis=0)
    expected = np.linalg.eigvalsh(centered.T @ centered / 19)[::-1]
    np.testing.assert_allclose(principal_variances(rows), np.maximum(expected, 0), atol=1e-12)
    with measure_peak() as peak:
        principal_variances(np.ones((20, 100_000), np.float32))
    assert peak() < 60e6


def test_too_many_components_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "MAX_COMPONENTS", 15)
    vectors = make_vector_set("a.npz", np.random.default_rng(1).normal(size=(20, 16)))
    with pytest.raises(TextError, match="20 vectors of size 16 have 16 principal components, but at most 15"):
        CorpusHealth().of(vectors)


def test_numbers_whose_variance_overflows_count_as_no_vector() -> None:
    rows = np.random.default_rng(1).normal(size=(20, 4))
    rows[3] = 1e150
    result = CorpusHealth().of(make_vector_set("a.npz", rows))
    assert result.summary()["rows_without_vector"] == 1
    assert result.measures["iso_score"] > 0


def parquet(**columns: Any) -> bytes:
    buffer = io.BytesIO()
    vector = pa.array([[1.0, 2.0]], pa.list_(pa.float64()))
    pq.write_table(pa.table({"vector": vector} | columns), buffer)
    return buffer.getvalue()


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, vectors=np.ones((1, 2)), **arrays)
    return buffer.getvalue()


def repeated_column(first: str, second: str) -> bytes:
    vector = pa.array([[1.0, 2.0]], pa.list_(pa.float64()))
    others = [pa.array(["a"]), pa.array(["b"])]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([vector, *others], ["vector", first, second]), buffer)
    return buffer.getvalue()


@pytest.mark.gate(cases=4)
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"vector": [1], "text": "\\ud800"}', "Line 1 of a.jsonl"),
        ("a.npz", npz(texts=np.array(["\ud800"])), "Row 1 of a.npz has a lone surrogate"),
        ("a.npz", npz(ids=np.array(["\ud800"])), "Row 1 of a.npz has a lone surrogate"),
        ("a.npz", npz(tokens_dropped=np.array([2.0**53])), "tokens_dropped of a.npz must be whole numbers"),
        ("a.npz", npz(tokens_dropped=np.array([2**63], np.uint64)), "tokens_dropped of a.npz must be"),
        ("a.parquet", parquet(tokens_dropped=pa.array([2**60])), "tokens_dropped of a.parquet must be"),
        ("a.parquet", parquet(tokens_dropped=pa.array([True])), "tokens_dropped of a.parquet must be"),
        ("a.parquet", parquet(tokens_dropped=pa.array(["1"])), "tokens_dropped of a.parquet must be"),
        ("a.parquet", repeated_column("text", "text"), "a.parquet has several columns named text"),
        ("a.parquet", repeated_column("id", "id"), "a.parquet has several columns named id"),
        ("a.jsonl", b'{"vector": [1], "id": "a", "id": "b"}', "Line 1 of a.jsonl"),
        ("a.parquet", parquet(id=pa.array([2**60], pa.timestamp("ms"))), "values of the type timestamp"),
        (
            "a.parquet",
            parquet(vector=pa.array([[0]], pa.list_(pa.timestamp("s")))),
            "does not contain lists of numbers",
        ),
    ],
)
def test_values_that_are_not_text_or_counts_are_refused(name: str, content: bytes, message: str) -> None:
    with pytest.raises(TextError, match=message):
        parse_vectors(content, name)


def test_digest_is_of_all_columns() -> None:
    """Vector sets have different digests if any value, the boundaries of texts, or a dtype differs."""
    ones = np.ones((2, 2), np.float32)
    columns = [
        (ones, ["a", "b"], ["c", "d"], [0, 1]),
        (ones, ["a", "b"], ["c", "d"], [0, 2]),
        (ones, ["a", "b"], ["c", "d"], None),
        (ones, ["a", "b"], None, None),
        (ones, ["a\nb", "c"], None, None),
        (ones, ["a", "b\nc"], None, None),
        (ones.view(np.float64), ["a", "b"], None, None),
    ]
    sets = [make_vector_set("a", *values) for values in columns]
    assert len({*sets}) == len(sets)


def test_wide_strings_are_not_counts() -> None:
    """NumPy would convert the strings to an array whose elements are all as wide as the longest string."""
    with measure_peak() as peak, pytest.raises(TextError, match="must be whole numbers"):
        make_vector_set("a.parquet", np.ones((1_000, 2)), dropped=["x" * 1_000_000, *["1"] * 999])
    assert peak() < 20e6


def test_json_lines_are_bounded_and_can_be_canceled() -> None:
    line = b'{"vector": [' + b"1," * 199 + b"1]}\n"
    content, reports = line * 1_000, list[tuple[int, int]]()
    with measure_peak() as peak:
        vectors = parse_vectors(content, "a.jsonl", progress=lambda *report: reports.append(report))
        assert peak() < 3 * vectors.vectors.nbytes
    assert [done for done, _ in reports[:3]] == [0, len(line), 2 * len(line)]
    assert len(reports) > 1_000


@pytest.mark.parametrize("name", ["cluster", "torch.linalg.eigvalsh"])
def test_long_computations_can_be_canceled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started, ended = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        started.set()
        ended.wait(60)

    def progress(*_: int) -> None:
        if started.is_set():
            raise Cancelled

    monkeypatch.setattr(f"bert_probe.corpus.health.{name}", wait)
    vectors = make_vector_set("a", np.random.default_rng(0).normal(size=(60, 8)))
    with pytest.raises(Cancelled):
        CorpusHealth().of(vectors, progress=progress)
    ended.set()


def test_errors_of_a_cancellable_computation_are_raised() -> None:
    assert run_cancellable(lambda: 7, no_progress) == 7
    with pytest.raises(ZeroDivisionError):
        run_cancellable(lambda: 1 / 0, no_progress)


def test_a_long_text_needs_memory_once() -> None:
    """The strings are not copied into an array whose elements are all as wide as the longest string."""
    texts = ["x" * 1_000_000, *["a"] * 999]
    with measure_peak() as peak:
        make_vector_set("a.jsonl", np.ones((1_000, 2)), texts=texts)
        assert peak() < 20e6


def test_repeated_values_of_a_parquet_file_are_bounded(tmp_path: Path) -> None:
    """Dictionary encoding stores a repeated text or number once, but every row needs memory."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(600)), 2)
    texts = pa.array(["x" * 400_000] * 300)
    pq.write_table(pa.table({"vector": lists, "text": texts}), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    assert len(content) < 100_000
    with pytest.raises(TextError, match=r"more than 50 MB of texts"):
        parse_vectors(content, "a.parquet")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(13_000_000, np.float32)), 1_000)
    pq.write_table(pa.table({"vector": lists}), tmp_path / "b.parquet")
    with pytest.raises(TextError, match=r"more than [\d,]+ values"):
        parse_vectors((tmp_path / "b.parquet").read_bytes(), "b.parquet")


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("value", [{"a": 1}, ["a"], [("a", 1)]], ids=["struct", "list", "map"])
@pytest.mark.parametrize("column", ["text", "id"])
def test_nested_columns_of_a_parquet_file_are_refused(column: str, value: Any) -> None:
    is_map = isinstance(value, list) and isinstance(value[0], tuple)
    values = pa.array([value] * 3, pa.map_(pa.string(), pa.int64()) if is_map else None)
    buffer = io.BytesIO()
    pq.write_table(pa.table({"vector": pa.array([[1.0, 2.0]] * 3), column: values}), buffer)
    with pytest.raises(TextError, match=f"The column {column} of v.parquet contains values of the type"):
        parse_vectors(buffer.getvalue(), "v.parquet")


def test_sets_with_different_columns_are_different() -> None:
    vectors = np.arange(12, dtype=np.float32).reshape(2, 6)
    sets = [
        make_vector_set("v", vectors, **columns)
        for columns in (
            {},
            {"dropped": np.zeros(2, int)},
            {"dropped": np.full(2, 7)},
            {"texts": ["c\nd", "e"]},
            {"texts": ["c", "d\ne"]},
            {"ids": ["c\nd", "e"]},
            {"ids": ["c", "d\ne"]},
        )
    ]
    sets += [
        make_vector_set("v", vectors.reshape(shape), ids=list("ab")[: shape[0]])
        for shape in ((1, 12), (2, 6))
    ]
    sets.append(make_vector_set("v", vectors.view(np.float64)))
    assert len(set(sets)) == len(sets) == len({item.cache_key for item in sets})
