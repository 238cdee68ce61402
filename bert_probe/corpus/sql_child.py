"""The process in which DuckDB runs the queries of one store, see `sql`: its memory is limited by the system.

A few functions of DuckDB allocate gigabytes which its own memory limit does not count. Here such a query ends
this process, or is refused, and the process that serves others goes on.

`python -m bert_probe.corpus.sql_child` reads lines of JSON: a `ConnectionSetup`, then one query per line. It
answers each query with a line of JSON and, without an "error" in it, an Arrow stream. It ends with its input.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypedDict

import pyarrow as pa

from bert_probe.corpus import sql_allowed
from bert_probe.errors import SelectionError

if TYPE_CHECKING:  # DuckDB calls everything a leak that is imported at the top of a module
    import duckdb
    from duckdb.sqltypes import DuckDBPyType

_BATCH: Final = 10_000
_WILD: Final = re.compile(r"[*?\[]")
"""What DuckDB takes for a pattern in a file's name."""
_DESCRIBES: Final = ("show", "duckdb_columns")
"""Words of queries that list all tables."""


class ConnectionSetup(TypedDict):
    """What a connection to a store needs."""

    folder: str  # absolute path of the store
    tables: Mapping[str, TableSetup]
    memory: str  # DuckDB's own limit
    spill_folder: str
    spill_size: str
    address_space: int  # bytes that the process may allocate, where the system has such a limit
    rows: int  # of an answer, at most
    bytes: int


class TableSetup(TypedDict):
    """A table of a store."""

    files: Sequence[str]
    is_parquet: bool
    schema: str  # base64 of a serialized Arrow schema


class StoreConnection:
    """A connection that reads the tables of a store and nothing else; its settings are locked."""

    def __init__(self, setup: ConnectionSetup) -> None:
        import duckdb

        self.setup = setup
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": setup["memory"],
            "temp_directory": setup["spill_folder"],
            "max_temp_directory_size": setup["spill_size"],
            "python_enable_replacements": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
        }
        self.duckdb = duckdb.connect(":memory:", config=settings)
        files = {name: table["files"] for name, table in setup["tables"].items() if _is_native(table, setup)}
        self._by_arrow = [name for name in setup["tables"] if name not in files]
        allowed = [file for table_files in files.values() for file in table_files]
        self.duckdb.execute(f"SET allowed_paths = {_listed(allowed)}")
        for name, table_files in files.items():
            self.duckdb.execute(f"CREATE VIEW {name} AS FROM read_parquet({_listed(table_files)})")
        self.duckdb.execute("SET enable_external_access = false")
        self.duckdb.execute("SET lock_configuration = true")
        views = self.duckdb.execute("SELECT lower(view_name) FROM duckdb_views() WHERE internal").fetchall()
        self._internal_views = frozenset(name for (name,) in views)

    def select(self, sql: str) -> pa.Table:
        """Return the rows that a single SELECT selects.

        Raises:
            SelectionError: another statement, a function or table that is not allowed, an error of DuckDB, or
                an answer that is too large.
        """
        self._register(sql.lower())
        with _as_selection_errors(self.setup):
            _check_one_select(self.duckdb.extract_statements(sql))
            described = self.duckdb.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
        try:
            parsed = json.loads(described[0][0])
        except RecursionError:
            raise SelectionError("The query is nested too deeply. Write it with fewer subqueries.") from None
        sql_allowed.check(parsed, frozenset(self.setup["tables"]), self._internal_views)
        with _as_selection_errors(self.setup):
            return self._fetch(sql)

    def _register(self, sql: str) -> None:
        """Register the tables that Arrow reads, once a query names them: pyarrow.dataset imports pandas."""
        describes = any(word in sql for word in _DESCRIBES)
        for name in list(self._by_arrow):
            if describes or name in sql:
                self.duckdb.register(name, _dataset(self.setup["tables"][name]))
                self._by_arrow.remove(name)

    def _fetch(self, sql: str) -> pa.Table:
        max_rows, max_bytes = self.setup["rows"], self.setup["bytes"]
        batches, rows, size = [], 0, 0
        with _as_arrow_holds(self.duckdb, sql).to_arrow_reader(_BATCH) as reader:
            for batch in reader:
                rows, size = rows + batch.num_rows, size + sum(map(_table_size, batch.columns))
                if rows > max_rows or size > max_bytes:
                    raise SelectionError(
                        f"The answer has more than {max_rows:,} rows or {max_bytes // 2**20} MB. Add a LIMIT "
                        "or a WHERE, name fewer columns, or open the files themselves (docs/store.md)."
                    )
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)


def _table_size(values: pa.Array) -> int:
    """Return about how many bytes these values take in a table of Python.

    Arrow needs one bit for a truth value and nothing for a NULL, so that a small answer could fill the memory
    of the process that shows it.
    """
    size = max(values.nbytes, _CELL * len(values))
    if pa.types.is_nested(values.type):
        size += sum(
            map(_table_size, values.flatten() if pa.types.is_struct(values.type) else [values.flatten()])
        )
    return int(size)


def _is_native(table: TableSetup, setup: ConnectionSetup) -> bool:
    """Return whether DuckDB reads the files itself; it would read a folder's name as a pattern."""
    return table["is_parquet"] and bool(table["files"]) and not _WILD.search(setup["folder"])


def _dataset(table: TableSetup) -> Any:
    import pyarrow.dataset as ds

    schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(table["schema"])))
    if not table["files"]:
        return ds.dataset(schema.empty_table())
    return ds.dataset(list(table["files"]), schema=schema, format="parquet" if table["is_parquet"] else "ipc")


_CELL = 16
"""Bytes that a value of a table takes at least."""
_HELD = frozenset(
    (
        *("boolean", "tinyint", "smallint", "integer", "bigint", "hugeint"),
        *("utinyint", "usmallint", "uinteger", "ubigint", "float", "double", "decimal"),
        *("varchar", "uuid", "null"),
    )
)
"""DuckDB's types whose values Arrow and pandas hold exactly as DuckDB prints them."""
_NESTED = ("list", "array", "struct")


def _as_arrow_holds(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyRelation:
    """Return a query whose columns of other types are text, as DuckDB writes it.

    Python's dates end with the year 9999, and Arrow has neither a time of 24:00:00 nor an unsigned integer of
    128 bits: such values would fail or change on their way. Lists, structs and maps of them become JSON.
    """
    relation = connection.sql(sql)
    columns = [_column_of(number, kind) for number, kind in enumerate(relation.types, 1)]
    if columns == [f"#{number}" for number in range(1, len(columns) + 1)]:
        return relation
    relation = connection.sql(_without_semicolon(connection, sql))
    aliases = (name.replace('"', '""') for name in relation.columns)
    return relation.project(
        ", ".join(f'{column} AS "{name}"' for column, name in zip(columns, aliases, strict=True))
    )


def _without_semicolon(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Return a statement without the semicolon at its end, so that it can be put into another one."""
    import duckdb

    end = len(sql)
    for _ in range(4):  # few, as each of them is parsed; the others may stand in a comment
        end = sql.rfind(";", 0, end)
        with suppress(duckdb.ParserException):
            if end >= 0 and not connection.extract_statements(sql[end:]):
                connection.extract_statements(sql[:end])
                sql = sql[:end]
    return sql


def _column_of(number: int, kind: DuckDBPyType) -> str:
    if _is_held(kind):
        return f"#{number}"
    if kind.id == "uhugeint":
        return f"#{number}::DOUBLE"
    return f"to_json(#{number})::VARCHAR" if kind.id in (*_NESTED, "map") else f"#{number}::VARCHAR"


def _is_held(kind: DuckDBPyType) -> bool:
    if kind.id in _NESTED:  # of an array the second child is its size
        return all(_is_held(child) for _, child in kind.children if isinstance(child, type(kind)))
    return kind.id in _HELD


def literal(text: str) -> str:
    """Return a text as SQL writes it."""
    return "'{}'".format(text.replace("'", "''"))


def _listed(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(literal, texts))}]"


def _check_one_select(statements: Sequence[duckdb.Statement]) -> None:
    import duckdb

    kinds = [statement.type for statement in statements]
    if kinds == [duckdb.StatementType.SELECT]:
        return
    actual = kinds[0].name if len(kinds) == 1 else f"{len(kinds) or 'no'} statements"
    raise SelectionError(
        f"A store is only read, by a single SELECT, DESCRIBE, SUMMARIZE or SHOW TABLES; that is {actual}. "
        "Write one of these."
    )


@contextmanager
def _as_selection_errors(setup: ConnectionSetup) -> Iterator[None]:
    """Turn errors of DuckDB into sentences that name what there is in the store."""
    import duckdb

    try:
        yield
    except (duckdb.OutOfMemoryException, MemoryError):
        raise SelectionError(out_of_memory(setup)) from None
    except duckdb.PermissionException:
        raise SelectionError(
            "A query reads the tables of its store, and no other file or address. Open others with DuckDB "
            "itself (docs/store.md)."
        ) from None
    except duckdb.BinderException as error:
        columns = (f"{name} ({', '.join(_columns(table))})" for name, table in setup["tables"].items())
        raise SelectionError(f"{_sentence(error, setup)} There are: {'; '.join(columns)}.") from None
    except (duckdb.Error, RuntimeError, pa.ArrowException) as error:
        if "bad_alloc" in str(error):
            raise SelectionError(out_of_memory(setup)) from None
        tables = ", ".join(setup["tables"])
        raise SelectionError(f"{_sentence(error, setup)} The tables are {tables}.") from None


def out_of_memory(setup: ConnectionSetup) -> str:
    """Return the sentence for a query that needs too much memory."""
    return (
        f"The query needs more than {setup['memory']} of memory, or {setup['spill_size']} of temporary "
        "files. Ask for fewer rows or columns at a time."
    )


def _columns(table: TableSetup) -> list[str]:
    names: list[str] = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(table["schema"]))).names
    return names


def _sentence(error: Exception, setup: ConnectionSetup) -> str:
    """Return the sentence of an error of DuckDB, without its kind, the query, the path and all around it."""
    text = str(error).replace(setup["folder"], Path(setup["folder"]).name)
    first, *more = text.strip().split("\n")
    sentence = re.sub(r"^[\w ]+ Error: ", "", first).strip()
    hint = next((line.strip() for line in more if line.startswith("Did you mean")), "")
    sentence = sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
    return f"{sentence} {hint}".strip()


def _limit_memory(size: int) -> None:
    """Let the system refuse `size` bytes more than now, when DuckDB's threads have their stacks."""
    try:
        import resource

        pages = Path("/proc/self/statm").read_text("ascii").split()[0]
    except (ImportError, OSError):
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limits = [int(pages) * resource.getpagesize() + size, resource.getrlimit(resource.RLIMIT_AS)[1]]
    limit = min(limit for limit in limits if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _lines(stream: BinaryIO) -> Iterator[Any]:
    """Yield lines of JSON; the process ends with its input, even while a query runs."""
    lines: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield json.loads(lines.get())


def main() -> None:
    """Answer the queries of standard input."""
    lines, out = _lines(sys.stdin.buffer), sys.stdout.buffer
    setup: ConnectionSetup = next(lines)
    connection = StoreConnection(setup)
    _limit_memory(setup["address_space"])
    for sql in lines:
        try:
            table = connection.select(sql)
        except SelectionError as error:
            out.write(json.dumps({"error": str(error)}).encode() + b"\n")
        else:
            out.write(b"{}\n")
            with pa.ipc.new_stream(out, table.schema) as writer:
                writer.write_table(table)
            del table
        out.flush()


if __name__ == "__main__":
    main()
