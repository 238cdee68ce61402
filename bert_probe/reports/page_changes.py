"""Where a report's page differs from the page that its data give.

The page itself is never parsed as HTML: a forger would choose markup that a parser here and a browser read in
two ways. Both pages are cut at every "<" instead, and the places are named by the rendered one.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

AROUND: Final = 40
"""Bytes shown before and after a difference."""

_VIEW: Final = re.compile(rb'article id="view-([0-9]+)"')
_DATA: Final = b'script type="application/json"'
_LAST_LINE: Final = b"!-- SHA-256 of all above"

Part = Literal["cell", "note", "data", "digest", "page"]


@dataclass
class PageChange:
    """A difference.

    Attributes:
        part: what differs: a cell of a table, a note, the data, the digest of the page, or anything else.
        view: number from 1; 0 outside of the views.
        row, column: of a cell, from 0; row 0 is the header.
        stated, rendered: text of this part in the page and in the rendered one.
    """

    part: Part
    view: int = 0
    row: int = 0
    column: int = 0
    stated: str = ""
    rendered: str = ""


def page_changes(page: bytes, rendered: bytes) -> Iterator[PageChange]:
    """Yield every difference where both pages have the same number of tags, else only the first."""
    if page == rendered:
        return
    if page.count(b"<") == rendered.count(b"<"):
        yield from _by_tags(page, rendered)
    else:
        yield _first_change(page, rendered)


def _by_tags(page: bytes, rendered: bytes) -> Iterator[PageChange]:
    notes: dict[int, list[tuple[bytes, bytes]]] = {}
    places = _PageScanner()
    for stated, expected in zip(page.split(b"<"), rendered.split(b"<"), strict=True):
        change = places.next(expected)
        if change.part == "note":
            notes.setdefault(change.view, []).append((stated, expected))
        elif stated != expected:
            same_tag = stated.partition(b">")[0] == expected.partition(b">")[0]
            if change.part == "cell" and not same_tag:
                change.part = "page"
            if change.part == "cell":
                change.stated, change.rendered = _text(stated), _text(expected)
            else:
                change.stated, change.rendered = _around(stated, expected)
            yield change
    for view, pieces in notes.items():
        sides = [[side[place] for side in pieces] for place in (0, 1)]
        if sides[0] != sides[1]:
            texts = ["".join(map(_text, side)) for side in sides]
            if texts[0] == texts[1]:  # so it is the markup that differs
                texts = [*_around(b"<".join(sides[0]), b"<".join(sides[1]))]
            yield PageChange("note", view, stated=texts[0], rendered=texts[1])


def _first_change(page: bytes, rendered: bytes) -> PageChange:
    start = _first_difference(page, rendered)
    places, change = _PageScanner(), PageChange("page")
    for token in rendered[: max(start, 1)].split(b"<"):
        change = places.next(token)
    if change.part in ("data", "digest"):
        change.part = "page"
    change.stated, change.rendered = _around(page, rendered)
    return change


@dataclass
class _PageScanner:
    """Follows the rendered page token by token; a token is all from one "<" to the next."""

    view: int = 0
    row: int = -1
    column: int = -1
    in_table: bool = field(default=False)
    in_note: bool = field(default=False)

    def next(self, token: bytes) -> PageChange:
        """Return the place of the next token."""
        if found := _VIEW.match(token):
            self.view = int(found[1])
        elif token.startswith(b"/main"):
            self.view = 0
        if token.startswith((b"p class=note>", b"/p>")):
            self.in_note = token.startswith(b"p")
        if token.startswith((b"table data-view=", b"/table")):
            self.in_table, self.row = token.startswith(b"t"), -1
        is_cell = self.in_table and token.startswith((b"td", b"th>", b"th "))
        if self.in_table and token.startswith(b"tr>"):
            self.row, self.column = self.row + 1, -1
        self.column += is_cell
        return PageChange(self._part(token, is_cell), self.view, self.row, self.column)

    def _part(self, token: bytes, is_cell: bool) -> Part:
        if is_cell:
            return "cell"
        if self.in_note:
            return "note"
        if token.startswith(_DATA):
            return "data"
        return "digest" if token.startswith(_LAST_LINE) else "page"


def _text(token: bytes) -> str:
    """Return the text after a tag."""
    return html.unescape(token.partition(b">")[2].decode("utf-8", "replace"))


def _around(stated: bytes, expected: bytes) -> tuple[str, str]:
    """Return both texts around the first byte in which they differ."""
    middle = _first_difference(stated, expected)
    part = slice(max(0, middle - AROUND), middle + AROUND)
    return stated[part].decode("utf-8", "replace"), expected[part].decode("utf-8", "replace")


def _first_difference(stated: bytes, expected: bytes) -> int:
    size = min(len(stated), len(expected))
    sides = (np.frombuffer(side, np.uint8, size) for side in (stated, expected)) if size else ((), ())
    differing = np.flatnonzero(np.not_equal(*sides))
    return int(differing[0]) if differing.size else size
