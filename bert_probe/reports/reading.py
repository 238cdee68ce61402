"""Read and check the data of a report from an untrusted page or ZIP, without opening a model."""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bert_probe.errors import ReportError
from bert_probe.reports.drafts import MOST_VIEWS
from bert_probe.reports.json_reader import parse_json, parse_object, read_bytes
from bert_probe.reports.numbers import ViewTolerances
from bert_probe.reports.report import FORMAT, KIND, MANIFEST, MAX_BYTES, MAX_TITLE, MAX_UNPACKED, PAGE
from bert_probe.reports.tables import MAX_CELLS, MAX_NOTE_CHARACTERS, ReportTable
from bert_probe.reports.view_files import ViewFile
from bert_probe.views import built
from bert_probe.views.payload import EmbeddedPayload

_MAX_FILE: Final = 2 * MAX_BYTES
"""Maximum size of a report's file in bytes; a ZIP contains the data twice, in the page and as files."""

_LIBRARY: Final = re.compile("[A-Za-z0-9_.-]{1,40}")
_VERSION: Final = re.compile("[A-Za-z0-9_.+!-]{1,60}")
_MAX_LIBRARIES: Final = 40

_DATA_START: Final = b'<script type="application/json" id="stated">'
_DATA_END: Final = b"</script>"


@dataclass(frozen=True, eq=False)
class StatedView:
    """The data of a view as stated in a report file; types are checked, but values are not verified.

    Attributes:
        view: question, models and inputs.
        title: the title of the view.
        table: the table of the result.
        note: the note as the author wrote it ("written"), and with resolved references ("shown").
        provenance: the provenance of the result.
        code: code that reproduces the result, under "python" and "shell".
        tolerances: the tolerances of the values in the view.
        picture: settings of the picture: "component", "caveat" and "start".
        payloads: the payloads of the picture, still encoded; None for an invalid payload.
        sha256: the digest of each part; under "payloads", a list with the digest of each payload.
        marks: checksums of the "rows" and "columns" of the table.
        raw: the parsed JSON of the view.
    """

    view: ViewFile
    title: str
    table: ReportTable
    note: Mapping[str, str]
    provenance: Mapping[str, Any]
    code: Mapping[str, str]
    tolerances: ViewTolerances
    picture: Mapping[str, Any]
    payloads: tuple[EmbeddedPayload | None, ...]
    sha256: Mapping[str, Any]
    marks: Mapping[str, list[str]]
    raw: Mapping[str, Any]

    @property
    def component(self) -> str:
        """Return the name of the component that draws the picture; "" if there is no picture."""
        return str(self.picture.get("component", ""))

    @property
    def parts(self) -> dict[str, Any]:
        """Return the parsed data in the format and order of `Item.parts`."""
        return {
            "view": self.view.to_json(),
            "title": self.title,
            "note": dict(self.note),
            "provenance": self.provenance,
            "code": dict(self.code),
            "table": self.table.to_json(),
            "picture": dict(self.picture),
            "tolerances": self.tolerances.to_json(),
        }

    @property
    def checks(self) -> dict[str, Any]:
        """Return the payloads, digests and checksums, in the format that `Item.to_json` adds to `parts`."""
        names = (*self.parts, "payloads")
        return {
            "payloads": [None if text is None else list(text) for text in self.payloads],
            "sha256": {name: self.sha256[name] for name in names if name in self.sha256},
            "marks": dict(self.marks),
        }


@dataclass(frozen=True, eq=False)
class ReportFile:
    """A report that was read from a file.

    Attributes:
        title: the title of the report.
        made_with: version of each library, by name.
        views: the data of each view.
        page: the page as bytes.
        files: contents of the other files in a ZIP, by name; None for a page without a ZIP.
    """

    title: str
    made_with: Mapping[str, str]
    views: tuple[StatedView, ...]
    page: bytes
    files: Mapping[str, bytes] | None = field(default=None)


def read_report(path: Path) -> ReportFile:
    """Read a report from a .html or .zip file.

    Raises:
        ReportError: the file cannot be read, or is not a report.
    """
    content = read_bytes(path, _MAX_FILE)
    if content.startswith(b"PK"):
        # A browser would show the beginning of a ZIP named .html as a page.
        if path.suffix.lower() not in ("", ".zip"):
            raise ReportError(f"{path.name} is a ZIP, but its name does not end in .zip. Rename the file.")
        if len(content) > _MAX_FILE:
            raise ReportError(f"{path.name} is larger than {_MAX_FILE / 1e6:.0f} MB, the limit for a report.")
        return _read_zip(content, path.name)
    return _read_page(content, path.name)


def _read_page(content: bytes, name: str, files: Mapping[str, bytes] | None = None) -> ReportFile:
    if len(content) > MAX_BYTES:
        raise ReportError(
            f"{name} is larger than {MAX_BYTES / 1e6:.0f} MB, the limit for the page of a report."
        )
    # The HTML is not parsed, because verification renders the page from its data and compares both pages.
    start, end = content.find(_DATA_START), content.rfind(_DATA_START)
    if start < 0:
        raise ReportError(f"{name} is not a BERT Probe report. Choose another file.")
    if start != end:
        raise ReportError(
            f"{name} is not a valid BERT Probe report: it contains its data twice. Choose another file."
        )
    start += len(_DATA_START)
    end = content.find(b"<", start)
    if not content.startswith(_DATA_END, end):
        raise ReportError(
            f"{name} is not a valid BERT Probe report: its data have no end, or contain markup. Choose "
            "another file."
        )
    try:
        stated = parse_json(content[start:end])
    except ValueError as error:
        raise ReportError(
            f"The data of {name} cannot be read: its JSON is invalid ({str(error)[:200]})."
        ) from None
    if not isinstance(stated, dict) or KIND not in stated:
        raise ReportError(f"{name} is not a BERT Probe report. Choose another file.")
    version = stated[KIND]
    if type(version) is int and 1 <= version < FORMAT:
        raise ReportError(
            f"{name} was written by an earlier version of BERT Probe: format {version}, but this version "
            f"verifies only format {FORMAT}. Verify the report with the version of BERT Probe that wrote "
            "the report, or create the report again."
        )
    if type(version) is not int or version != FORMAT:
        raise ReportError(
            f"{name} has format {str(version)[:60]}, but this version of BERT Probe reads only format "
            f"{FORMAT}. Update BERT Probe."
        )
    with parse_object({key: value for key, value in stated.items() if key != KIND}, name) as record:
        title, made_with = record.text("title"), record.text_map("made_with")
        views = record.array("views")
    if not are_versions(made_with):
        raise ReportError(f"{name} has invalid names or versions of libraries. Choose another file.")
    if len(title) > MAX_TITLE:
        raise ReportError(
            f"The title of {name} has {len(title):,} characters, but at most {MAX_TITLE} are allowed. "
            "Choose another file."
        )
    if not 1 <= len(views) <= MOST_VIEWS:
        raise ReportError(
            f"{name} has {len(views)} views, but 1 to {MOST_VIEWS} are allowed. Choose another file."
        )
    return ReportFile(title, made_with, tuple(map(_parse_view, views)), content, files)


def are_versions(libraries: Mapping[str, Any]) -> bool:
    """Return whether all keys are formatted like library names, and all values like versions.

    The page displays these strings although they cannot be verified, so their format is restricted.
    """
    return len(libraries) <= _MAX_LIBRARIES and all(
        isinstance(version, str) and _LIBRARY.fullmatch(name) and _VERSION.fullmatch(version)
        for name, version in libraries.items()
    )


def _parse_view(raw: Any) -> StatedView:
    with parse_object(raw, "A view in the report") as record:
        view, table = (
            ViewFile.from_json(record.mapping("view")),
            ReportTable.from_json(record.mapping("table")),
        )
        tolerances = ViewTolerances.from_json(record.mapping("tolerances"))
        title, provenance = record.text("title"), record.mapping("provenance")
        raw_note, raw_code, raw_picture = (record.mapping(name) for name in ("note", "code", "picture"))
        payloads, sha256, raw_marks = (
            record.array("payloads"),
            record.mapping("sha256"),
            record.mapping("marks"),
        )
    with parse_object(raw_note, "A note in the report") as parsed:
        note = {"written": parsed.text("written"), "shown": parsed.text("shown")}
    if len(note["written"]) > MAX_NOTE_CHARACTERS:
        raise ReportError(
            f"A note in the report has {len(note['written']):,} characters, but at most "
            f"{MAX_NOTE_CHARACTERS:,} are allowed. Choose another file."
        )
    with parse_object(raw_code, "The code of a view") as parsed:
        code = {"python": parsed.text("python"), "shell": parsed.text("shell")}
    with parse_object(raw_picture, "A picture in the report") as parsed:
        picture: dict[str, Any] = (
            {"component": parsed.choice("component", built.FIGURES), "caveat": parsed.text("caveat")}
            if "component" in raw_picture
            else {}
        )
        picture["start"] = parsed.integer("start")
    with parse_object(raw_marks, "The checksums of a table") as parsed:
        marks = {"rows": parsed.strings("rows"), "columns": parsed.strings("columns")}
    checksums = [value for value in (*marks.values(), *sha256.values()) if isinstance(value, list)]
    if any(len(value) > MAX_CELLS for value in checksums):
        raise ReportError(f"A view in the report has more than {MAX_CELLS:,} checksums. Choose another file.")
    _check_texts(provenance)
    return StatedView(
        *(view, title, table, note, provenance, code, tolerances, picture),
        *(tuple(map(_parse_payload, payloads)), sha256, marks, raw),
    )


def _check_texts(provenance: Mapping[str, Any]) -> None:
    """Check that all provenance values that the page displays as text are strings."""
    texts = provenance.get("texts") or []
    for text in [provenance, *texts] if isinstance(texts, list) else [None]:
        parts = [text.get(name) for name in ("text", "pair")] if isinstance(text, dict) else [0]
        if not all(part is None or isinstance(part, str) for part in parts):
            raise ReportError("The provenance of a view contains invalid strings. Choose another file.")


def _parse_payload(raw: Any) -> EmbeddedPayload | None:
    match raw:
        case [planes, length, str() as encoded] if type(planes) is int and type(length) is int:
            return EmbeddedPayload(planes, length, encoded)
    return None


def _read_zip(content: bytes, name: str) -> ReportFile:
    files = unpack(content, name)
    if not {MANIFEST, PAGE} <= files.keys():
        raise ReportError(
            f"{name} is a ZIP file but not a report, because it has no manifest or no page. Choose "
            "another file."
        )
    return _read_page(files.pop(PAGE), f"{PAGE} in {name}", files)


MAX_ENTRIES: Final = 1_000
"""Maximum number of files in a ZIP; a report has at most 50 views with about ten files each."""
_MAX_DIRECTORY: Final = 1_000_000
"""Maximum size of a ZIP's central directory in bytes; zipfile creates an object for each of its entries."""

_END: Final = struct.Struct("<4s4H2LH")  # end of central directory record
_LOCAL: Final = struct.Struct("<4s5H3L2H")  # local file header
_ZIP64_LOCATOR: Final = b"PK\x06\x07"  # locator of ZIP64, which is not allowed
_ZIP64_LOCATOR_BYTES: Final = 20
_UTF_8: Final = 0x800  # flag for UTF-8 names, the only allowed flag


def unpack(content: bytes, name: str) -> dict[str, bytes]:
    """Return the contents of the files in a ZIP, by name.

    All ZIP readers must agree on the content. Therefore, the archive may contain only stored or deflated
    files with unique names, without gaps between the files and without other bytes.

    Args:
        content: the content of the ZIP.
        name: the name of the ZIP, for error messages.

    Raises:
        ReportError: the ZIP is damaged, is too large for a report, or contains anything else.
    """
    try:
        _check_end(content)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            directory = archive.start_dir
        _check_counts(content, len(entries), directory)
        return _unpack_all(content, entries, directory)
    except (zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, ValueError) as error:
        raise ReportError(
            f"{name} is a ZIP file that cannot be read: {error}. Choose another file."
        ) from None


def _check_end(content: bytes) -> None:
    start = len(content) - _END.size
    if start < 0 or content[start : start + 4] != b"PK\x05\x06":
        raise ValueError("it contains data after its end-of-central-directory record")
    _, _, _, _, count, size, _, _ = _END.unpack_from(content, start)
    locator = max(0, start - _ZIP64_LOCATOR_BYTES)
    if content[locator : locator + 4] == _ZIP64_LOCATOR:
        raise ValueError("it is a ZIP64 archive, which is not allowed")
    if count > MAX_ENTRIES or size > _MAX_DIRECTORY:
        raise ValueError(
            f"its central directory lists {count:,} files in {size:,} bytes, but at most {MAX_ENTRIES:,} "
            f"files in {_MAX_DIRECTORY:,} bytes are allowed"
        )


def _check_counts(content: bytes, count: int, directory: int) -> None:
    """Check that the end of central directory record of a ZIP matches its central directory.

    Otherwise, ZIP readers could find different files.
    """
    size = len(content) - _END.size - directory
    if _END.unpack_from(content, len(content) - _END.size)[1:] != (0, 0, count, count, size, directory, 0):
        raise ValueError("its end-of-central-directory record does not match its central directory")


def _unpack_all(content: bytes, entries: Sequence[zipfile.ZipInfo], directory: int) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    end, remaining = 0, MAX_UNPACKED
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        name = ascii(entry.orig_filename[:60])
        if not entry.filename:
            raise ValueError("it contains a file without a name")
        if entry.filename in files:
            raise ValueError(f"it contains two files named {name}")
        mode = stat.S_IFMT(entry.external_attr >> 16)
        if entry.filename != entry.orig_filename or entry.is_dir() or mode not in (0, stat.S_IFREG):
            raise ValueError(f"{name} is not a regular file")
        if entry.flag_bits & ~_UTF_8:
            raise ValueError(f"{name} is encrypted or was written as a stream")
        if entry.header_offset != end:
            raise ValueError(f"there are bytes before {name} that do not belong to a file")
        start = _data_start(content, entry)
        end = start + entry.compress_size
        files[entry.filename] = _inflate(content[start:end], entry, remaining)
        remaining -= entry.file_size
    if end != directory:
        raise ValueError("there are bytes before its central directory that do not belong to a file")
    return files


def _data_start(content: bytes, entry: zipfile.ZipInfo) -> int:
    """Return the offset of an entry's data, after comparing its local header with the central directory."""
    signature, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes = _LOCAL.unpack_from(
        content, entry.header_offset
    )
    start = entry.header_offset + _LOCAL.size
    name = content[start : start + name_bytes].decode("utf-8" if flags & _UTF_8 else "cp437")
    local = (signature, flags, method, crc, packed, size, name, extra_bytes)
    listed = (
        *(b"PK\x03\x04", entry.flag_bits, entry.compress_type, entry.CRC),
        *(entry.compress_size, entry.file_size, entry.orig_filename, 0),
    )
    if local != listed or entry.extra or entry.comment:
        raise ValueError(
            f"the central directory and the local file header of {entry.orig_filename[:60]!a} differ"
        )
    return int(start + name_bytes)


def _inflate(packed: bytes, entry: zipfile.ZipInfo, limit: int) -> bytes:
    name = ascii(entry.orig_filename[:60])
    if entry.file_size > limit:
        raise ValueError(f"its files take more than {MAX_UNPACKED / 1e6:.0f} MB, the limit for a report")
    if entry.compress_type == zipfile.ZIP_STORED:
        unpacked = packed
    elif entry.compress_type == zipfile.ZIP_DEFLATED:
        inflate = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
        unpacked = inflate.decompress(packed, entry.file_size + 1)
        if len(unpacked) > entry.file_size or not inflate.eof or inflate.unused_data:
            raise ValueError(f"{name} does not have the stated size")
    else:
        raise ValueError(f"{name} has a compression method that is not allowed")
    if len(unpacked) != entry.file_size or zlib.crc32(unpacked) != entry.CRC:
        raise ValueError(f"{name} is damaged")
    return unpacked
