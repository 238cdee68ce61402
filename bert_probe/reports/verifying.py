"""Whether a report is right: every number computed again with the model that it names.

Three things are compared. What the report states with what the model gives here, which finds a wrong number
whatever else was changed with it; what it states with the SHA-256 that were written with it, which finds any
changed character; and the page, and each file of a ZIP, with what is rendered again from the stated data. So
markup, styles and scripts are this program's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import numpy as np
import pandas as pd

import bert_probe
from bert_probe.errors import ProbeError, ReportError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Report as Progress
from bert_probe.model.progress import ignore
from bert_probe.model.sources import BUILT_IN
from bert_probe.model.trace import Array
from bert_probe.reports import notes, page, parquet
from bert_probe.reports.numbers import Bounds, Drawn, Models, Numbers, said_of
from bert_probe.reports.page_changes import PageChange, page_changes
from bert_probe.reports.reading import Read, Stated
from bert_probe.reports.report import (
    MANIFEST,
    PAGE,
    Item,
    folder_of,
    manifest_of,
    picture_file,
    statement,
    text_files,
)
from bert_probe.reports.svg import is_same_picture
from bert_probe.reports.tables import Column, Table, changed, digest, finite, paired, shown
from bert_probe.reports.tolerances import Bound, joined, leaves, near
from bert_probe.reports.trays import Entry
from bert_probe.views.payload import of_text

DIFFERS: Final = "differs from what the model gives"
CHANGED: Final = "changed since it was written"
OTHERWISE: Final = "shown otherwise than stated"
OTHER_MODEL: Final = "another model than the one named"
OTHER_VERSION: Final = "another BERT Probe, whose pages and files cannot be rendered here"
NOT_RENDERED: Final = "differs from what BERT Probe renders from the data"

MOST: Final = 1_000
"""Differences that are told of one part of a view."""

_LONGEST: Final = 500
"""Characters of a stated or recomputed value that a difference shows."""
_PAYLOAD_ROOM: Final = 65_536
"""Bytes that a payload may have beyond twice those of the expected one."""
_ORIGINS: Final = ("built-in", "local folder", "hub")


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
    models = replace(models, as_named=True)
    is_same_version = read.made_with.get("bert_probe") == bert_probe.__version__
    found: list[Difference] = []
    if not is_same_version:
        stated_version = _exactly(read.made_with.get("bert_probe", ""))
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
        checked = _Checked(number, stated)
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
            found += checked.files(read.files, now)
        numbers += checked.numbers
        remarks += checked.remarks
        sha256 |= checked.sha256
    if is_same_version:
        found += _page_differences(read, found)
        if read.files is not None and is_complete:
            found += _manifest_differences(read, read.files, sha256, is_right=not found)
    found.sort(key=lambda one: one.table != "model")
    return Verdict(tuple(found), numbers, tuple(remarks))


def _page_differences(read: Read, found: Sequence[Difference]) -> Iterator[Difference]:
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
            _exactly(silent[0].stated),
            _exactly(silent[0].rendered),
            finding=NOT_RENDERED,
        )


def _page_difference(change: PageChange, views: Sequence[Stated]) -> Difference:
    texts = _exactly(change.stated), _exactly(change.rendered)
    stated = views[change.view - 1] if change.view else None
    if stated is not None and change.part == "cell":
        table = stated.table
        row = table.row_name(change.row - 1) if change.row else "header"
        column = table.columns[change.column].name
        return Difference(change.view, "table as shown", row, column, *texts, finding=OTHERWISE)
    if stated is not None and change.part == "note":
        pieces = notes.pieces(stated.note["written"], stated.table)
        place = _first_difference(change.stated, change.rendered, pieces)
        return Difference(change.view, "note", "", *place, finding=OTHERWISE)
    return Difference(
        change.view,
        "page" if change.view else "file",
        "" if change.view else PAGE,
        "",
        *texts,
        finding=NOT_RENDERED,
    )


def _manifest_differences(
    read: Read, files: Mapping[str, bytes], sha256: Mapping[str, str], is_right: bool
) -> Iterator[Difference]:
    """Compare the names of a ZIP's files with the expected ones, and its manifest where all else is right."""
    for name in sorted({*files, MANIFEST} ^ {*sha256, MANIFEST}):
        there = digest(files[name]) if name in files else "missing"
        stated = "expected" if name in sha256 else "not a file of this report"
        yield Difference(0, "file", _exactly(name), "SHA-256", stated, there, finding=CHANGED)
        is_right = False
    manifest = manifest_of(read.title, read.made_with, {PAGE: digest(read.page), **sha256})
    if is_right and files[MANIFEST] != manifest:
        texts = digest(files[MANIFEST]), digest(manifest)
        yield Difference(0, "file", MANIFEST, "SHA-256", *texts, finding=NOT_RENDERED)


class _Checked:
    """One view, part by part."""

    def __init__(self, number: int, stated: Stated) -> None:
        self.number, self.stated = number, stated
        self.numbers = 0
        self.remarks: list[str] = []
        self.sha256: dict[str, str] = {}
        """Of each file of the view that a ZIP must have, what its manifest must say."""

    def _one(self, table: str, row: Any, column: str, stated: Any, found: Any, **more: Any) -> Difference:
        row, column, stated, found = (_clipped(str(text)) for text in (row, column, stated, found))
        return Difference(self.number, table, row, column, stated, found, **more)

    def models(self, opened: Sequence[Checkpoint]) -> Iterator[Difference]:
        """Whether the models are those that are named, which is said before all else."""
        for name, checkpoint in zip(self.stated.view.models, opened, strict=True):
            if not name.fits(checkpoint):
                here = checkpoint.description.weights_sha256
                yield self._one(
                    "model", name.shown, "weights_sha256", name.weights_sha256, here, finding=OTHER_MODEL
                )

    def all(self, now: Numbers, bounds: Bounds, same_model: bool) -> list[Difference]:
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
                    self._one(name, "", "SHA-256", stated.sha256.get(name), digest(part), finding=CHANGED)
                )
        return found

    def files(self, held: Mapping[str, bytes], now: Numbers) -> Iterator[Difference]:
        """Compare the files of the view in a ZIP with those that follow from what is stated."""
        stated, folder = self.stated, folder_of(self.number, self.stated.view)
        expected = text_files(stated.view, stated.parts)
        picture = now.picture
        if picture is not None and picture.still is None:
            # Drawn from what is stated, so that no digit depends on the processor.
            payloads = [self._unpacked(place, len(one)) for place, one in enumerate(picture.payloads)]
            whole = [payload for payload in payloads if payload is not None]
            if len(whole) == len(payloads):
                picture = replace(picture, payloads=whole)
        drawn = picture_file(picture)
        table = self._table_file(now)
        for name in ("table.parquet", *expected, *drawn):
            path = f"{folder}/{name}"
            content = held.get(path)
            self.sha256[path] = "" if content is None else digest(content)
            if content is None:
                continue  # reported with the names of all files
            if name == "table.parquet":
                is_same = content == table
                differences = [] if is_same else [*islice(self._parquet(content, table), MOST)]
                is_same = is_same or not differences
                yield from (one for one in differences if one.row)
            else:
                is_same = content == expected.get(name) or (
                    name in drawn and is_same_picture(content, drawn[name])
                )
            if not is_same:
                right = table if name == "table.parquet" else {**expected, **drawn}[name]
                texts = digest(content), "" if right is None else digest(right)
                yield Difference(0, "file", path, "SHA-256", *texts, finding=NOT_RENDERED)

    def _table_file(self, now: Numbers) -> bytes | None:
        try:
            return parquet.restated(self.stated.table, now.result.table(), self.stated.provenance)
        except (ValueError, TypeError, OverflowError):
            return None  # a table of another form, which was reported as such

    def _parquet(self, content: bytes, expected: bytes | None) -> Iterator[Difference]:
        """Compare a table.parquet of other bytes cell by cell with what is stated."""
        decoded = None if expected is None else parquet.decoded(content, expected)
        if decoded is None:
            yield self._one("table.parquet", "", "", "cannot be compared", "", finding=NOT_RENDERED)
            return
        table, is_same = decoded
        if not is_same:
            yield self._one(
                "table.parquet", "", "schema", "other types or metadata", "", finding=NOT_RENDERED
            )
        for column, other in zip(self.stated.table.columns, table.columns, strict=True):
            for row, (cell, there) in enumerate(zip(column.cells, other.cells, strict=True)):
                if cell != there:
                    name = self.stated.table.row_name(row)
                    yield self._one(
                        "table.parquet", name, column.name, _exactly(there), _exactly(cell), finding=CHANGED
                    )
        if is_same:
            self.remarks.append(
                f"View {self.number}: table.parquet was written by another version of pyarrow. Its types and "
                "cells are those of the page; other bytes of it, such as statistics, were not compared."
            )

    def _table(self, now: Table, own: Sequence[Bound]) -> Iterator[Difference]:
        stated = self.stated.table
        names, theirs = [one.name for one in stated.columns], {one.name: one for one in now.columns}
        if names != [*theirs]:
            yield self._one("table", "", "columns", ", ".join(names), ", ".join(theirs))
        if stated.rows != now.rows:
            yield self._one("table", "", "rows", stated.rows, now.rows)
        if stated.matrix != now.matrix:
            yield self._one("table", "", "matrix", stated.matrix, now.matrix)
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
                yield self._one("table", "", f"kind of {column.name}", column.kind, other.kind)
            yield from self._column(column, other, rows, tolerance, suspect)
        if names == [*theirs] and stated.rows == now.rows:
            yield from self._order(now, rows, allowed)

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
            yield self._one("table", self.stated.table.row_name(row), "place", row + 1, place + 1)

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
            yield self._one("note", "", "", written, str(error), finding=CHANGED)
            return
        should = "".join(piece.text for piece in told)
        if stated != should:
            yield self._one("note", "", *_first_difference(stated, should, told), finding=CHANGED)

    def _said(self, now: Numbers, own: Sequence[Bound], same_model: bool) -> Iterator[Difference]:
        """Compare the provenance; another model was reported already, so its digest is left out."""
        said, said_here = (
            {path: leaf for path, leaf in side.items() if same_model or not path.endswith("_sha256")}
            for side in (said_of(self.stated.provenance), now.said)
        )
        found = [*self._leaves("provenance", said, said_here, joined(own, self.stated.bounds.said))]
        yield from found
        if found:
            return
        stated, there = (_outline(one) for one in (self.stated.provenance, finite(now.result.provenance)))
        if stated != there:
            yield self._one("provenance", "", "names", json.dumps(stated), json.dumps(there))

    def _derived(self, now: Numbers, bounds: Bounds) -> Iterator[Difference]:
        """Compare title, code, and what is said of the picture, which follow from the question."""
        try:
            parts = Item(Entry(self.stated.view, self.stated.note["written"]), now, bounds).parts
        except ReportError:
            return  # a note that refers to a missing cell, which is reported as such
        for name in ("title", "code", "picture"):
            yield from self._leaves(name, leaves(self.stated.parts[name]), leaves(parts[name]), {})

    def _tolerances(self, own: Bounds) -> Iterator[Difference]:
        """Compare the stated errors, which may be off by as much as the numbers that they are of."""
        stated = self.stated.bounds
        lists = [(stated.table, own.table), (stated.said, own.said)]
        lists += [*zip(stated.drawn, own.drawn, strict=False)]
        if len(stated.drawn) != len(own.drawn):
            yield self._one("tolerances", "", "pictures", len(stated.drawn), len(own.drawn))
        for here, there in lists:
            names = [[bound.of for bound in bounds] for bounds in (here, there)]
            if names[0] != names[1]:
                yield self._one("tolerances", "", "names", *map(json.dumps, names))
                continue
            allowed = joined(there, here)
            for bound, other in zip(here, there, strict=True):
                for name in ("largest", "error"):
                    sides = getattr(bound, name), getattr(other, name)
                    if not near(*sides, allowed[bound.of]):
                        yield self._one(
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
                yield self._one(
                    table,
                    "",
                    path,
                    _exactly(cell),
                    _exactly(there),
                    difference=abs(cell - there) if numeric else None,
                    tolerance=tolerance if measured else None,
                )

    def _unpacked(self, place: int, length: int) -> bytes | None:
        """Return a payload that is not much longer than the expected one; None where there is no such."""
        text = self.stated.payloads[place] if place < len(self.stated.payloads) else None
        try:
            return None if text is None else of_text(text, 2 * length + _PAYLOAD_ROOM)
        except ValueError:
            return None

    def _pictures(
        self, now: Sequence[Drawn], own: Sequence[tuple[Bound, ...]], payloads: Sequence[bytes]
    ) -> Iterator[Difference]:
        stated, digests = self.stated, self.stated.sha256.get("payloads")
        digests = digests if isinstance(digests, list) else []
        if len(stated.payloads) != len(now):
            yield self._one("picture", "", "payloads", len(stated.payloads), len(now))
        for place, (there, expected) in enumerate(zip(now, payloads, strict=True)):
            payload = self._unpacked(place, len(expected))
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
            drawn = None if payload is None else Drawn.of(payload)
        except ValueError:
            drawn = None
        if drawn is None:
            return
        # The ends of a heatmap's numbers are off by as much as any of them.
        values = allowed.get("values", 0.0)
        ends = {path: max(allowed.get(path, 0.0), values) for path in ("least", "most") if path in now.said}
        yield from self._leaves(name, drawn.said, now.said, {**allowed, **ends})
        yield from self._ends(name, drawn)
        for array in dict.fromkeys([*drawn.arrays, *now.arrays]):
            one, other = drawn.arrays.get(array), now.arrays.get(array)
            if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
                sizes = [None if part is None else f"{part.dtype} {part.shape}" for part in (one, other)]
                yield self._one(name, "", array, *sizes)
            else:
                yield from self._array(name, array, one, other, allowed.get(array, 0.0))

    def _ends(self, name: str, drawn: Drawn) -> Iterator[Difference]:
        """Compare what a heatmap's legend says with the numbers in the same picture."""
        values = drawn.arrays.get("values")
        if values is None or "least" not in drawn.said:
            return
        present = values[~np.isnan(values)]
        for path, end in (("least", np.min), ("most", np.max)):
            there = float(end(present)) if present.size else 0.0
            if drawn.said.get(path) != there:
                yield self._one(
                    name, "", path, _exactly(drawn.said.get(path)), _exactly(there), finding=OTHERWISE
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


def _may_be_sorted(numbers: Sequence[float], places: Sequence[int]) -> bool:
    """Return whether numbers run in one direction where their places follow each other, and differ."""
    sides = ([*numbers], [abs(number) for number in numbers])
    pairs = [index for index in range(1, len(places)) if places[index] == places[index - 1] + 1]
    return len({*numbers}) > 1 and any(
        all(side[index - 1] >= side[index] for index in pairs)
        or all(side[index - 1] <= side[index] for index in pairs)
        for side in sides
    )


def _outline(value: Any, is_model: bool = True) -> Any:
    """Return the names in a provenance in their order, without what they stand for.

    Of what the author alone can say, only the form is checked: it is "own" where that is right.
    """
    if isinstance(value, Mapping):
        return [
            [
                name,
                "own"
                if is_model and _is_own_statement(name, part, value)
                else _outline(part, name == "other_model"),
            ]
            for name, part in value.items()
        ]
    return [_outline(part, is_model=True) for part in value] if isinstance(value, list) else None


def _is_own_statement(name: str, value: Any, provenance: Mapping[str, Any]) -> bool:
    match name:
        case "origin":
            return value in _ORIGINS and (value == "built-in") == (provenance.get("model") == BUILT_IN)
        case "device":
            return isinstance(value, str)
        case "libraries":
            return isinstance(value, Mapping) and all(isinstance(version, str) for version in value.values())
    return False


def _exactly(cell: Any) -> str:
    return _clipped(shown("text", cell if cell is None or isinstance(cell, str) else repr(cell)))


def _clipped(text: str) -> str:
    """Return a text as a file can hold it: half surrogates are escaped."""
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return text.encode("utf-8", "backslashreplace").decode()
