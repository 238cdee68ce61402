"""Whether what a report states of a view is what its model gives here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from bert_probe.errors import ReportError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.sources import BUILT_IN
from bert_probe.model.trace import Array
from bert_probe.reports import notes
from bert_probe.reports.differences import (
    CHANGED,
    DIFFERS,
    MOST,
    NOT_RENDERED,
    OTHER_MODEL,
    OTHERWISE,
    Difference,
    clipped,
    exactly,
    note_difference,
)
from bert_probe.reports.drafts import DraftEntry
from bert_probe.reports.numbers import PicturePayload, ViewNumbers, ViewTolerances, said_of
from bert_probe.reports.reading import StatedView, are_versions
from bert_probe.reports.report import (
    Item,
)
from bert_probe.reports.tables import Column, Table, changed, digest, finite, paired
from bert_probe.reports.tolerances import Tolerance, joined, leaves, near, outline
from bert_probe.views.payload import of_text

_PAYLOAD_ROOM: Final = 65_536
"""Bytes that a payload may have beyond twice those of the expected one."""
_OWN: Final = b"own"
"""No value of JSON is of this type."""
_DEVICE: Final = re.compile(r"[a-z]{1,20}(:[0-9]{1,3})?")
_ORIGINS: Final = ("built-in", "local folder", "hub")


class ViewCheck:
    """One view, part by part."""

    def __init__(self, number: int, stated: StatedView) -> None:
        self.number, self.stated = number, stated
        self.numbers = 0
        self.remarks: list[str] = []
        self.sha256: dict[str, str] = {}
        """Of each file of the view that a ZIP must have, what its manifest must say."""

    def difference(
        self, table: str, row: Any, column: str, stated: Any, found: Any, **more: Any
    ) -> Difference:
        """Return a difference of this view."""
        row, column, stated, found = (clipped(str(text)) for text in (row, column, stated, found))
        return Difference(self.number, table, row, column, stated, found, **more)

    def models(self, opened: Sequence[Checkpoint]) -> Iterator[Difference]:
        """Whether the models are those that are named, which is said before all else."""
        for name, checkpoint in zip(self.stated.view.models, opened, strict=True):
            if not name.fits(checkpoint):
                here = checkpoint.description.weights_sha256
                yield self.difference(
                    "model", name.shown, "weights_sha256", name.weights_sha256, here, finding=OTHER_MODEL
                )

    def all(self, now: ViewNumbers, bounds: ViewTolerances, same_model: bool) -> list[Difference]:
        """Every part of what is stated."""
        stated = self.stated
        parts = (
            self._table(now.table, bounds.table),
            self._noted(),
            self._said(now, bounds.said, same_model),
            self._derived(now, bounds),
            self._tolerances(bounds),
            self._pictures(now.drawn(), bounds.drawn, [] if now.picture is None else now.picture.payloads),
        )
        found = [one for part in parts for one in islice(part, MOST)]
        told = {one.table for one in found}
        # Of a part in which nothing was found so far: a character may have been changed that is no number.
        for name, part in stated.parts.items():
            if name not in told and digest(part) != stated.sha256.get(name):
                found.append(
                    self.difference(
                        name, "", "SHA-256", stated.sha256.get(name), digest(part), finding=CHANGED
                    )
                )
        return found

    def _table(self, now: Table, own: Sequence[Tolerance]) -> Iterator[Difference]:
        stated = self.stated.table
        names, theirs = (
            [column.name for column in stated.columns],
            {column.name: column for column in now.columns},
        )
        if names != [*theirs]:
            yield self.difference("table", "", "columns", ", ".join(names), ", ".join(theirs))
        if stated.rows != now.rows:
            yield self.difference("table", "", "rows", stated.rows, now.rows)
        if stated.matrix != now.matrix:
            yield self.difference("table", "", "matrix", stated.matrix, now.matrix)
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
            if column.kind != other.kind:
                yield self.difference("table", "", f"kind of {column.name}", column.kind, other.kind)
            yield from self._column(column, other, rows, tolerance, suspect)
        if names == [*theirs] and stated.rows == now.rows:
            yield from self._order(now, rows, allowed)
        if [len(self.stated.marks[side]) for side in marks] != [len(marks[side]) for side in marks]:
            yield self.difference("table", "", "marks", "another number of marks", "", finding=CHANGED)

    def _order(
        self, now: Table, rows: Sequence[int | None], allowed: Mapping[str, float]
    ) -> Iterator[Difference]:
        """Yield rows at other places than the model gives, unless a column they are sorted by explains it.

        Numbers that are each off by at most a tolerance are, sorted, place by place off by at most as much.
        So rows may change places only where some column that runs in one direction has nearly the same
        numbers at all of these places.
        """
        moved = [row for row, place in enumerate(rows) if place is not None and place != row]
        for column, other in zip(self.stated.table.columns, now.columns, strict=True) if moved else ():
            tolerance = 2 * allowed.get("" if now.matrix else column.name, 0.0)
            pairs = [(column.cells[row], other.cells[row]) for row in moved]
            if column.kind != "number" or not _are_numbers(*(cell for pair in pairs for cell in pair)):
                continue
            is_near = all(abs(abs(cell) - abs(there)) <= tolerance for cell, there in pairs)
            if is_near and tolerance and _may_be_sorted([there for _, there in pairs], moved):
                return
        for row in moved:
            place = rows[row]
            assert place is not None
            yield self.difference("table", self.stated.table.row_name(row), "place", row + 1, place + 1)

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
                yield self.difference(
                    "table",
                    self.stated.table.row_name(row),
                    column.name,
                    exactly(cell),
                    exactly(there),
                    difference=abs(cell - there) if numeric else None,
                    tolerance=tolerance if measured else None,
                    finding=CHANGED if same else DIFFERS,
                )

    def _noted(self) -> Iterator[Difference]:
        """The note: its text as it was written, and each number of it that stands by reference."""
        written, stated = self.stated.note["written"], self.stated.note["shown"]
        own = notes.unchecked(written)
        if own:
            self.remarks.append(
                f"View {self.number}: these numbers of the note are its writer's own, and nobody can compute "
                f"them again: {', '.join(own)}."
            )
        try:
            told = notes.pieces(written, self.stated.table)
        except ReportError as error:
            yield self.difference("note", "", "", written, str(error), finding=CHANGED)
            return
        should = "".join(piece.text for piece in told)
        if stated != should:
            yield self.difference("note", "", *note_difference(stated, should, told), finding=CHANGED)

    def _said(self, now: ViewNumbers, own: Sequence[Tolerance], same_model: bool) -> Iterator[Difference]:
        """Compare the provenance; another model was reported already, so its digest is left out."""
        said, said_here = (
            {path: leaf for path, leaf in side.items() if same_model or not path.endswith("_sha256")}
            for side in (said_of(self.stated.provenance), now.said)
        )
        found = [*self._leaves("provenance", said, said_here, joined(own, self.stated.bounds.said))]
        yield from found
        if found:
            return
        sides = (self.stated.provenance, finite(now.result.provenance))
        stated, there = (outline(_checkable(side)) for side in sides)
        if stated != there:
            yield self.difference("provenance", "", "names and types", json.dumps(stated), json.dumps(there))

    def _derived(self, now: ViewNumbers, bounds: ViewTolerances) -> Iterator[Difference]:
        """Compare title, code, and what is said of the picture, which follow from the question."""
        try:
            parts = Item(DraftEntry(self.stated.view, self.stated.note["written"]), now, bounds).parts
        except ReportError:
            return  # a note that refers to a missing cell, which is reported as such
        for name in ("title", "code", "picture"):
            yield from self._leaves(name, leaves(self.stated.parts[name]), leaves(parts[name]), {})

    def _tolerances(self, own: ViewTolerances) -> Iterator[Difference]:
        """Compare the stated errors, which may be off by as much as the numbers that they are of."""
        stated = self.stated.bounds
        lists = [(stated.table, own.table), (stated.said, own.said)]
        lists += [*zip(stated.drawn, own.drawn, strict=False)]
        if len(stated.drawn) != len(own.drawn):
            yield self.difference("tolerances", "", "pictures", len(stated.drawn), len(own.drawn))
        for here, there in lists:
            names = [[bound.of for bound in bounds] for bounds in (here, there)]
            if names[0] != names[1]:
                yield self.difference("tolerances", "", "names", *map(json.dumps, names))
                continue
            allowed = joined(there, here)
            for bound, other in zip(here, there, strict=True):
                for name in ("largest", "error"):
                    sides = getattr(bound, name), getattr(other, name)
                    if not near(*sides, allowed[bound.of]):
                        yield self.difference(
                            *("tolerances", bound.of, name, *map(repr, sides)),
                            difference=abs(sides[0] - sides[1]),
                            tolerance=allowed[bound.of],
                        )

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
                yield self.difference(
                    table,
                    "",
                    path,
                    exactly(cell),
                    exactly(there),
                    difference=abs(cell - there) if numeric else None,
                    tolerance=tolerance if measured else None,
                )

    def unpacked(self, place: int, length: int) -> bytes | None:
        """Return a payload that is not much longer than the expected one; None where there is no such."""
        text = self.stated.payloads[place] if place < len(self.stated.payloads) else None
        try:
            return None if text is None else of_text(text, 2 * length + _PAYLOAD_ROOM)
        except ValueError:
            return None

    def _pictures(
        self, now: Sequence[PicturePayload], own: Sequence[tuple[Tolerance, ...]], payloads: Sequence[bytes]
    ) -> Iterator[Difference]:
        stated, digests = self.stated, self.stated.sha256.get("payloads")
        digests = digests if isinstance(digests, list) else []
        for what, count in (("payloads", len(stated.payloads)), ("SHA-256", len(digests))):
            if count != len(now):
                yield self.difference("picture", "", what, count, len(now))
        for place, (there, expected) in enumerate(zip(now, payloads, strict=True)):
            payload = self.unpacked(place, len(expected))
            name = f"picture {place + 1}"
            bounds = own[place] if place < len(own) else ()
            said = stated.bounds.drawn[place] if place < len(stated.bounds.drawn) else ()
            found = [*self._payload(name, payload, there, joined(bounds, said))]
            yield from found
            sha256 = digests[place] if place < len(digests) else ""
            here = digest(payload) if payload is not None else "cannot be read"
            if not found and sha256 != here:
                yield self.difference(name, "", "SHA-256", sha256, here, finding=CHANGED)

    def _payload(
        self, name: str, payload: bytes | None, now: PicturePayload, allowed: Mapping[str, float]
    ) -> Iterator[Difference]:
        try:
            drawn = None if payload is None else PicturePayload.of(payload)
        except ValueError:
            drawn = None
        if drawn is None:
            yield self.difference(name, "", "payload", "cannot be read", "", finding=NOT_RENDERED)
            return
        if drawn.outline != now.outline:
            yield self.difference(name, "", "names and types", *map(json.dumps, (drawn.outline, now.outline)))
        # The ends of a heatmap's numbers are off by as much as any of them.
        values = allowed.get("values", 0.0)
        ends = {path: max(allowed.get(path, 0.0), values) for path in ("least", "most") if path in now.said}
        yield from self._leaves(name, drawn.said, now.said, {**allowed, **ends})
        yield from self._ends(name, drawn)
        for array in dict.fromkeys([*drawn.arrays, *now.arrays]):
            one, other = drawn.arrays.get(array), now.arrays.get(array)
            if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
                sizes = [None if part is None else f"{part.dtype} {part.shape}" for part in (one, other)]
                yield self.difference(name, "", array, *sizes)
            else:
                yield from self._array(name, array, one, other, allowed.get(array, 0.0))

    def _ends(self, name: str, drawn: PicturePayload) -> Iterator[Difference]:
        """Compare what a heatmap's legend says with the numbers in the same picture."""
        values = drawn.arrays.get("values")
        if values is None or "least" not in drawn.said:
            return
        present = values[~np.isnan(values)]
        for path, end in (("least", np.min), ("most", np.max)):
            there = float(end(present)) if present.size else 0.0
            if drawn.said.get(path) != there:
                yield self.difference(
                    name, "", path, exactly(drawn.said.get(path)), exactly(there), finding=OTHERWISE
                )

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
            yield self.difference(
                name, place, array, one[at], other[at], difference=difference, tolerance=tolerance
            )


def _are_numbers(*cells: Any) -> bool:
    return all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells)


def _may_be_sorted(numbers: Sequence[float], places: Sequence[int]) -> bool:
    """Return whether numbers run in one direction where their places follow each other, and differ."""
    sides = ([*numbers], [abs(number) for number in numbers])
    pairs = [index for index in range(1, len(places)) if places[index] == places[index - 1] + 1]
    return len({*numbers}) > 1 and any(
        all(side[index - 1] >= side[index] for index in pairs)
        or all(side[index - 1] <= side[index] for index in pairs)
        for side in sides
    )


def _checkable(value: Any, is_model: bool = True) -> Any:
    """Return a provenance in which `_OWN` stands for what the author alone can say, if its form is right."""
    if isinstance(value, Mapping):
        return {
            name: _OWN
            if is_model and _is_own_statement(name, part, value)
            else _checkable(part, name == "other_model")
            for name, part in value.items()
        }
    return [_checkable(part) for part in value] if isinstance(value, list) else value


def _is_own_statement(name: str, value: Any, provenance: Mapping[str, Any]) -> bool:
    match name:
        case "origin":
            return value in _ORIGINS and (value == "built-in") == (provenance.get("model") == BUILT_IN)
        case "device":
            return isinstance(value, str) and bool(_DEVICE.fullmatch(value))
        case "libraries":
            return isinstance(value, Mapping) and are_versions(value)
    return False
