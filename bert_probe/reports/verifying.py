"""Whether a report is right: every number computed again with the model that it names.

Three things are compared. What the page shows with what it states; what it states with the SHA-256 that were
written with it, which finds any changed character; and what it states with what the model gives here, which
finds a wrong number whatever else was changed with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import pandas as pd

from bert_probe.errors import ProbeError, ReportError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Report as Progress
from bert_probe.model.progress import ignore
from bert_probe.model.trace import Array
from bert_probe.reports import notes
from bert_probe.reports.numbers import Bounds, Drawn, Models, Numbers, said_of
from bert_probe.reports.page import MOST_COLUMNS, MOST_ROWS
from bert_probe.reports.reading import Read, Stated
from bert_probe.reports.tables import Column, Table, changed, digest, finite, paired, shown
from bert_probe.reports.tolerances import Bound, joined, near

DIFFERS: Final = "differs from what the model gives"
CHANGED: Final = "changed since it was written"
OTHERWISE: Final = "shown otherwise than stated"
OTHER_MODEL: Final = "another model than the one named"

MOST: Final = 1_000
"""Differences that are told of one part of a view."""


@dataclass(frozen=True)
class Difference:
    """Something that is not as it must be.

    Attributes:
        view: number from 1; 0 for the file itself.
        table: the part of the view: table, note, picture 1, …
        row, column: of it; rows by their number from 1 and name.
        finding: in words.
    """

    view: int
    table: str
    row: str
    column: str
    stated: str
    recomputed: str
    difference: float | None = None
    tolerance: float | None = None
    finding: str = DIFFERS


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
        rows = [[getattr(one, name) for name in columns] for one in self.differences]
        return pd.DataFrame(rows, columns=columns)


def verify(read: Read, models: Models, report: Progress = ignore) -> Verdict:
    """Compute a report again.

    Args:
        report: told how many views are done, and of how many.

    Raises:
        ProbeError: a model cannot be opened, or a question not be asked of it; says of which view.
    """
    found: list[Difference] = [
        Difference(0, "file", name, "SHA-256", stated, there, finding=CHANGED)
        for name, (stated, there) in read.files.items()
    ]
    remarks: list[str] = []
    numbers = 0
    for number, stated in enumerate(read.views, start=1):
        report(number - 1, len(read.views))
        checked = _Checked(number, stated, read)
        others: list[Difference] = []
        try:
            others += checked.models(models.of(stated.view))
            now, bounds = models.computed(stated.view)
        except ProbeError as error:
            if not others:
                raise type(error)(f"View {number}: {error}") from None
            # Another model may have no such layer.
            found += [*others, Difference(number, "view", "", "", "", str(error))]
            continue
        found += [*others, *checked.all(now, bounds)]
        numbers += checked.numbers
        remarks += checked.remarks
    if not read.whole and not found:
        found.append(
            Difference(0, "file", "", "SHA-256", "", "", finding="changed outside of tables, notes and data")
        )
    found.sort(key=lambda one: one.table != "model")
    return Verdict(tuple(found), numbers, tuple(remarks))


class _Checked:
    """One view, part by part."""

    def __init__(self, number: int, stated: Stated, read: Read) -> None:
        self.number, self.stated = number, stated
        self._shown = read.seen.tables.get(number, [])
        self._note = read.seen.notes.get(number, "")
        self._data = read.data.get(number)
        self.numbers = 0
        self.remarks: list[str] = []

    def _one(self, table: str, row: Any, column: str, stated: Any, found: Any, **more: Any) -> Difference:
        return Difference(self.number, table, str(row), column, str(stated), str(found), **more)

    def models(self, opened: Sequence[Checkpoint]) -> Iterator[Difference]:
        """Whether the models are those that are named, which is said before all else."""
        for name, checkpoint in zip(self.stated.view.models, opened, strict=True):
            if not name.fits(checkpoint):
                here = checkpoint.description.weights_sha256
                yield self._one(
                    "model", name.shown, "weights_sha256", name.weights_sha256, here, finding=OTHER_MODEL
                )

    def all(self, now: Numbers, bounds: Bounds) -> list[Difference]:
        """Every part."""
        stated = self.stated
        parts = (
            self._table(now.table, bounds.table),
            self._seen(),
            self._noted(),
            self._said(now, bounds.said),
            self._pictures(now.drawn(), bounds.drawn),
        )
        found = [one for part in parts for one in islice(part, MOST)]
        told = {one.table for one in found}
        # Of a part in which nothing was found so far: a character may have been changed that is no number.
        for name, part in stated.parts.items():
            if name not in told and digest(part) != stated.sha256.get(name):
                found.append(
                    self._one(name, "", "SHA-256", stated.sha256.get(name), digest(part), finding=CHANGED)
                )
        return found

    def _table(self, now: Table, own: Sequence[Bound]) -> Iterator[Difference]:
        stated = self.stated.table
        names, theirs = [one.name for one in stated.columns], {one.name: one for one in now.columns}
        if names != [*theirs]:
            yield self._one("table", "", "columns", ", ".join(names), ", ".join(theirs))
        if stated.rows != now.rows:
            yield self._one("table", "", "rows", stated.rows, now.rows)
        allowed = joined(own, self.stated.bounds.table)
        rows = paired(stated, now)
        marks = stated.marks()
        changed_rows = {*changed(self.stated.marks["rows"], marks["rows"])}
        changed_columns = {*changed(self.stated.marks["columns"], marks["columns"])}
        for place, column in enumerate(stated.columns):
            other = theirs.get(column.name)
            if other is None:
                continue
            self.numbers += len(column.cells) if column.kind == "number" else 0
            suspect = changed_rows if place in changed_columns else set()
            tolerance = allowed.get("" if stated.matrix else column.name, 0.0)
            yield from self._column(column, other, rows, tolerance, suspect)
        if self._data is not None:
            yield from self._parquet(self._data)

    def _column(
        self, column: Column, other: Column, rows: Sequence[int | None], tolerance: float, suspect: set[int]
    ) -> Iterator[Difference]:
        measured = column.kind == "number" or other.kind == "number"
        for row, cell in enumerate(column.cells):
            place = rows[row]
            there = None if place is None else other.cells[place]
            same = near(cell, there, tolerance) if measured else cell == there
            if not same or row in suspect:
                numeric = _are_numbers(cell, there)
                yield self._one(
                    "table",
                    self.stated.table.row_name(row),
                    column.name,
                    _exactly(cell),
                    _exactly(there),
                    difference=abs(cell - there) if numeric else None,
                    tolerance=tolerance if measured else None,
                    finding=CHANGED if same else DIFFERS,
                )

    def _parquet(self, data: Table) -> Iterator[Difference]:
        """The table that lies beside the page of a ZIP, which must be the very same."""
        for column, other in zip(self.stated.table.columns, data.columns, strict=False):
            for row, (cell, there) in enumerate(zip(column.cells, other.cells, strict=False)):
                if cell != there:
                    name = self.stated.table.row_name(row)
                    yield self._one(
                        "table.parquet", name, column.name, _exactly(there), _exactly(cell), finding=CHANGED
                    )

    def _seen(self) -> Iterator[Difference]:
        """The table as the page shows it."""
        table = self.stated.table
        columns = table.columns[:MOST_COLUMNS]
        wanted = [[one.name for one in columns]]
        wanted += [
            [table.cell(row, place) for place in range(len(columns))]
            for row in range(min(table.rows, MOST_ROWS))
        ]
        if len(self._shown) != len(wanted):
            yield self._one("table as shown", "", "rows", len(self._shown), len(wanted), finding=OTHERWISE)
        for row, (cells, there) in enumerate(zip(wanted, self._shown, strict=False)):
            for place, (cell, shown_cell) in enumerate(zip(cells, there, strict=False)):
                if _as_read(cell) != _as_read(shown_cell):
                    name = table.row_name(row - 1) if row else "header"
                    yield self._one(
                        "table as shown", name, columns[place].name, shown_cell, cell, finding=OTHERWISE
                    )

    def _noted(self) -> Iterator[Difference]:
        """The note: its text as it was written, and each number of it that stands by reference."""
        written, stated = self.stated.note["written"], self.stated.note["shown"]
        if not written and not self._note:
            return
        own = notes.unchecked(written)
        if own:
            self.remarks.append(
                f"View {self.number}: these numbers of the note are its writer's own, and nobody can compute "
                f"them again: {', '.join(own)}."
            )
        try:
            told = notes.pieces(written, self.stated.table)
        except ReportError as error:
            yield self._one("note", "", "", written, str(error), finding=CHANGED)
            return
        should = "".join(piece.text for piece in told)
        for here, what in ((self._note, OTHERWISE), (stated, CHANGED)):
            if _as_read(here) != _as_read(should):
                yield self._one("note", "", *_first_difference(here, should, told), finding=what)

    def _said(self, now: Numbers, own: Sequence[Bound]) -> Iterator[Difference]:
        stated = said_of(self.stated.provenance)
        yield from self._leaves("provenance", stated, now.said, joined(own, self.stated.bounds.said))

    def _leaves(
        self, table: str, stated: Mapping[str, Any], found: Mapping[str, Any], allowed: Mapping[str, float]
    ) -> Iterator[Difference]:
        for path in dict.fromkeys([*stated, *found]):
            cell, there = stated.get(path), finite(found.get(path))
            measured = path in allowed or isinstance(cell, float)
            self.numbers += measured
            tolerance = allowed.get(path, 0.0)
            numeric = _are_numbers(cell, there)
            if not (near(cell, there, tolerance) if measured and numeric else cell == there):
                yield self._one(
                    table,
                    "",
                    path,
                    _exactly(cell),
                    _exactly(there),
                    difference=abs(cell - there) if numeric else None,
                    tolerance=tolerance if measured else None,
                )

    def _pictures(self, now: Sequence[Drawn], own: Sequence[tuple[Bound, ...]]) -> Iterator[Difference]:
        stated, digests = self.stated, self.stated.sha256.get("payloads")
        digests = digests if isinstance(digests, list) else []
        if len(stated.payloads) != len(now):
            yield self._one("picture", "", "payloads", len(stated.payloads), len(now))
        for place, (payload, there) in enumerate(zip(stated.payloads, now, strict=False)):
            name = f"picture {place + 1}"
            bounds = own[place] if place < len(own) else ()
            said = stated.bounds.drawn[place] if place < len(stated.bounds.drawn) else ()
            found = [*self._payload(name, payload, there, joined(bounds, said))]
            yield from found
            sha256 = digests[place] if place < len(digests) else ""
            here = digest(payload) if payload is not None else "cannot be read"
            if not found and sha256 != here:
                yield self._one(name, "", "SHA-256", sha256, here, finding=CHANGED)

    def _payload(
        self, name: str, payload: bytes | None, now: Drawn, allowed: Mapping[str, float]
    ) -> Iterator[Difference]:
        try:
            drawn = None if payload is None else Drawn.of(self.stated.component, payload)
        except ValueError:
            drawn = None
        if drawn is None:
            return
        yield from self._leaves(name, drawn.said, now.said, allowed)
        for array in dict.fromkeys([*drawn.arrays, *now.arrays]):
            one, other = drawn.arrays.get(array), now.arrays.get(array)
            if one is None or other is None or one.shape != other.shape:
                sizes = [None if part is None else part.shape for part in (one, other)]
                yield self._one(name, "", array, *sizes)
            else:
                yield from self._array(name, array, one, other, allowed.get(array, 0.0))

    def _array(
        self, name: str, array: str, one: Array, other: Array, tolerance: float
    ) -> Iterator[Difference]:
        self.numbers += one.size if one.dtype.kind == "f" else 0
        here, there = one.astype(np.float64), other.astype(np.float64)
        with np.errstate(invalid="ignore"):
            off = np.abs(here - there)
        wrong = ~((off <= tolerance) | (here == there) | (np.isnan(here) & np.isnan(there)))
        for index in np.argwhere(wrong)[:MOST]:
            at = tuple(index.tolist())
            place = ", ".join(str(part + 1) for part in at)
            difference = float(off[at])
            yield self._one(
                name, place, array, one[at], other[at], difference=difference, tolerance=tolerance
            )


def _first_difference(here: str, should: str, told: Sequence[notes.Piece]) -> tuple[str, str, str]:
    """Where a note was changed: the cell that it refers to there, if any, and both texts around."""
    end = next(
        (i for i, (a, b) in enumerate(zip(here, should, strict=False)) if a != b), min(len(here), len(should))
    )
    before, column = 0, ""
    for piece in told:
        if before <= end < before + len(piece.text) and piece.row is not None:
            column = f"row {piece.row + 1}, column {(piece.column or 0) + 1}"
        before += len(piece.text)
    start = max(0, end - 20)
    return column, here[start : end + 20], should[start : end + 20]


def _are_numbers(*cells: Any) -> bool:
    return all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells)


def _exactly(cell: Any) -> str:
    return shown("text", cell if cell is None or isinstance(cell, str) else repr(cell))


def _as_read(text: str) -> str:
    """A text as it is after a file: one line end for all kinds, and half surrogates written out."""
    plain = text.encode("utf-8", "backslashreplace").decode()
    return plain.replace("\r\n", "\n").replace("\r", "\n")
