"""A report read back: what its page states, and what it shows; of a ZIP also whether its files are whole."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pyarrow
import pyarrow.parquet

from bert_probe.errors import ReportError
from bert_probe.reports.given import bytes_of, given
from bert_probe.reports.numbers import Bounds
from bert_probe.reports.page import ENDING
from bert_probe.reports.report import FORMAT, KIND, MOST_BYTES
from bert_probe.reports.tables import Table, digest
from bert_probe.reports.tolerances import leaves
from bert_probe.reports.trays import MOST_VIEWS
from bert_probe.reports.view_files import ViewFile
from bert_probe.text import strict_json
from bert_probe.text.strict_json import DuplicateKeyError
from bert_probe.views.payload import Text, of_text

_MOST_FILE: Final = 2 * MOST_BYTES
"""Bytes of a report's file; a ZIP holds the page and its data."""
_MOST_UNPACKED: Final = 8 * MOST_BYTES
"""Bytes of all files of a ZIP together."""


@dataclass(frozen=True, eq=False)
class Stated:
    """What a report states of a view.

    Attributes:
        parts: each by its name, as JSON.
        sha256: what the report says is the SHA-256 of each part, and of each payload.
        marks: of the table's rows and columns.
        payloads: of the picture; None for one that cannot be read.
    """

    view: ViewFile
    table: Table
    note: Mapping[str, str]
    provenance: Mapping[str, Any]
    bounds: Bounds
    component: str
    payloads: tuple[bytes | None, ...]
    parts: Mapping[str, Any]
    sha256: Mapping[str, Any]
    marks: Mapping[str, list[str]]


@dataclass(frozen=True, eq=False)
class Seen:
    """What a report's page shows, by the number of the view from 1.

    Attributes:
        tables: the texts of the cells, row by row.
        notes: texts.
    """

    tables: Mapping[int, list[list[str]]]
    notes: Mapping[int, str]


@dataclass(frozen=True, eq=False)
class Read:
    """A report's file.

    Attributes:
        whole: whether the page is, to its last character, what was written.
        files: of a ZIP: name of each file that is not as it was → digest that is stated, and the one found.
        data: of a ZIP: number of the view → its table.parquet.
    """

    title: str
    made_with: Mapping[str, str]
    views: tuple[Stated, ...]
    seen: Seen
    whole: bool
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    data: Mapping[int, Table] = field(default_factory=dict)


def read_report(path: Path) -> Read:
    """Read a .html or .zip file.

    Raises:
        ReportError: it cannot be read, or is no report.
    """
    content = bytes_of(path, _MOST_FILE)
    if len(content) > _MOST_FILE:
        raise ReportError(f"{path.name} is larger than {_MOST_FILE / 1e6:.0f} MB, which no report is.")
    if content.startswith(b"PK"):
        return _read_zip(content, path.name)
    return _read_page(content, path.name)


def _read_page(content: bytes, name: str) -> Read:
    page = content.decode("utf-8", "replace")
    held = re.search(r'<script type="application/json" id="stated">(.*?)</script>', page, re.S)
    try:
        stated = strict_json.loads(held[1]) if held else None
    except DuplicateKeyError as error:
        raise ReportError(f"In what {name} states {error}.") from None
    except (ValueError, RecursionError):
        raise ReportError(
            f"What {name} states cannot be read: a quotation mark, comma or bracket of its JSON was changed."
        ) from None
    if not isinstance(stated, dict) or KIND not in stated:
        raise ReportError(f"{name} is no report of BERT Probe. Choose another file.")
    if stated[KIND] != FORMAT:
        raise ReportError(f"{name} has the format {stated[KIND]!r}, and this BERT Probe reads {FORMAT}.")
    with given({key: one for key, one in stated.items() if key != KIND}, name) as one:
        title, made_with, views = one.text("title"), one.texts("made_with"), one.several("views")
    if len(views) > MOST_VIEWS:
        raise ReportError(f"{name} holds {len(views)} views; at most {MOST_VIEWS} are read.")
    ending = re.search(ENDING, page)
    whole = ending is not None and digest(page[: ending.start()].encode()) == ending[1]
    seen = _Seeing()
    seen.feed(page)
    return Read(title, made_with, tuple(map(_stated, views)), Seen(seen.tables, seen.notes), whole)


_PARTS: Final = ("view", "note", "provenance", "code", "table", "picture", "tolerances")


def _stated(held: Any) -> Stated:
    with given(held, "A view of the report") as one:
        title, records = one.text("title"), {name: one.record(name) for name in _PARTS}
        payloads, sha256, marks = one.several("payloads"), one.record("sha256"), one.record("marks")
    with given(records["note"], "A note of the report") as note:
        noted = {"written": note.text("written"), "shown": note.text("shown")}
    with given(marks, "The marks of a table") as mark:
        marked = {"rows": mark.strings("rows"), "columns": mark.strings("columns")}
    try:
        leaves([records["provenance"], records["picture"]])
    except RecursionError:
        raise ReportError("What the report says of a view is nested too deep to be read.") from None
    return Stated(
        ViewFile.from_plain(records["view"]),
        Table.from_plain(records["table"]),
        noted,
        records["provenance"],
        Bounds.from_plain(records["tolerances"]),
        str(records["picture"].get("component", "")),
        tuple(map(_payload, payloads)),
        {"title": title, **records},
        sha256,
        marked,
    )


def _payload(held: Any) -> bytes | None:
    match held:
        case [int() as planes, int() as length, str() as letters]:
            try:
                return of_text(Text(planes, length, letters))
            except ValueError:
                return None
    return None


class _Seeing(HTMLParser):
    """Tables and notes as a reader sees them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: dict[int, list[list[str]]] = {}
        self.notes: dict[int, str] = {}
        self._view = 0
        self._rows: list[list[str]] | None = None
        self._into = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given_as = dict(attrs)
        if tag == "article":
            self._view += 1
        elif tag == "table":
            self._rows = self.tables.setdefault(self._view, []) if "data-view" in given_as else None
        elif tag == "tr" and self._rows is not None:
            self._rows.append([])
        elif tag in ("td", "th") and self._rows:
            self._rows[-1].append("")
            self._into = "cell"
        elif tag == "p" and given_as.get("class") == "note":
            self.notes[self._view] = ""
            self._into = "note"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "p"):
            self._into = ""
        elif tag == "table":
            self._rows = None

    def handle_data(self, data: str) -> None:
        if self._into == "cell" and self._rows:
            self._rows[-1][-1] += data
        elif self._into == "note":
            self.notes[self._view] += data


def _read_zip(content: bytes, name: str) -> Read:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(one.file_size for one in archive.infolist()) > _MOST_UNPACKED:
                raise ReportError(
                    f"{name} would be more than {_MOST_UNPACKED / 1e6:.0f} MB, which no report is."
                )
            names = archive.namelist()
            if len(set(names)) < len(names):
                raise ReportError(f"{name} holds two files of the same name, which no report does.")
            held = {one: archive.read(one) for one in names}
        manifest = strict_json.loads(held.pop("manifest.json"))
        page = held["report.html"]
        stated: dict[str, str] = dict(manifest["files"])
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, OSError) as error:
        raise ReportError(f"{name} is a ZIP that cannot be read: {error}.") from None
    except DuplicateKeyError as error:
        raise ReportError(f"In the manifest of {name} {error}.") from None
    except (KeyError, TypeError, ValueError):
        raise ReportError(f"{name} is a ZIP, but no report: it has no manifest or no page.") from None
    found = _read_page(page, f"report.html in {name}")
    digests = {one: digest(held[one]) for one in held}
    wrong = {
        one: (str(stated.get(one, "not listed")), digests.get(one, "missing"))
        for one in sorted({*stated, *digests})
        if stated.get(one) != digests.get(one)
    }
    data: dict[int, Table] = {}
    for one, held_bytes in held.items():
        number = re.fullmatch(r"([0-9]{1,3})-[^/]+/table\.parquet", one)
        if number:
            table = _parquet(held_bytes)
            data |= {} if table is None else {int(number[1]): table}
    return Read(found.title, found.made_with, found.views, found.seen, found.whole, files=wrong, data=data)


def _parquet(content: bytes) -> Table | None:
    """A table of a ZIP; None where it cannot be read, as its digest then tells."""
    try:
        return Table.of(pyarrow.parquet.read_table(io.BytesIO(content)).to_pandas())
    except (pyarrow.ArrowException, OSError):
        return None
