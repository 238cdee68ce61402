"""Read text columns from an untrusted Parquet file with limited memory."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bert_probe.errors import EmptyTextError, TextError
from bert_probe.text.formats import BrokenRow
from bert_probe.text.parquet_child import CPU_SECONDS, NO_MEMORY, TOO_LARGE, open_parquet
from bert_probe.text.parquet_child import MAX_BYTES as MAX_CHILD_BYTES
from bert_probe.text.sentence_files import MAX_BYTES, MAX_SENTENCES

_MAX_COLUMNS = 10_000
_ENCODINGS = frozenset({0, 2, 3, 5, 6, 8})
"""IDs of the supported Parquet encodings. Encodings with shared prefixes, such as DELTA_BYTE_ARRAY, are
rejected, because they can expand a few bytes to many long texts."""


_SECONDS = 60
"""Time limit in seconds for the child process of `check_readable`."""
_OUT_OF_TIME = getattr(signal, "SIGXCPU", 0)
"""Number of the signal that ends a process without CPU time; 0 on systems without this limit."""
_CHILDREN = threading.Semaphore(2)
"""Limits the number of concurrent child processes, each of which may use 0.5 GB."""


def check_readable(content: bytes | BinaryIO, name: str) -> None:
    """Check that an untrusted Parquet file can be read without a crash, by reading it in a child process.

    Some damaged files cause an uncaught C++ exception in the Parquet library, which ends the process.

    Args:
        content: the content of the file, or the open file. Of a large open file, only the metadata are read.
        name: the file name, for error messages.

    Raises:
        TextError: the file crashes the child process, or reading takes more than `_SECONDS`, `CPU_SECONDS` of
            CPU time or `MAX_CHILD_BYTES` of memory.
    """
    # A process may also be killed for lack of memory, so only a file that crashes it twice is refused.
    if _crashes_reader(content, name) and _crashes_reader(content, name):
        raise _broken(name, ValueError("the file is damaged, and crashes the process that reads it"))


def _crashes_reader(content: bytes | BinaryIO, name: str) -> bool:
    status = _run_child(content, name).returncode
    if status and status == -_OUT_OF_TIME:
        raise TextError(f"{name} takes more than {CPU_SECONDS} seconds of CPU time to read. Split the file.")
    return status < 0


def _run_child(content: bytes | BinaryIO, name: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run `parquet_child` on a file.

    Raises:
        TextError: reading takes more than `_SECONDS` or more than `MAX_CHILD_BYTES` of memory.
    """
    source: dict[str, Any] = {"input": content}
    if not isinstance(content, bytes):
        os.lseek(content.fileno(), 0, os.SEEK_SET)  # the child process shares the position
        source = {"stdin": content}
    with _CHILDREN:
        try:
            child = subprocess.run(
                _command(*arguments),
                **source,
                capture_output=True,
                timeout=_SECONDS,
                env=_environment(),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TextError(f"{name} takes more than {_SECONDS} seconds to read. Split the file.") from None
    if child.returncode == NO_MEMORY:
        raise TextError(
            f"{name} needs more than {MAX_CHILD_BYTES / 1e6:.0f} MB of memory to read. Split the file."
        )
    return child


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "bert_probe.text.parquet_child", *arguments]


def _environment() -> dict[str, str]:
    paths = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "MALLOC_ARENA_MAX": "2"}


def column_batches(stream: BinaryIO, column: str) -> Iterator[Any]:
    """Yield a column of texts as Arrow arrays, which a child process with limited memory decodes.

    Args:
        stream: an open file. Its position is shared with the child process.
        column: name of the column.

    Raises:
        ValueError, OSError, pyarrow.ArrowException: the rest of the file cannot be read.
    """
    import pyarrow

    # In a session of its own, Ctrl+C does not end the child process before this one.
    with subprocess.Popen(
        _command(column),
        stdin=stream,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        incomplete = None
        try:
            with pyarrow.ipc.open_stream(child.stdout) as batches:
                for batch in batches:
                    yield batch.column(0)
        except (pyarrow.ArrowException, OSError) as error:
            incomplete = error
        except BaseException:  # for example, the caller closes this generator
            child.kill()
            raise
        child.stdout.close()
        reason = child.stderr.read().decode(errors="replace")
    if child.returncode == NO_MEMORY:
        raise ValueError(f"reading it takes more than {MAX_CHILD_BYTES / 1e6:.0f} MB of memory")
    if child.returncode < 0:
        raise ValueError("it crashes the process that reads it")
    if child.returncode or incomplete:
        raise ValueError(reason or str(incomplete))


def decode(content: bytes | BinaryIO, name: str, columns: Sequence[str], max_bytes: int) -> Any:
    """Decode columns of an untrusted Parquet file in a child process with limited memory.

    Args:
        content: the content of the file, or the open file.
        name: the file name, for error messages.
        columns: names of the columns.
        max_bytes: maximum size of the decoded columns in bytes.

    Returns:
        A `pyarrow.Table` with these columns.

    Raises:
        TextError: the columns are larger than `max_bytes`, or reading takes too long or too much memory.
        ValueError: the file is broken.
    """
    import pyarrow

    child = _run_child(content, name, str(max_bytes), json.dumps([*columns]))
    if child.returncode == TOO_LARGE:
        raise TextError(
            f"{name} has more than {max_bytes / 1e6:,.0f} MB after decompression. Split the file."
        )
    if child.returncode:
        raise ValueError(child.stderr.decode(errors="replace") or "the file is damaged")
    with pyarrow.ipc.open_stream(pyarrow.py_buffer(child.stdout)) as reader:
        return reader.read_all()


def check_upload(content: bytes, name: str, max_values: int | None = None) -> None:
    """Check that all columns of an untrusted Parquet file can be decoded with limited memory.

    Args:
        content: the content of the file.
        name: the file name, for error messages.
        max_values: maximum total number of values in all columns, for files whose cells are lists. By
            default, only the number of values per page is limited: to the number of rows of the file.

    Raises:
        TextError: the file is broken, or its decoded size exceeds `MAX_BYTES`.
    """
    import pyarrow

    check_readable(content, name)
    try:
        metadata = open_parquet(io.BytesIO(content)).metadata
        _check_pages(content, metadata, None, name, max_values)
    except (pyarrow.ArrowException, OSError, ValueError, IndexError, TypeError, struct.error) as error:
        raise _broken(name, error) from None


def parquet_table(
    stream: BinaryIO, name: str, columns: Sequence[str]
) -> tuple[list[str], Iterator[tuple[int, Sequence[str]]]]:
    """Read columns of a Parquet file. Return their names, and an iterator over (row number, row) pairs.

    If the file has none of the columns, the names of all its columns and no rows are returned. A row with a
    text that is not UTF-8 or has a NUL character becomes a `BrokenRow`. Integers become digits, and null
    becomes an empty cell.

    Args:
        stream: an open file, which need not be seekable.
        name: the file name, for error messages.
        columns: names of the columns to read, in lower case. If the file has a single column, that column is
            read under any name.

    Raises:
        TextError: the file is not Parquet, has too many rows, several columns of a name, columns of other
            types or an unsupported encoding, or is larger than `MAX_BYTES` before or after decoding. The
            iterator raises it as well.
        EmptyTextError: the file has no columns.
    """
    import pyarrow

    content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise TextError(f"{name} is larger than {MAX_BYTES / 1e6:.0f} MB. Split the file.")
    check_readable(content, name)
    errors = (pyarrow.ArrowException, OSError, ValueError, IndexError, TypeError, struct.error)
    try:
        file = open_parquet(io.BytesIO(content))
        schema, metadata = file.schema_arrow, file.metadata
    except errors as error:
        raise _broken(name, error) from None
    if not schema.names:
        raise EmptyTextError(f"{name} has no columns. Write a column named text.")
    names = _columns(schema, columns, name)
    if metadata.num_rows > MAX_SENTENCES:
        raise TextError(f"{name} has more than {MAX_SENTENCES:,} rows. Split the file.")
    try:
        _check_pages(content, metadata, names, name)
        table = decode(content, name, names, 2 * MAX_BYTES)
    except errors as error:
        raise _broken(name, error) from None
    return names or schema.names, _rows(table, names, name)


def _columns(schema: Any, columns: Sequence[str], name: str) -> list[str]:
    """Return the names of the columns to read, after checking that the columns contain texts or IDs."""
    import pyarrow

    names = []
    for field in schema:
        if field.name.strip().casefold() not in columns and len(schema.names) > 1:
            continue
        if schema.names.count(field.name) > 1:
            raise TextError(f"{name} has several columns named {field.name[:40]}. Keep one of these columns.")
        value = field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type
        checks = ("is_string", "is_large_string", "is_string_view", "is_integer", "is_null")
        if not any(getattr(pyarrow.types, check)(value) for check in checks):
            raise TextError(
                f"Column {field.name[:40]} of {name} has type {str(field.type)[:60]}, but must have type "
                "string. Save the column as strings."
            )
        names.append(field.name)
    return names


def _broken(name: str, error: Exception) -> TextError:
    if isinstance(error, UnicodeDecodeError):
        return TextError(
            f"{name} has a column whose name is not UTF-8. Rename the column, and save the file again."
        )
    reason = str(error).partition("\n")[0].rstrip(".")[:200]
    return TextError(f"{name} cannot be read as Parquet: {reason}. Save the file as Parquet again.")


def _too_large(name: str) -> TextError:
    return TextError(f"{name} has more than {MAX_BYTES / 1e6:.0f} MB of texts. Split the file.")


def _rows(table: Any, names: Sequence[str], name: str) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield (row number from 1, row) pairs; the total size of the texts is limited."""
    number = size = 0
    for batch in table.to_batches():
        cells = [batch.column(column) for column in names]
        for index in range(batch.num_rows):
            number += 1
            row = _row(cells, index)
            size += sum(map(len, row))
            if size > MAX_BYTES:
                raise _too_large(name)
            yield number, row


def _row(cells: Sequence[Any], index: int) -> Sequence[str]:
    try:
        values = [column[index].as_py() for column in cells]
    except UnicodeDecodeError:
        return BrokenRow("a text is not UTF-8")
    if any(isinstance(value, str) and "\0" in value for value in values):
        return BrokenRow("a text contains a NUL character")
    return ["" if value is None else str(value) for value in values]


def _check_pages(
    content: bytes, metadata: Any, names: Sequence[str] | None, name: str, max_values: int | None = None
) -> None:
    """Check the sizes and encodings that the page headers of columns state, before a page is decompressed.

    Args:
        content: the content of the file.
        metadata: the file's metadata, as read by pyarrow.
        names: names of the columns to check; None for all columns.
        name: the file name, for error messages.
        max_values: see `check_upload`.

    Raises:
        TextError: the pages are too large, or have an unsupported encoding.
        ValueError: the headers contradict the metadata.
    """
    if metadata.num_columns > _MAX_COLUMNS:
        raise TextError(f"{name} has more than {_MAX_COLUMNS:,} columns. Save only the texts.")
    remaining, unused = MAX_BYTES, len(content)
    page_values = max(metadata.num_rows, 1) if max_values is None else math.inf
    remaining_values = max_values
    for group in range(metadata.num_row_groups):
        chunks = map(metadata.row_group(group).column, range(metadata.num_columns))
        for chunk in chunks:
            if names is not None and chunk.path_in_schema not in names:
                continue
            unused -= chunk.total_compressed_size
            if unused < 0:  # the pages of one column could be read again and again
                raise ValueError("its columns overlap")
            for page in pages(content, chunk):
                remaining -= page.size
                if page.size < 0 or not 0 <= page.values <= page_values:
                    raise ValueError("a page has a negative size or an invalid number of values")
                if remaining_values is not None:
                    remaining_values -= page.values
                    if remaining_values < 0:
                        raise TextError(
                            f"{name} has more than {max_values:,} values. Use fewer vectors, or the command "
                            "line."
                        )
                if page.encoding not in _ENCODINGS:
                    raise TextError(
                        f"Column {chunk.path_in_schema[:40]} of {name} has an unsupported encoding. Save "
                        "the file with pyarrow or pandas."
                    )
                if remaining < 0:
                    raise _too_large(name)


class PageHeader(NamedTuple):
    """The header of a Parquet page.

    Attributes:
        size: decompressed size of the page in bytes.
        values: number of values in the page; -1 if it is missing.
        encoding: ID of the encoding in parquet.thrift; -1 if it is missing.
        is_dictionary: whether the page contains a dictionary.
    """

    size: int
    values: int
    encoding: int
    is_dictionary: bool


def pages(content: bytes, chunk: Any) -> list[PageHeader]:
    """Return the headers of all pages of a column chunk, without decompressing a page.

    Args:
        content: the content of a Parquet file.
        chunk: metadata of the chunk.

    Raises:
        ValueError, IndexError: the chunk is not within the file, or a header cannot be read.
    """
    dictionary = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    return _chunk_pages(content, chunk.data_page_offset, dictionary, chunk.total_compressed_size)


_ROWS, _ROW_GROUPS, _CHUNKS, _COLUMN = 3, 4, 1, 3
_VALUES, _COMPRESSED_SIZE, _DATA_OFFSET, _DICTIONARY_OFFSET = 5, 7, 9, 11
"""Numbers of fields in the footer of a Parquet file; see parquet.thrift."""


def page_bytes(content: memoryview, values_per_row: Sequence[int]) -> int:
    """Return the total size of the pages of an untrusted Parquet file after decompression.

    The headers of the pages are read without pyarrow, which some damaged metadata would crash.

    Args:
        content: the content of the file, with a footer of limited size.
        values_per_row: number of values of each column in each row.

    Raises:
        ValueError: the footer or a header cannot be read, columns overlap, or pages have an unsupported
            encoding or another number of values than their column.
    """
    size = 0
    try:
        footer = _read_footer(content)
        groups, unused = footer[_ROW_GROUPS], len(content)
        if sum(group[_ROWS] for group in groups) != footer[_ROWS]:
            raise ValueError("its parts have another number of rows")
        for group in groups:
            for part, per_row in zip(group[_CHUNKS], values_per_row, strict=True):
                chunk = part[_COLUMN]
                unused -= chunk[_COMPRESSED_SIZE]
                if unused < 0:
                    raise ValueError("its columns overlap")
                size += _chunk_bytes(content, chunk, group[_ROWS] * per_row)
    except (LookupError, TypeError, AttributeError):
        raise ValueError("its metadata cannot be read") from None
    return size


def _chunk_bytes(content: memoryview, chunk: dict[int, Any], values: int) -> int:
    """Return the size of the pages of a column chunk with `values` values; see `page_bytes`."""
    if chunk[_VALUES] != values:
        raise ValueError("a column has another number of values than rows")
    if not values:  # the offset of the first page can be 0 then
        return 0
    offsets = chunk[_DATA_OFFSET], chunk.get(_DICTIONARY_OFFSET)
    found = _chunk_pages(content, *offsets, chunk[_COMPRESSED_SIZE])
    in_data = sum(page.values for page in found if not page.is_dictionary)
    if in_data != values or any(
        page.size < 0 or not 0 <= page.values <= values or page.encoding not in _ENCODINGS for page in found
    ):
        raise ValueError("its pages have invalid sizes or encodings")
    return sum(page.size for page in found)


def _read_footer(content: bytes | memoryview) -> dict[int, Any]:
    """Return the footer (FileMetaData) of a Parquet file; its size is next to the last four bytes.

    Raises:
        ValueError, IndexError: the footer cannot be read.
    """
    size = int.from_bytes(content[-8:-4], "little")
    footer = bytes(content[max(0, len(content) - 8 - size) : -8])
    return read_struct(footer, 0, is_footer=True)[0]


def _chunk_pages(
    content: bytes | memoryview, data_offset: int, dictionary_offset: int | None, size: int
) -> list[PageHeader]:
    """Return the headers of the pages of a column chunk, see `pages`."""
    # Like the Parquet library, ignore an offset that is not positive.
    start = data_offset
    if dictionary_offset is not None and 0 < dictionary_offset < data_offset:
        start = dictionary_offset
    if not 0 <= start <= start + size <= len(content):
        raise ValueError("The byte range of a column is not within the file.")
    headers = []
    for fields in _page_headers(content[start : start + size]):
        if len(fields.keys() & {5, 7, 8}) > 1:
            raise ValueError("A page has several headers.")
        inner = fields.get(5) or fields.get(7) or fields.get(8)
        inner = inner if isinstance(inner, dict) else {}
        encoding = inner.get(4 if 8 in fields else 2, -1)
        headers.append(PageHeader(fields[2], inner.get(1, -1), encoding, 7 in fields))
    return headers


def _page_headers(chunk: bytes | memoryview) -> Sequence[dict[int, Any]]:
    """Return the headers of all pages of a Parquet column chunk as mappings from field number to value.

    The headers are structs in Thrift's compact protocol; see PageHeader in parquet.thrift.
    """
    headers, offset = [], 0
    while offset < len(chunk):
        fields, offset = read_struct(chunk, offset)
        if not 0 <= fields.get(3, -1) <= len(chunk) - offset or type(fields.get(2)) is not int:
            raise ValueError("A page has no valid size, or ends after its column.")
        offset += fields[3]
        headers.append(fields)
    return headers


# Page headers and the footer of a Parquet file are structs in Thrift's compact protocol; see parquet.thrift.

_MAX_DEPTH = 8
"""Maximum number of nested structs and lists; in Parquet's metadata there are at most seven."""


def read_struct(
    data: bytes | memoryview, offset: int, is_footer: bool = False, depth: int = 0
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
        if number in fields or not 0 < number < 1 << 15:  # the Parquet library reads 16 bits of the number
            raise ValueError("The metadata contain a field twice, or a field with an invalid number.")
        if field_type in (1, 2):  # Thrift encodes a boolean as type 1 (true) or type 2 (false)
            fields[number] = field_type == 1
            continue
        value, offset = _value(data, offset, field_type, is_footer, depth)
        if value is not None:
            fields[number] = value


def _value(
    data: bytes | memoryview, offset: int, field_type: int, is_footer: bool, depth: int
) -> tuple[Any, int]:
    """Read a value of Thrift's compact protocol; return the value, and the offset of the byte after it.

    The value is None for a string in a page header, which is skipped. `read_struct` reads boolean fields.
    """
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


def _list(data: bytes | memoryview, offset: int, depth: int) -> tuple[list[Any], int]:
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


def _varint(data: bytes | memoryview, offset: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte, offset = data[offset], offset + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise ValueError("An integer is longer than 64 bits.")


def _zigzag(data: bytes | memoryview, offset: int) -> tuple[int, int]:
    value, offset = data[offset], offset + 1
    if value >= 0x80:  # most integers have one byte
        value, offset = _varint(data, offset - 1)
    return value >> 1 ^ -(value & 1), offset
