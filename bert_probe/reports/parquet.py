"""Decode a Parquet file from an untrusted source within the memory that the expected file takes.

A few bytes of a Parquet page may claim to unpack to gigabytes. So a file is decoded only if the headers of
its pages claim sizes similar to those of the expected file.
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
from bert_probe.reports.tables import ReportTable

_EXTRA_BYTES: Final = 1_000_000
"""Allowed size in addition to four times that of the expected file."""
_ENCODINGS: Final = frozenset({0, 2, 3, 8})
"""Plain, dictionary and run-length encodings, as pyarrow writes; delta encodings could amplify few bytes."""


def restated(table: ReportTable, frame: pd.DataFrame, provenance: Mapping[str, Any]) -> bytes:
    """Return the Parquet file of a stated table.

    Args:
        table: from the report.
        frame: the same table computed here, which determines the types.
        provenance: from the report.

    Raises:
        ValueError: a cell does not fit the type of its column.
        TypeError: a cell does not fit the type of its column.
    """
    types = files.flatten_index(frame).dtypes
    columns = [
        pd.Series(list(column.cells), dtype=dtype).rename(column.name)
        for column, dtype in zip(table.columns, types, strict=True)
    ]
    return table_file(pd.concat(columns, axis=1) if columns else pd.DataFrame(), provenance)


def decoded(content: bytes, expected: bytes) -> tuple[ReportTable, bool] | None:
    """Decode a Parquet file.

    Args:
        content: the content of the untrusted file.
        expected: content of the expected file.

    Returns:
        The table, and whether types and metadata are as expected; None if the file cannot be decoded within
        the allowed memory.
    """
    try:
        expected_file = pyarrow.parquet.ParquetFile(io.BytesIO(expected))
        if not _is_small(content, expected):
            return None
        options = {"thrift_string_size_limit": len(content), "thrift_container_size_limit": 100_000}
        file = pyarrow.parquet.ParquetFile(io.BytesIO(content), **options)
        if not _has_expected_size(content, file.metadata, expected_file.metadata):
            return None
        is_same = file.schema_arrow.equals(expected_file.schema_arrow, check_metadata=True)
        texts = [
            field.name
            for field in expected_file.schema_arrow
            if pyarrow.types.is_string(field.type) or pyarrow.types.is_large_string(field.type)
        ]
        # Repeated texts stay dictionary-encoded, as in the file.
        file = pyarrow.parquet.ParquetFile(io.BytesIO(content), read_dictionary=texts, **options)
        return ReportTable.of(file.read().to_pandas(ignore_metadata=True)), is_same
    except (pyarrow.ArrowException, OSError, ValueError, IndexError, struct.error, MemoryError):
        return None


def _is_small(content: bytes, expected: bytes) -> bool:
    footers = [int.from_bytes(file[-8:-4], "little") for file in (content, expected)]
    return (
        len(content) <= 4 * len(expected) + _EXTRA_BYTES and footers[0] <= 4 * footers[1] + _EXTRA_BYTES // 10
    )


def _has_expected_size(content: bytes, metadata: Any, expected: Any) -> bool:
    """Return whether rows, columns and the claimed sizes of all pages are as expected."""
    if metadata.num_rows != expected.num_rows or metadata.num_columns != expected.num_columns:
        return False
    if metadata.num_row_groups != expected.num_row_groups or metadata.schema.names != expected.schema.names:
        return False
    remaining = 4 * sum(chunk.total_uncompressed_size for chunk in _chunks(expected)) + _EXTRA_BYTES
    for chunk in _chunks(metadata):
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
            start = min(start, chunk.dictionary_page_offset)
        size = chunk.total_compressed_size
        if chunk.num_values != metadata.num_rows or not 0 <= start <= start + size <= len(content):
            return False
        for fields in _page_headers(content[start : start + size]):
            remaining -= fields[2]
            inner = fields.get(5) or fields.get(7) or fields.get(8)
            if not isinstance(inner, dict) or not 0 <= inner.get(1, -1) <= max(metadata.num_rows, 1):
                return False
            if remaining < 0 or fields[2] < 0 or inner.get(4 if 8 in fields else 2) not in _ENCODINGS:
                return False
    return True


def _chunks(metadata: Any) -> list[Any]:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [group.column(number) for group in groups for number in range(group.num_columns)]


def _page_headers(chunk: bytes) -> Sequence[dict[int, Any]]:
    """Return the headers of all pages of a column chunk, each as field number → value.

    They are structs in Thrift's compact protocol; see PageHeader in parquet.thrift.
    """
    headers, offset = [], 0
    while offset < len(chunk):
        fields, offset = _struct(chunk, offset)
        if not 0 <= fields.get(3, -1) <= len(chunk) - offset or type(fields.get(2)) is not int:
            raise ValueError("A page is longer than its column.")
        offset += fields[3]
        headers.append(fields)
    return headers


def _struct(data: bytes, offset: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    if depth > 4:
        raise ValueError("A page header is nested too deeply.")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head, offset = data[offset], offset + 1
        if head == 0:
            return fields, offset
        delta, field_type = head >> 4, head & 0xF
        if delta:
            number += delta
        else:
            number, offset = _zigzag(data, offset)
        if field_type in (1, 2):  # true, false
            fields[number] = field_type == 1
        elif field_type in (4, 5, 6):
            fields[number], offset = _zigzag(data, offset)
        elif field_type == 8:
            size, offset = _varint(data, offset)
            if size > len(data) - offset:
                raise ValueError("A text is longer than its column.")
            offset += size
        elif field_type == 12:
            fields[number], offset = _struct(data, offset, depth + 1)
        else:  # no page header has lists, maps, bytes or doubles
            raise ValueError("A page header has a field of an unknown type.")


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte, offset = data[offset], offset + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise ValueError("A number is longer than 64 bits.")


def _zigzag(data: bytes, offset: int) -> tuple[int, int]:
    value, offset = _varint(data, offset)
    return value >> 1 ^ -(value & 1), offset
