"""Test the comparison of metadata and statistics in Parquet footers, which pyarrow does not compare."""

from __future__ import annotations

import io
import struct
from typing import Any

import pandas as pd
import pyarrow.parquet
import pytest

from bert_probe.reports.parquet_footers import has_equal_footer
from bert_probe.text.parquet import read_struct

FRAME = pd.DataFrame({"weight": [0.25, 0.5, 0.75], "token": ["we", "left", "ground"], "layer": [1, 2, 2]})


def to_parquet(**options: Any) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pandas(FRAME), sink, **options)
    return sink.getvalue()


@pytest.fixture(scope="module")
def content() -> bytes:
    return to_parquet()


def replaced_in_footer(content: bytes, old: bytes, new: bytes) -> list[bytes]:
    """Return a copy of a Parquet file for each occurrence of `old` in its footer, with `new` in its place."""
    copies = []
    offset = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    while (offset := content.find(old, offset)) >= 0:
        copies.append(content[:offset] + new + content[offset + len(old) :])
        offset += len(old)
    return copies


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"write_statistics": False},
        {"write_statistics": ["token"]},
        {"compression": "zstd", "use_dictionary": False},
        {"version": "1.0"},
    ],
    ids=str,
)
def test_files_of_the_same_table_are_equal(options: dict[str, Any], content: bytes) -> None:
    assert has_equal_footer(to_parquet(**options), content)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (struct.pack("<d", 0.75), struct.pack("<d", 0.5)),
        (struct.pack("<d", 0.25), struct.pack("<d", 0.5)),
        (struct.pack("<q", 2), struct.pack("<q", 3)),
        (b"ground", b"brown!"),
    ],
)
def test_other_statistics_are_found(old: bytes, new: bytes, content: bytes) -> None:
    copies = replaced_in_footer(content, old, new)
    assert copies
    assert not any(has_equal_footer(copy, content) for copy in copies)


def test_other_metadata_are_found(content: bytes) -> None:
    copies = replaced_in_footer(content, b'"weight"', b'"height"')
    assert copies
    for copy in copies:
        schemas = [pyarrow.parquet.read_schema(io.BytesIO(file)) for file in (copy, content)]
        assert schemas[0].equals(schemas[1], check_metadata=True)
        assert not has_equal_footer(copy, content)


@pytest.mark.parametrize(
    "options",
    [
        {"write_page_index": True},
        {"sorting_columns": [pyarrow.parquet.SortingColumn(0)]},
    ],
    ids=str,
)
def test_further_statements_are_found(options: dict[str, Any], content: bytes) -> None:
    assert not has_equal_footer(to_parquet(**options), content)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x15",
        b"\x1b\x00\x00",
        b"\x19\xfc\xff\xff\xff\xff\x07\x00",
        b"\x18\x05ab\x00",
        b"\x1c" * 100,
        b"\x19\x19" * 100,
        b"\x16" + b"\xff" * 11,
    ],
    ids=[
        "nothing",
        "half an integer",
        "a map",
        "a long list",
        "a long text",
        "structs",
        "lists",
        "an integer",
    ],
)
def test_broken_structs_are_refused(data: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        read_struct(data, 0, is_footer=True)


def test_struct_is_read() -> None:
    half = struct.pack("<d", 0.5)
    data = b"\x11\x12\x15\x03\x18\x02ab\x19\x21\x01\x02\x17" + half + b"\x1c\x15\x04\x00\x00"
    fields, end = read_struct(data, 0, is_footer=True)
    expected = {1: True, 2: False, 3: -2, 4: b"ab", 5: [b"\x01", b"\x02"], 6: half, 7: {1: 2}}
    assert (fields, end) == (expected, len(data))


def test_page_headers_have_no_lists() -> None:
    assert read_struct(b"\x18\x02ab\x15\x04\x00", 0) == ({2: 2}, 7)
    with pytest.raises(ValueError, match="unknown type"):
        read_struct(b"\x19\x21\x01\x02\x00", 0)
