"""Verify a report: recompute all its numbers with the models that are named in the report.

Three comparisons find every change. Comparing stated with recomputed numbers finds wrong numbers, even if the
other data were changed to match them. Comparing stated data with their SHA-256 digests finds every
changed character. Comparing the page and the files in a ZIP with files rendered from the stated data finds
changed markup, styles and scripts.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, Literal

import numpy as np
import pandas as pd

import bert_probe
from bert_probe.errors import ProbeError, ReportError, ReportTooLargeError
from bert_probe.model.progress import Progress as Progress
from bert_probe.model.progress import no_progress
from bert_probe.reports import page, tables
from bert_probe.reports.numbers import (
    DISPLAY_DIFFERS,
    MAX_DIFFERENCES,
    NOT_RENDERED,
    OTHER_VERSION,
    Difference,
    NamedModels,
    exact_text,
    leaves,
)
from bert_probe.reports.reading import ReportFile, StatedView
from bert_probe.reports.report import PAGE, statement
from bert_probe.reports.view_checks import ViewCheck
from bert_probe.reports.zip_checks import file_differences, manifest_differences

_CONTEXT_BYTES: Final = 40
"""Number of bytes shown before and after a difference."""

_VIEW: Final = re.compile(rb'article id="view-([0-9]+)"')
_DATA: Final = b'script type="application/json"'
_LAST_LINE: Final = b"!-- SHA-256 of all above"

PagePart = Literal["cell", "note", "data", "digest", "page"]


@dataclass(frozen=True)
class Verdict:
    """The outcome of verifying a report.

    Attributes:
        differences: the differences, at most `MAX_DIFFERENCES` in each part of a view; empty if the report is
            correct.
        numbers: number of stated numbers that were compared with recomputed numbers.
        remarks: sentences for the user about content that cannot be verified, such as numbers that the author
            wrote in notes.
    """

    differences: tuple[Difference, ...]
    numbers: int
    remarks: tuple[str, ...]

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per difference; the columns are the attributes of `Difference`."""
        columns = list(Difference.__dataclass_fields__)
        rows = [[getattr(difference, name) for name in columns] for difference in self.differences]
        return pd.DataFrame(rows, columns=columns)


def verify(read: ReportFile, models: NamedModels, progress: Progress = no_progress) -> Verdict:
    """Recompute all views of a report, and return the differences from the report.

    Args:
        read: the report as read from its file.
        models: the models of the report, which are opened when needed.
        progress: called with the number of views that were verified before the current one, and their total.

    Raises:
        ProbeError: a model cannot be opened, or a question cannot be answered by the model of the report; the
            message names the view. If the opened model is not that of the report, this is a difference.
    """
    models = replace(models, as_named=True)
    is_same_version = read.made_with.get("bert_probe") == bert_probe.__version__
    differences: list[Difference] = []
    if not is_same_version:
        versions = exact_text(read.made_with.get("bert_probe", "")), bert_probe.__version__
        differences.append(Difference(0, "file", "", "bert_probe", *versions, finding=OTHER_VERSION))
    rendered = _rendered(read) if is_same_version else None
    remarks: list[str] = []
    numbers = 0
    sha256: dict[str, str] = {}
    is_complete = True
    for number, stated in enumerate(read.views, start=1):

        def tick(*_: object, done: int = number - 1) -> None:
            progress(done, len(read.views))

        tick()
        check = ViewCheck(number, stated)
        model_differences: list[Difference] = []
        try:
            model_differences += check.models(models.of(stated.view))
            actual, tolerances = models.computed(stated.view, tick)
        except ProbeError as error:
            if not model_differences:
                raise type(error)(f"View {number}: {error}") from None
            # The opened model differs from the stated model; for example, it may have fewer layers.
            differences += [*model_differences, Difference(number, "view", "", "", "", str(error))]
            is_complete = False
            continue
        differences += model_differences
        differences += check.all(actual, tolerances, same_model=not model_differences, check=tick)
        if is_same_version:
            differences += check.files()
            if read.files is not None:
                differences += file_differences(check, read.files, actual)
        numbers += check.numbers
        remarks += check.remarks
        sha256 |= check.sha256
    if rendered is not None:
        differences += _page_differences(read, rendered, differences)
        if read.files is not None and is_complete:
            differences += manifest_differences(read, read.files, sha256, is_right=not differences)
    differences.sort(key=lambda difference: difference.table != "model")  # list model differences first
    return Verdict(tuple(differences), numbers, tuple(remarks))


def _rendered(read: ReportFile) -> bytes | ReportError:
    """Return the page that is rendered from a report's data, or the error if a note refers to a missing cell.

    Raises:
        ReportError: the data have more text than the report's page, or more values than any report.
    """
    for stated in read.views:
        leaves(stated.provenance)  # raises an error before a page with too many values is rendered
    views = [{**stated.parts, **stated.checks} for stated in read.views]
    try:
        return page.render_page(statement(read.title, read.made_with, views), len(read.page)).encode()
    except ReportTooLargeError:
        raise ReportError(
            "The data of the report have more text than its page shows. Choose another file."
        ) from None
    except ReportError as error:
        return error


def _page_differences(
    read: ReportFile, rendered: bytes | ReportError, differences: Sequence[Difference]
) -> Iterator[Difference]:
    """Compare a report's page byte by byte with the page rendered from the report's data.

    Args:
        read: the report.
        rendered: the rendered page, or the reason why it cannot be rendered.
        differences: differences found so far, which may explain changes of the page.
    """
    if isinstance(rendered, ReportError):
        if not differences:
            yield Difference(0, "file", PAGE, "", "", str(rendered), finding=NOT_RENDERED)
        return
    data_changes = []
    count = 0
    for change in islice(page_changes(read.page, rendered), MAX_DIFFERENCES):
        if change.part in ("data", "digest"):
            data_changes.append(change)
        else:
            count += 1
            yield _page_difference(change, read.views)
    if data_changes and not count and not differences:
        # The data are correct, but their JSON is formatted differently, for example with other spaces.
        texts = exact_text(data_changes[0].stated), exact_text(data_changes[0].rendered)
        yield Difference(0, "file", PAGE, "", *texts, finding=NOT_RENDERED)


def _page_difference(change: PageChange, views: Sequence[StatedView]) -> Difference:
    texts = exact_text(change.stated), exact_text(change.rendered)
    stated = views[change.view - 1] if change.view else None
    if stated is not None and change.part == "cell":
        table = stated.table
        row = table.row_name(change.row - 1) if change.row else "header"
        column = table.columns[change.column].name
        return Difference(change.view, "table as shown", row, column, *texts, finding=DISPLAY_DIFFERS)
    if stated is not None and change.part == "note":
        segments = tables.split_note(stated.note["written"], stated.table)
        located = tables.note_difference(change.stated, change.rendered, segments)
        return Difference(change.view, "note", "", *located, finding=DISPLAY_DIFFERS)
    if change.view:
        return Difference(change.view, "page", "", "", *texts, finding=NOT_RENDERED)
    return Difference(0, "file", PAGE, "", *texts, finding=NOT_RENDERED)


@dataclass
class PageChange:
    """A difference between a report's page and the page rendered from its data.

    Attributes:
        part: the changed part: "cell" of a table, "note", "data", "digest" of the page, or "page" for any
            other part.
        view: number of the view, from 1; 0 outside views.
        row: the row of a cell; row 0 is the header.
        column: the column of a cell, from 0.
        stated: text of the part in the page.
        rendered: text of the part in the rendered page.
    """

    part: PagePart
    view: int = 0
    row: int = 0
    column: int = 0
    stated: str = ""
    rendered: str = ""


def page_changes(content: bytes, rendered: bytes) -> Iterator[PageChange]:
    """Yield the differences between a report's page and the page rendered from its data.

    If `content` (the report's page) and `rendered` have different numbers of tags, only the first difference
    is yielded.

    The untrusted page is never parsed as HTML, because a forger could choose markup that this program and
    a browser parse differently. Instead, both pages are split at every "<", and the rendered page determines
    the part to which each fragment belongs.
    """
    if content == rendered:
        return
    if content.count(b"<") == rendered.count(b"<"):
        yield from _changes_by_tag(content, rendered)
    else:
        yield _first_change(content, rendered)


def _changes_by_tag(content: bytes, rendered: bytes) -> Iterator[PageChange]:
    note_tokens: dict[int, list[tuple[bytes, bytes]]] = {}
    scanner = _PageScanner()
    for stated, expected in zip(content.split(b"<"), rendered.split(b"<"), strict=True):
        change = scanner.next(expected)
        if change.part == "note":
            note_tokens.setdefault(change.view, []).append((stated, expected))
        elif stated != expected:
            is_same_tag = stated.partition(b">")[0] == expected.partition(b">")[0]
            if change.part == "cell" and not is_same_tag:
                change.part = "page"
            if change.part == "cell":
                change.stated, change.rendered = _text(stated), _text(expected)
            else:
                change.stated, change.rendered = _around(stated, expected)
            yield change
    for view, tokens in note_tokens.items():
        sides = [[pair[side] for pair in tokens] for side in (0, 1)]
        if sides[0] != sides[1]:
            texts = ["".join(map(_text, side)) for side in sides]
            if texts[0] == texts[1]:  # the texts are equal, so show the markup that differs
                texts = [*_around(b"<".join(sides[0]), b"<".join(sides[1]))]
            yield PageChange("note", view, stated=texts[0], rendered=texts[1])


def _first_change(content: bytes, rendered: bytes) -> PageChange:
    start = _first_difference(content, rendered)
    scanner, change = _PageScanner(), PageChange("page")
    for token in rendered[: max(start, 1)].split(b"<"):
        change = scanner.next(token)
    if change.part in ("data", "digest"):
        change.part = "page"
    change.stated, change.rendered = _around(content, rendered)
    return change


@dataclass
class _PageScanner:
    """Determines the part of the rendered page to which each token belongs.

    The page is split at every "<", so a token is a tag and the text after it.
    """

    view: int = 0
    row: int = -1
    column: int = -1
    in_table: bool = field(default=False)
    in_note: bool = field(default=False)

    def next(self, token: bytes) -> PageChange:
        """Return the part of the page that contains the next token, as a `PageChange` without texts."""
        if match := _VIEW.match(token):
            self.view = int(match[1])
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

    def _part(self, token: bytes, is_cell: bool) -> PagePart:
        if is_cell:
            return "cell"
        if self.in_note:
            return "note"
        if token.startswith(_DATA):
            return "data"
        return "digest" if token.startswith(_LAST_LINE) else "page"


def _text(token: bytes) -> str:
    """Return the text that follows the HTML tag in `token`."""
    return html.unescape(token.partition(b">")[2].decode("utf-8", "replace"))


def _around(stated: bytes, expected: bytes) -> tuple[str, str]:
    """Return excerpts of `stated` and `expected` around the first byte at which they differ."""
    middle = _first_difference(stated, expected)
    span = slice(max(0, middle - _CONTEXT_BYTES), middle + _CONTEXT_BYTES)
    return stated[span].decode("utf-8", "replace"), expected[span].decode("utf-8", "replace")


def _first_difference(stated: bytes, expected: bytes) -> int:
    """Return the index of the first byte at which two texts differ, or the length of the shorter text."""
    size = min(len(stated), len(expected))
    sides = (np.frombuffer(side, np.uint8, size) for side in (stated, expected)) if size else ((), ())
    differing = np.flatnonzero(np.not_equal(*sides))
    return int(differing[0]) if differing.size else size
