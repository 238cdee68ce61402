"""Test search in vectors that were computed elsewhere: parity with brute force in float64."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bert_probe
from bert_probe import Search, Sentences, VectorSearch
from bert_probe.analyses.vectors.similarity import scores
from bert_probe.corpus import vector_files, vector_formats, vector_search
from bert_probe.corpus.formats import open_rows
from bert_probe.corpus.schema import _metadata as schema_metadata
from bert_probe.corpus.vector_files import make_vector_set, parse_vectors
from bert_probe.corpus.vector_formats import ArrayFile
from bert_probe.corpus.vector_search import IndexedVectors
from bert_probe.errors import SelectionError, StoreError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text import parquet
from tests.helpers.command_line import ROOT
from tests.helpers.command_line import bert_probe as run
from tests.helpers.http import api_client, problem_detail
from tests.helpers.memory import measure_peak

TEXTS = ("a boat on the river", "a ship on the sea", "nobody can read", "the map of a town", "soup and bread")
IDS = tuple(f"d{number}" for number in range(5))


def indexed(vectors: np.ndarray, similarity: str) -> IndexedVectors:
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    is_valid = np.isfinite(lengths) & (lengths > 0)
    scales = np.where(is_valid, 1 / np.where(is_valid, lengths, 1), np.nan)
    return IndexedVectors(make_vector_set("rows", vectors), similarity, scales, None)


def npy_with_shape(shape: str) -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)


def brute_force(vectors: np.ndarray, query: np.ndarray, similarity: str) -> tuple[np.ndarray, np.ndarray]:
    values = scores(query[None].astype(np.float64), vectors.astype(np.float64), similarity)[0]
    order = np.argsort(-values, kind="stable")
    return order, values[order]


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_best_rows_are_those_of_brute_force(
    similarity: str, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_search, "_BLOCK_NUMBERS", 300 * 24)
    generator = np.random.default_rng(0)
    vectors: np.ndarray = generator.normal(size=(1_000, 24)).astype(dtype)
    vectors *= generator.uniform(0.01, 100, (1_000, 1)).astype(dtype)
    # The scores of these rows differ by less than the float32 rounding error, so float32 would rank them
    # wrongly.
    vectors[500:520] = (
        vectors[7] * (1 + 1e-7 * np.arange(20)[:, None]) + generator.normal(size=(20, 24)) * 1e-7
    )
    query = vectors[7] + generator.normal(size=24).astype(dtype)
    order, values = brute_force(vectors, query, similarity)
    for count in (1, 10, 21, 1_000):
        rows, best = indexed(vectors, similarity).best(query, count)
        np.testing.assert_array_equal(rows, order[:count])
        np.testing.assert_allclose(best, values[:count], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("similarity", ["euclidean", "manhattan"])
def test_zero_vectors_are_left_out_of_distances(similarity: str) -> None:
    vectors = np.array([[3, 4], [0, 0], [1, np.nan], [1, 1]], np.float32)
    rows, values = indexed(vectors, similarity).best(np.array([0, 1], np.float32), 10)
    assert rows.tolist() == [3, 0]
    expected = [-1, -(18**0.5)] if similarity == "euclidean" else [-1, -6]
    np.testing.assert_allclose(values, expected, rtol=1e-7)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_rows_without_a_vector_are_left_out(similarity: str) -> None:
    vectors = np.ones((6, 4), np.float32)
    vectors[1], vectors[2, 3], vectors[4, 0] = 0, np.nan, np.inf
    vectors[5] = 3e38  # The product with the query overflows in float32.
    rows, values = indexed(vectors, similarity).best(np.full(4, 2, np.float32), 10)
    assert rows.tolist() == ([0, 3, 5] if similarity == "cosine" else [5, 0, 3])
    assert np.isfinite(values).all()


def test_scores_and_percentiles_are_those_of_the_search_in_texts(minilm: Checkpoint) -> None:
    vectors = Sentences("model").of(minilm, TEXTS).vectors
    expected = Search("a boat").of(minilm, TEXTS)
    result = VectorSearch("a boat", 3).of(minilm, make_vector_set("v.npz", vectors, IDS, TEXTS))
    assert [document.id for document in result.documents] == [f"d{row}" for row in expected.order[:3]]
    np.testing.assert_allclose(result.scores, expected.scores["bi-encoder"][expected.order[:3]], atol=1e-6)
    np.testing.assert_allclose(result.pair_scores, expected.pair_scores, atol=1e-6)
    assert list(result.frame()["percentile"]) == pytest.approx(list(expected.frame()["percentile"][:3]))
    assert result.agreement == pytest.approx(1, abs=1e-6)
    assert result.is_same_model
    assert "not computed by BERT Probe" in result.notes[0]
    assert "the computed vector agree" in result.notes[0]


def test_vectors_of_another_model_are_recognized(minilm: Checkpoint) -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 384))
    result = VectorSearch("a boat").of(minilm, make_vector_set("v.npz", vectors, IDS, TEXTS))
    assert result.is_same_model is False
    assert "probably meaningless" in result.notes[0]
    without_texts = VectorSearch("a boat").of(minilm, make_vector_set("v.npy", vectors))
    assert (without_texts.agreement, without_texts.documents[0].text) == (None, "")
    with pytest.raises(SelectionError, match=r"v.npz have 7 dimensions, but the vectors of .* have 384"):
        VectorSearch("a boat").of(minilm, make_vector_set("v.npz", vectors[:, :7]))
    with pytest.raises(SelectionError, match=r"have 384 dimensions, but the vectors of .* have 8"):
        VectorSearch("a boat", dimensions=8).of(minilm, make_vector_set("v.npz", vectors))
    with pytest.raises(UnavailableError, match="zero, not finite"):
        VectorSearch("a boat").of(minilm, make_vector_set("v.npz", np.zeros((2, 384))))


def test_index_reports_progress_and_is_reused(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_search, "_BLOCK_NUMBERS", 100 * 384)
    vectors = make_vector_set("v.npy", np.random.default_rng(0).normal(size=(250, 384)))
    reports: list[tuple[int, int]] = []
    question = VectorSearch("a boat", 2)
    index = question.index(minilm, vectors, lambda *report: reports.append(report))
    assert list(dict.fromkeys(reports)) == [(0, 250), (100, 250), (200, 250), (250, 250)]
    pd_equal = question.of(minilm, index).frame().equals(question.of(minilm, vectors).frame())
    assert pd_equal
    with pytest.raises(SelectionError, match="indexed for another model"):
        question.of(minilm, replace(index, similarity="dot"))


def test_every_format_has_the_same_vectors(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    np.savez(tmp_path / "v.npz", vectors=vectors, ids=IDS, texts=TEXTS)
    columns = {"id": list(IDS), "text": list(TEXTS), "vector": vectors.tolist()}
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "v.jsonl").write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    for ending in ("npy", "npz", "parquet", "jsonl"):
        path = tmp_path / f"v.{ending}"
        read = bert_probe.read_vectors(path)
        assert parse_vectors(path.read_bytes(), path.name).digest == read.digest
        np.testing.assert_array_equal(np.asarray(read.vectors, np.float32), vectors)
        assert (tuple(read.ids), read.texts) == (
            (("1", "2", "3", "4", "5"), None) if ending == "npy" else (IDS, TEXTS)
        )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.jsonl", b'{"vector": [1, 2]}\n{"vector": [1]}', "line 2 of v.jsonl has 1 numbers, but .* have 2"),
        ("v.jsonl", b'{"vector": [1, true]}', "Line 1 of v.jsonl is not a JSON object with a list of finite"),
        ("v.jsonl", b'{"vector": [1, NaN]}', "Line 1 of v.jsonl"),
        ("v.jsonl", b'{"vector": [1, 1e999]}', "Line 1 of v.jsonl"),
        ("v.jsonl", b'{"vector": []}', "Line 1 of v.jsonl"),
        ("v.jsonl", b'{"vector": [' + b"9" * 400 + b"]}", "Line 1 of v.jsonl"),
        ("v.jsonl", b'\xff{"vector": [1]}', "Line 1 of v.jsonl"),
        ("v.jsonl", b"[" * 100_000, "Line 1 of v.jsonl"),
        (
            "v.jsonl",
            b'{"vector": [1], "id": 1}\n{"vector": [1]}',
            "Line 2 of v.jsonl has vectors, but .* ids",
        ),
        ("v.jsonl", b'{"vector": [1], "text": 4}', "Line 1 of v.jsonl"),
        ("v.jsonl", b"\n", "has no vectors"),
        ("v.npy", b"text", "not a valid NPY"),
        ("v.npy", npy_with_shape("(2, True)"), "not a valid NPY"),
        ("v.npy", npy_with_shape(f"({2**70}, 2)"), "not a valid NPY"),
        ("v.npz", b"text", "not a valid NPZ"),
        ("v.parquet", b"text", "v.parquet"),
        ("v.txt", b"text", "not a file of vectors"),
    ],
)
def test_invalid_files_are_explained(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(TextError, match=message):
        parse_vectors(content, name, 1_000)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TextError, match=message):
        bert_probe.read_vectors(tmp_path / name)


@pytest.mark.parametrize("ids", [["a", None], [1, None]])
def test_missing_ids_are_explained(ids: list[Any], tmp_path: Path) -> None:
    pd.DataFrame({"id": ids, "vector": [[1.0], [2.0]]}).to_parquet(tmp_path / "v.parquet")
    with pytest.raises(TextError, match=r"Vector 2 of v\.parquet has no ID\. Add the ID"):
        bert_probe.read_vectors(tmp_path / "v.parquet")


@pytest.mark.parametrize("dtype", ["<f2", ">f2", "<f4", ">f8", "<i1", "<i4"])
def test_rows_of_an_array_file_are_those_of_numpy(dtype: str, tmp_path: Path) -> None:
    """Rows that are read from an .npy file are exact, for any selection of rows and across blocks."""
    vectors = np.random.default_rng(0).integers(-100, 100, (70, 5)).astype(dtype)
    vectors[3, 0] = 2**31 - 1 if dtype == "<i4" else 99
    np.save(tmp_path / "v.npy", vectors)
    read = bert_probe.read_vectors(tmp_path / "v.npy")
    assert read.vectors.dtype == (np.float64 if dtype in (">f8", "<i4") else np.float32)
    selections: list[Any] = [
        3,
        -1,
        slice(None),
        slice(60, 5, -7),
        np.array([5, 6, 7, 2, -1]),
        vectors[:, 1] > 0,
    ]
    for selection in [*selections, np.empty(0, int)]:
        np.testing.assert_array_equal(read.vectors[selection], vectors[selection].astype(np.float64))
    with pytest.raises(IndexError):
        read.vectors[np.array([70])]
    assert read.digest == parse_vectors((tmp_path / "v.npy").read_bytes(), "v.npy").digest
    np.save(tmp_path / "v.npy", np.asfortranarray(vectors))
    assert bert_probe.read_vectors(tmp_path / "v.npy").digest == read.digest


def test_half_precision_vectors_are_converted_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array file of 10 MB, which would have 20 MB in float32, is never converted completely."""
    monkeypatch.setattr(vector_files, "_DIGEST_BLOCK", 1 << 18)
    monkeypatch.setattr(vector_search, "_BLOCK_NUMBERS", 1 << 16)
    vectors = np.random.default_rng(0).integers(1, 9, (10_000, 512)).astype(np.float16)
    np.save(tmp_path / "v.npy", vectors)
    expected = brute_force(vectors[:1_000], vectors[0], "cosine")
    with measure_peak() as peak:
        read = bert_probe.read_vectors(tmp_path / "v.npy")
        IndexedVectors(read, "cosine", np.ones(len(read)), None).best(vectors[0], 1)
        assert peak() < 10e6
    np.save(tmp_path / "v.npy", vectors[:1_000])
    head = indexed(bert_probe.read_vectors(tmp_path / "v.npy").vectors[:], "cosine")
    np.testing.assert_allclose(head.best(vectors[0].astype(np.float32), 10)[1], expected[1][:10], rtol=1e-12)


def test_file_that_shrinks_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An access beyond the end of a memory-mapped file would terminate the process."""
    path = tmp_path / "v.npy"
    monkeypatch.setattr(vector_files, "_DIGEST_BLOCK", 4_096)
    for check, message in ((ArrayFile.check, "changed while it was open"), (lambda _: None, "ends before")):
        np.save(path, np.ones((1_000, 64), np.float32))
        monkeypatch.setattr(ArrayFile, "check", check)
        with pytest.raises(StoreError, match=message):
            bert_probe.read_vectors(path, lambda done, _: os.truncate(path, 500) if done else None)
    np.save(path, np.ones((4, 64), np.float32))
    monkeypatch.undo()
    read = bert_probe.read_vectors(path)
    os.utime(path, ns=(0, 0))
    with pytest.raises(StoreError, match="changed while it was open"):
        read.vectors[0]


def test_array_files_without_an_end_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "v.npy")
    with pytest.raises(TextError, match="not a regular file"):
        bert_probe.read_vectors(tmp_path / "v.npy")


@pytest.mark.prove
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the peak memory of a process")
def test_parquet_footer_with_a_million_columns_takes_little_memory() -> None:
    """A footer of 36 bytes that states a million columns and row groups would take 0.8 GB."""
    million = bytes([0xFC]) + bytes([0xBF, 0x84, 0x3D])  # header of a list of 999,999 structures
    schema = b"\x15\x02\x19\x2c\x48\x04root\x15\x02\x00\x15\x0c\x25\x02\x18\x04text\x00"
    footer = schema + b"\x16\x02\x19" + million + b"\x19" + million + bytes(4)
    content = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    script = """
import io, re, sys, pyarrow.parquet
from bert_probe.corpus.vector_files import has_vectors
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
before = peak()
print(has_vectors("v.parquet", io.BytesIO(sys.stdin.buffer.read())), peak() - before)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], input=content, stdout=subprocess.PIPE, cwd=ROOT, check=True
    )
    result, size = ended.stdout.split()
    assert result == b"False"
    assert int(size) < 200e6


def test_size_of_parquet_metadata_is_limited(tmp_path: Path) -> None:
    """A column without a value takes 3 bytes in the metadata of a file, but 700 bytes in memory."""
    thousand = bytes([0xFC, 0xE8, 0x07])  # header of a list of 1,000 structures
    field = b"\x15\x0c\x25\x02\x18\x01t\x00"
    schema = b"\x19\xfc\xe9\x07\x48\x04root\x15\xd0\x0f\x00" + field * 1_000
    group = b"\x19" + thousand + b"\x26\x00\x00" * 1_000 + b"\x16\x00\x16\x00\x00"
    footer = b"\x15\x02" + schema + b"\x16\x02\x19" + thousand + group * 1_000 + b"\x00"
    path = tmp_path / "v.parquet"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    message = r"its metadata have 3\.0 MB, but at most 1\.0 MB are allowed"
    for read in (bert_probe.read_vectors, bert_probe.read_documents):
        with pytest.raises(TextError, match=message):
            read(path)
    with pytest.raises(TextError, match=message), open_rows(path, path.name, None):
        pass
    with pytest.raises(ValueError, match=message):
        schema_metadata(path, "parquet")


def test_damaged_local_file_does_not_crash_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the size of a column can crash, so a child process reads it first."""
    pq.write_table(pa.table({"vector": [[1.0, 2.0]]}), tmp_path / "v.parquet")
    seen = []

    def crashes(stream: BinaryIO, name: str) -> bool:
        seen.append((stream.read(4), name))
        stream.seek(0)
        return True

    monkeypatch.setattr(parquet, "_crashes_reader", crashes)
    with pytest.raises(TextError, match="crashes the process that reads it"):
        bert_probe.read_vectors(tmp_path / "v.parquet")
    assert seen == [(b"PAR1", "v.parquet")] * 2


def test_size_of_unpacked_arrays_is_limited(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "v.npz", vectors=np.zeros((1_000, 100), np.float32))
    content = (tmp_path / "v.npz").read_bytes()
    assert len(content) < 10_000
    with pytest.raises(TextError, match="at most 0 MB are allowed"):
        parse_vectors(content, "v.npz", 100_000)
    assert len(parse_vectors(content, "v.npz", 1_000_000)) == 1_000


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("id", "The column id of v.parquet contains values of the type fixed_size_binary"),
        ("vector", "The column vector of v.parquet does not contain lists of numbers"),
    ],
)
def test_binary_values_of_a_parquet_file_are_refused(column: str, message: str) -> None:
    """Arrow would copy each repetition of a value into its own row: 2 MB here, gigabytes elsewhere."""
    values = pa.array([bytes(2_000)] * 1_000, pa.binary(2_000))
    lists = pa.FixedSizeListArray.from_arrays(values, 1)
    columns = {"vector": [[1.0, 2.0]] * 1_000} | {column: lists if column == "vector" else values}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    with pytest.raises(TextError, match=message):
        parse_vectors(buffer.getvalue(), "v.parquet")


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(("rows", "max_bytes"), [(100_000, None), (600_000, 1_000_000)])
def test_number_of_values_in_an_uploaded_parquet_file_is_limited(rows: int, max_bytes: int | None) -> None:
    """Each row of a kilobyte of compressed zeros would take 100 bytes of memory."""
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32))
    vectors = pa.ListArray.from_arrays(offsets, pa.array(np.zeros(rows, np.float32)))
    buffer = io.BytesIO()
    pq.write_table(pa.table({"vector": vectors}), buffer, compression="zstd")
    assert len(buffer.getvalue()) < 5_000
    with pytest.raises(TextError, match=r"v\.parquet has more than [\d,]+ values"):
        parse_vectors(buffer.getvalue(), "v.parquet", max_bytes)
    assert len(parse_vectors(buffer.getvalue(), "v.parquet", 2_000_000)) == rows


@pytest.mark.prove
def test_local_files_that_expand_too_much_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "v.npz", vectors=np.zeros((1_000, 100), np.float32))
    table = pa.table({"vector": [[1.0, 2.0]] * 100, "text": ["x" * 10_000] * 100})
    pq.write_table(table, tmp_path / "v.parquet")
    assert [len(bert_probe.read_vectors(tmp_path / name)) for name in ("v.npz", "v.parquet")] == [1_000, 100]
    monkeypatch.setattr(vector_files, "SMALL_BYTES", 100_000)
    with pytest.raises(TextError, match="more than 20 times its size"):
        bert_probe.read_vectors(tmp_path / "v.npz")
    with pytest.raises(TextError, match=r"v\.parquet has more than 0 MB of texts"):
        bert_probe.read_vectors(tmp_path / "v.parquet")


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("suffix", [".npz", ".npy", ".jsonl", ".parquet"])
def test_number_of_dimensions_is_limited(suffix: str, tmp_path: Path) -> None:
    vectors = np.zeros((1, 1 << 24), np.uint8)
    file = tmp_path / f"v{suffix}"
    if suffix == ".npz":
        np.savez_compressed(file, vectors=vectors)
    elif suffix == ".npy":
        np.save(file, vectors)
    elif suffix == ".jsonl":
        file.write_text(json.dumps({"vector": [1] * 300_000}) + "\n")
    else:
        pq.write_table(pa.table({"vector": [[1.0] * 300_000]}), file)
    with measure_peak() as peak, pytest.raises(TextError) as error:
        bert_probe.read_vectors(file)
    assert "dimensions, but at most 262,144 are allowed. Use a matrix with one row" in str(error.value)
    if suffix in (".npz", ".npy"):
        assert peak() < 1 << 20  # the header is checked before the vectors are read


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_memory_of_rows_and_of_floats_is_limited(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"v{suffix}"
    for shape in ((1_000, 100), (5_000, 1)):  # 100 kB are 400 kB as float32, and 5,000 rows take 320 kB
        vectors = np.zeros(shape, np.uint8)
        if suffix == ".npz":
            np.savez_compressed(file, vectors=vectors)
        else:
            lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), shape[1])
            pq.write_table(pa.table({"vector": lists}), file)
        assert bert_probe.read_vectors(file).vectors.shape == shape
        with monkeypatch.context() as patch:
            for module in (vector_files, vector_formats):
                patch.setattr(module, "SMALL_BYTES", 300_000)
            with pytest.raises(TextError, match="MB of memory, more than 20 times its size"):
                bert_probe.read_vectors(file)


def test_texts_of_an_npz_file_are_limited(tmp_path: Path) -> None:
    vectors = np.zeros((400_000, 1), np.int8)
    np.savez_compressed(tmp_path / "v.npz", vectors=vectors, texts=np.full(len(vectors), "a"))
    with pytest.raises(TextError, match=r"v\.npz has 400,000 IDs or texts for its size"):
        parse_vectors((tmp_path / "v.npz").read_bytes(), "v.npz", 5_000_000)
    np.savez(tmp_path / "v.npz", vectors=vectors[:2], texts=np.array([b"a", b"b"]))
    with pytest.raises(TextError, match=r"texts of v\.npz must be strings or integers, not \|S1"):
        bert_probe.read_vectors(tmp_path / "v.npz")


def test_row_numbers_take_no_memory() -> None:
    vectors = np.zeros((30_000, 1), np.float32)
    with measure_peak() as peak:
        ids = make_vector_set("v.npy", vectors).ids
        assert peak() < 5e5
    assert (ids[0], ids[-1], *ids[1:3], len(ids)) == ("1", "30000", "2", "3", 30_000)
    assert ids[:2] == ("1", "2")
    assert list(ids[29_998:]) == ["29999", "30000"]
    with pytest.raises(IndexError):
        ids[30_000]


@pytest.mark.prove
def test_command_and_request(minilm: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    vectors = Sentences("model").of(minilm, TEXTS).vectors
    np.savez("v.npz", vectors=vectors, ids=IDS, texts=TEXTS)
    columns = zip(IDS, TEXTS, vectors.tolist(), strict=True)
    lines = [json.dumps({"_id": name, "text": text, "vector": vector}) for name, text, vector in columns]
    Path("v.jsonl").write_text("\n".join(lines))
    Path("texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    answer = run("search", "a boat", "--documents", "v.npz", "--count", "2", "--out", "out.csv")
    assert answer.status == 0, answer.err
    assert "not computed by BERT Probe" in answer.err
    assert "the computed vector agree" in answer.err
    assert Path("out.csv").read_text().splitlines()[0] == "rank,document,score,percentile,text"
    assert Path("out.csv").read_text().splitlines()[1].startswith("1,d0,")
    assert run("search", "a boat", "--documents", "texts.jsonl", "--count", "1").records[0]["document"] == "1"
    refusal = run("search", "a boat", "--documents", "v.npz", "--scorers", "bm25").refusal
    assert "only the scorer bi-encoder supports" in refusal
    request = {"question": {"query": "a boat"}, "documents": {"file": "v.jsonl", "content": "\n".join(lines)}}
    with api_client() as client:
        table = client.post("/api/v1/vector-search", json=request).json()
        assert table["columns"]["document"][0] == "d0"
        assert "not computed by BERT Probe" in table["provenance"]["facts"]["notes"][0]
        refused = client.post("/api/v1/vector-search", json=request | {"documents": ["a boat"]})
        assert "documents must be an object" in problem_detail(refused, 400, "no-json")


@pytest.mark.parametrize("name", ["v.npz", "v.jsonl", "v.parquet"])
def test_files_of_vectors_without_an_end_are_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(TextError, match="is not a regular file"):
        bert_probe.read_vectors(tmp_path / name)
    (tmp_path / f"zero-{name}").symlink_to("/dev/zero")
    with pytest.raises(TextError, match="is not a regular file"):
        bert_probe.read_vectors(tmp_path / f"zero-{name}")
