"""Test that untrusted stores raise readable errors, and that `verify` finds every changed byte."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bert_probe
from bert_probe.corpus import heads, schema
from bert_probe.corpus.build import FileDifference, build_corpus
from bert_probe.corpus.inputs import IngestConfig
from bert_probe.corpus.schema import TableSchema
from bert_probe.corpus.store import read_measure, row_numbers
from bert_probe.errors import StoreError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.parquet import page_bytes
from tests.helpers.broken_stores import (
    TABLES,
    WRONG,
    cast_column,
    describe_store,
    edit,
    error_messages,
    flip_bytes,
    member_paths,
    rewrite,
    set_null,
)
from tests.helpers.command_line import bert_probe as command
from tests.helpers.gate import prove_unless
from tests.helpers.memory import measure_peak

Stores = Callable[[str], bert_probe.Store]


@pytest.fixture
def store(stores: Stores, tmp_path: Path) -> Path:
    return shutil.copytree(stores("tokens").folder, tmp_path / "store")


@pytest.fixture(scope="session")
def checkpoint(double_family: Callable[[str], bert_probe.Checkpoint]) -> bert_probe.Checkpoint:
    return double_family("bert")


@pytest.mark.parametrize("name", ["manifest.json", "shards/00000.json"])
def test_wrong_json_value_raises_no_traceback(name: str, store: Path) -> None:
    complete = (store / name).read_text()
    for number, path in enumerate(member_paths(json.loads(complete))):
        edit(store / name, path, WRONG[number % len(WRONG)])
        with suppress(StoreError):
            describe_store(bert_probe.open_corpus(store))
        (store / name).write_text(complete)


@pytest.mark.parametrize(
    "path", ["model", "model.model", "model.weights_sha256", "question", "sizes", "sizes.layers", "records"]
)
def test_manifest_with_missing_key_is_refused(path: str, store: Path) -> None:
    edit(store / "manifest.json", path)
    with pytest.raises(StoreError, match=rf"manifest.json has no {path}, which must be"):
        bert_probe.open_corpus(store)
    assert command("corpus", "heads", str(store)).refusal


def test_store_that_is_deleted_while_open_raises_readable_error(store: Path) -> None:
    opened = bert_probe.open_corpus(store)
    shutil.rmtree(store)
    with pytest.raises(StoreError, match="It may have been deleted or moved"):
        bert_probe.SqlQuery("select * from rows").of(opened)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"null", b"\xff", b"", b"[]", b"1e999"])
def test_manifest_that_is_not_an_object_is_refused(content: bytes, store: Path) -> None:
    (store / "manifest.json").write_bytes(content)
    with pytest.raises(StoreError, match="is missing or broken"):
        bert_probe.open_corpus(store)


@pytest.mark.parametrize(
    ("table", "change", "problem"),
    [
        ("rows", lambda table: table.drop_columns("text"), "the column text is missing"),
        ("rows", lambda table: table.slice(1), "rows instead of"),
        ("rows", cast_column("text", pa.int64()), "text is int64 instead of string"),
        ("tokens", cast_column("word", pa.string()), "word is string instead of int32"),
        ("profiles", cast_column("entropy_bits", pa.float64()), "entropy_bits is double instead of float"),
        ("profiles", lambda table: table.slice(3), "rows instead of"),
        ("vectors", cast_column("vector", pa.list_(pa.float32(), 3)), "vector is fixed_size_list"),
        ("vectors", lambda table: table.slice(0, 1), "rows instead of"),
        ("statistics", lambda table: pa.concat_tables([table, table]), "rows instead of"),
    ],
)
def test_table_of_another_schema_is_refused(
    table: str, change: Callable[[pa.Table], pa.Table], problem: str, store: Path
) -> None:
    rewrite(store, table, change)
    opened = bert_probe.open_corpus(store)
    for _ in range(2):
        with pytest.raises(StoreError, match=problem):
            opened.table(table)
    assert problem in command("corpus", "query", str(store), "SELECT 1").refusal


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("table", "column"),
    prove_unless(
        {("rows", "text"), ("vectors", "vector")},
        [
            ("rows", "row"),
            ("rows", "text"),
            ("tokens", "row"),
            ("tokens", "special"),
            ("vectors", "vector"),
            ("statistics", "count"),
            ("statistics", "bins"),
        ],
    ),
)
def test_null_in_required_column_raises_readable_error(
    table: str, column: str, store: Path, checkpoint: bert_probe.Checkpoint
) -> None:
    rewrite(store, table, set_null(column))
    (store / "statistics.parquet").unlink()
    refusals = [
        message
        for message in error_messages(store, checkpoint)
        if any(part in message for part in ("contradict each other", "missing", "another number of values"))
    ]
    assert refusals
    assert max(map(len, refusals)) < 600


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize("table", TABLES)
def test_verify_reports_changed_bytes(table: str, store: Path) -> None:
    file = next((store / table).glob("00001.*"))
    assert bert_probe.verify_corpus(store).differences == ()
    flip_bytes(file)
    result = bert_probe.verify_corpus(store)
    (difference,) = result.differences
    assert difference.file == file.relative_to(store).as_posix()
    assert difference.problem == "was changed: its SHA-256 differs"
    assert result.summary().endswith("1 differs.")
    os.utime(file)  # set a newer modification time, as an ordinary edit would
    os.utime(store / "shards" / "00001.json", ns=(0, file.stat().st_mtime_ns - 1))
    with pytest.raises(StoreError, match="was changed: its SHA-256 differs"):
        bert_probe.open_corpus(store)


def test_copied_store_with_other_times_opens(store: Path) -> None:
    for file in store.rglob("*.json"):
        os.utime(file, (0, 0))
    assert bert_probe.open_corpus(store).rows == 6


def test_verify_prints_differences_and_exits_with_1(store: Path) -> None:
    complete = command("corpus", "verify", str(store))
    assert (complete.status, complete.out) == (0, b"")
    assert "nothing differs" in complete.err
    flip_bytes(store / "rows" / "00000.parquet")
    (store / "tokens" / "00002.parquet").unlink()
    ended = command("corpus", "verify", str(store))
    assert ended.status == 1
    assert ended.text.splitlines() == [
        "file,problem",
        "rows/00000.parquet,was changed: its SHA-256 differs",
        "tokens/00002.parquet,is missing or truncated",
    ]
    assert "2 differ." in ended.err
    assert command("corpus", "verify", str(store.parent)).refusal


def test_verify_compares_the_summary(store: Path) -> None:
    table = pq.read_table(store / "statistics.parquet", partitioning=None)
    place = table.schema.get_field_index("sum")
    wrong = table.set_column(place, table.schema.field(place), pa.array([1.0] * len(table)))
    pq.write_table(wrong, store / "statistics.parquet")
    (difference,) = bert_probe.verify_corpus(store).differences
    assert difference.problem == "differs from the summed statistics of the shards"


def test_store_without_sentences_has_no_differences(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\n")
    assert command("corpus", "run", str(tmp_path / "a.txt"), "--out", str(tmp_path / "store")).status == 0
    verified = command("corpus", "verify", str(tmp_path / "store"))
    assert verified.status == 0
    assert "nothing differs" in verified.err


@pytest.mark.parametrize("number", [0, 1])
def test_missing_shard_is_reported(number: int, store: Path) -> None:
    (store / "shards" / f"{number:05}.json").unlink()
    (store / "statistics.parquet").unlink()
    (difference,) = bert_probe.verify_corpus(store).differences
    assert difference.file == f"shards/{number + 1:05}.json"
    assert difference.problem.startswith("begins with record ")


def test_records_that_are_not_stored_are_counted(store: Path) -> None:
    complete = bert_probe.verify_corpus(store)
    (store / "statistics.parquet").unlink()
    last = max((store / "shards").glob("*.json"))
    count = json.loads(last.read_text())["records"]
    last.unlink()
    interrupted = bert_probe.verify_corpus(store)
    assert (complete.missing, interrupted.missing) == (0, count)
    assert f"{count} records of the inputs are not in the store" in interrupted.summary()


def test_overlapping_shards_are_refused(store: Path) -> None:
    edit(store / "shards" / "00001.json", "first", 1)
    with pytest.raises(StoreError, match="contain the same rows"):
        bert_probe.open_corpus(store)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are not available")
@pytest.mark.parametrize("name", ["manifest.json", "shards/00000.json"])
def test_named_pipe_in_place_of_a_json_file_is_refused(name: str, store: Path) -> None:
    content = (store / name).read_bytes()
    with named_pipe(store / name, content), pytest.raises(StoreError, match="is missing or broken"):
        bert_probe.open_corpus(store)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are not available")
def test_named_pipe_in_place_of_the_summary_is_reported(store: Path) -> None:
    opened = bert_probe.open_corpus(store)
    with named_pipe(store / "statistics.parquet", b""):
        assert heads.head_statistics(opened)
        (difference,) = bert_probe.verify_corpus(store).differences
        assert difference == FileDifference(heads.SUMMARY, "is not a regular file")


@contextmanager
def named_pipe(path: Path, content: bytes) -> Iterator[None]:
    """Replace a file by a named pipe, whose first reader receives `content`."""
    path.unlink()
    os.mkfifo(path)

    def write() -> None:
        with suppress(BrokenPipeError), path.open("wb", buffering=0) as pipe:
            pipe.write(content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        # If nothing has opened the pipe, the writer is still blocked until it has a reader.
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        writer.join()
        os.close(reader)


def test_verification_compares_indexes_of_vectors(store: Path) -> None:
    folder = store / "index"
    folder.mkdir()
    (folder / "06-0.faiss").write_bytes(b"forged")
    (difference,) = bert_probe.verify_corpus(store).differences
    assert difference.file == "index/06-0.faiss"
    assert "does not match" in difference.problem


def test_parquet_with_extreme_compression_is_refused(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "UNCHECKED_BYTES", 2**20)
    layout = TableSchema(pa.schema({"row": pa.int64(), "text": pa.string()}))
    table = pa.table([pa.nulls(10**6, field.type) for field in layout.schema], schema=layout.schema)
    path = tmp_path / "bomb.parquet"
    pq.write_table(table, path, compression="zstd")
    size = path.stat().st_size
    file = schema.TableFile(path, layout, 10**6, size, "", path.stat().st_mtime_ns)
    assert (
        file.problem() == f"would need 12,000,000 bytes of memory, although the file has only {size:,} bytes"
    )
    assert bert_probe.verify_corpus(store).differences == ()


def test_repeated_strings_of_a_parquet_file_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dictionary stores a repeated text once, but each row of the table needs memory."""
    monkeypatch.setattr(schema, "UNCHECKED_BYTES", 2**20)
    layout = TableSchema(pa.schema({"row": pa.int64(), "text": pa.string()}))
    for text, problem in (("x" * 100_000, "would need 5,000,000 bytes of memory"), ("x" * 10, "")):
        table = pa.table([range(50), [text] * 50], schema=layout.schema)
        path = tmp_path / "table.parquet"
        pq.write_table(table, path, compression="zstd")
        stat = path.stat()
        assert (
            schema.TableFile(path, layout, 50, stat.st_size, "", stat.st_mtime_ns)
            .problem()
            .startswith(problem)
        )


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_compressed_arrow_files_are_refused(compression: str | None, tmp_path: Path) -> None:
    """The decoded size of compressed record batches is unknown before they are decoded."""
    layout = TableSchema(pa.schema({"row": pa.int64(), "vector": pa.list_(pa.float32(), 4)}), "arrow")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(4_000, np.float32)), 4)
    table = pa.table([range(1_000), vectors], schema=layout.schema)
    path = tmp_path / "table.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, layout.schema, options=options) as writer:
        writer.write_table(table, 300)
    stat = path.stat()
    problem = schema.TableFile(path, layout, 1_000, stat.st_size, "", stat.st_mtime_ns).problem()
    assert problem == ("cannot be read: its record batches are compressed" if compression else "")
    content = path.read_bytes()
    for position in range(len(content) - 400, len(content), 7):  # the footer
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x81]) + content[position + 1 :])
        file = schema.TableFile(path, layout, 1_000, stat.st_size, "", time.time_ns() + 10**12)
        assert isinstance(file.problem(), str)


def varint(value: int, size: int = 0) -> bytes:
    """Encode an integer as a Thrift varint; pad it to `size` bytes."""
    encoded = bytearray()
    value <<= 1  # zigzag
    while value > 0x7F or len(encoded) + 1 < size:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(encoded) + bytes([value])


def test_sizes_in_a_parquet_footer_are_compared_with_the_pages(tmp_path: Path) -> None:
    layout = TableSchema(pa.schema({"row": pa.int64(), "text": pa.string()}))
    path = tmp_path / "table.parquet"
    pq.write_table(
        pa.table([[1], ["x" * 20_000_000]], layout.schema), path, compression="zstd", use_dictionary=False
    )
    metadata = pq.read_metadata(path).row_group(0)
    content = path.read_bytes()
    for size in (metadata.total_byte_size, metadata.column(1).total_uncompressed_size):
        stated = varint(size)
        assert stated in content
        content = content.replace(stated, varint(1, len(stated)))
    path.write_bytes(content)
    assert pq.read_metadata(path).row_group(0).total_byte_size == 1
    assert pq.read_table(path)["text"][0].as_py() == "x" * 20_000_000
    problem = schema.content_problem(path, layout, 1)
    assert problem.startswith("would need 20,000,")


def test_pages_with_too_many_values_or_other_encodings_are_refused(tmp_path: Path) -> None:
    layout = TableSchema(pa.schema({"row": pa.int64(), "text": pa.string()}))
    path = tmp_path / "table.parquet"
    table = pa.table([range(20), ["x" * 100_000] * 20], layout.schema)
    pq.write_table(table, path, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    assert schema.content_problem(path, layout, 20) == (
        "cannot be read: its pages have invalid sizes or encodings"
    )
    pq.write_table(table, path)
    content = memoryview(path.read_bytes())
    assert page_bytes(content, [1, 1]) > 100_000
    with pytest.raises(ValueError, match="a column has another number of values than rows"):
        page_bytes(content, [1, 2])
    fewer = path.read_bytes().replace(varint(20) + b"\x15\x10", varint(19) + b"\x15\x10")
    with pytest.raises(ValueError, match="its pages have invalid sizes or encodings"):
        page_bytes(memoryview(fewer), [1, 1])


def test_oversized_summary_is_not_used(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = bert_probe.open_corpus(store)
    expected = heads.head_statistics(opened)
    monkeypatch.setattr(schema, "UNCHECKED_BYTES", 2**10)
    table = pq.read_table(store / "statistics.parquet", partitioning=None)
    large = pa.concat_tables([table.slice(0, 1)] * len(table))
    assert large.schema.equals(table.schema, check_metadata=True)
    bomb = pa.concat_tables([large] * 200).combine_chunks()
    pq.write_table(bomb, store / "statistics.parquet", compression="zstd")
    assert heads.read_summary(opened) is None
    monkeypatch.setattr(schema, "UNCHECKED_BYTES", 2**23)
    assert heads.read_summary(opened) is None  # the number of rows differs
    assert repr(heads.head_statistics(opened)) == repr(expected)
    (difference,) = bert_probe.verify_corpus(store).differences
    assert difference == FileDifference(heads.SUMMARY, "cannot be read")


@pytest.mark.parametrize("size", [0, 8, 4_000])
@pytest.mark.parametrize("column", ["row", "vector"])
def test_arrow_buffers_that_are_too_short_are_refused(column: str, size: int, tmp_path: Path) -> None:
    """Otherwise, Arrow would read memory beyond the buffer."""
    layout = TableSchema(pa.schema({"row": pa.int64(), "vector": pa.list_(pa.float32(), 4)}), "arrow")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(40_000, np.float32)), 4)
    path = tmp_path / "table.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, layout.schema) as writer:
        writer.write_table(pa.table([range(10_000), vectors], schema=layout.schema))
    assert schema.content_problem(path, layout, 10_000) == ""
    actual = {"row": 80_000, "vector": 160_000}[column].to_bytes(8, "little")
    content = path.read_bytes()
    assert actual in content
    path.write_bytes(content.replace(actual, size.to_bytes(8, "little")))
    assert schema.content_problem(path, layout, 10_000).startswith("cannot be read: ")


def test_arrow_file_with_a_dictionary_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """The batches of a dictionary can be compressed."""
    layout = TableSchema(pa.schema({"row": pa.int64(), "vector": pa.list_(pa.float32(), 4)}), "arrow")
    values = pa.DictionaryArray.from_arrays(np.zeros(4, np.int32), pa.array(["x" * 1_000_000]))
    path = tmp_path / "table.arrow"
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    table = pa.table({"row": range(4), "vector": values})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    assert schema.content_problem(path, layout, 4) == (
        "cannot be read: it has dictionaries, which stores never have"
    )


def test_column_without_its_rows_is_reported(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow returns no rows for some broken pages."""
    opened = bert_probe.open_corpus(store)
    read = pq.read_table
    monkeypatch.setattr(pq, "read_table", lambda *inputs, **options: read(*inputs, **options).slice(0, 1))
    with pytest.raises(StoreError, match=r"a column has .* rows instead of"):
        row_numbers(opened)
    with pytest.raises(StoreError):
        read_measure(opened, "entropy_bits", [0])


def test_store_of_repetitive_sentences_is_not_refused(
    family: Callable[[str], Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that compress more than the maximum ratio are written without compression."""
    monkeypatch.setattr(schema, "UNCHECKED_BYTES", 2**10)
    monkeypatch.setattr(schema, "MAX_RATIO", 10)
    lines = tmp_path / "lines.txt"
    lines.write_text("the small boat was on the river near the bridge\n" * 1_500)
    question = IngestConfig(keep=("profiles",))
    built = build_corpus(family("bert"), question, [lines], tmp_path / "store", shard_rows=500)
    compression = {
        pq.read_metadata(file).row_group(0).column(0).compression
        for table in ("tokens", "profiles")
        for file in built.files(table)
    }
    assert "UNCOMPRESSED" in compression
    opened = bert_probe.open_corpus(tmp_path / "store")
    assert opened.rows == 1_500
    assert bert_probe.verify_corpus(tmp_path / "store").differences == ()
    assert opened.table("rows").to_table()["text"].to_pylist() == lines.read_text().splitlines()


def test_decoded_size_is_limited_for_all_shards_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "UNCHECKED_BYTES", 2**20)
    layout = TableSchema(pa.schema({"row": pa.int64(), "text": pa.string()}))
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table([range(10), ["x" * 50_000] * 10], layout.schema), path, compression="zstd")
    assert schema.content_problem(path, layout, 10, shards=1) == ""
    assert "would need" in schema.content_problem(path, layout, 10, shards=100)


def test_overlapping_columns_of_a_parquet_file_are_refused(tmp_path: Path) -> None:
    layout = TableSchema(pa.schema({"a": pa.int64(), "b": pa.int64()}))
    path = tmp_path / "table.parquet"
    numbers = pa.array(np.random.default_rng(0).integers(0, 10**6, 1_000))
    pq.write_table(pa.table([numbers, numbers], layout.schema), path, use_dictionary=False)
    content = path.read_bytes()
    first, second = (pq.read_metadata(path).row_group(0).column(index) for index in (0, 1))
    assert page_bytes(memoryview(content), [1, 1]) > 0
    size = varint(first.total_compressed_size)
    assert size == varint(second.total_compressed_size)
    start = varint(second.data_page_offset)
    assert content.count(start) == 1
    path.write_bytes(content.replace(start, varint(4, len(start))))
    assert schema.content_problem(path, layout, 1_000) == ""  # read twice
    group = pq.read_metadata(path).row_group(0)
    assert group.column(1).data_page_offset == 4
    with pytest.raises(ValueError, match="its columns overlap"):
        page_bytes(memoryview(content[: 4 + first.total_compressed_size] + content[-3_000:]), [1, 1])


def test_vectors_are_not_read_when_their_file_is_checked(tmp_path: Path) -> None:
    layout = TableSchema(pa.schema({"row": pa.int64(), "vector": pa.list_(pa.float32(), 1_000)}), "arrow")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(5_000_000, np.float32)), 1_000)
    path = tmp_path / "table.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, layout.schema) as writer:
        writer.write_table(pa.table([range(5_000), vectors], schema=layout.schema))
    with measure_peak() as peak:
        assert schema.content_problem(path, layout, 5_000) == ""
        assert peak() < 1_000_000
