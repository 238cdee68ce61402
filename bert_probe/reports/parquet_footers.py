"""Compare the metadata and statistics in the footers of Parquet files, without pyarrow.

Readers trust statistics without reading the cells: DuckDB answers ``SELECT max(x)`` with them. pyarrow reads
the metadata from its own serialized schema, but other readers do not. The numbers of fields are those of
parquet.thrift.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from bert_probe.text.parquet import read_footer

_FILE_FIELDS: Final = (3, 7, 8)
"""Number of rows, sort order of the statistics, encryption."""
_METADATA: Final = 5
_KEY, _VALUE = 1, 2
_ARROW_SCHEMA: Final = b"ARROW:schema"
"""Key of pyarrow's serialized schema, which has other bytes in another version."""
_ROW_GROUPS: Final = 4
_GROUP_FIELDS: Final = (3, 4)
"""Number of rows, sorting columns."""
_CHUNKS: Final = 1
_CHUNK_FIELDS: Final = (1, 4, 5, 6, 7, 8, 9)
"""Another file with the column, page indexes, encryption."""
_COLUMN: Final = 3
_COLUMN_FIELDS: Final = (1, 3, 5, 8, 14, 15, 17)
"""Type, name, number of values, metadata, Bloom filter, statistics of geometries."""
_STATISTICS: Final = 12
_MAX, _MIN, _MAX_VALUE, _MIN_VALUE = 1, 2, 5, 6
"""Largest and smallest value: the deprecated fields, and the fields that replace them."""
_EXACT: Final = (7, 8)
"""Whether the largest and the smallest value are exact."""


def has_equal_footer(content: bytes, expected: bytes) -> bool:
    """Return whether the metadata and statistics of a Parquet file equal those of an expected file.

    The file may lack statistics and similar statements, because another version of pyarrow may write none.
    Sizes, offsets, encodings, the name of the program, and the value of `_ARROW_SCHEMA` are not compared.

    Args:
        content: content of an untrusted file with a footer of limited size.
        expected: content of the expected file.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: the footer cannot be read.
    """
    footer, expected_footer = read_footer(content), read_footer(expected)
    groups = zip(footer[_ROW_GROUPS], expected_footer[_ROW_GROUPS], strict=True)
    return (
        _metadata(footer) == _metadata(expected_footer)
        and _are_equal(footer, expected_footer, _FILE_FIELDS)
        and all(_is_equal_group(group, expected_group) for group, expected_group in groups)
    )


def _metadata(footer: dict[int, Any]) -> list[tuple[bytes, bytes | None]]:
    """Return the sorted keys and values of the metadata, including repeated keys."""
    pairs = [(pair[_KEY], pair.get(_VALUE)) for pair in footer.get(_METADATA, [])]
    return sorted((key, None if key == _ARROW_SCHEMA else value) for key, value in pairs)


def _is_equal_group(group: dict[int, Any], expected: dict[int, Any]) -> bool:
    chunks = zip(group[_CHUNKS], expected[_CHUNKS], strict=True)
    return _are_equal(group, expected, _GROUP_FIELDS) and all(
        _are_equal(chunk, expected_chunk, _CHUNK_FIELDS)
        and _are_equal(chunk[_COLUMN], expected_chunk[_COLUMN], _COLUMN_FIELDS)
        and _are_equal_statistics(
            chunk[_COLUMN].get(_STATISTICS, {}), expected_chunk[_COLUMN].get(_STATISTICS, {})
        )
        for chunk, expected_chunk in chunks
    )


def _are_equal_statistics(statistics: dict[int, Any], expected: dict[int, Any]) -> bool:
    # An older version of pyarrow may have written only the deprecated fields.
    expected = {_MAX: expected.get(_MAX_VALUE), _MIN: expected.get(_MIN_VALUE)} | expected
    return _are_equal(statistics, expected, statistics.keys() - set(_EXACT))


def _are_equal(stated: dict[int, Any], expected: dict[int, Any], fields: Iterable[int]) -> bool:
    return all(field not in stated or stated[field] == expected.get(field) for field in fields)
