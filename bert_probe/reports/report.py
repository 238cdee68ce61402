"""Reports: several views with notes, as a single HTML page that works offline, or as a ZIP of files.

The page contains the report as JSON data, from which its HTML is rendered.
"""

from __future__ import annotations

import io
import platform
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Final, Self

import pandas as pd

import bert_probe
from bert_probe.core import files
from bert_probe.core.writing import write
from bert_probe.errors import ExportError, ProbeError, ReportError
from bert_probe.model.progress import Progress as Progress
from bert_probe.model.progress import no_progress
from bert_probe.reports import tables
from bert_probe.reports.drafts import MOST_VIEWS, Draft, DraftEntry
from bert_probe.reports.json_reader import check_counts
from bert_probe.reports.numbers import NamedModels, ViewNumbers, ViewTolerances
from bert_probe.reports.tables import ReportTable, canonical, digest, finite, too_large
from bert_probe.reports.view_files import ModelReference, ViewFile, find_question
from bert_probe.views import pictures
from bert_probe.views.page import Page
from bert_probe.views.payload import encode_text

FORMAT: Final = 2
KIND: Final = "bert_probe_report"
"""JSON key that identifies a report's data; its value is the version of the format."""

PAGE: Final = "report.html"
MANIFEST: Final = "manifest.json"
"""Name of the file in a ZIP that lists the digests of all other files."""

MAX_UNPACKED: Final = 256_000_000
"""Maximum total size of all unpacked files of a ZIP, in bytes."""
MAX_BYTES: Final = 64_000_000
"""Maximum size of a report's page in bytes; a browser must load the complete page."""
MAX_TITLE: Final = 200
"""Maximum length of a title in characters."""


@dataclass(frozen=True, eq=False)
class Item:
    """A computed view of a report, without the result, which would keep its traces in memory.

    Attributes:
        entry: the view and its note, as in the draft.
        title: caption of the picture; without a caption, the name of the picture or analysis.
        frame: the table of the result as a DataFrame.
        table: the same table, with cells that JSON can represent.
        picture: the picture of the view, or None.
        provenance: the provenance of the result.
        code: Python and shell code that computes the table.
        tolerances: the tolerances of the values in the view.
    """

    entry: DraftEntry
    title: str
    frame: pd.DataFrame
    table: ReportTable
    picture: Page | None
    provenance: Mapping[str, Any]
    code: Mapping[str, str]
    tolerances: ViewTolerances

    @classmethod
    def of(cls, entry: DraftEntry, numbers: ViewNumbers, tolerances: ViewTolerances) -> Self:
        """Collect the values of a view."""
        result, picture = numbers.result, numbers.picture
        if picture is not None and picture.still is not None:
            payloads = picture.still()
            picture = replace(picture, still=lambda: payloads)
        return cls(
            entry,
            _title(entry.view, numbers),
            numbers.frame,
            numbers.table,
            picture,
            result.provenance,
            {"python": result.python, "shell": result.shell},
            tolerances,
        )

    @cached_property
    def parts(self) -> dict[str, Any]:
        """Return the view's data as JSON values, by part; verification recomputes and compares each part."""
        picture = self.picture
        component = {} if picture is None else {"component": picture.component, "caveat": picture.caveat}
        return {
            "view": self.entry.view.to_json(),
            "title": self.title,
            "note": {"written": self.entry.note, "shown": tables.render_note(self.entry.note, self.table)},
            "provenance": finite(self.provenance),
            "code": dict(self.code),
            "table": self.table.to_json(),
            "picture": {**component, "start": 1 if picture is None else picture.start},
            "tolerances": self.tolerances.to_json(),
        }

    @property
    def payloads(self) -> Sequence[bytes]:
        """Return the binary payloads of the picture; () if there is no picture."""
        return () if self.picture is None else self.picture.payloads

    @cached_property
    def stated(self) -> dict[str, Any]:
        """The parts and payloads in JSON, their SHA-256 digests, and a checksum of each row and column."""
        return {
            **self.parts,
            "payloads": [list(encode_text(payload)) for payload in self.payloads],
            "sha256": {
                **{name: digest(part) for name, part in self.parts.items()},
                "payloads": [digest(payload) for payload in self.payloads],
            },
            "marks": self.table.marks(),
        }


@dataclass(frozen=True, eq=False)
class Report:
    """A report whose views are computed.

    Attributes:
        title: the title as plain text.
        items: the computed views.
    """

    title: str
    items: tuple[Item, ...]

    @classmethod
    def of(
        cls,
        draft: Draft,
        models: NamedModels,
        progress: Progress = no_progress,
        max_bytes: int | None = None,
    ) -> Self:
        """Compute every view of a draft, and the tolerances of its values.

        Args:
            draft: views and notes.
            models: opens the models.
            progress: called with the number of computed views and their total.
            max_bytes: maximum size of the report's data in bytes, which is checked after each view; None for
                no limit.

        Raises:
            ReportTooLargeError: the data exceed `max_bytes`.
            ReportError: the draft has no views or too many, its title is too long, or a table or note is not
                allowed in a report.
            ProbeError: a model cannot be opened, or a question cannot be answered; the message names the
                view.
        """
        if not draft.entries:
            raise ReportError("The report has no views yet. Add a view.")
        if len(draft.entries) > MOST_VIEWS:
            raise ReportError(
                f"The report has {len(draft.entries)} views, but at most {MOST_VIEWS} are allowed. Split "
                "the report into two reports."
            )
        if len(draft.title) > MAX_TITLE:
            raise ReportError(
                f"The title has {len(draft.title)} characters, but at most {MAX_TITLE} are allowed. "
                "Shorten the title."
            )
        items: list[Item] = []
        size = 0
        for number, entry in enumerate(draft.entries, start=1):
            done = number - 1
            progress(done, len(draft.entries))
            try:
                items.append(
                    _compute(entry, models, lambda *_, done=done: progress(done, len(draft.entries)))
                )
            except ProbeError as error:
                raise type(error)(f"View {number}: {error}") from None
            if max_bytes is not None:
                size += len(canonical(items[-1].stated))
                if size > max_bytes:
                    raise too_large(max_bytes)
        return cls(draft.title or "Report", tuple(items))

    @cached_property
    def stated(self) -> dict[str, Any]:
        """Return the data of the report as a JSON object; see `statement`."""
        libraries: Mapping[str, str] = self.items[0].provenance.get("libraries", {})
        made_with = {"bert_probe": bert_probe.__version__, "python": platform.python_version(), **libraries}
        return statement(self.title, made_with, [item.stated for item in self.items])

    def html(self, max_bytes: int = MAX_BYTES) -> str:
        """Return the report as a page with interactive figures that works offline.

        Args:
            max_bytes: maximum size of the page; `verify_report` reads at most 64 million bytes.

        Raises:
            ReportTooLargeError: the page is larger than `max_bytes`.
            ReportError: the page could not be verified.
        """
        from bert_probe.reports import page

        html = page.render_page(self.stated, max_bytes)
        content = html.encode()
        if len(content) > max_bytes:
            raise too_large(max_bytes)
        try:
            check_counts(content)
        except ValueError as error:
            raise ReportError(
                f"The report could not be verified: {error}. Remove views, or choose shorter texts."
            ) from None
        return html

    def zip(self) -> bytes:
        """Return the report as a ZIP.

        The ZIP contains the page; for each view its table, picture, view file, note and code; and a manifest
        with the SHA-256 of each file.

        Raises:
            ReportError: see `html`; or the files are larger than those of a ZIP that can be read.
        """
        contents = {PAGE: self.html().encode()}
        for number, item in enumerate(self.items, start=1):
            folder = folder_of(number, item.entry.view)
            contents |= {f"{folder}/{name}": content for name, content in _files(item).items()}
        manifest = manifest_of(
            self.title,
            self.stated["made_with"],
            {name: digest(content) for name, content in contents.items()},
        )
        size = sum(map(len, contents.values())) + len(manifest)
        if size > MAX_UNPACKED:
            raise ReportError(
                f"The files of the ZIP would take {size / 1e6:,.0f} MB, but the maximum is "
                f"{MAX_UNPACKED / 1e6:.0f} MB. Save the report as a page (HTML), or remove views."
            )
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in {MANIFEST: manifest, **contents}.items():
                # Omit the current time, so that the same report always produces the same bytes.
                archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
        return target.getvalue()

    def save(self, path: Path, overwrite: bool = True) -> None:
        """Write the report to a .html or .zip file.

        Args:
            path: the path of the file.
            overwrite: replace an existing file.

        Raises:
            ReportError: see `html`.
            ExportError: the file extension is not supported, or the file cannot be written or exists already.
        """
        check_ending(path)
        write({path: self.zip() if path.suffix.lower() == ".zip" else self.html().encode()}, overwrite)


def check_ending(path: Path) -> None:
    """Raise an error if a report cannot be saved with a path's extension.

    Raises:
        ExportError: the extension is not .html, .htm or .zip.
    """
    if path.suffix.lower() not in (".html", ".htm", ".zip"):
        raise ExportError(f"{path.name} does not end in .html or .zip. Choose one of these extensions.")


def _compute(entry: DraftEntry, models: NamedModels, progress: Progress) -> Item:
    numbers, tolerances = models.computed(entry.view, progress)
    tables.split_note(entry.note, numbers.table)  # raises an error if the note is invalid
    # Refer to the opened models, whose commit and weights digest are known.
    view = replace(
        entry.view,
        models=tuple(map(ModelReference.of, models.of(entry.view))),
        files={name: file.standard() for name, file in entry.view.files.items()},
    )
    return Item.of(replace(entry, view=view), numbers, tolerances)


def _title(view: ViewFile, numbers: ViewNumbers) -> str:
    if numbers.picture is not None and not view.drawn:
        captions = [payload.leaves.get("caption", "") for payload in numbers.payloads()]
        if captions and captions[0]:
            return str(captions[0])
    analysis = numbers.result.question.analysis
    return pictures.ATTENTION_PICTURES.get(view.drawn.get("as", ""), f"{analysis[:1].upper()}{analysis[1:]}")


def statement(title: str, made_with: Mapping[str, str], views: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the data of a report as a JSON object; each view is an `Item.stated`."""
    return {KIND: FORMAT, "title": title, "made_with": dict(made_with), "views": list(views)}


def manifest_of(title: str, made_with: Mapping[str, str], sha256: Mapping[str, str]) -> bytes:
    """Return the manifest of a ZIP.

    Args:
        title: the title of the report.
        made_with: version of each library, by name.
        sha256: digests of all other files, by file name.
    """
    return canonical({KIND: FORMAT, "title": title, "made_with": dict(made_with), "files": dict(sha256)})


def folder_of(number: int, view: ViewFile) -> str:
    """Return the name of a view's folder in a ZIP; views are numbered from 1."""
    return f"{number}-{find_question(view.question).command}"


def text_files(view: ViewFile, parts: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the text files of a view in a ZIP, by name; they are derived from the report's data.

    Args:
        view: the view of the report.
        parts: data of the view, see `Item.parts`.
    """
    code, note = parts["code"], parts["note"]["shown"]
    return {
        "provenance.json": canonical(parts["provenance"]),
        "view.json": view.to_bytes(),
        "code.py": f"{code['python']}\n".encode("utf-8", "backslashreplace"),
        "code.sh": f"{code['shell']}\n".encode("utf-8", "backslashreplace"),
        **{file.file: file.content.encode("utf-8", "surrogatepass") for file in view.files.values()},
        **_sentences_file(view),
        **({"note.txt": f"{note}\n".encode("utf-8", "backslashreplace")} if note else {}),
    }


def _sentences_file(view: ViewFile) -> dict[str, bytes]:
    """Return a dict with one item, from file name to content; {} without sentences or documents.

    The file is the one that the code of the view reads, or a text file with an error message if that file
    would be read as other sentences.
    """
    if not view.sentences:
        return {}
    inputs = find_question(view.question).inputs
    content = "".join(f"{line}\n" for line in view.sentences).encode("utf-8", "surrogatepass")
    try:
        parsed = inputs.parse_list(content, inputs.list_file)
        is_same = tuple(getattr(parsed, "lines", parsed)) == view.sentences
    except ProbeError:  # The code raises the same error, for example because the lines look like a table.
        is_same = True
    if is_same:
        return {inputs.list_file: content}
    error = (
        f"{inputs.list_file} is missing, because it would be read as other {inputs.list_name}: one has a "
        "line break, or spaces at its start or end. Compute the table again with bert-probe ask view.json.\n"
    )
    return {f"{PurePath(inputs.list_file).stem}.missing.txt": error.encode()}


def table_file(frame: pd.DataFrame, provenance: Mapping[str, Any]) -> bytes:
    """Serialize a table to Parquet; the bytes depend on the version of pyarrow."""
    frame.attrs["provenance"] = provenance
    return files.to_bytes(frame, "parquet")


def picture_file(picture: Page | None) -> dict[str, bytes]:
    """Return a dict with one item, from file name to content; {} without a picture.

    The file is the SVG of the picture, or a text file with the error message if the picture is too large.

    The last digits of numbers in the SVG depend on the processor.
    """
    if picture is None:
        return {}
    try:
        return {"picture.svg": picture.svg().encode()}
    except ExportError as error:  # The picture is too large for SVG viewers.
        return {"picture.txt": f"{error}\n".encode()}


def _files(item: Item) -> dict[str, bytes]:
    return {
        "table.parquet": table_file(item.frame, item.parts["provenance"]),
        **text_files(item.entry.view, item.parts),
        **picture_file(item.picture),
    }
