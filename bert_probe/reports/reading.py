"""A report read back: what its page states, and the files of a ZIP. Nothing is trusted, or opened."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bert_probe.errors import ReportError
from bert_probe.reports.archives import unpack
from bert_probe.reports.drafts import MOST_VIEWS
from bert_probe.reports.json_reader import bytes_of, given, parse_json
from bert_probe.reports.numbers import MOST_CELLS, ViewTolerances
from bert_probe.reports.report import FORMAT, KIND, LONGEST_TITLE, MANIFEST, MOST_BYTES, PAGE
from bert_probe.reports.tables import Table
from bert_probe.reports.view_files import ViewFile
from bert_probe.views.payload import EmbeddedPayload

_MAX_FILE: Final = 2 * MOST_BYTES
"""Bytes of a report's file; a ZIP holds the page and its data."""

COMPONENTS: Final = ("matrix", "head_view", "layer_map", "model_view")
"""What a report draws; `js/report/page.js` mounts them."""

_LIBRARY: Final = re.compile("[A-Za-z0-9_.-]{1,40}")
_VERSION: Final = re.compile("[A-Za-z0-9_.+!-]{1,60}")
_MAX_LIBRARIES: Final = 40

_DATA_START: Final = b'<script type="application/json" id="stated">'
_DATA_END: Final = b"</script>"


@dataclass(frozen=True, eq=False)
class StatedView:
    """What a report states of a view.

    Attributes:
        note: as "written" and as "shown".
        code: in "python" and "shell".
        picture: component, caveat and start.
        payloads: of the picture, still packed; None for one of another form.
        raw: all of it, as it was parsed.
    """

    view: ViewFile
    title: str
    table: Table
    note: Mapping[str, str]
    provenance: Mapping[str, Any]
    code: Mapping[str, str]
    bounds: ViewTolerances
    picture: Mapping[str, Any]
    payloads: tuple[EmbeddedPayload | None, ...]
    sha256: Mapping[str, Any]
    marks: Mapping[str, list[str]]
    raw: Mapping[str, Any]

    @property
    def component(self) -> str:
        """Return the component that draws the picture; "" where there is no picture."""
        return str(self.picture.get("component", ""))

    @property
    def parts(self) -> dict[str, Any]:
        """Return what `Item.parts` states, written again from the parsed values, in the same order."""
        return {
            "view": self.view.to_json(),
            "title": self.title,
            "note": dict(self.note),
            "provenance": self.provenance,
            "code": dict(self.code),
            "table": self.table.to_json(),
            "picture": dict(self.picture),
            "tolerances": self.bounds.to_json(),
        }

    @property
    def checks(self) -> dict[str, Any]:
        """Return what `Item.plain` adds to the parts."""
        names = (*self.parts, "payloads")
        return {
            "payloads": [None if text is None else list(text) for text in self.payloads],
            "sha256": {name: self.sha256[name] for name in names if name in self.sha256},
            "marks": dict(self.marks),
        }


@dataclass(frozen=True, eq=False)
class ReportFile:
    """A report's file.

    Attributes:
        page: its bytes.
        files: of a ZIP by their names, the page not among them; None for a page by itself.
    """

    title: str
    made_with: Mapping[str, str]
    views: tuple[StatedView, ...]
    page: bytes
    files: Mapping[str, bytes] | None = field(default=None)


def read_report(path: Path) -> ReportFile:
    """Read a .html or .zip file.

    Raises:
        ReportError: it cannot be read, or is not a report.
    """
    content = bytes_of(path, _MAX_FILE)
    if content.startswith(b"PK"):
        if len(content) > _MAX_FILE:
            raise ReportError(f"{path.name} is larger than {_MAX_FILE / 1e6:.0f} MB, which no report is.")
        return _read_zip(content, path.name)
    return _read_page(content, path.name)


def _read_page(content: bytes, name: str, files: Mapping[str, bytes] | None = None) -> ReportFile:
    if len(content) > MOST_BYTES:
        raise ReportError(f"{name} is larger than {MOST_BYTES / 1e6:.0f} MB, which no report's page is.")
    # A page is checked by rendering it again, so no HTML has to be parsed: the data are where this line is.
    start, end = content.find(_DATA_START), content.rfind(_DATA_START)
    if start < 0:
        raise ReportError(f"{name} is no report of BERT Probe. Choose another file.")
    if start != end:
        raise ReportError(
            f"{name} is no report of BERT Probe: it states its data twice. Choose another file."
        )
    start += len(_DATA_START)
    end = content.find(_DATA_END, start)
    try:
        stated = parse_json(content[start : end if end >= 0 else len(content)])
    except ValueError as error:
        raise ReportError(
            f"What {name} states cannot be read: its JSON was changed ({str(error)[:200]})."
        ) from None
    if not isinstance(stated, dict) or KIND not in stated:
        raise ReportError(f"{name} is no report of BERT Probe. Choose another file.")
    if type(stated[KIND]) is not int or stated[KIND] != FORMAT:
        form = str(stated[KIND])[:60]
        raise ReportError(f"{name} has the format {form!s}, and this BERT Probe reads {FORMAT}.")
    with given({key: value for key, value in stated.items() if key != KIND}, name) as record:
        title, made_with = record.text("title"), record.texts("made_with")
        views = record.several("views")
    if not are_versions(made_with):
        raise ReportError(f"{name} names something else than versions of libraries. Choose another file.")
    if len(title) > LONGEST_TITLE:
        raise ReportError(
            f"The title of {name} has {len(title):,} characters; at most {LONGEST_TITLE} are read."
        )
    if not 1 <= len(views) <= MOST_VIEWS:
        raise ReportError(f"{name} holds {len(views)} views; 1 to {MOST_VIEWS} are read.")
    return ReportFile(title, made_with, tuple(map(_stated, views)), content, files)


def are_versions(libraries: Mapping[str, Any]) -> bool:
    """Return whether a mapping holds names of libraries and their versions, and no other text.

    The page shows them within its own sentences, and nobody can check them.
    """
    return len(libraries) <= _MAX_LIBRARIES and all(
        isinstance(version, str) and _LIBRARY.fullmatch(name) and _VERSION.fullmatch(version)
        for name, version in libraries.items()
    )


def _stated(raw: Any) -> StatedView:
    with given(raw, "A view of the report") as record:
        view, table = ViewFile.from_json(record.record("view")), Table.from_json(record.record("table"))
        bounds = ViewTolerances.from_json(record.record("tolerances"))
        title, provenance = record.text("title"), record.record("provenance")
        noted, coded, pictured = (record.record(name) for name in ("note", "code", "picture"))
        payloads, sha256, marked = record.several("payloads"), record.record("sha256"), record.record("marks")
    with given(noted, "A note of the report") as note:
        notes = {"written": note.text("written"), "shown": note.text("shown")}
    with given(coded, "The code of a view") as code:
        codes = {"python": code.text("python"), "shell": code.text("shell")}
    with given(pictured, "A picture of the report") as picture:
        drawn: dict[str, Any] = (
            {"component": picture.choice("component", COMPONENTS), "caveat": picture.text("caveat")}
            if "component" in pictured
            else {}
        )
        drawn["start"] = picture.integer("start")
    with given(marked, "The marks of a table") as mark:
        marks = {"rows": mark.strings("rows"), "columns": mark.strings("columns")}
    if table.cells > MOST_CELLS:
        raise ReportError(
            f"A table of the report has {table.cells:,} cells; at most {MOST_CELLS:,} are read."
        )
    _check_texts(provenance)
    return StatedView(
        *(view, title, table, notes, provenance, codes, bounds, drawn),
        *(tuple(map(_packed, payloads)), sha256, marks, raw),
    )


def _check_texts(provenance: Mapping[str, Any]) -> None:
    """Check what the page shows as quotations.

    Raises:
        ReportError: it is something else than texts.
    """
    listed = provenance.get("texts") or []
    for text in [provenance, *listed] if isinstance(listed, list) else [None]:
        parts = [text.get(name) for name in ("text", "pair")] if isinstance(text, dict) else [0]
        if not all(part is None or isinstance(part, str) for part in parts):
            raise ReportError(
                "The provenance of a view names something else than texts. Choose another file."
            )


def _packed(raw: Any) -> EmbeddedPayload | None:
    match raw:
        case [planes, length, str() as letters] if type(planes) is int and type(length) is int:
            return EmbeddedPayload(planes, length, letters)
    return None


def _read_zip(content: bytes, name: str) -> ReportFile:
    files = unpack(content, name)
    if not {MANIFEST, PAGE} <= files.keys():
        raise ReportError(
            f"{name} is a ZIP, but no report: it has no manifest or no page. Choose another file."
        )
    return _read_page(files.pop(PAGE), f"{PAGE} in {name}", files)
