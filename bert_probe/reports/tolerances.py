"""Tolerances of the values in a report, from a second computation in float64.

The last digits of float32 results depend on the processor, which may add numbers in a different order.
Therefore, every result is computed twice: as requested, and with the same weights in float64, where rounding
errors are a million times smaller. The difference estimates the float32 error for this model, text and
formula. Results from two processors may differ from the exact value by about this error, in opposite
directions.

Values of the same quantity share a tolerance. Different quantities, such as an accuracy and a number of
texts, never do: the tolerance follows from the largest value, and would hide changes of the smaller ones.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

import numpy as np

from bert_probe.errors import ReportError
from bert_probe.model.trace import Array
from bert_probe.reports.json_reader import parse_object
from bert_probe.reports.tables import Column, ReportTable, match_rows

FACTOR: Final = 8
"""Tolerance as a multiple of the measured float32 error. For 19 model families, three instruction sets and
two thread counts, float32 results differed by at most 4.6 times the error of the raw model."""

FLOOR: Final = 32 * float(np.finfo(np.float32).eps)
"""Minimum tolerance relative to the largest value; the error of a small group may be 0 by chance."""

MAX_STATED_FACTOR: Final = 8
"""Limit of the tolerance stated in a report, as a multiple of the recomputed tolerance. The recomputed error
of a few values may be small by chance, so a larger stated tolerance is accepted up to this limit."""

MAX_SHARE: Final = 0.01
"""Share of the largest value up to which a tolerance verifies numbers. A larger tolerance is never taken from
a report, and is reported if it is measured."""

_SHARE: Final = re.compile(r"facts\.calibration\.(percentile|histogram\.percent\.[0-9]+)")
"""Matches the provenance paths of calibration values that are percentages of random pairs."""
_MIN_SHARE_ERROR: Final = 0.01
"""Minimum error of a percentile or of a histogram bar, in percent. It allows for four of 44,850 random pairs
whose scores are so close to a bin edge that rounding moves them to the next bin."""

_RESIDUES: Final = ("facts.difference_to_model", "facts.gap", "facts.gap_share", "facts.off", "facts.error")
"""Paths of differences that are rounding errors, apart from the error of a numerical integration: of the
recomputed steps from the model's output, and of the sum of attributions from the explained number. The gap is
also stated as a share of the change of the output."""
_MIN_RESIDUE_ERROR: Final = 2.0**-20
"""Minimum error of these differences, relative to the largest of the other facts (at least 1), such as the
explained number. On another processor, a difference may be 0 or several units in the last place."""

ENTRIES: Final = "entries"
"""Name of the array in a picture's payload that contains color indices, which refer to a color table."""

MEASURES: Final = "numbers"
"""Name of the array in a picture's payload with the values of different measures, along its first axis."""

_MIXED_ROWS: Final = ("method", "step", "vector")
"""Names of the rows of a matrix whose rows are different quantities."""

MIN_ERROR: Final = 2.0**-17
"""Minimum error of the single value of a measure, relative to the value."""


@dataclass(frozen=True)
class Tolerance:
    """The tolerance for a group of values.

    Attributes:
        of: name of the column or array, or path of the leaf; "" for all values of a matrix.
        largest: largest absolute value in the group.
        error: largest absolute difference between float32 and float64 results in the group.
    """

    of: str
    largest: float
    error: float

    @property
    def allowed(self) -> float:
        """Return the largest allowed difference from the same value computed on another machine."""
        return max(FLOOR * self.largest, FACTOR * self.error)

    @property
    def is_large(self) -> bool:
        """Whether the tolerance is so large, relative to the values, that `verify` could miss wrong values.

        False for color indices, rounding errors and percentages of random pairs, which have a fixed minimum
        tolerance.
        """
        is_fixed = self.of in (ENTRIES, *_RESIDUES) or _SHARE.fullmatch(self.of) is not None
        return self.allowed > MAX_SHARE * self.largest and not is_fixed

    def to_json(self) -> dict[str, Any]:
        """Return the tolerance as a JSON object."""
        return asdict(self) | {"tolerance": self.allowed}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse and check the JSON of a tolerance.

        Raises:
            ReportError: the value is not a tolerance, or one of its numbers is negative.
        """
        with parse_object(value, "A tolerance in the report") as parsed:
            tolerance = cls(parsed.text("of"), parsed.number("largest"), parsed.number("error"))
            parsed.number("tolerance")  # ignored, because `allowed` recomputes it
        if min(tolerance.largest, tolerance.error) < 0:
            raise ReportError("A tolerance in the report is negative. Create the report again.")
        return tolerance


def of_table(single: ReportTable, double: ReportTable) -> tuple[Tolerance, ...]:
    """Return the tolerance for each group of numbers in a table; see `table_groups`.

    Args:
        single: the table as requested, computed in float32 by default.
        double: the table computed in float64.
    """
    rows = match_rows(single, double)
    double_columns = {column.name: column for column in double.columns}
    pairs: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
    for column in single.columns:
        if column.kind != "number":
            continue
        group = table_groups(single, column)
        for row, (cell, match) in enumerate(zip(column.cells, rows, strict=True)):
            found = pairs[group(row)]
            if match is not None and column.name in double_columns:
                found.append((cell, double_columns[column.name].cells[match]))
    tolerances = (_from_pairs(name, cells) for name, cells in pairs.items())
    if _measures(single) is None:
        return tuple(tolerances)
    # A measure has a single value, whose error may be 0 by chance. Counts have no error.
    return tuple(
        each if each.largest.is_integer() else replace(each, error=max(each.error, MIN_ERROR * each.largest))
        for each in tolerances
    )


def table_groups(table: ReportTable, column: Column) -> Callable[[int], str]:
    """Return a function from a row of a column to the name of the tolerance of this cell.

    The numbers of a column share a tolerance, and so do all numbers of a matrix, whose name is "". The
    exceptions are tables whose rows are different quantities: those with a column "measure", and matrices
    of steps.
    """
    if table.matrix:
        return table.row_name if table.columns[0].name == "step" else lambda _row: ""
    measures = _measures(table)
    if measures is None:
        return lambda _row: column.name
    return lambda row: f"{column.name} of {measures.cells[row]}"


def _measures(table: ReportTable) -> Column | None:
    """Return the column with the names of the measures; None if the table has none."""
    return next((item for item in table.columns if (item.name, item.kind) == ("measure", "text")), None)


def of_arrays(
    single: Mapping[str, Array], double: Mapping[str, Array], row_axis: str = ""
) -> tuple[Tolerance, ...]:
    """Return the absolute tolerances of the float arrays and the color indices in a picture's payload.

    Color indices may differ by 1. See `array_groups` for arrays that contain different quantities.

    Args:
        single: the arrays in the requested data type, by name.
        double: the arrays computed in float64, by name.
        row_axis: name of the rows of a matrix; "" for other pictures.
    """
    tolerances = []
    for name, array in sorted(single.items()):  # safetensors returns arrays in any order
        other = double.get(name)
        if other is None or other.shape != array.shape:
            continue
        if array.dtype.kind == "f":
            groups = array_groups(name, array, row_axis)
            parts = [(array, other)] if groups == [name] else zip(array, other, strict=True)
            tolerances += [_from_arrays(group, *part) for group, part in zip(groups, parts, strict=True)]
        elif name == ENTRIES:
            tolerances.append(Tolerance(name, 0.0, 1 / FACTOR))
    return tuple(tolerances)


def array_groups(name: str, array: Array, row_axis: str) -> list[str]:
    """Return the names of the tolerances of an array.

    This is its own name, unless the parts along its first axis are different quantities: the measures of
    `MEASURES`, or the rows of a matrix of steps. Then each part has a name.
    """
    is_mixed = name == MEASURES or (name == "values" and row_axis in _MIXED_ROWS)
    return [f"{name} of row {row}" for row in range(1, len(array) + 1)] if is_mixed else [name]


def of_leaves(single: Mapping[str, Any], double: Mapping[str, Any]) -> tuple[Tolerance, ...]:
    """Return the tolerance for each float among the `leaves` of a provenance or a picture's description.

    Args:
        single: the leaves as requested, computed in float32 by default, by path.
        double: the leaves computed in float64, by path.
    """
    tolerances = [
        _from_pairs(path, [(value, double.get(path, value))])
        for path, value in single.items()
        if isinstance(value, float)
    ]
    return tuple(
        replace(tolerance, error=max(tolerance.error, _min_leaf_error(tolerance.of, double)))
        for tolerance in tolerances
    )


def with_rounding(tolerances: Sequence[Tolerance], bound: object) -> tuple[Tolerance, ...]:
    """Return tolerances in which the effect of padding may change by a bound.

    The effect is a rounding error, which may be 0 on one processor and not on another.

    Args:
        bound: the largest difference that `PaddingEffect` explains by rounding; None for other questions.
    """
    if not isinstance(bound, float):
        return tuple(tolerances)
    return tuple(
        replace(each, error=max(each.error, bound / FACTOR))
        if each.of in ("difference", "facts.difference")
        else each
        for each in tolerances
    )


def _min_leaf_error(path: str, values: Mapping[str, Any]) -> float:
    """Return the minimum error of a leaf: a single error may be 0 by chance.

    Args:
        values: all leaves, by path.
    """
    if path in _RESIDUES:
        facts = {
            name: value
            for name, value in values.items()
            if name.startswith("facts.") and name not in _RESIDUES
            if isinstance(value, float) and math.isfinite(value)
        }
        error = _MIN_RESIDUE_ERROR * max([1.0, *map(abs, facts.values())])
        change = facts.get("facts.value", 0.0) - facts.get("facts.baseline_value", 0.0)
        return error / (abs(change) or 1.0) if path == "facts.gap_share" else error
    return _MIN_SHARE_ERROR if _SHARE.fullmatch(path) else 0.0


def _from_pairs(name: str, pairs: Iterable[tuple[Any, Any]]) -> Tolerance:
    """Compute a tolerance from (float32, float64) pairs; ignore pairs that are not finite."""
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

    A stated tolerance is limited to `MAX_STATED_FACTOR` times the recomputed tolerance, and to `MAX_SHARE` of
    the largest value. That of color indices is fixed.

    Args:
        own: the tolerances recomputed on this machine.
        stated: the tolerances in the report.
    """
    stated_by_name = {tolerance.of: tolerance.allowed for tolerance in stated}
    return {
        tolerance.of: max(
            tolerance.allowed,
            min(
                stated_by_name.get(tolerance.of, 0.0),
                (1 if tolerance.of == ENTRIES else MAX_STATED_FACTOR) * tolerance.allowed,
                MAX_SHARE * tolerance.largest,
            ),
        )
        for tolerance in own
    }
