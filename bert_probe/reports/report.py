"""A report: several views with their notes, as one page that opens from a disk, or as a ZIP of files.

Everything that it states is held once, as JSON in the page; what is shown is written from that.
"""

from __future__ import annotations

import io
import platform
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import pandas as pd

import bert_probe
from bert_probe.core import files
from bert_probe.core.writing import write
from bert_probe.errors import ExportError, ProbeError, ReportError
from bert_probe.model.progress import Progress as Progress
from bert_probe.model.progress import no_progress
from bert_probe.reports import notes
from bert_probe.reports.drafts import MOST_VIEWS, Draft, DraftEntry
from bert_probe.reports.numbers import NamedModels, ViewNumbers, ViewTolerances
from bert_probe.reports.tables import canonical, digest, finite
from bert_probe.reports.view_files import ModelReference, ViewFile, question_named
from bert_probe.views.page import Page
from bert_probe.views.payload import as_text

FORMAT: Final = 1
KIND: Final = "bert_probe_report"
"""The key that tells a report, and holds its format."""

PAGE: Final = "report.html"
MANIFEST: Final = "manifest.json"
"""Names of files in a ZIP."""

MOST_BYTES: Final = 64_000_000
"""Of a report's page: every browser reads it whole."""
LONGEST_TITLE: Final = 200


@dataclass(frozen=True, eq=False)
class Item:
    """A view within a report, with all its numbers."""

    entry: DraftEntry
    numbers: ViewNumbers
    bounds: ViewTolerances

    @property
    def title(self) -> str:
        """What it is called: as its picture is, else as its question."""
        if self.numbers.picture is not None and not self.entry.view.drawn:
            captions = [one.said.get("caption", "") for one in self.numbers.drawn()]
            if captions and captions[0]:
                return str(captions[0])
        analysis = self.numbers.result.question.analysis
        drawn = {"lines": "Attention, token to token", "model": "Attention of all heads"}
        return drawn.get(self.entry.view.drawn.get("as", ""), f"{analysis[:1].upper()}{analysis[1:]}")

    @cached_property
    def parts(self) -> dict[str, Any]:
        """All that the report states of it, for JSON."""
        result, table, picture = self.numbers.result, self.numbers.table, self.numbers.picture
        drawn = {} if picture is None else {"component": picture.component, "caveat": picture.caveat}
        return {
            "view": self.entry.view.to_json(),
            "title": self.title,
            "note": {"written": self.entry.note, "shown": notes.shown(self.entry.note, table)},
            "provenance": finite(result.provenance),
            "code": {"python": result.python, "shell": result.shell},
            "table": table.to_json(),
            "picture": {**drawn, "start": 1 if picture is None else picture.start},
            "tolerances": self.bounds.to_json(),
        }

    @property
    def payloads(self) -> Sequence[bytes]:
        """What the picture draws."""
        return () if self.numbers.picture is None else self.numbers.picture.payloads

    def to_json(self) -> dict[str, Any]:
        """The same with what it is checked by: a SHA-256 of each part, a mark of each row and column."""
        return {
            **self.parts,
            "payloads": [list(as_text(payload)) for payload in self.payloads],
            "sha256": {
                **{name: digest(part) for name, part in self.parts.items()},
                "payloads": [digest(payload) for payload in self.payloads],
            },
            "marks": self.numbers.table.marks(),
        }


@dataclass(frozen=True, eq=False)
class Report:
    """A report.

    Attributes:
        title: plain text.
    """

    title: str
    items: tuple[Item, ...]
    _made: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, tray: Draft, models: NamedModels, report: Progress = no_progress) -> Self:
        """Ask every view of the tray, and how exact its numbers are.

        Args:
            report: told how many views are done, and of how many.

        Raises:
            ReportError: no views, too many, too long a title, or one whose table or note cannot be taken.
            ProbeError: a model cannot be opened, or a question not be asked of it; says of which view.
        """
        if not tray.entries:
            raise ReportError("There is nothing in the report yet. Add a view.")
        if len(tray.entries) > MOST_VIEWS:
            raise ReportError(
                f"{len(tray.entries)} views; a report takes at most {MOST_VIEWS}. Make two of it."
            )
        if len(tray.title) > LONGEST_TITLE:
            raise ReportError(f"The title has {len(tray.title)} characters; at most {LONGEST_TITLE} fit.")
        items = []
        for number, entry in enumerate(tray.entries, start=1):
            done = number - 1
            report(done, len(tray.entries))
            try:
                items.append(_item(entry, models, lambda *_, done=done: report(done, len(tray.entries))))
            except ProbeError as error:
                raise type(error)(f"View {number}: {error}") from None
        return cls(tray.title or "Report", tuple(items))

    @cached_property
    def stated(self) -> dict[str, Any]:
        """All that it states, for JSON."""
        libraries: Mapping[str, str] = self.items[0].numbers.result.inputs.model.get("libraries", {})
        made_with = {"bert_probe": bert_probe.__version__, "python": platform.python_version(), **libraries}
        return statement(self.title, made_with, [item.to_json() for item in self.items])

    def html(self) -> str:
        """One page, with live pictures, which opens from a disk without a network.

        Raises:
            ReportError: too large for a page.
        """
        from bert_probe.reports import page

        made = page.written(self.stated)
        size = len(made.encode())
        if size > MOST_BYTES:
            raise ReportError(
                f"The report would be a page of {size / 1e6:,.0f} MB; at most {MOST_BYTES / 1e6:.0f} "
                "are written. Take views out, or choose shorter texts."
            )
        return made

    def zip(self) -> bytes:
        """The page, and beside it for each view its data, picture, view file, note and code; and a manifest
        with the SHA-256 of each file.

        Raises:
            ReportError: see `html`.
        """
        made = {PAGE: self.html().encode()}
        for number, item in enumerate(self.items, start=1):
            folder = folder_of(number, item.entry.view)
            made |= {f"{folder}/{name}": content for name, content in _files(item).items()}
        manifest = manifest_of(
            self.title, self.stated["made_with"], {name: digest(content) for name, content in made.items()}
        )
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in {MANIFEST: manifest, **made}.items():
                # The same report is the same file, whenever it is made.
                archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        return target.getvalue()

    def save(self, path: Path, overwrite: bool = True) -> None:
        """Write it to a .html or a .zip file.

        Raises:
            ReportError: see `html`.
            ExportError: another ending, a place that cannot be written, or one that is taken.
        """
        check_ending(path)
        write({path: self.zip() if path.suffix.lower() == ".zip" else self.html().encode()}, overwrite)


def check_ending(path: Path) -> None:
    """Check that a file has the ending of a report.

    Raises:
        ExportError: if it ends in something other than .html or .zip.
    """
    if path.suffix.lower() not in (".html", ".htm", ".zip"):
        raise ExportError(f"{path.name} does not end in .html or .zip. Choose one of these endings.")


def _item(entry: DraftEntry, models: NamedModels, report: Progress) -> Item:
    numbers, bounds = models.computed(entry.view, report)
    notes.pieces(entry.note, numbers.table)  # which says what is wrong with it
    # What was opened, to the commit and its weights, where the view names less.
    opened = replace(entry.view, models=tuple(map(ModelReference.of, models.of(entry.view))))
    return Item(replace(entry, view=opened), numbers, bounds)


def statement(title: str, made_with: Mapping[str, str], views: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return all that a report states, for JSON."""
    return {KIND: FORMAT, "title": title, "made_with": dict(made_with), "views": list(views)}


def manifest_of(title: str, made_with: Mapping[str, str], sha256: Mapping[str, str]) -> bytes:
    """Return the manifest of a ZIP.

    Args:
        sha256: digest of each of its other files by their names.
    """
    return canonical({KIND: FORMAT, "title": title, "made_with": dict(made_with), "files": dict(sha256)})


def folder_of(number: int, view: ViewFile) -> str:
    """Return the folder of a view in a ZIP; the number counts from 1."""
    return f"{number}-{question_named(view.question).command}"


def text_files(view: ViewFile, parts: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of a view in a ZIP that follow from what the report states.

    Args:
        parts: see `Item.parts`.
    """
    code, note = parts["code"], parts["note"]["shown"]
    return {
        "provenance.json": canonical(parts["provenance"]),
        "view.json": view.to_bytes(),
        "code.py": f"{code['python']}\n".encode("utf-8", "backslashreplace"),
        "code.sh": f"{code['shell']}\n".encode("utf-8", "backslashreplace"),
        **{file.file: file.content.encode("utf-8", "surrogatepass") for file in view.files.values()},
        **({"note.txt": f"{note}\n".encode("utf-8", "backslashreplace")} if note else {}),
    }


def table_file(frame: pd.DataFrame, provenance: Mapping[str, Any]) -> bytes:
    """Return a table as Parquet; its bytes depend on the version of pyarrow."""
    frame.attrs["provenance"] = provenance
    return files.to_bytes(frame, "parquet")


def picture_file(picture: Page | None) -> dict[str, bytes]:
    """Return the picture of a view as SVG, or why there is none; its digits depend on the processor."""
    if picture is None:
        return {}
    try:
        return {"picture.svg": picture.svg().encode()}
    except ExportError as error:  # so large that no program would show it
        return {"picture.txt": f"{error}\n".encode()}


def _files(item: Item) -> dict[str, bytes]:
    table = item.numbers.result.table()
    return {
        "table.parquet": table_file(table, item.parts["provenance"]),
        **text_files(item.entry.view, item.parts),
        **picture_file(item.numbers.picture),
    }
