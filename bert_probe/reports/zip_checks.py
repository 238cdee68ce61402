"""Check whether the files in a report's ZIP, including Parquet files, match the data of the page."""

from __future__ import annotations

import base64
import io
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import pandas as pd
import pyarrow
import pyarrow.parquet
from PIL import Image

from bert_probe.core import files
from bert_probe.errors import TextError
from bert_probe.reports.numbers import (
    CHANGED,
    MAX_DIFFERENCES,
    NOT_RENDERED,
    Difference,
    ViewNumbers,
    exact_text,
)
from bert_probe.reports.parquet_footers import has_equal_footer
from bert_probe.reports.reading import ReportFile
from bert_probe.reports.report import (
    MANIFEST,
    PAGE,
    folder_of,
    manifest_of,
    picture_file,
    table_file,
    text_files,
)
from bert_probe.reports.tables import ReportTable, digest
from bert_probe.reports.view_checks import ViewCheck
from bert_probe.text.parquet import PageHeader, check_readable, pages
from bert_probe.text.parquet_child import open_parquet

_EMBEDDED_PNG: Final = re.compile('data:image/png;base64,([A-Za-z0-9+/=]+)"')
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_CHUNK: Final = struct.Struct(">L4s")  # header of a PNG chunk: length of the content, and type
_CHECKSUM_BYTES: Final = 4
_DECIMAL: Final = re.compile(r"-?[0-9]+\.[0-9]{2,}")


def file_differences(
    check: ViewCheck, files: Mapping[str, bytes], actual: ViewNumbers
) -> Iterator[Difference]:
    """Compare a view's files in a ZIP with files rendered from the report's data.

    Args:
        check: the check of the view; this function adds the expected digests to `check.sha256`.
        files: contents of all files of the ZIP except the page, by file name.
        actual: the recomputed numbers of the view.
    """
    stated, folder = check.stated, folder_of(check.number, check.stated.view)
    expected = text_files(stated.view, stated.parts)
    picture = actual.picture
    if picture is not None and picture.still is None:
        # Draw the stated payloads, because the last digits of recomputed payloads depend on the processor.
        decoded = [check.decode_payload(i, len(payload)) for i, payload in enumerate(picture.payloads)]
        payloads = [payload for payload in decoded if payload is not None]
        if len(payloads) == len(decoded):
            picture = replace(picture, payloads=payloads)
    pictures = picture_file(picture)
    table = _table_file(check, actual)
    for name in ("table.parquet", *expected, *pictures):
        path = f"{folder}/{name}"
        content = files.get(path)
        check.sha256[path] = "" if content is None else digest(content)
        if content is None:
            continue  # `manifest_differences` reports missing files
        if name == "table.parquet":
            is_same = content == table
            differences = (
                [] if is_same else [*islice(_parquet_differences(check, content, table), MAX_DIFFERENCES)]
            )
            is_same = is_same or not differences
            yield from (difference for difference in differences if difference.row)
        else:
            is_same = content == expected.get(name) or (
                name in pictures and is_same_picture(content, pictures[name])
            )
        if not is_same:
            correct = table if name == "table.parquet" else {**expected, **pictures}[name]
            digests = digest(content), "" if correct is None else digest(correct)
            yield Difference(0, "file", path, "SHA-256", *digests, finding=NOT_RENDERED)


def _table_file(check: ViewCheck, actual: ViewNumbers) -> bytes | None:
    try:
        return restated(check.stated.table, actual.result.table(), check.stated.provenance)
    except (ValueError, TypeError, OverflowError):
        return None  # `ViewCheck.all` reports columns and types that differ


def _parquet_differences(check: ViewCheck, content: bytes, expected: bytes | None) -> Iterator[Difference]:
    """Compare the cells of a Parquet file with the stated table; used if the bytes of the file differ."""
    tables = None if expected is None else decoded(content, expected)
    if tables is None:
        yield check.difference("table.parquet", "", "", "cannot be compared", "", finding=NOT_RENDERED)
        return
    table, is_same = tables
    if not is_same:
        yield check.difference(
            "table.parquet", "", "schema", "different types, metadata or statistics", "", finding=NOT_RENDERED
        )
    for column, other in zip(check.stated.table.columns, table.columns, strict=True):
        for row, (stated, cell) in enumerate(zip(column.cells, other.cells, strict=True)):
            if stated != cell:
                name = check.stated.table.row_name(row)
                texts = exact_text(cell), exact_text(stated)
                yield check.difference("table.parquet", name, column.name, *texts, finding=CHANGED)
    if is_same:
        check.remarks.append(
            f"View {check.number}: table.parquet was written by another version of pyarrow. The types, cells "
            "and statistics of table.parquet equal those of the page; the other bytes, such as sizes and "
            "encodings, were not compared."
        )


def manifest_differences(
    read: ReportFile, files: Mapping[str, bytes], sha256: Mapping[str, str], is_right: bool
) -> Iterator[Difference]:
    """Yield missing and unexpected files of a ZIP; if there are no other differences, check the manifest.

    Args:
        read: the report.
        files: contents of all files of the ZIP except the page, by file name.
        sha256: expected digests of all files except the page, by file name.
        is_right: whether no other differences were found.
    """
    for name in sorted({*files, MANIFEST} ^ {*sha256, MANIFEST}):
        actual = digest(files[name]) if name in files else "missing"
        stated = "expected" if name in sha256 else "not a file of this report"
        yield Difference(0, "file", exact_text(name), "SHA-256", stated, actual, finding=CHANGED)
        is_right = False
    manifest = manifest_of(read.title, read.made_with, {PAGE: digest(read.page), **sha256})
    if is_right and files[MANIFEST] != manifest:
        digests = digest(files[MANIFEST]), digest(manifest)
        yield Difference(0, "file", MANIFEST, "SHA-256", *digests, finding=NOT_RENDERED)


def is_same_picture(stated: bytes, expected: bytes) -> bool:
    """Return whether two SVG files show the same picture.

    The compression of images may differ. In attributes, numbers with at least two decimals may differ by one
    unit in the last place, because processors may round the opacity of a line differently.
    """
    if stated == expected:
        return True
    if len(stated) > 4 * len(expected):
        return False
    try:
        sides = [content.decode() for content in (stated, expected)]
    except UnicodeDecodeError:
        return False
    images = [_EMBEDDED_PNG.findall(side) for side in sides]
    if len(images[0]) != len(images[1]) or not all(map(_is_same_image, *images)):
        return False
    tokens = [_EMBEDDED_PNG.sub('"', side).split("<") for side in sides]
    return len(tokens[0]) == len(tokens[1]) and all(map(_is_same_tag, *tokens))


def _is_same_image(stated: str, expected: str) -> bool:
    if stated == expected:
        return True
    try:
        sides = [base64.b64decode(side, validate=True) for side in (expected, stated)]
        # Apart from the compressed pixels, all chunks must be equal: they could contain an animation or a
        # color profile, and the header limits the number of decompressed pixels.
        if _png_chunks(sides[0]) != _png_chunks(sides[1]):
            return False
        images = [Image.open(io.BytesIO(side), formats=["PNG"]) for side in sides]
        return images[0].tobytes() == images[1].tobytes()
    except (OSError, ValueError, SyntaxError, struct.error):
        return False


def _png_chunks(png: bytes) -> list[tuple[bytes, bytes]]:
    """Return type and content of each chunk in a PNG; a single empty chunk replaces the compressed pixels.

    Raises:
        struct.error: the last chunk is incomplete.
    """
    chunks = [(b"", png[: len(_PNG)])]
    offset = len(_PNG)
    while offset < len(png):
        size, chunk_type = _CHUNK.unpack_from(png, offset)
        content = png[offset + _CHUNK.size : offset + _CHUNK.size + size]
        chunk = (chunk_type, b"" if chunk_type == b"IDAT" else content)
        if chunk != chunks[-1] or chunk_type != b"IDAT":
            chunks.append(chunk)
        offset += _CHUNK.size + size + _CHECKSUM_BYTES
    return chunks


def _is_same_tag(stated: str, expected: str) -> bool:
    """Return whether two SVG tags, and the texts that follow them, are equal up to rounding."""
    if stated == expected:
        return True
    (tag, end, text), (other_tag, other_end, other_text) = stated.partition(">"), expected.partition(">")
    numbers, other_numbers = _DECIMAL.findall(tag), _DECIMAL.findall(other_tag)
    return (
        (end, text) == (other_end, other_text)
        and _DECIMAL.sub("#", tag) == _DECIMAL.sub("#", other_tag)
        and all(map(_is_rounding, numbers, other_numbers))
    )


def _is_rounding(stated: str, expected: str) -> bool:
    decimals = max(len(number.partition(".")[2]) for number in (stated, expected))
    return abs(float(stated) - float(expected)) < 1.5 * 10.0**-decimals


_EXTRA_BYTES: Final = 1_000_000
"""Number of bytes by which a file may exceed four times its expected size."""
_ENCODINGS: Final = frozenset({0, 2, 3, 8})
"""The Parquet encodings that pyarrow writes: plain, dictionary and run-length. Delta encodings are rejected,
because they can expand a few bytes to many values."""


def restated(table: ReportTable, frame: pd.DataFrame, provenance: Mapping[str, Any]) -> bytes:
    """Serialize the table stated in a report to Parquet.

    Args:
        table: the table in the report.
        frame: the recomputed table, which determines the types.
        provenance: the provenance in the report.

    Raises:
        ValueError, TypeError: a cell does not fit the type of its column.
    """
    types = files.flatten_index(frame).dtypes
    columns = [
        pd.Series(list(column.cells), dtype=dtype).rename(column.name)
        for column, dtype in zip(table.columns, types, strict=True)
    ]
    return table_file(pd.concat(columns, axis=1) if columns else pd.DataFrame(), provenance)


def decoded(content: bytes, expected: bytes) -> tuple[ReportTable, bool] | None:
    """Decode an untrusted Parquet file with limited memory.

    Args:
        content: the content of the untrusted file.
        expected: content of the expected file.

    Returns:
        The table, and whether types, metadata and statistics match; None if the file cannot be decoded within
        the memory limit.
    """
    try:
        expected_file = pyarrow.parquet.ParquetFile(io.BytesIO(expected))
        if not _is_small(content, expected):
            return None
        if content != expected:
            check_readable(content, "table.parquet")
        file = open_parquet(io.BytesIO(content))
        if not _has_expected_size(content, file.metadata, expected_file.metadata):
            return None
        is_same = (
            file.schema_arrow.equals(expected_file.schema_arrow, check_metadata=True)
            and file.metadata.schema.equals(expected_file.metadata.schema)
            and has_equal_footer(content, expected)
        )
        texts = [
            field.name
            for field in expected_file.schema_arrow
            if pyarrow.types.is_string(field.type) or pyarrow.types.is_large_string(field.type)
        ]
        # Repeated strings stay dictionary-encoded, which saves memory.
        file = open_parquet(io.BytesIO(content), read_dictionary=texts)
        return ReportTable.of(file.read().to_pandas(ignore_metadata=True)), is_same
    except OSError as error:
        if error.errno is not None:
            raise  # Only the operating system sets errno; for a damaged file, pyarrow leaves it None.
        return None
    except (
        TextError,
        pyarrow.ArrowException,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        struct.error,
        MemoryError,
    ):
        return None


def _is_small(content: bytes, expected: bytes) -> bool:
    footers = [int.from_bytes(file[-8:-4], "little") for file in (content, expected)]
    return (
        len(content) <= 4 * len(expected) + _EXTRA_BYTES and footers[0] <= 4 * footers[1] + _EXTRA_BYTES // 10
    )


def _has_expected_size(content: bytes, metadata: Any, expected: Any) -> bool:
    """Return whether a Parquet file has the expected numbers of rows and columns and expected page sizes.

    The columns must fill the file without gaps, and their offsets must be those of their pages, because some
    programs would read pages at other offsets.
    """
    if metadata.num_rows != expected.num_rows or metadata.num_columns != expected.num_columns:
        return False
    if metadata.num_row_groups != expected.num_row_groups or metadata.schema.names != expected.schema.names:
        return False
    remaining = 4 * sum(chunk.total_uncompressed_size for chunk in _chunks(expected)) + _EXTRA_BYTES
    position = 4  # after the magic number
    for chunk in _chunks(metadata):
        if chunk.num_values != metadata.num_rows or position > len(content):
            return False
        found = pages(content, chunk) if chunk.num_values else []
        if not _is_at(position, chunk, found):
            return False
        position += chunk.total_compressed_size
        for page in found:
            remaining -= page.size
            if remaining < 0 or page.size < 0 or not 0 <= page.values <= max(metadata.num_rows, 1):
                return False
            if page.encoding not in _ENCODINGS:
                return False
    return position == len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def _is_at(position: int, chunk: Any, found: Sequence[PageHeader]) -> bool:
    """Return whether the pages of a column begin at a position, and its offsets are those of these pages."""
    if not found:
        return True
    dictionary = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    has_dictionary = found[0].is_dictionary
    return (
        found[0].start == position
        and dictionary == (position if has_dictionary else None)
        and len(found) > has_dictionary
        and chunk.data_page_offset == found[has_dictionary].start
        and not any(page.is_dictionary for page in found[1:])
    )


def _chunks(metadata: Any) -> list[Any]:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [group.column(number) for group in groups for number in range(group.num_columns)]
