"""Compare the data stated for a view in a report with the recomputed view."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from bert_probe.analyses.attention.measures import get_measure
from bert_probe.core.result import SortOrder
from bert_probe.errors import ReportError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.sources import BUILT_IN
from bert_probe.model.trace import Array
from bert_probe.reports import tables
from bert_probe.reports.drafts import DraftEntry
from bert_probe.reports.numbers import (
    CHANGED,
    DIFFERS,
    DISPLAY_DIFFERS,
    MAX_DIFFERENCES,
    NOT_RENDERED,
    OTHER_MODEL,
    ROWS,
    Difference,
    PicturePayload,
    ViewNumbers,
    ViewTolerances,
    clip,
    exact_text,
    leaves,
    outline,
    portable_leaves,
)
from bert_probe.reports.reading import StatedView, are_versions
from bert_probe.reports.report import Item
from bert_probe.reports.tables import Column, ReportTable, changed, digest, finite, match_rows
from bert_probe.reports.tolerances import MAX_SHARE, Tolerance, array_groups, combine, table_groups
from bert_probe.views.payload import decode_text

_PAYLOAD_EXTRA: Final = 65_536
"""Number of bytes by which the payload of a picture may exceed twice its expected size."""
_EXACT_ZEROS: Final = ("weights", "value-norm", "rollout")
"""Measures of attention that are 0 only where a mask or an underflow makes them 0."""
_MAX_NAMES: Final = 10
"""Maximum number of names in a remark."""
_UNCHECKABLE: Final = b""
"""Placeholder for values that cannot be verified, such as the author's device. It differs from every JSON
value, because JSON has no bytes.
"""
_DEVICE: Final = re.compile(r"[a-z]{1,20}(:[0-9]{1,3})?")
_ORIGINS: Final = ("built-in", "local folder", "hub")


class ViewCheck:
    """Compares each part of a view in a report with the recomputed view.

    Attributes:
        number: the number of the view, from 1.
        stated: data of the view in the report.
        numbers: how many numbers of the view have been compared so far.
        remarks: sentences for the user about content that was not checked.
        sha256: for each file of the view in a ZIP, the digest that the manifest must contain.
        has_same_picture: whether all payloads of the picture are equal within their tolerances.
    """

    def __init__(self, number: int, stated: StatedView) -> None:
        self.number, self.stated = number, stated
        self.numbers = 0
        self.remarks: list[str] = []
        self.sha256: dict[str, str] = {}
        self.has_same_picture = False

    def difference(
        self, table: str, row: Any, column: str, stated: Any, actual: Any, **details: Any
    ) -> Difference:
        """Create a `Difference` for this view; truncate long texts. `details` are further attributes."""
        row, column, stated, actual = (clip(str(text)) for text in (row, column, stated, actual))
        return Difference(self.number, table, row, column, stated, actual, **details)

    def models(self, checkpoints: Sequence[Checkpoint]) -> Iterator[Difference]:
        """Yield a difference for each model whose weights differ from the stated weights."""
        for model, checkpoint in zip(self.stated.view.models, checkpoints, strict=True):
            if not model.fits(checkpoint):
                actual = checkpoint.description.weights_sha256
                yield self.difference(
                    "model", model.shown, "weights_sha256", model.weights_sha256, actual, finding=OTHER_MODEL
                )

    def files(self) -> Iterator[Difference]:
        """Yield a difference for each input file with content that the question does not read."""
        for name, file in self.stated.view.files.items():
            standard = file.standard()
            if file != standard:
                contents = (item.content.encode("utf-8", "surrogatepass") for item in (file, standard))
                yield self.difference("files", name, "SHA-256", *map(digest, contents), finding=NOT_RENDERED)

    def all(
        self,
        actual: ViewNumbers,
        tolerances: ViewTolerances,
        same_model: bool,
        check: Callable[[], object] = lambda: None,
    ) -> list[Difference]:
        """Compare all parts of the view, and return the differences.

        Args:
            actual: the recomputed numbers of the view.
            tolerances: the recomputed tolerances.
            same_model: whether the opened models have the stated weights.
            check: called repeatedly; an exception from this callback ends the work.
        """
        stated = self.stated
        payloads = [] if actual.picture is None else actual.picture.payloads
        parts = (
            self._table(actual, tolerances.table),
            self._note(),
            self._provenance(actual, tolerances.provenance, same_model),
            self._derived_parts(actual, tolerances),
            self._tolerances(tolerances),
            self._payloads(actual.payloads(), tolerances, payloads, check),
        )
        self._add_large(tolerances)
        self._add_lens(actual.result.metadata)
        differences = [difference for part in parts for difference in islice(part, MAX_DIFFERENCES)]
        parts_with_differences = {difference.table for difference in differences}
        # The digest detects changes within the tolerance and in strings that are not compared.
        for name, part in stated.parts.items():
            if name not in parts_with_differences and digest(part) != stated.sha256.get(name):
                differences.append(
                    self.difference(
                        name, "", "SHA-256", stated.sha256.get(name), digest(part), finding=CHANGED
                    )
                )
        return differences

    def _add_large(self, own: ViewTolerances) -> None:
        """Add a remark about numbers that rounding changes too much to be verified."""
        groups = [("", own.table), ("", own.provenance)]
        for groups_of_pictures in (own.payloads, own.attention):
            groups += [(f" of picture {number}", group) for number, group in enumerate(groups_of_pictures, 1)]
        large = [
            f"{tolerance.of or 'table'}{place} (± {tolerance.allowed:.2g})"
            for place, group in groups
            for tolerance in group
            if tolerance.is_large
        ]
        if large:
            more = f" and {len(large) - _MAX_NAMES:,} more" if len(large) > _MAX_NAMES else ""
            self.remarks.append(
                f"View {self.number}: the tolerance of these numbers is more than {MAX_SHARE:.0%} of the "
                f"largest, so they are verified only roughly: {', '.join(large[:_MAX_NAMES])}{more}. "
                "Rounding has less effect with the data type float64."
            )

    def _add_lens(self, metadata: Mapping[str, Any]) -> None:
        """Add a remark about a tuned lens, whose training is not repeated."""
        lens = metadata.get("tuned_lens")
        if lens is not None:
            self.remarks.append(
                f"View {self.number} uses the tuned lens with the SHA-256 {lens['sha256']}. Its losses and "
                "the comparison with the logit lens were measured in its training and cannot be verified."
            )

    def _table(self, view: ViewNumbers, own: Sequence[Tolerance]) -> Iterator[Difference]:
        stated, actual = self.stated.table, view.table
        names = [column.name for column in stated.columns]
        actual_columns = {column.name: column for column in actual.columns}
        if names != [*actual_columns]:
            yield self.difference("table", "", "columns", ", ".join(names), ", ".join(actual_columns))
        if stated.rows != actual.rows:
            yield self.difference("table", "", "rows", stated.rows, actual.rows)
        if stated.matrix != actual.matrix:
            yield self.difference("table", "", "matrix", stated.matrix, actual.matrix)
        allowed = combine(own, self.stated.tolerances.table)
        rows = match_rows(stated, actual)
        marks = stated.marks()
        changed_rows = {*changed(self.stated.marks["rows"], marks["rows"])}
        changed_columns = {*changed(self.stated.marks["columns"], marks["columns"])}
        for index, column in enumerate(stated.columns):
            other = actual_columns.get(column.name)
            if other is None:
                continue
            self.numbers += len(column.cells) if column.kind == "number" else 0
            suspect_rows = changed_rows if index in changed_columns else set()
            group = table_groups(actual, other)
            tolerances = [0.0 if match is None else allowed.get(group(match), 0.0) for match in rows]
            if column.kind != other.kind:
                yield self.difference("table", "", f"kind of {column.name}", column.kind, other.kind)
            yield from self._column(column, other, rows, tolerances, suspect_rows)
        if names == [*actual_columns] and stated.rows == actual.rows:
            yield from self._order(view, rows, allowed)
        if [len(self.stated.marks[side]) for side in marks] != [len(marks[side]) for side in marks]:
            yield self.difference(
                "table", "", "marks", "a different number of checksums", "", finding=CHANGED
            )
        # A changed cell changes the checksums of both its row and its column. If only the row checksums or
        # only the column checksums differ, a checksum itself was changed.
        elif bool(changed_rows) != bool(changed_columns):
            yield self.difference(
                "table",
                "",
                "marks",
                "the checksum of a row or column does not match its values",
                "",
                finding=CHANGED,
            )

    def _order(
        self, view: ViewNumbers, rows: Sequence[int | None], allowed: Mapping[str, float]
    ) -> Iterator[Difference]:
        """Yield rows that are not in the recomputed order, unless nearly equal numbers explain the order.

        If the numbers of two lists differ by at most a tolerance, so do the numbers of the sorted lists. Rows
        may therefore exchange positions only if their numbers in the sort column are nearly equal.

        Args:
            view: the recomputed view.
            rows: for each row of the stated table, the index of the matching recomputed row, or None.
            allowed: tolerance of each group, by name; see `table_groups`.
        """
        order = view.result.sort_order
        sorting = next((item for item in view.table.columns if order and item.name == order.column), None)
        group = None if sorting is None else table_groups(view.table, sorting)
        for row, match in enumerate(rows):
            if match is None or match == row:
                continue
            tolerance = 0.0 if group is None else allowed.get(group(match), 0.0)
            # Without a tolerance, all numbers are 0 and do not determine an order.
            if order is None or not tolerance or not self._is_near(row, view.table, order, tolerance):
                yield self.difference(
                    "table", self.stated.table.row_name(row), "position", row + 1, match + 1
                )

    def _is_near(self, row: int, actual: ReportTable, order: SortOrder, tolerance: float) -> bool:
        """Return whether the number at a position of a sorted table is nearly the recomputed number."""
        cells = {
            column.name: (column.cells[row], other.cells[row])
            for column, other in zip(self.stated.table.columns, actual.columns, strict=True)
            if column.name in (order.column, order.within)
        }
        stated, number = cells[order.column]
        if not _are_numbers(stated, number) or (order.within and len({*cells[order.within]}) > 1):
            return False
        if order.by_magnitude:
            stated, number = abs(stated), abs(number)
        return is_close(stated, number, tolerance)

    def _column(
        self,
        column: Column,
        other: Column,
        rows: Sequence[int | None],
        tolerances: Sequence[float],
        suspect_rows: set[int],
    ) -> Iterator[Difference]:
        is_measured = column.kind == "number" or other.kind == "number"
        for row, stated in enumerate(column.cells):
            match = rows[row]
            actual, tolerance = None if match is None else other.cells[match], tolerances[row]
            is_same = is_close(stated, actual, tolerance) if is_measured else stated == actual
            if not is_same or row in suspect_rows:
                is_numeric = _are_numbers(stated, actual)
                yield self.difference(
                    "table",
                    self.stated.table.row_name(row),
                    column.name,
                    exact_text(stated),
                    exact_text(actual),
                    difference=abs(stated - actual) if is_numeric else None,
                    tolerance=tolerance if is_measured else None,
                    finding=CHANGED if is_same else DIFFERS,
                )

    def _note(self) -> Iterator[Difference]:
        """Check that the displayed note is the written one, with cell references replaced by the cells."""
        source, stated = self.stated.note["written"], self.stated.note["shown"]
        unchecked = tables.unchecked_numbers(source)
        if unchecked:
            self.remarks.append(
                f"View {self.number}: these numbers in the note were written by the author and cannot be "
                f"verified: {', '.join(unchecked)}."
            )
        try:
            segments = tables.split_note(source, self.stated.table)
        except ReportError as error:
            yield self.difference("note", "", "", source, str(error), finding=CHANGED)
            return
        expected = "".join(segment.text for segment in segments)
        if stated != expected:
            located = tables.note_difference(stated, expected, segments)
            yield self.difference("note", "", *located, finding=CHANGED)

    def _provenance(
        self, actual: ViewNumbers, own: Sequence[Tolerance], same_model: bool
    ) -> Iterator[Difference]:
        """Compare the provenance. If the model differs, which `models` reports, ignore all digests."""
        stated_leaves, actual_leaves = (
            {path: leaf for path, leaf in side.items() if same_model or not path.endswith("_sha256")}
            for side in (portable_leaves(self.stated.provenance), actual.provenance)
        )
        allowed = combine(own, self.stated.tolerances.provenance)
        found = self._leaves("provenance", stated_leaves, actual_leaves, allowed)
        differences = [*islice(found, MAX_DIFFERENCES)]
        yield from differences
        if differences:
            return
        sides = (self.stated.provenance, finite(actual.result.provenance))
        stated, expected = (outline(_without_uncheckable(side)) for side in sides)
        if stated != expected:
            texts = json.dumps(stated), json.dumps(expected)
            yield self.difference("provenance", "", "names and types", *texts)

    def _derived_parts(self, actual: ViewNumbers, tolerances: ViewTolerances) -> Iterator[Difference]:
        """Compare title, code and picture settings, which are derived from the question and its result."""
        try:
            entry = DraftEntry(self.stated.view, self.stated.note["written"])
            parts = Item.of(entry, actual, tolerances).parts
        except ReportError:
            return  # the note refers to a missing cell, which `_note` reports
        for name in ("title", "code", "picture"):
            yield from self._leaves(name, leaves(self.stated.parts[name]), leaves(parts[name]), {})

    def _tolerances(self, own: ViewTolerances) -> Iterator[Difference]:
        """Compare the rounding errors stated in the report with the recomputed errors."""
        stated = self.stated.tolerances
        groups = [(stated.table, own.table), (stated.provenance, own.provenance)]
        groups += [*zip(stated.payloads, own.payloads, strict=False)]
        if len(stated.payloads) != len(own.payloads):
            yield self.difference("tolerances", "", "pictures", len(stated.payloads), len(own.payloads))
        for group in groups:
            stated_group, own_group = (sorted(side, key=lambda tolerance: tolerance.of) for side in group)
            names = [[tolerance.of for tolerance in group] for group in (stated_group, own_group)]
            if names[0] != names[1]:
                yield self.difference("tolerances", "", "names", *map(json.dumps, names))
                continue
            allowed = combine(own_group, stated_group)
            for tolerance, other in zip(stated_group, own_group, strict=True):
                for name in ("largest", "error"):
                    sides = getattr(tolerance, name), getattr(other, name)
                    if not is_close(*sides, allowed[tolerance.of]):
                        yield self.difference(
                            *("tolerances", tolerance.of, name, *map(repr, sides)),
                            difference=abs(sides[0] - sides[1]),
                            tolerance=allowed[tolerance.of],
                        )

    def _leaves(
        self,
        part: str,
        stated_leaves: Mapping[str, Any],
        actual_leaves: Mapping[str, Any],
        allowed: Mapping[str, float],
    ) -> Iterator[Difference]:
        for path in dict.fromkeys([*stated_leaves, *actual_leaves]):
            stated, actual = stated_leaves.get(path), finite(actual_leaves.get(path))
            is_measured = path in allowed or isinstance(stated, float)
            self.numbers += is_measured
            tolerance = allowed.get(path, 0.0)
            is_numeric = _are_numbers(stated, actual)
            is_same = is_close(stated, actual, tolerance) if is_measured and is_numeric else stated == actual
            if not is_same:
                yield self.difference(
                    part,
                    "",
                    path,
                    exact_text(stated),
                    exact_text(actual),
                    difference=abs(stated - actual) if is_numeric else None,
                    tolerance=tolerance if is_measured else None,
                )

    def decode_payload(self, index: int, length: int) -> bytes | None:
        """Return a payload of the picture; None if it is missing, invalid, or much longer than ``length``."""
        payload = self.stated.payloads[index] if index < len(self.stated.payloads) else None
        try:
            return None if payload is None else decode_text(payload, 2 * length + _PAYLOAD_EXTRA)
        except ValueError:
            return None

    def _payloads(
        self,
        expected: Sequence[PicturePayload],
        own: ViewTolerances,
        expected_bytes: Sequence[bytes],
        check: Callable[[], object],
    ) -> Iterator[Difference]:
        stated, digests = self.stated, self.stated.sha256.get("payloads")
        digests = digests if isinstance(digests, list) else []
        for name, count in (("payloads", len(stated.payloads)), ("SHA-256", len(digests))):
            if count != len(expected):
                yield self.difference("picture", "", name, count, len(expected))
        is_same = True
        for index, (parsed, content) in enumerate(zip(expected, expected_bytes, strict=True)):
            payload = self.decode_payload(index, len(content))
            name = f"picture {index + 1}"
            own_tolerances = own.payloads[index] if index < len(own.payloads) else ()
            all_stated = stated.tolerances.payloads
            stated_tolerances = all_stated[index] if index < len(all_stated) else ()
            allowed = combine(own_tolerances, stated_tolerances)
            picture = _parsed(payload)
            differences = [*islice(self._payload(name, picture, parsed, allowed), MAX_DIFFERENCES)]
            if not differences and picture is not None and index < len(own.attention):
                own_attention = own.attention[index]
                differences = [
                    *self._attention(name, picture, parsed, own_attention, check),
                    *self._zeros(name, picture, parsed),
                ]
            is_same &= not differences
            yield from differences
            stated_digest = digests[index] if index < len(digests) else ""
            actual_digest = digest(payload) if payload is not None else "cannot be read"
            if not differences and stated_digest != actual_digest:
                yield self.difference(name, "", "SHA-256", stated_digest, actual_digest, finding=CHANGED)
        self.has_same_picture = is_same

    def _payload(
        self,
        name: str,
        stated: PicturePayload | None,
        expected: PicturePayload,
        allowed: Mapping[str, float],
    ) -> Iterator[Difference]:
        if stated is None:
            yield self.difference(name, "", "payload", "cannot be read", "", finding=NOT_RENDERED)
            return
        if stated.outline != expected.outline:
            outlines = map(json.dumps, (stated.outline, expected.outline))
            yield self.difference(name, "", "names and types", *outlines)
        # The minimum and maximum of a heatmap have the same tolerance as its values.
        values = max((size for name, size in allowed.items() if name.startswith("values")), default=0.0)
        extremes = {
            path: max(allowed.get(path, 0.0), values) for path in ("min", "max") if path in expected.leaves
        }
        yield from self._leaves(name, stated.leaves, expected.leaves, {**allowed, **extremes})
        yield from self._extremes(name, stated)
        for array in dict.fromkeys([*stated.arrays, *expected.arrays]):
            left, right = stated.arrays.get(array), expected.arrays.get(array)
            if left is None or right is None or left.shape != right.shape or left.dtype != right.dtype:
                forms = [None if side is None else f"{side.dtype} {side.shape}" for side in (left, right)]
                yield self.difference(name, "", array, *forms)
            else:
                limits = [allowed.get(group, 0.0) for group in array_groups(array, right, expected.row_axis)]
                tolerance = np.reshape(limits, (-1, *[1] * (right.ndim - 1)) if len(limits) > 1 else ())
                yield from self._array(name, array, left, right, np.broadcast_to(tolerance, right.shape))

    def _attention(
        self,
        name: str,
        stated: PicturePayload,
        expected: PicturePayload,
        own: tuple[Tolerance, Tolerance],
        check: Callable[[], object],
    ) -> Iterator[Difference]:
        """Compare rows of attention, and the attention that each token receives.

        Small changes add up in weights that the browser computes from queries and keys, and in their sums.
        """
        sums = stated.compare_attention(expected, check)
        received = np.abs(sums.received - sums.other_received)
        for tolerance, differences in zip(own, (sums.distances, received), strict=True):
            is_row = tolerance.of == ROWS
            for index, position in _places(differences > tolerance.allowed):
                yield self.difference(
                    *(name, position, tolerance.of),
                    *(("", "") if is_row else (sums.received[index], sums.other_received[index])),
                    difference=float(differences[index]),
                    tolerance=tolerance.allowed,
                )

    def _zeros(self, name: str, stated: PicturePayload, expected: PicturePayload) -> Iterator[Difference]:
        """Compare the signs of weights, because a head view draws and counts positive weights as lines."""
        is_exact = expected.leaves.get("valueName") in {get_measure(item).value for item in _EXACT_ZEROS}
        if not is_exact or "weights" not in expected.arrays:
            return
        left, right = stated.arrays["weights"], expected.arrays["weights"]
        # The smallest weights may underflow to 0, but not where a mask makes the weights of all heads 0.
        is_half = any(model.dtype == "float16" for model in self.stated.view.models)
        smallest = 2 * np.finfo(np.float16).smallest_subnormal if is_half else np.finfo(np.float32).tiny
        is_underflow = (left >= 0) & (np.maximum(left, right) <= smallest) & ~(right == 0).all(axis=0)
        changed = (np.sign(left) != np.sign(right)) & ~is_underflow
        for index, position in _places(changed):
            yield self.difference(name, position, "weights", left[index], right[index])

    def _extremes(self, name: str, stated: PicturePayload) -> Iterator[Difference]:
        """Compare the minimum and maximum in a heatmap's legend with the values of the heatmap."""
        values = stated.arrays.get("values")
        if values is None or "min" not in stated.leaves:
            return
        present = values[~np.isnan(values)]
        for path, reduce in (("min", np.min), ("max", np.max)):
            extreme = float(reduce(present)) if present.size else 0.0
            if stated.leaves.get(path) != extreme:
                texts = exact_text(stated.leaves.get(path)), exact_text(extreme)
                yield self.difference(name, "", path, *texts, finding=DISPLAY_DIFFERS)

    def _array(
        self, name: str, array: str, stated: Array, expected: Array, tolerances: Array
    ) -> Iterator[Difference]:
        self.numbers += stated.size if stated.dtype.kind == "f" else 0
        left, right = stated.astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore"):
            distance = np.abs(left - right)
        is_same = (distance <= tolerances) | (left == right) | (np.isnan(left) & np.isnan(right))
        for index, position in _places(~is_same):
            difference = float(distance[index])
            yield self.difference(
                name,
                position,
                array,
                stated[index],
                expected[index],
                difference=difference,
                tolerance=float(tolerances[index]),
            )


def _places(is_different: Array) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield the index of each true element, at most `MAX_DIFFERENCES`, and the same index counted from 1."""
    for place in np.argwhere(is_different)[:MAX_DIFFERENCES]:
        index = tuple(place.tolist())
        yield index, ", ".join(str(number + 1) for number in index)


def _parsed(payload: bytes | None) -> PicturePayload | None:
    """Return the parsed payload of a picture in a report; None if it is missing or invalid."""
    try:
        return None if payload is None else PicturePayload.of(payload)
    except ValueError:
        return None


def is_close(stated: Any, actual: Any, allowed: float) -> bool:
    """Return whether two values are equal within a tolerance; infinite or missing values must be the same."""
    if isinstance(stated, bool) or not isinstance(stated, int | float) or not isinstance(actual, int | float):
        return stated is None and actual is None
    if not math.isfinite(stated) or not math.isfinite(actual):
        return stated == actual
    return abs(stated - actual) <= allowed


def _are_numbers(*cells: Any) -> bool:
    return all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells)


def _without_uncheckable(value: Any, is_model: bool = True) -> Any:
    """Replace values of a provenance that cannot be verified, but have a valid format, by `_UNCHECKABLE`.

    Args:
        value: the provenance, or a value in it.
        is_model: whether `value` is the complete provenance or describes a model. In other values, only the
            parts that describe a model are searched.
    """
    if isinstance(value, Mapping):
        return {
            name: _UNCHECKABLE
            if is_model and _is_uncheckable(name, part, value)
            else _without_uncheckable(part, name == "other_model")
            for name, part in value.items()
        }
    return [_without_uncheckable(part) for part in value] if isinstance(value, list) else value


def _is_uncheckable(name: str, value: Any, provenance: Mapping[str, Any]) -> bool:
    match name:
        case "origin":
            return value in _ORIGINS and (value == "built-in") == (provenance.get("model") == BUILT_IN)
        case "device":
            return isinstance(value, str) and bool(_DEVICE.fullmatch(value))
        case "libraries":
            return isinstance(value, Mapping) and are_versions(value)
    return False
