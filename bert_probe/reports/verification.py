"""Whether a report is right: every number computed again with the model that it names.

Three things are compared. What the report states with what the model gives here, which finds a wrong number
whatever else was changed with it; what it states with the SHA-256 that were written with it, which finds any
changed character; and the page, and each file of a ZIP, with what is rendered again from the stated data. So
markup, styles and scripts are this program's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import pandas as pd

import bert_probe
from bert_probe.errors import ProbeError, ReportError
from bert_probe.model.progress import Progress as Progress
from bert_probe.model.progress import no_progress
from bert_probe.reports import notes, page
from bert_probe.reports.differences import (
    MOST,
    NOT_RENDERED,
    OTHER_VERSION,
    OTHERWISE,
    Difference,
    exactly,
    note_difference,
)
from bert_probe.reports.numbers import NamedModels
from bert_probe.reports.page_changes import PageChange, page_changes
from bert_probe.reports.reading import ReportFile, StatedView
from bert_probe.reports.report import (
    PAGE,
    statement,
)
from bert_probe.reports.view_checks import ViewCheck
from bert_probe.reports.zip_checks import file_differences, manifest_differences


@dataclass(frozen=True)
class Verdict:
    """What was found.

    Attributes:
        numbers: how many were computed again.
        remarks: what a reader should know besides, a sentence each: digits of notes that nobody can check.
    """

    differences: tuple[Difference, ...]
    numbers: int
    remarks: tuple[str, ...]

    def frame(self) -> pd.DataFrame:
        """A row for each difference."""
        columns = list(Difference.__dataclass_fields__)
        rows = [[getattr(difference, name) for name in columns] for difference in self.differences]
        return pd.DataFrame(rows, columns=columns)


def verify(read: ReportFile, models: NamedModels, report: Progress = no_progress) -> Verdict:
    """Compute a report again.

    Args:
        report: told how many views are done, and of how many.

    Raises:
        ProbeError: a model cannot be opened, or a question not be asked of it; says of which view.
    """
    models = replace(models, as_named=True)
    is_same_version = read.made_with.get("bert_probe") == bert_probe.__version__
    found: list[Difference] = []
    if not is_same_version:
        stated_version = exactly(read.made_with.get("bert_probe", ""))
        found.append(
            Difference(
                *(0, "file", "", "bert_probe", stated_version, bert_probe.__version__), finding=OTHER_VERSION
            )
        )
    remarks: list[str] = []
    numbers = 0
    sha256: dict[str, str] = {}
    is_complete = True
    for number, stated in enumerate(read.views, start=1):
        report(number - 1, len(read.views))
        checked = ViewCheck(number, stated)
        others: list[Difference] = []
        try:
            others += checked.models(models.of(stated.view))
            now, bounds = models.computed(stated.view)
        except ProbeError as error:
            if not others:
                raise type(error)(f"View {number}: {error}") from None
            # Another model may have no such layer.
            found += [*others, Difference(number, "view", "", "", "", str(error))]
            is_complete = False
            continue
        found += [*others, *checked.all(now, bounds, same_model=not others)]
        if read.files is not None and is_same_version:
            found += file_differences(checked, read.files, now)
        numbers += checked.numbers
        remarks += checked.remarks
        sha256 |= checked.sha256
    if is_same_version:
        found += _page_differences(read, found)
        if read.files is not None and is_complete:
            found += manifest_differences(read, read.files, sha256, is_right=not found)
    found.sort(key=lambda one: one.table != "model")
    return Verdict(tuple(found), numbers, tuple(remarks))


def _page_differences(read: ReportFile, found: Sequence[Difference]) -> Iterator[Difference]:
    """Compare the page with the one that is rendered from its data; both are the same to the last byte."""
    views = [{**stated.parts, **stated.checks} for stated in read.views]
    try:
        rendered = page.written(statement(read.title, read.made_with, views)).encode()
    except ReportError as error:  # a note that refers to a missing cell, which was reported where it stands
        if not found:
            yield Difference(0, "file", PAGE, "", "", str(error), finding=NOT_RENDERED)
        return
    silent = []
    count = 0
    for change in islice(page_changes(read.page, rendered), MOST):
        if change.part in ("data", "digest"):
            silent.append(change)
        else:
            count += 1
            yield _page_difference(change, read.views)
    if silent and not count and not found:
        # The data are right, but written in another way than this program writes them.
        yield Difference(
            0,
            "file",
            PAGE,
            "",
            exactly(silent[0].stated),
            exactly(silent[0].rendered),
            finding=NOT_RENDERED,
        )


def _page_difference(change: PageChange, views: Sequence[StatedView]) -> Difference:
    texts = exactly(change.stated), exactly(change.rendered)
    stated = views[change.view - 1] if change.view else None
    if stated is not None and change.part == "cell":
        table = stated.table
        row = table.row_name(change.row - 1) if change.row else "header"
        column = table.columns[change.column].name
        return Difference(change.view, "table as shown", row, column, *texts, finding=OTHERWISE)
    if stated is not None and change.part == "note":
        pieces = notes.pieces(stated.note["written"], stated.table)
        place = note_difference(change.stated, change.rendered, pieces)
        return Difference(change.view, "note", "", *place, finding=OTHERWISE)
    return Difference(
        change.view,
        "page" if change.view else "file",
        "" if change.view else PAGE,
        "",
        *texts,
        finding=NOT_RENDERED,
    )
