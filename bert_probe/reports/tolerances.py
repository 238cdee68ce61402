"""How near a number must be to one that another processor computed: worked out from the model's own error.

The last digits of float32 depend on the processor, which adds the same numbers in another order. So every
answer is computed twice: as it is, and by the same weights in float64, whose own rounding is a million times
smaller. How far the two are apart is the error that float32 has in this very model, text and formula. Two
processors are each about so far from the truth, on either side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import numpy as np

from bert_probe.model.trace import Array
from bert_probe.reports.json_reader import given
from bert_probe.reports.tables import Table, paired

FACTOR: Final = 8
"""Times the error. Over 19 families, three instruction sets and two numbers of threads, numbers in float32
were at most 4.6 of the raw model's own errors apart."""

FLOOR: Final = 32 * float(np.finfo(np.float32).eps)
"""Never less, as a share of the largest number: of few numbers the error may be nearly nothing by luck."""

TRUSTED: Final = 8
"""How much larger than one's own a tolerance that a report states may be. Few numbers may have had luck
here, and none where they were first computed; beyond that a report is not believed."""


@dataclass(frozen=True)
class Tolerance:
    """The tolerance of numbers that are of one sort.

    Attributes:
        of: the column's name, or that of an array; "" for all numbers of a matrix.
        largest: the largest of them, without its sign.
        error: the largest difference between float32 and float64.
    """

    of: str
    largest: float
    error: float

    @property
    def allowed(self) -> float:
        """How far such a number may be from one that was computed elsewhere."""
        return max(FLOOR * self.largest, FACTOR * self.error)

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"tolerance": self.allowed}

    @classmethod
    def from_json(cls, held: Any) -> Self:
        """What `plain` made, checked.

        Raises:
            ReportError: no bound.
        """
        with given(held, "A tolerance of the report") as one:
            bound = cls(one.text("of"), one.number("largest"), one.number("error"))
            one.number("tolerance")  # follows from the others
        return bound


def of_table(single: Table, double: Table) -> tuple[Tolerance, ...]:
    """Of each column with measured numbers, or of a matrix as a whole."""
    rows = paired(single, double)
    theirs = {column.name: column for column in double.columns}
    pairs = {
        column.name: [
            (cell, theirs[column.name].cells[row])
            for cell, row in zip(column.cells, rows, strict=True)
            if row is not None and column.name in theirs
        ]
        for column in single.columns
        if column.kind == "number"
    }
    if single.matrix:
        return (_bound("", [pair for column in pairs.values() for pair in column]),) if pairs else ()
    return tuple(_bound(name, column) for name, column in pairs.items())


def of_arrays(single: Mapping[str, Array], double: Mapping[str, Array]) -> tuple[Tolerance, ...]:
    """Of each array of measured numbers in a picture; what is drawn as bytes may be one entry off."""
    found = []
    for name, array in single.items():
        other = double.get(name)
        if other is None or other.shape != array.shape:
            continue
        if array.dtype.kind == "f":
            found.append(_bound_of_arrays(name, array, other))
        elif name == ENTRIES:
            found.append(Tolerance(name, 0.0, 1 / FACTOR))
    return tuple(found)


ENTRIES: Final = "entries"
"""The array of a picture that holds colours: numbers, each rounded to an entry of the colour table."""


def of_leaves(single: Mapping[str, Any], double: Mapping[str, Any]) -> tuple[Tolerance, ...]:
    """Of each measured number among what is said beside a table, or of a picture."""
    return tuple(
        _bound(path, [(value, double.get(path, value))])
        for path, value in single.items()
        if isinstance(value, float)
    )


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Every text and number of a value of JSON, by its path: ``facts.positions.0``."""
    if isinstance(value, Mapping):
        parts: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    else:
        return {path: value.item() if isinstance(value, np.generic) else value}
    return {
        name: leaf
        for key, one in parts
        for name, leaf in leaves(one, f"{path}.{key}" if path else str(key)).items()
    }


def outline(value: Any) -> Any:
    """Return the names in a value of JSON, in their order, and the types of what they stand for.

    The paths of `leaves` do not show whether a list was replaced by an object, or ``{"a": {"b": 1}}`` by
    ``{"a.b": 1}``, which other programs read in another way.
    """
    if isinstance(value, Mapping):
        return {"object": [[str(name), outline(part)] for name, part in value.items()]}
    if isinstance(value, list | tuple):
        return [outline(part) for part in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if value is None else type(value).__name__


def _bound(of: str, pairs: Iterable[tuple[Any, Any]]) -> Tolerance:
    finite = [
        (float(one), float(other))
        for one, other in pairs
        if isinstance(one, int | float)
        and isinstance(other, int | float)
        and math.isfinite(one)
        and math.isfinite(other)
    ]
    largest = max((abs(other) for _, other in finite), default=0.0)
    return Tolerance(of, largest, max((abs(one - other) for one, other in finite), default=0.0))


def _bound_of_arrays(of: str, single: Array, double: Array) -> Tolerance:
    finite = np.isfinite(single) & np.isfinite(double)
    one, other = single[finite].astype(np.float64), double[finite].astype(np.float64)
    return Tolerance(of, float(np.abs(other).max(initial=0.0)), float(np.abs(one - other).max(initial=0.0)))


def joined(own: Sequence[Tolerance], stated: Sequence[Tolerance]) -> dict[str, float]:
    """What is allowed, by name: one's own tolerance, or what a report states where that is believed."""
    said = {one.of: one.allowed for one in stated}
    return {one.of: max(one.allowed, min(said.get(one.of, 0.0), TRUSTED * one.allowed)) for one in own}


def near(stated: Any, found: Any, allowed: float) -> bool:
    """Whether two numbers are the same but for rounding; what is missing or endless must be so in both."""
    if isinstance(stated, bool) or not isinstance(stated, int | float) or not isinstance(found, int | float):
        return stated is None and found is None
    if not math.isfinite(stated) or not math.isfinite(found):
        return stated == found
    return abs(stated - found) <= allowed
