"""Whether the files of a ZIP are those that follow from what its page states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from bert_probe.reports import parquet
from bert_probe.reports.differences import (
    CHANGED,
    MOST,
    NOT_RENDERED,
    Difference,
    exactly,
)
from bert_probe.reports.numbers import ViewNumbers
from bert_probe.reports.reading import ReportFile
from bert_probe.reports.report import (
    MANIFEST,
    PAGE,
    folder_of,
    manifest_of,
    picture_file,
    text_files,
)
from bert_probe.reports.svg import is_same_picture
from bert_probe.reports.tables import digest
from bert_probe.reports.view_checks import ViewCheck


def file_differences(checked: ViewCheck, held: Mapping[str, bytes], now: ViewNumbers) -> Iterator[Difference]:
    """Compare the files of the view in a ZIP with those that follow from what is stated."""
    stated, folder = checked.stated, folder_of(checked.number, checked.stated.view)
    expected = text_files(stated.view, stated.parts)
    picture = now.picture
    if picture is not None and picture.still is None:
        # Drawn from what is stated, so that no digit depends on the processor.
        payloads = [checked.unpacked(place, len(payload)) for place, payload in enumerate(picture.payloads)]
        whole = [payload for payload in payloads if payload is not None]
        if len(whole) == len(payloads):
            picture = replace(picture, payloads=whole)
    drawn = picture_file(picture)
    table = _table_file(checked, now)
    for name in ("table.parquet", *expected, *drawn):
        path = f"{folder}/{name}"
        content = held.get(path)
        checked.sha256[path] = "" if content is None else digest(content)
        if content is None:
            continue  # reported with the names of all files
        if name == "table.parquet":
            is_same = content == table
            differences = [] if is_same else [*islice(_parquet_differences(checked, content, table), MOST)]
            is_same = is_same or not differences
            yield from (difference for difference in differences if difference.row)
        else:
            is_same = content == expected.get(name) or (
                name in drawn and is_same_picture(content, drawn[name])
            )
        if not is_same:
            right = table if name == "table.parquet" else {**expected, **drawn}[name]
            texts = digest(content), "" if right is None else digest(right)
            yield Difference(0, "file", path, "SHA-256", *texts, finding=NOT_RENDERED)


def _table_file(checked: ViewCheck, now: ViewNumbers) -> bytes | None:
    try:
        return parquet.restated(checked.stated.table, now.result.table(), checked.stated.provenance)
    except (ValueError, TypeError, OverflowError):
        return None  # a table of another form, which was reported as such


def _parquet_differences(checked: ViewCheck, content: bytes, expected: bytes | None) -> Iterator[Difference]:
    """Compare a table.parquet of other bytes cell by cell with what is stated."""
    decoded = None if expected is None else parquet.decoded(content, expected)
    if decoded is None:
        yield checked.difference("table.parquet", "", "", "cannot be compared", "", finding=NOT_RENDERED)
        return
    table, is_same = decoded
    if not is_same:
        yield checked.difference(
            "table.parquet", "", "schema", "other types or metadata", "", finding=NOT_RENDERED
        )
    for column, other in zip(checked.stated.table.columns, table.columns, strict=True):
        for row, (cell, there) in enumerate(zip(column.cells, other.cells, strict=True)):
            if cell != there:
                name = checked.stated.table.row_name(row)
                yield checked.difference(
                    "table.parquet", name, column.name, exactly(there), exactly(cell), finding=CHANGED
                )
    if is_same:
        checked.remarks.append(
            f"View {checked.number}: table.parquet was written by another version of pyarrow. Its types and "
            "cells are those of the page; other bytes of it, such as statistics, were not compared."
        )


def manifest_differences(
    read: ReportFile, files: Mapping[str, bytes], sha256: Mapping[str, str], is_right: bool
) -> Iterator[Difference]:
    """Compare the names of a ZIP's files with the expected ones, and its manifest where all else is right."""
    for name in sorted({*files, MANIFEST} ^ {*sha256, MANIFEST}):
        there = digest(files[name]) if name in files else "missing"
        stated = "expected" if name in sha256 else "not a file of this report"
        yield Difference(0, "file", exactly(name), "SHA-256", stated, there, finding=CHANGED)
        is_right = False
    manifest = manifest_of(read.title, read.made_with, {PAGE: digest(read.page), **sha256})
    if is_right and files[MANIFEST] != manifest:
        texts = digest(files[MANIFEST]), digest(manifest)
        yield Difference(0, "file", MANIFEST, "SHA-256", *texts, finding=NOT_RENDERED)
