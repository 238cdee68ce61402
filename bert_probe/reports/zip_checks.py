"""Check whether the files in a report's ZIP match the data of the page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pandas as pd
import pyarrow

from bert_probe.core import files
from bert_probe.reports.numbers import (
    CHANGED,
    NOT_RENDERED,
    Difference,
    ViewNumbers,
    exact_text,
)
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
from bert_probe.views.page import Page

_ATTRIBUTE: Final = re.compile(r'([A-Za-z][\w:-]*)="([^"]*)"')
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_ROUNDED: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,5})(?:\.[0-9]?[1-9])?")
"""A number of an SVG file: two decimals at most, and no zeros that can be omitted."""
_EXACT: Final = {"d": re.compile("[Aa]"), "transform": re.compile("scale|matrix|skew")}
"""Commands of paths and transformations in which a small change of a number can change the whole picture."""
_NUMERIC: Final = frozenset(
    (
        "cx",
        "cy",
        "d",
        "height",
        "opacity",
        "points",
        "r",
        "transform",
        "width",
        "x",
        "x1",
        "x2",
        "y",
        "y1",
        "y2",
    )
) | {"fill-opacity", "stroke-opacity"}
"""Attributes of an SVG file whose numbers may differ by rounding, unlike colors, names and sizes of texts."""


def file_differences(
    check: ViewCheck, files: Mapping[str, bytes], actual: ViewNumbers
) -> Iterator[Difference]:
    """Compare a view's files in a ZIP with files rendered from the report's data.

    Args:
        check: the check of the view. The digest of each file in the ZIP, or "" for a missing file, is added
            to `check.sha256`, and a remark if table.parquet differs.
        files: contents of all files of the ZIP except the page, by file name.
        actual: the recomputed numbers of the view.
    """
    stated, folder = check.stated, folder_of(check.number, check.stated.view)
    expected = text_files(stated.view, stated.parts)
    pictures = _pictures(check, actual.picture)
    table = _table_file(check, actual)
    for name in ("table.parquet", *expected, *pictures):
        path = f"{folder}/{name}"
        content = files.get(path)
        check.sha256[path] = "" if content is None else digest(content)
        if content is None:
            continue  # `manifest_differences` reports missing files
        correct = table if name == "table.parquet" else {**expected, **pictures}[name]
        is_same = content == correct or (name in pictures and is_same_picture(content, pictures[name]))
        if not is_same:
            digests = digest(content), "" if correct is None else digest(correct)
            yield Difference(0, "file", path, "SHA-256", *digests, finding=NOT_RENDERED)
        if not is_same and name == "table.parquet":
            # Its cells are not compared, because programs can read different numbers from a forged file.
            check.remarks.append(
                f"View {check.number}: table.parquet has other bytes than pyarrow {pyarrow.__version__} and "
                f"pandas {pd.__version__} write for the table of the page. Other versions could have written "
                "it, but its numbers may also differ. Use the table of the page."
            )


def _pictures(check: ViewCheck, picture: Page | None) -> dict[str, bytes]:
    """Return the picture file of a view, drawn from the stated payloads if they do not differ.

    The last digits of recomputed payloads depend on the processor. Other payloads are not drawn: they may
    describe a picture of any size.
    """
    if picture is not None and picture.still is None and check.has_same_picture:
        decoded = [check.decode_payload(i, len(payload)) for i, payload in enumerate(picture.payloads)]
        payloads = [payload for payload in decoded if payload is not None]
        if len(payloads) == len(decoded):
            with suppress(ValueError):
                return picture_file(replace(picture, payloads=payloads))
    return picture_file(picture)


def _table_file(check: ViewCheck, actual: ViewNumbers) -> bytes | None:
    try:
        return restated(check.stated.table, actual.frame, check.stated.provenance)
    except (ValueError, TypeError, OverflowError):
        return None  # `ViewCheck.all` reports columns and types that differ


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

    Two numbers in a numeric attribute may differ by 0.01 if at least one of them has decimals, because
    processors may round the opacity of a line differently. Both numbers must be written with at most two
    decimals and without trailing zeros. Paths with arcs and transformations that scale or skew must be equal,
    because a small change of a number can change the whole picture.
    """
    if stated == expected:
        return True
    if len(stated) > 4 * len(expected):
        return False
    try:
        sides = [content.decode() for content in (stated, expected)]
    except UnicodeDecodeError:
        return False
    tags = [side.split("<") for side in sides]
    return len(tags[0]) == len(tags[1]) and all(map(_is_same_tag, *tags))


def _is_same_tag(stated: str, expected: str) -> bool:
    """Return whether two SVG tags and the texts after them are equal up to rounding."""
    if stated == expected:
        return True
    (tag, end, text), (other_tag, other_end, other_text) = stated.partition(">"), expected.partition(">")
    # Three parts for each attribute: the text before it, its name and its value.
    parts, other_parts = _ATTRIBUTE.split(tag), _ATTRIBUTE.split(other_tag)
    return (
        (end, text) == (other_end, other_text)
        and parts[::3] == other_parts[::3]
        and parts[1::3] == other_parts[1::3]
        and all(map(_is_same_value, parts[1::3], parts[2::3], other_parts[2::3]))
    )


def _is_same_value(name: str, stated: str, expected: str) -> bool:
    """Return whether two values of an attribute are the same, or the same numbers up to rounding."""
    return stated == expected or (
        name in _NUMERIC
        and _NUMBER.split(stated) == _NUMBER.split(expected)
        and not (name in _EXACT and _EXACT[name].search(expected))
        and all(map(_is_rounding, _NUMBER.findall(stated), _NUMBER.findall(expected)))
    )


def _is_rounding(stated: str, expected: str) -> bool:
    sides = stated, expected
    return stated == expected or (
        all(map(_ROUNDED.fullmatch, sides))
        and any("." in side for side in sides)
        and abs(float(stated) - float(expected)) < 0.015
    )


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
