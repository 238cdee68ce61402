"""A table as a report holds it: plain columns, the same after JSON and back, digit by digit."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import numpy as np
import pandas as pd

from bert_probe.core import files
from bert_probe.errors import ReportError
from bert_probe.reports.json_reader import given

Kind = Literal["number", "integer", "truth", "text"]
KINDS: Final[tuple[Kind, ...]] = ("number", "integer", "truth", "text")

DECIMALS: Final = 4
"""Of a number that is shown; the table itself holds every digit."""

_NONE: Final = "–"
"""Shown where there is no value."""
_ENDLESS: Final = {"Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        kind: of its cells; a "number" is a measured one, with float32's error, an "integer" is exact.
        cells: Python's own values; None where there is none.
    """

    name: str
    kind: Kind
    cells: tuple[Any, ...]


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        matrix: its columns are of one sort, and named by what they are of; the first column names the rows.
    """

    columns: tuple[Column, ...]
    matrix: bool = False

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Self:
        """A DataFrame of a result."""
        plain = files.plain(frame)
        columns = [_column(str(name), series) for name, series in plain.items()]
        return cls(tuple(columns), frame.index.name is not None)

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.columns[0].cells) if self.columns else 0

    @property
    def cells(self) -> int:
        """How many there are."""
        return self.rows * len(self.columns)

    def cell(self, row: int, column: int) -> str:
        """A cell as it is shown; row and column from 0."""
        return shown(self.columns[column].kind, self.columns[column].cells[row])

    def row_name(self, row: int) -> str:
        """A row by its number from 1, and its first text."""
        texts = (column.cells[row] for column in self.columns if column.kind == "text")
        name = next(texts, None)
        return f"{row + 1}" if name is None else f"{row + 1} {name}"

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        columns = [
            {"name": column.name, "kind": column.kind, "cells": [_written(cell) for cell in column.cells]}
            for column in self.columns
        ]
        return {"matrix": self.matrix, "columns": columns}

    @classmethod
    def from_json(cls, held: Any) -> Self:
        """What `plain` made, checked.

        Raises:
            ReportError: no table.
        """
        with given(held, "A table of the report") as one:
            matrix = one.flag("matrix")
            columns = tuple(map(_read, one.several("columns")))
        if len({len(column.cells) for column in columns}) > 1:
            raise ReportError("A table of the report has columns of different lengths.")
        return cls(columns, matrix)

    def marks(self) -> dict[str, list[str]]:
        """A short mark of each row and each column, by which a change is found where it is."""
        written = [[_written(cell) for cell in column.cells] for column in self.columns]
        rows = zip(*written, strict=True) if written else ()
        return {"rows": [_mark(row) for row in rows], "columns": [_mark(column) for column in written]}


def _column(name: str, series: pd.Series) -> Column:
    kind = _kind(series)
    single = series.dtype == np.float32
    cells = zip(series.to_numpy(dtype=object), pd.isna(series), strict=True)
    return Column(
        name, kind, tuple(None if missing else _cell(cell, kind, single) for cell, missing in cells)
    )


def _kind(series: pd.Series) -> Kind:
    if pd.api.types.is_bool_dtype(series.dtype):
        return "truth"
    if pd.api.types.is_integer_dtype(series.dtype):
        return "integer"
    return "number" if pd.api.types.is_float_dtype(series.dtype) else "text"


def _cell(cell: Any, kind: Kind, single: bool) -> Any:
    if kind == "number":
        # The fewest digits that give the same float32.
        return float(str(np.float32(cell))) if single else float(cell)
    return {"truth": bool, "integer": int}.get(kind, str)(cell)


def shown(kind: Kind, cell: Any) -> str:
    """A cell as people read it."""
    if cell is None:
        return _NONE
    if kind == "truth":
        return "yes" if cell else "no"
    if kind != "number":
        return str(cell)
    if not math.isfinite(cell):
        return "∞" if cell > 0 else "−∞"
    small = cell != 0 and abs(cell) < 10.0**-DECIMALS
    return (f"{cell:.2e}" if small else f"{cell:.{DECIMALS}f}").replace("-", "−")


def _written(cell: Any) -> Any:
    """A cell in JSON, which has no endless numbers."""
    if isinstance(cell, float) and not math.isfinite(cell):
        return "Infinity" if cell > 0 else "-Infinity"
    return cell


def _read(held: Any) -> Column:
    with given(held, "A column of the report") as one:
        name, kind, cells = one.text("name"), one.choice("kind", KINDS), one.several("cells")
    if kind == "number":
        cells = [_ENDLESS.get(cell, cell) if isinstance(cell, str) else cell for cell in cells]
        cells = [float(cell) if type(cell) is int else cell for cell in cells]
    if any(cell is not None and type(cell) is not _TYPES[kind] for cell in cells):
        raise ReportError(f"The column {name[:60]!r} of the report has a cell that is no {kind}.")
    return Column(name, kind, tuple(cells))


_TYPES: Final = {"number": float, "integer": int, "truth": bool, "text": str}


def finite(value: Any) -> Any:
    """A value of JSON, which has no endless numbers: these as texts, and null for what is no number."""
    if isinstance(value, Mapping):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    return _written(value)


def canonical(value: Any) -> bytes:
    """JSON with one way to write it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def digest(value: Any) -> str:
    """SHA-256 of a value of JSON, or of bytes."""
    return hashlib.sha256(value if isinstance(value, bytes) else canonical(value)).hexdigest()


def _mark(cells: Iterable[Any]) -> str:
    return f"{zlib.crc32(canonical(list(cells))):08x}"


def changed(stated: Sequence[str], found: Sequence[str]) -> list[int]:
    """Places whose marks differ."""
    return [place for place, (one, other) in enumerate(zip(stated, found, strict=False)) if one != other]


def paired(table: Table, other: Table) -> list[int | None]:
    """For each row of a table that of the other which has the same texts and whole numbers.

    Rows that are sorted by a measured number may change places where two numbers are nearly equal. A row
    without such a counterpart gets the next one that is left over; None where there is none.
    """
    mine, theirs = _keys(table), _keys(other)
    found: list[int | None] = [
        row if row < len(theirs) and theirs[row] == key else None for row, key in enumerate(mine)
    ]
    taken = {row for row in found if row is not None}
    free: dict[Any, list[int]] = defaultdict(list)
    for row in reversed(range(len(theirs))):
        if row not in taken:
            free[theirs[row]].append(row)
    for row, key in enumerate(mine):
        if found[row] is None and free[key]:
            found[row] = free[key].pop()
    left = iter(sorted(row for rows in free.values() for row in rows))
    return [next(left, None) if row is None else row for row in found]


def _keys(table: Table) -> list[tuple[Any, ...]]:
    exact = [column.cells for column in table.columns if column.kind != "number"]
    return [tuple(cells[row] for cells in exact) for row in range(table.rows)]
