"""What somebody picked for a report: views in their order, with notes; as a file, too."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Self

from bert_probe.reports.json_reader import contents, given
from bert_probe.reports.view_files import ViewFile, read

FORMAT: Final = 1
KIND: Final = "bert_probe_tray"
"""The key that tells such a file, and holds its format."""

MOST_VIEWS: Final = 50
"""Of a report."""


@dataclass(frozen=True)
class DraftEntry:
    """What somebody picked: a view, and a note on it in plain text; see `notes`."""

    view: ViewFile
    note: str = ""


@dataclass(frozen=True)
class Draft:
    """What a report will be made of, in its order."""

    title: str = ""
    entries: tuple[DraftEntry, ...] = ()

    def to_bytes(self) -> bytes:
        """A file that opens again."""
        views = [{"view": entry.view.to_json(), "note": entry.note} for entry in self.entries]
        text = json.dumps({KIND: FORMAT, "title": self.title, "views": views}, ensure_ascii=False)
        return f"{text}\n".encode("utf-8", "backslashreplace")

    @classmethod
    def read(cls, content: bytes, name: str = "The file") -> Self:
        """What `to_bytes` made.

        Raises:
            ReportError: it is something else.
        """
        entries = []
        with given(contents(content, name, KIND, FORMAT), name) as one:
            title = one.text("title")
            for held in one.several("views"):
                with given(held, f"A view of {name}") as entry:
                    entries.append(DraftEntry(ViewFile.from_json(entry.record("view")), entry.text("note")))
        return cls(title, tuple(entries))


def read_any(content: bytes, name: str) -> ViewFile | Draft:
    """A view file, or a tray.

    Raises:
        ReportError: neither.
    """
    return Draft.read(content, name) if f'"{KIND}"'.encode() in content[:200] else read(content, name)
