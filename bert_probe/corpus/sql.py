"""Run SQL queries over the tables of a store with DuckDB, without access to anything outside the store.

The tables are views of the store's files, and no other files can be opened. DuckDB's settings are locked
before the user's query is parsed. A query must be a single SELECT. DuckDB writes only temporary files for
sorts and joins, to a temporary folder of the connection. Queries run in a separate process, `sql_child`,
whose memory is limited and which is killed when a query takes too long.
"""

from __future__ import annotations

import base64
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from bert_probe.core import extras
from bert_probe.core.field_types import FieldType
from bert_probe.core.frames import nullable_integers
from bert_probe.core.inputs import OneStore
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.corpus.sql_child import ConnectionSetup, TableSetup, out_of_memory
from bert_probe.corpus.store import Store
from bert_probe.errors import SelectionError
from bert_probe.model.progress import Progress, no_progress

MAX_MEMORY = "1GB"
"""Memory limit of DuckDB; larger sorts and joins use temporary files."""
MAX_SPILL = "8GB"
"""Maximum size of DuckDB's temporary files."""
MAX_ADDRESS_SPACE = 2**31
"""Number of bytes that the child process may allocate, including memory that DuckDB does not count."""
MAX_ROWS, MAX_BYTES = 1_000_000, 2**28
"""Maximum number of rows, and maximum size in bytes, of the result of a query."""
MAX_CHARACTERS = 20_000
"""Maximum length of a query in characters. The time to parse a query grows with the square of its length."""
DEFAULT_SECONDS = 60.0
"""Default time limit of a user's query, in seconds."""
_TEXT_DTYPE: Any = pd.Series(["text"]).dtype
"""The dtype of text columns: str in pandas 3; object in pandas 2, where str would convert None to "None"."""
_POLL_SECONDS = 0.02


class StoreTables:
    """The tables of a store, together with a child process that runs queries over them."""

    def __init__(self, store: Store, setup: ConnectionSetup) -> None:
        self.store, self._setup = store, setup
        self._child = _start(setup)  # start the child process without waiting until it is ready

    def select(self, sql: str, seconds: float | None = None, progress: Progress = no_progress) -> pa.Table:
        """Run a query that is a single SELECT, and return the rows that it selects.

        Args:
            sql: a query in DuckDB's dialect of SQL.
            seconds: time limit in seconds. If None, there is no limit.
            progress: called with the number of seconds that the query has been running. If the callback
                raises an exception, the query is ended.

        Raises:
            SelectionError: the query is not valid SQL or not a single SELECT, names a table or column that
                does not exist, takes too long, needs too much memory, or its result is too large.
        """
        if len(sql) > MAX_CHARACTERS:
            raise SelectionError(
                f"The query has {len(sql):,} characters, but at most {MAX_CHARACTERS:,} are allowed. "
                "Shorten the query, or open the files with DuckDB itself (docs/store.md)."
            )
        if any("\ud800" <= character <= "\udfff" for character in sql):
            raise SelectionError(
                "The query has a lone surrogate, which is not valid Unicode. Remove this character."
            )
        if self._child.poll() is not None:  # the child process has ended
            self._child = _start(self._setup)
        return self._interruptible(lambda: self._answer(sql), seconds, progress)

    def close(self) -> None:
        """Kill the child process that runs the queries."""
        self._child.kill()
        for stream in (self._child.stdin, self._child.stdout):
            # closing the pipe fails if the child process has not read all of its input
            with suppress(OSError):
                assert stream is not None
                stream.close()
        self._child.wait()

    def _answer(self, sql: str) -> pa.Table:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            _send(self._child, sql)
            header = json.loads(self._child.stdout.readline())
        except (OSError, ValueError):  # The child process ran out of memory and ended.
            self.close()
            raise SelectionError(out_of_memory(self._setup)) from None
        if "error" in header:
            raise SelectionError(header["error"])
        try:
            with pa.ipc.open_stream(self._child.stdout) as reader:
                return reader.read_all()
        except (OSError, pa.ArrowException):
            self.close()
            raise SelectionError(out_of_memory(self._setup)) from None

    def _interruptible(
        self, work: Callable[[], pa.Table], seconds: float | None, progress: Progress
    ) -> pa.Table:
        """Wait for a query in a thread, so that Ctrl+C, the time limit or ``progress`` can end the query."""
        answers: list[pa.Table] = []
        errors: list[BaseException] = []
        # Use an event instead of Thread.join: if Ctrl+C interrupts join, the thread is marked as finished.
        finished = threading.Event()

        def run() -> None:
            try:
                answers.append(work())
            except BaseException as error:  # The error is raised below, in the caller's thread.
                errors.append(error)
            finally:
                finished.set()

        start = time.monotonic()
        threading.Thread(target=run).start()
        try:
            while not finished.wait(_POLL_SECONDS):
                elapsed = time.monotonic() - start
                progress(int(elapsed), 0)
                if seconds is not None and elapsed > seconds:
                    raise SelectionError(
                        f"The query took longer than {seconds:g} seconds. Select fewer rows or heads, or "
                        "allow more time with --seconds."
                    )
        finally:
            if not finished.is_set():
                self._child.kill()
                finished.wait()
                self.close()
        if errors:
            raise errors[0]
        return answers[0]


def _start(setup: ConnectionSetup) -> subprocess.Popen[bytes]:
    extras.require("duckdb")
    # Let the child process import everything that this process can import, as multiprocessing does.
    paths = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "bert_probe.corpus.sql_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # suppress what DuckDB prints when it runs out of memory
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(paths),
            # Stacks and malloc arenas of unused threads would fill the limited address space.
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
            "MALLOC_ARENA_MAX": "2",
        },
        # A separate process group lets Ctrl+C reach only this process.
        process_group=0 if os.name == "posix" else None,
    )
    # ignore the error of a child process that has exited, because the first query reports it
    with suppress(OSError):
        _send(child, setup)
    return child


def _send(child: subprocess.Popen[bytes], content: Any) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(content).encode() + b"\n")
    child.stdin.flush()


@contextmanager
def open_tables(store: Store) -> Iterator[StoreTables]:
    """Start a child process for queries over the tables of a store, and end it after the ``with`` block."""
    with tempfile.TemporaryDirectory(prefix="bert-probe-") as spill_folder:
        tables = StoreTables(store, _setup(store, spill_folder))
        try:
            yield tables
        finally:
            tables.close()


def _setup(store: Store, spill_folder: str) -> ConnectionSetup:
    tables = {
        name: TableSetup(
            files=[str(file.resolve()) for file in store.files(name)] if store.shards else [],
            is_parquet=schema.ending == "parquet",
            schema=base64.b64encode(schema.schema.serialize()).decode("ascii"),
        )
        for name, schema in store.layouts.items()
    }
    return ConnectionSetup(
        folder=str(store.folder.resolve()),
        tables=tables,
        memory=MAX_MEMORY,
        spill_folder=spill_folder,
        spill_size=MAX_SPILL,
        address_space=MAX_ADDRESS_SPACE,
        rows=MAX_ROWS,
        bytes=MAX_BYTES,
    )


@question("sql query", command="corpus query", is_analysis=False)
class SqlQuery(Question):
    """A SQL query over the tables of a store; docs/store.md lists the tables.

    Attributes:
        sql: the query, a single SELECT in DuckDB's dialect of SQL.
    """

    inputs = OneStore()

    sql: str = param(FieldType(), about="A single SELECT statement, in DuckDB's SQL dialect.", option="")

    def arguments(self) -> list[str]:
        """Return the query as the only command-line argument."""
        return [self.sql]

    def of(
        self, store: Store, seconds: float = DEFAULT_SECONDS, progress: Progress = no_progress
    ) -> SqlQueryResult:
        """Run the query, and return the rows that it selects.

        Args:
            store: the store to query.
            seconds: time limit in seconds.
            progress: called with the number of seconds that the query has been running.

        Raises:
            SelectionError: the query is not valid SQL or not a single SELECT, names a table or column that
                does not exist, takes too long, needs too much memory, or its result is too large; or the time
                limit is not above 0.
        """
        if not seconds > 0:  # this comparison also rejects NaN, with which no limit would apply
            raise SelectionError(f"The time limit must be above 0 seconds, not {seconds:g}.")
        with open_tables(store) as tables:
            return SqlQueryResult(self, store.inputs, tables.select(self.sql, seconds, progress))


@dataclass(frozen=True, eq=False, repr=False)
class SqlQueryResult(Result):
    """The rows that a SQL query selects.

    Attributes:
        answer: the rows as an Arrow table. Values that Arrow cannot represent exactly are strings or doubles.
    """

    question: SqlQuery
    answer: pa.Table

    @property
    def nbytes(self) -> int:
        """Size of the result in bytes."""
        return super().nbytes + int(self.answer.nbytes)

    def frame(self) -> pd.DataFrame:
        """Return the rows as a table of numbers, booleans and strings, with lists and structs as JSON."""
        return self._frame(self.answer)

    def head(self, rows: int, max_bytes: int) -> pd.DataFrame:
        """Return the first rows of `frame`, without converting the other rows.

        Args:
            rows: maximum number of rows.
            max_bytes: maximum total size of the rows in bytes, as stored by Arrow. If the rows are larger,
                half of them is left out until the limit is met.
        """
        selected = self.answer.slice(0, rows)
        while len(selected) and selected.nbytes > max_bytes:
            selected = selected.slice(0, len(selected) // 2)
        return self._frame(selected)

    @staticmethod
    def _frame(table: pa.Table) -> pd.DataFrame:
        names = _unique_names(table.column_names)
        columns = [_column(column) for column in table.columns]
        return pd.DataFrame(dict(zip(names, columns, strict=True)))


def _unique_names(names: list[str]) -> list[str]:
    """Make column names unique by appending a number to each repeated name."""
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
    """Convert a column to a type that all file formats for results support."""
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
    return pd.array([None if cell is None else _text(cell) for cell in cells], dtype=_TEXT_DTYPE)


def _decimals(cells: list[Any], scale: int) -> Any:
    """Convert decimals, such as sums of integers, to 64-bit integers if possible, otherwise to floats."""
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
    """Replace NaN and infinities in a nested value with strings, because JSON does not support them."""
    if isinstance(cell, dict):
        return {name: _without_nan(value) for name, value in cell.items()}
    if isinstance(cell, list | tuple):
        return [_without_nan(value) for value in cell]
    return str(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell


def _json_value(cell: Any) -> Any:
    """Convert a value that JSON does not support to a float or a string."""
    return float(cell) if isinstance(cell, Decimal) else str(cell)
