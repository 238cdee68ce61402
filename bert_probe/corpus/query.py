"""Run a user's SQL query over the tables of a store."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa

from bert_probe.core.field_types import FieldType
from bert_probe.core.frames import nullable_integers
from bert_probe.core.inputs import OneStore
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.corpus.sql import DEFAULT_SECONDS, open_tables
from bert_probe.corpus.store import Store
from bert_probe.model.progress import Progress, no_progress


@question("corpus query", is_analysis=False)
class SqlQuery(Question):
    """A SQL query over the tables of a store; docs/store.md lists them.

    Attributes:
        sql: a single SELECT, in DuckDB's dialect.
    """

    inputs = OneStore()

    sql: str = param(FieldType(), about="A single SELECT, in DuckDB's dialect.", option="")

    def arguments(self) -> list[str]:
        """Return the query as the command line argument."""
        return [self.sql]

    def of(
        self, store: Store, seconds: float = DEFAULT_SECONDS, progress: Progress = no_progress
    ) -> SqlQueryResult:
        """Return the rows that the query selects.

        Args:
            store: a store with the tables.
            seconds: time limit.
            progress: called with the number of seconds that the query has been running.

        Raises:
            SelectionError: the query is not valid SQL or not a single SELECT, names a table or column that
                does not exist, takes too long, needs too much memory, or its answer is too large.
        """
        with open_tables(store) as tables:
            return SqlQueryResult(self, store.inputs, tables.select(self.sql, seconds, progress))


@dataclass(frozen=True, eq=False, repr=False)
class SqlQueryResult(Result):
    """The rows that a query selects.

    Attributes:
        answer: Arrow table; values that Arrow cannot hold exactly are text, see `sql_child`.
    """

    question: SqlQuery
    answer: pa.Table

    @property
    def nbytes(self) -> int:
        """Memory of the answer in bytes."""
        return super().nbytes + int(self.answer.nbytes)

    def frame(self) -> pd.DataFrame:
        """Return the rows as numbers, booleans and text; lists and structs become JSON."""
        names = _unique_names(self.answer.column_names)
        columns = [_column(column) for column in self.answer.columns]
        return pd.DataFrame(dict(zip(names, columns, strict=True)))


def _unique_names(names: list[str]) -> list[str]:
    """Append a number to names that occurred before."""
    unique_names: dict[str, None] = {}
    next_numbers: dict[str, int] = {}
    for name in names:
        unique = name
        while unique in unique_names:
            next_numbers[name] = number = next_numbers.get(name, 1) + 1
            unique = f"{name}_{number}"
        unique_names[unique] = None
    return list(unique_names)


def _column(values: pa.ChunkedArray) -> Any:
    """Return a column with a type that every file format of results supports."""
    data_type = values.type
    if pa.types.is_floating(data_type):
        return values.to_numpy()
    if pa.types.is_unsigned_integer(data_type) and data_type.bit_width == 64:
        data_type = pa.decimal128(38, 0)
    cells = values.to_pylist()
    if pa.types.is_boolean(data_type) and None not in cells:
        return pd.array(cells, dtype=bool)
    if pa.types.is_integer(data_type):
        return nullable_integers(cells) if None in cells else values.to_numpy()
    if pa.types.is_decimal(data_type):
        return _decimals(cells, data_type.scale)
    return pd.array([None if cell is None else _text(cell) for cell in cells], dtype="str")


def _decimals(cells: list[Any], scale: int) -> Any:
    """Return decimals, the type of integer sums, as integers if all fit into 64 bits, else as floats."""
    if scale == 0 and all(cell is None or abs(cell) < 2**63 for cell in cells):
        return nullable_integers([None if cell is None else int(cell) for cell in cells])
    return pd.array([float("nan") if cell is None else float(cell) for cell in cells], dtype="float64")


def _text(cell: Any) -> str:
    if not isinstance(cell, list | tuple | dict):
        return str(cell)
    try:
        return json.dumps(cell, ensure_ascii=False, allow_nan=False, default=_json_value)
    except ValueError:
        return json.dumps(_without_nan(cell), ensure_ascii=False, default=_json_value)


def _without_nan(cell: Any) -> Any:
    """Return nested values with text in place of NaN and infinities, which JSON does not support."""
    if isinstance(cell, dict):
        return {name: _without_nan(value) for name, value in cell.items()}
    if isinstance(cell, list | tuple):
        return [_without_nan(value) for value in cell]
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def _json_value(cell: Any) -> Any:
    """Convert a nested value that JSON does not support."""
    return float(cell) if isinstance(cell, Decimal) else str(cell)
