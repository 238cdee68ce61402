"""Tolerances for comparing numbers that two processors computed, derived from the model's own rounding error.

The last digits of float32 results depend on the processor, which may add numbers in a different order.
Therefore every result is computed twice: as requested, and with the same weights in float64, whose rounding
error is a million times smaller. The difference estimates the float32 error for this model, text and
formula. Two processors may each be off by about this error, in opposite directions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import numpy as np

from bert_probe.model.trace import Array
from bert_probe.reports import tables
from bert_probe.reports.json_reader import parse_object
from bert_probe.reports.tables import ReportTable, format_cell, match_rows

FACTOR: Final = 8
"""Tolerance as a multiple of the error. For 19 model families, three instruction sets and two thread
counts, float32 results differed by at most 4.6 times the error of the raw model."""

FLOOR: Final = 32 * float(np.finfo(np.float32).eps)
"""Minimum tolerance relative to the largest number: with few numbers, the error may be near 0 by chance."""

MAX_STATED_FACTOR: Final = 8
"""Limit of a report's stated tolerance, as a multiple of the recomputed tolerance. With few numbers, the
recomputed error may be small by chance, so a larger stated tolerance is accepted up to this limit."""

ENTRIES: Final = "entries"
"""Name of a picture's array of colors, which contains indices into the color table."""


@dataclass(frozen=True)
class Tolerance:
    """The tolerance for a group of numbers.

    Attributes:
        of: name of the column or array; "" for all numbers of a matrix.
        largest: largest absolute value in the group.
        error: largest difference between a number in float32 and in float64.
    """

    of: str
    largest: float
    error: float

    @property
    def allowed(self) -> float:
        """The largest allowed difference from a number that another machine computed."""
        return max(FLOOR * self.largest, FACTOR * self.error)

    def to_json(self) -> dict[str, Any]:
        """Return the tolerance as a JSON object."""
        return asdict(self) | {"tolerance": self.allowed}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse and check the JSON of a tolerance.

        Raises:
            ReportError: the value is not a tolerance.
        """
        with parse_object(value, "A tolerance of the report") as parsed:
            tolerance = cls(parsed.text("of"), parsed.number("largest"), parsed.number("error"))
            parsed.number("tolerance")  # not stored, because it can be computed from the other numbers
        return tolerance


def of_table(single: ReportTable, double: ReportTable) -> tuple[Tolerance, ...]:
    """Return the tolerance of each number column, or of a matrix as a whole.

    Args:
        single: the table as requested, computed in float32 by default.
        double: the table computed in float64.
    """
    rows = match_rows(single, double)
    double_columns = {column.name: column for column in double.columns}
    pairs = {
        column.name: [
            (cell, double_columns[column.name].cells[row])
            for cell, row in zip(column.cells, rows, strict=True)
            if row is not None and column.name in double_columns
        ]
        for column in single.columns
        if column.kind == "number"
    }
    if single.matrix:
        return (_from_pairs("", [pair for column in pairs.values() for pair in column]),) if pairs else ()
    return tuple(_from_pairs(name, column) for name, column in pairs.items())


def of_arrays(single: Mapping[str, Array], double: Mapping[str, Array]) -> tuple[Tolerance, ...]:
    """Return the tolerance of each array of measured numbers in a picture.

    The index of a color may differ by 1.
    """
    tolerances = []
    for name, array in single.items():
        other = double.get(name)
        if other is None or other.shape != array.shape:
            continue
        if array.dtype.kind == "f":
            tolerances.append(_from_arrays(name, array, other))
        elif name == ENTRIES:
            tolerances.append(Tolerance(name, 0.0, 1 / FACTOR))
    return tuple(tolerances)


def of_leaves(single: Mapping[str, Any], double: Mapping[str, Any]) -> tuple[Tolerance, ...]:
    """Return the tolerance of each float in a provenance or in the description of a picture."""
    return tuple(
        _from_pairs(path, [(value, double.get(path, value))])
        for path, value in single.items()
        if isinstance(value, float)
    )


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return all texts and numbers in a JSON value by path, such as ``facts.positions.0``."""
    if isinstance(value, Mapping):
        children: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list | tuple):
        children = enumerate(value)
    else:
        return {path: value.item() if isinstance(value, np.generic) else value}
    return {
        name: leaf
        for key, child in children
        for name, leaf in leaves(child, f"{path}.{key}" if path else str(key)).items()
    }


def outline(value: Any) -> Any:
    """Return the structure of a JSON value: its keys, in order, with the types of their values.

    The paths of `leaves` do not show whether a list was replaced by an object, or ``{"a": {"b": 1}}`` by
    ``{"a.b": 1}``, which other programs read differently.
    """
    if isinstance(value, Mapping):
        return {"object": [[str(name), outline(child)] for name, child in value.items()]}
    if isinstance(value, list | tuple):
        return [outline(child) for child in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if value is None else type(value).__name__


def _from_pairs(name: str, pairs: Iterable[tuple[Any, Any]]) -> Tolerance:
    """Return the tolerance of numbers from (float32, float64) pairs, ignoring pairs that are not finite."""
    finite = [
        (float(single), float(double))
        for single, double in pairs
        if isinstance(single, int | float)
        and isinstance(double, int | float)
        and math.isfinite(single)
        and math.isfinite(double)
    ]
    largest = max((abs(double) for _, double in finite), default=0.0)
    return Tolerance(name, largest, max((abs(single - double) for single, double in finite), default=0.0))


def _from_arrays(name: str, single: Array, double: Array) -> Tolerance:
    is_finite = np.isfinite(single) & np.isfinite(double)
    singles, doubles = single[is_finite].astype(np.float64), double[is_finite].astype(np.float64)
    largest, error = np.abs(doubles).max(initial=0.0), np.abs(singles - doubles).max(initial=0.0)
    return Tolerance(name, float(largest), float(error))


def combine(own: Sequence[Tolerance], stated: Sequence[Tolerance]) -> dict[str, float]:
    """Return the allowed difference by name: the larger of the recomputed and the stated tolerance.

    A stated tolerance is limited to `MAX_STATED_FACTOR` times the recomputed tolerance.

    Args:
        own: the recomputed tolerances.
        stated: the tolerances in the report.
    """
    stated_by_name = {tolerance.of: tolerance.allowed for tolerance in stated}
    return {
        tolerance.of: max(
            tolerance.allowed,
            min(stated_by_name.get(tolerance.of, 0.0), MAX_STATED_FACTOR * tolerance.allowed),
        )
        for tolerance in own
    }


def is_close(stated: Any, actual: Any, allowed: float) -> bool:
    """Return whether two numbers are equal within a tolerance; infinite or missing values must be equal."""
    if isinstance(stated, bool) or not isinstance(stated, int | float) or not isinstance(actual, int | float):
        return stated is None and actual is None
    if not math.isfinite(stated) or not math.isfinite(actual):
        return stated == actual
    return abs(stated - actual) <= allowed


DIFFERS: Final = "differs from the recomputed value"
CHANGED: Final = "changed after the report was written"
DISPLAY_DIFFERS: Final = "displayed value differs from the data"
OTHER_MODEL: Final = "weights differ from those of the stated model"
OTHER_VERSION: Final = "another version of BERT Probe, so pages and files cannot be compared"
NOT_RENDERED: Final = "differs from BERT Probe's rendering of the data"

MAX_DIFFERENCES: Final = 1_000
"""Maximum number of differences that are listed for one part of a view."""

_MAX_CHARACTERS: Final = 500
"""Maximum number of characters of a stated or recomputed value in a `Difference`."""


@dataclass(frozen=True)
class Difference:
    """A difference between a report and its recomputed content.

    Attributes:
        view: number of the view, from 1; 0 for the file itself.
        table: the part of the view: table, note, picture 1, …
        row: name of the row, beginning with its number from 1.
        column: name of the column.
        stated: value in the report.
        recomputed: value that was computed or rendered by the verification.
        difference: absolute difference of two numbers.
        tolerance: allowed difference.
        finding: kind of the difference, one of the constants of this module, such as `DIFFERS`.
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


def note_difference(
    actual: str, expected: str, segments: Sequence[tables.NoteSegment]
) -> tuple[str, str, str]:
    """Locate the first difference in the text of a note.

    Args:
        actual: text in the report.
        expected: text that the note should have.
        segments: the segments of the expected text.

    Returns:
        The cell whose reference contains the difference, or ""; and the part of each text around the
        difference.
    """
    shorter = min(len(actual), len(expected))
    pairs = zip(actual, expected, strict=False)
    position = next((i for i, (left, right) in enumerate(pairs) if left != right), shorter)
    start, column = 0, ""
    for segment in segments:
        if start <= position < start + len(segment.text) and segment.row is not None:
            column = f"row {segment.row + 1}, column {(segment.column or 0) + 1}"
        start += len(segment.text)
    around = slice(max(0, position - 20), position + 20)
    return column, actual[around], expected[around]


def exact_text(cell: Any) -> str:
    """Return a cell as text, with all digits of a number."""
    return clip(format_cell("text", cell if cell is None or isinstance(cell, str) else repr(cell)))


def clip(text: str) -> str:
    """Truncate a text, and escape lone surrogates, which UTF-8 cannot encode."""
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[:_MAX_CHARACTERS]}…"
    return text.encode("utf-8", "backslashreplace").decode()
