"""A Parquet file from an untrusted source, compared with the one that the same table gives here.

Its pages claim how large they are unpacked, and a few bytes may claim gigabytes. So equal bytes need no
decoding, and other ones are decoded only where the pages claim no more than those of the expected file.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd
import pyarrow
import pyarrow.parquet

from bert_probe.core import files
from bert_probe.reports.report import table_file
from bert_probe.reports.tables import Table

_ROOM: Final = 1_000_000
"""Bytes that a file may have beyond four times those that are expected."""
_ENCODINGS: Final = frozenset({0, 2, 3, 8})
"""Plain, dictionary and run lengths, as pyarrow writes them; those of differences would amplify few bytes."""


def restated(table: Table, frame: pd.DataFrame, provenance: Mapping[str, Any]) -> bytes:
    """Return the Parquet file of a stated table.

    Args:
        frame: the same table computed here, of which the types are taken.

    Raises:
        ValueError, TypeError: a cell does not fit into the type of its column.
    """
    types = files.plain(frame).dtypes
    columns = [
        pd.Series(list(column.cells), dtype=dtype).rename(column.name)
        for column, dtype in zip(table.columns, types, strict=True)
    ]
    return table_file(pd.concat(columns, axis=1) if columns else pd.DataFrame(), provenance)


def decoded(content: bytes, expected: bytes) -> tuple[Table, bool] | None:
    """Return the table of a Parquet file, and whether types and metadata are those that are expected.

    Returns:
        None where it cannot be decoded, or not within the memory that the expected file takes.
    """
    try:
        like = pyarrow.parquet.ParquetFile(io.BytesIO(expected))
        if not _is_small(content, expected):
            return None
        options = {"thrift_string_size_limit": len(content), "thrift_container_size_limit": 100_000}
        opened = pyarrow.parquet.ParquetFile(io.BytesIO(content), **options)
        if not _fits(content, opened.metadata, like.metadata):
            return None
        is_same = opened.schema_arrow.equals(like.schema_arrow, check_metadata=True)
        texts = [
            field.name
            for field in like.schema_arrow
            if pyarrow.types.is_string(field.type) or pyarrow.types.is_large_string(field.type)
        ]
        # Repeated texts stay what they are in the file: one text, and its number in each row.
        opened = pyarrow.parquet.ParquetFile(io.BytesIO(content), read_dictionary=texts, **options)
        return Table.of(opened.read().to_pandas(ignore_metadata=True)), is_same
    except (pyarrow.ArrowException, OSError, ValueError, IndexError, struct.error, MemoryError):
        return None


def _is_small(content: bytes, expected: bytes) -> bool:
    footers = [int.from_bytes(file[-8:-4], "little") for file in (content, expected)]
    return len(content) <= 4 * len(expected) + _ROOM and footers[0] <= 4 * footers[1] + _ROOM // 10


def _fits(content: bytes, metadata: Any, expected: Any) -> bool:
    """Return whether all rows, columns and pages together are no larger than expected."""
    if metadata.num_rows != expected.num_rows or metadata.num_columns != expected.num_columns:
        return False
    if metadata.num_row_groups != expected.num_row_groups or metadata.schema.names != expected.schema.names:
        return False
    left = 4 * sum(chunk.total_uncompressed_size for chunk in _chunks(expected)) + _ROOM
    for chunk in _chunks(metadata):
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
            start = min(start, chunk.dictionary_page_offset)
        size = chunk.total_compressed_size
        if chunk.num_values != metadata.num_rows or not 0 <= start <= start + size <= len(content):
            return False
        for fields in _page_headers(content[start : start + size]):
            left -= fields[2]
            inner = fields.get(5) or fields.get(7) or fields.get(8)
            if not isinstance(inner, dict) or not 0 <= inner.get(1, -1) <= max(metadata.num_rows, 1):
                return False
            if left < 0 or fields[2] < 0 or inner.get(4 if 8 in fields else 2) not in _ENCODINGS:
                return False
    return True


def _chunks(metadata: Any) -> list[Any]:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [group.column(number) for group in groups for number in range(group.num_columns)]


def _page_headers(chunk: bytes) -> Sequence[dict[int, Any]]:
    """Return the headers of all pages of a column chunk, each by the numbers of its fields.

    They are structs of Thrift's compact protocol; see PageHeader in parquet.thrift.
    """
    headers, at = [], 0
    while at < len(chunk):
        fields, at = _struct(chunk, at)
        if not 0 <= fields.get(3, -1) <= len(chunk) - at or type(fields.get(2)) is not int:
            raise ValueError("A page is longer than its column.")
        at += fields[3]
        headers.append(fields)
    return headers


def _struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    if depth > 4:
        raise ValueError("A page header is nested too deep.")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head, at = data[at], at + 1
        if head == 0:
            return fields, at
        delta, kind = head >> 4, head & 0xF
        if delta:
            number += delta
        else:
            number, at = _zigzag(data, at)
        if kind in (1, 2):  # true, false
            fields[number] = kind == 1
        elif kind in (4, 5, 6):
            fields[number], at = _zigzag(data, at)
        elif kind == 8:
            size, at = _varint(data, at)
            if size > len(data) - at:
                raise ValueError("A text is longer than its column.")
            at += size
        elif kind == 12:
            fields[number], at = _struct(data, at, depth + 1)
        else:  # no page header has lists, maps, bytes or doubles
            raise ValueError("A page header has a field of an unknown type.")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("A number is longer than 64 bits.")


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at
