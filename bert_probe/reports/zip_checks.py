"""Check whether the files of a ZIP are those that follow from the data of its page."""

from __future__ import annotations

import base64
import io
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from PIL import Image

from bert_probe.reports import parquet
from bert_probe.reports.differences import CHANGED, MAX_DIFFERENCES, NOT_RENDERED, Difference, exact_text
from bert_probe.reports.numbers import ViewNumbers
from bert_probe.reports.reading import ReportFile
from bert_probe.reports.report import MANIFEST, PAGE, folder_of, manifest_of, picture_file, text_files
from bert_probe.reports.tables import digest
from bert_probe.reports.view_checks import ViewCheck

_EMBEDDED_PNG: Final = re.compile('data:image/png;base64,([A-Za-z0-9+/=]+)"')
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_CHUNK: Final = struct.Struct(">L4s")  # of a PNG: length of the content, type
_CHECKSUM_BYTES: Final = 4
_DECIMAL: Final = re.compile(r"-?[0-9]+\.[0-9]{2,}")


def file_differences(
    check: ViewCheck, files: Mapping[str, bytes], actual: ViewNumbers
) -> Iterator[Difference]:
    """Compare the files of a view in a ZIP with those that follow from the report's data.

    Args:
        check: the check of the view, which gets the digests that the manifest must state.
        files: name → bytes, of the ZIP.
        actual: computed here.
    """
    stated, folder = check.stated, folder_of(check.number, check.stated.view)
    expected = text_files(stated.view, stated.parts)
    picture = actual.picture
    if picture is not None and picture.still is None:
        # Drawn from the stated payloads, so that no digit depends on the processor.
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
            continue  # `manifest_differences` reports it
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
        return parquet.restated(check.stated.table, actual.result.table(), check.stated.provenance)
    except (ValueError, TypeError, OverflowError):
        return None  # the table has other columns or types, which its view reports


def _parquet_differences(check: ViewCheck, content: bytes, expected: bytes | None) -> Iterator[Difference]:
    """Compare a table.parquet that has other bytes cell by cell with the stated table."""
    decoded = None if expected is None else parquet.decoded(content, expected)
    if decoded is None:
        yield check.difference("table.parquet", "", "", "cannot be compared", "", finding=NOT_RENDERED)
        return
    table, is_same = decoded
    if not is_same:
        yield check.difference(
            "table.parquet", "", "schema", "other types or metadata", "", finding=NOT_RENDERED
        )
    for column, other in zip(check.stated.table.columns, table.columns, strict=True):
        for row, (stated, cell) in enumerate(zip(column.cells, other.cells, strict=True)):
            if stated != cell:
                name = check.stated.table.row_name(row)
                texts = exact_text(cell), exact_text(stated)
                yield check.difference("table.parquet", name, column.name, *texts, finding=CHANGED)
    if is_same:
        check.remarks.append(
            f"View {check.number}: table.parquet was written by another version of pyarrow. Its types and "
            "cells equal those of the page; its other bytes, such as statistics, were not compared."
        )


def manifest_differences(
    read: ReportFile, files: Mapping[str, bytes], sha256: Mapping[str, str], is_right: bool
) -> Iterator[Difference]:
    """Compare the names of a ZIP's files with the expected names, and its manifest if all else is right.

    Args:
        read: the report.
        files: name → bytes, of the ZIP without its page.
        sha256: expected file name → digest, without the page.
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

    Images may be compressed differently. In attributes, numbers with at least two decimals may differ by one
    unit in the last place, as another processor may round a line's opacity differently.
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
        # Other chunks could have an animation or a color profile. The header with the size must be equal too,
        # so no more pixels are decompressed than are drawn here.
        if _png_chunks(sides[0]) != _png_chunks(sides[1]):
            return False
        images = [Image.open(io.BytesIO(side), formats=["PNG"]) for side in sides]
        return images[0].tobytes() == images[1].tobytes()
    except (OSError, ValueError, SyntaxError, struct.error):
        return False


def _png_chunks(png: bytes) -> list[tuple[bytes, bytes]]:
    """Return (type, content) of a PNG's chunks; the compressed pixels are one chunk without content.

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
    """Return whether two tags, and the texts after them, are equal up to rounding."""
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
