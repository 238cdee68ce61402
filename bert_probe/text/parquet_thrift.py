"""Read structs in Thrift's compact protocol, in which Parquet files store page headers and their footer."""

from __future__ import annotations

from typing import Any

_MAX_DEPTH = 8
"""Maximum number of nested structs and lists; in Parquet's metadata there are at most seven."""


def read_struct(
    data: bytes, offset: int, is_footer: bool = False, depth: int = 0
) -> tuple[dict[int, Any], int]:
    """Read a struct at an offset; return a mapping from field number to value, and the offset of its end.

    Args:
        data: the bytes that contain the struct.
        offset: the offset of the struct.
        is_footer: whether to return strings as bytes, and to accept lists and floating-point numbers. In page
            headers, strings are skipped and the others do not occur. The returned values can take 100 times
            as much memory as a footer.
        depth: number of structs and lists that contain this struct.

    Raises:
        ValueError, IndexError: the bytes are not such a struct.
    """
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
        if number in fields:
            raise ValueError("The metadata contain a field twice.")
        if field_type in (1, 2):  # Thrift encodes a boolean as type 1 (true) or type 2 (false)
            fields[number] = field_type == 1
            continue
        value, offset = _value(data, offset, field_type, is_footer, depth)
        if value is not None:
            fields[number] = value


def _value(data: bytes, offset: int, field_type: int, is_footer: bool, depth: int) -> tuple[Any, int]:
    """Read a value that is not a boolean; return None for a string that is skipped."""
    # All integers of a page header but those of its statistics have 32 bits. The Parquet library ignores
    # others, so they must not replace the value that it reads.
    if field_type == 5 or (field_type in (4, 6) and (is_footer or depth > 1)):
        return _zigzag(data, offset)
    if field_type == 8 or (field_type in (3, 7) and is_footer):
        size = 1 if field_type == 3 else 8
        if field_type == 8:
            size, offset = _varint(data, offset)
        if size > len(data) - offset:
            raise ValueError("A text is longer than its column.")
        return data[offset : offset + size] if is_footer else None, offset + size
    if depth >= _MAX_DEPTH:
        raise ValueError("The metadata are nested too deeply.")
    if field_type == 12:
        return read_struct(data, offset, is_footer, depth + 1)
    if field_type == 9 and is_footer:
        return _list(data, offset, depth + 1)
    raise ValueError("The metadata contain a field of an unknown type.")


def _list(data: bytes, offset: int, depth: int) -> tuple[list[Any], int]:
    head, offset = data[offset], offset + 1
    size, item_type = head >> 4, head & 0xF
    if size == 0xF:
        size, offset = _varint(data, offset)
    if size > len(data) - offset:  # each item has at least one byte
        raise ValueError("A list is longer than the metadata.")
    items = []
    for _ in range(size):
        # In a list, a boolean has one byte.
        item, offset = _value(data, offset, 3 if item_type in (1, 2) else item_type, True, depth)
        items.append(item)
    return items, offset


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte, offset = data[offset], offset + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise ValueError("An integer is longer than 64 bits.")


def _zigzag(data: bytes, offset: int) -> tuple[int, int]:
    value, offset = _varint(data, offset)
    return value >> 1 ^ -(value & 1), offset
