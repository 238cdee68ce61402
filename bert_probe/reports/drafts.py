"""Drafts of reports: the views and notes that a user has collected, which can be saved to a file."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Final, Self

from bert_probe.errors import ReportError
from bert_probe.reports.json_reader import parse_document, parse_object
from bert_probe.reports.view_files import ViewFile, read

FORMAT: Final = 1
KIND: Final = "bert_probe_tray"
"""JSON key that identifies a file with a draft; its value is the version of the format."""

MOST_VIEWS: Final = 50
"""Maximum number of views in a report."""


_keys: Final = itertools.count()


@dataclass(frozen=True)
class DraftEntry:
    """A view in a draft, and its note in plain text; `tables` describes references to cells in a note.

    Attributes:
        key: a number that identifies the entry in this process; it stays the same if the entry is moved or
            its note is replaced.
    """

    view: ViewFile
    note: str = ""
    key: int = field(default_factory=_keys.__next__, compare=False, repr=False)


@dataclass(frozen=True)
class Draft:
    """The title and views of a report that has not been computed yet."""

    title: str = ""
    entries: tuple[DraftEntry, ...] = ()

    def to_bytes(self) -> bytes:
        """Serialize the draft to the bytes of a file."""
        views = [{"view": entry.view.to_json(), "note": entry.note} for entry in self.entries]
        text = json.dumps({KIND: FORMAT, "title": self.title, "views": views}, ensure_ascii=False)
        return f"{text}\n".encode("utf-8", "backslashreplace")

    @classmethod
    def read(cls, content: bytes, name: str = "The file") -> Self:
        """Parse a draft from the content of a file.

        Args:
            content: the content of the file.
            name: the name of the file, for error messages.

        Raises:
            ReportError: the file is not a draft, or has more than `MOST_VIEWS` views.
        """
        entries = []
        with parse_object(parse_document(content, name, KIND, FORMAT), name) as parsed:
            title = parsed.text("title")
            views = parsed.array("views")
            if len(views) > MOST_VIEWS:
                raise ReportError(
                    f"{name} has {len(views):,} views, but a report has at most {MOST_VIEWS} views. Remove "
                    "views from the file."
                )
            for value in views:
                with parse_object(value, f"A view of {name}") as entry:
                    view = ViewFile.from_json(entry.mapping("view"))
                    entries.append(DraftEntry(view, entry.text("note")))
        return cls(title, tuple(entries))


def read_any(content: bytes, name: str) -> ViewFile | Draft:
    """Parse a view file or a draft from the content of a file.

    Args:
        content: the content of the file.
        name: the name of the file, for error messages.

    Raises:
        ReportError: the file is neither a view file nor a draft.
    """
    return Draft.read(content, name) if f'"{KIND}"'.encode() in content[:200] else read(content, name)
