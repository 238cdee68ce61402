"""A query of a person's own over the tables of a store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa

from bert_probe.core.field_types import FieldType
from bert_probe.core.frames import optional
from bert_probe.core.inputs import OneStore
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.corpus.sql import SECONDS, opened
from bert_probe.corpus.store import Store
from bert_probe.model.progress import Progress, no_progress


@question("corpus query", is_analysis=False)
class SqlQuery(Question):
    """SQL over the tables of a store, which are called as they are in docs/store.md.

    Attributes:
        sql: a single SELECT, in DuckDB's dialect.
    """

    inputs = OneStore()

    sql: str = param(FieldType(), about="A single SELECT, in DuckDB's dialect.", option="")

    def arguments(self) -> list[str]:
        """The query."""
        return [self.sql]

    def of(self, store: Store, seconds: float = SECONDS, report: Progress = no_progress) -> SqlQueryResult:
        """The rows that it selects.

        Args:
            seconds: the longest that it may take.
            report: told how many seconds it has been running.

        Raises:
            SelectionError: it cannot be answered: no such table or column, no SQL, another statement than a
                SELECT, an answer that is too large, or one that takes too long or needs too much memory.
        """
        with opened(store) as tables:
            return SqlQueryResult(self, store.inputs, tables.select(self.sql, seconds, report))


@dataclass(frozen=True, eq=False, repr=False)
class SqlQueryResult(Result):
    """What a query selects.

    Attributes:
        answer: as DuckDB gives it.
    """

    question: SqlQuery
    answer: pa.Table

    @property
    def nbytes(self) -> int:
        """Bytes of the answer."""
        return super().nbytes + int(self.answer.nbytes)

    def frame(self) -> pd.DataFrame:
        """Its rows, columns called as in the query: numbers, truth values, and texts; lists are JSON."""
        names = _named(self.answer.column_names)
        columns = [_column(column) for column in self.answer.columns]
        return pd.DataFrame(dict(zip(names, columns, strict=True)))


def _named(names: list[str]) -> list[str]:
    """Each once: a name that was there gets a number."""
    found: list[str] = []
    for name in names:
        number = 1
        unique = name
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def _column(values: pa.ChunkedArray) -> Any:
    """As every format of a file has it."""
    kind = values.type
    if pa.types.is_floating(kind):
        return values.to_numpy()
    if pa.types.is_unsigned_integer(kind) and kind.bit_width == 64:
        kind = pa.decimal128(38, 0)
    cells = values.to_pylist()
    if pa.types.is_boolean(kind) and None not in cells:
        return pd.array(cells, dtype=bool)
    if pa.types.is_integer(kind):
        return optional(cells) if None in cells else values.to_numpy()
    if pa.types.is_decimal(kind):
        return _decimals(cells, kind.scale)
    return pd.array([None if cell is None else _text(cell) for cell in cells], dtype="str")


def _decimals(cells: list[Any], scale: int) -> Any:
    """Sums of whole numbers come as decimals: whole again where they fit, else as floats."""
    if scale == 0 and all(cell is None or abs(cell) < 2**63 for cell in cells):
        return optional([None if cell is None else int(cell) for cell in cells])
    return pd.array([float("nan") if cell is None else float(cell) for cell in cells], dtype="float64")


def _text(cell: Any) -> str:
    if isinstance(cell, list | tuple | dict):
        return json.dumps(cell, ensure_ascii=False, default=_plain)
    return str(cell)


def _plain(cell: Any) -> Any:
    """What JSON has no word for, within a list."""
    return float(cell) if isinstance(cell, Decimal) else str(cell)
