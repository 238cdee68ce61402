"""SQL over the tables of a store, by DuckDB, which reaches nothing else: no other file, network or setting.

The tables are views of its files, and these the only files that may be opened. The settings are locked before
anything of a person's is read, and that must be a single SELECT. Nothing is written but what a sort or a join
spills into a folder that is made for one query.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds

from bert_probe.corpus import sql_allowed
from bert_probe.corpus.store import Store
from bert_probe.errors import SelectionError
from bert_probe.model.progress import Report, ignore

if TYPE_CHECKING:  # elsewhere where it is used: what is imported for good, DuckDB calls a leak when all ends
    import duckdb
    from duckdb.sqltypes import DuckDBPyType

MEMORY, SPILLED = "1GB", "8GB"
"""What a query may hold in memory, and beside it in a temporary folder."""
ROWS, BYTES = 1_000_000, 2**28
"""The largest answer."""
LONGEST = 20_000
"""Characters of a query. Parsing one cannot be interrupted and takes time that grows with their square."""
SECONDS = 60.0
"""The longest that a person's query takes, unless they say otherwise."""
_BATCH, _POLL = 10_000, 0.05
_WILD = re.compile(r"[*?\[]")
"""What DuckDB takes for a pattern in a file's name."""


@dataclass(frozen=True, eq=False)
class Tables:
    """The tables of a store, within a connection that knows nothing else."""

    store: Store
    connection: duckdb.DuckDBPyConnection
    views: frozenset[str]  # names of DuckDB's own views, which describe the process

    def select(self, sql: str, seconds: float | None = None, report: Report = ignore) -> pa.Table:
        """The answer to a single SELECT.

        Args:
            seconds: the longest that it may take; None for as long as it needs.
            report: told how many seconds it has been running; what it raises ends the query.

        Raises:
            SelectionError: no such table or column, no SQL, another statement than a SELECT, too large an
                answer, or one that takes too long or needs too much memory.
        """
        if len(sql) > LONGEST:
            raise SelectionError(
                f"The query has {len(sql):,} characters; at most {LONGEST:,} are allowed. Shorten it, or "
                "open the files with DuckDB itself (docs/store.md)."
            )
        if any("\ud800" <= one <= "\udfff" for one in sql):
            raise SelectionError("The query holds half a character, which UTF-8 cannot hold. Write it again.")
        with _told(self.store):
            _check_one_select(self.connection.extract_statements(sql))
            described = self.connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
        try:
            parsed = json.loads(described[0][0])
        except RecursionError:
            raise SelectionError("The query is nested too deeply. Write it with fewer subqueries.") from None
        sql_allowed.check(parsed, frozenset(self.store.layouts), self.views)
        return self._interruptible(lambda: self._fetched(sql), seconds, report)

    def _fetched(self, sql: str) -> pa.Table:
        """All rows, if they are not too many."""
        batches, rows, size = [], 0, 0
        with _as_arrow_holds(self.connection, sql).to_arrow_reader(_BATCH) as reader:
            for batch in reader:
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows > ROWS or size > BYTES:
                    raise SelectionError(
                        f"The answer has more than {ROWS:,} rows or {BYTES // 2**20} MB. Add a LIMIT or a "
                        "WHERE, name fewer columns, or open the files themselves (docs/store.md)."
                    )
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)

    def _interruptible(self, work: Callable[[], pa.Table], seconds: float | None, report: Report) -> pa.Table:
        """Work of DuckDB, which does not hear Ctrl+C, in a thread that is told to end."""
        done: list[pa.Table] = []
        failed: list[BaseException] = []
        over = threading.Event()  # no join: one that Ctrl+C interrupts takes the thread for ended

        def run() -> None:
            try:
                with _told(self.store):
                    done.append(work())
            except BaseException as error:  # raised again below, in the thread that asked
                failed.append(error)
            finally:
                over.set()

        begun = time.monotonic()
        threading.Thread(target=run).start()
        try:
            while not over.wait(_POLL):
                spent = time.monotonic() - begun
                report(int(spent), 0)
                if seconds is not None and spent > seconds:
                    raise SelectionError(
                        f"The query took longer than {seconds:g} seconds. Ask for fewer rows or heads, or "
                        "allow it more with --seconds."
                    )
        finally:
            while not over.wait(_POLL):  # again and again, as it may not have begun
                self.connection.interrupt()
        if failed:
            raise failed[0]
        return done[0]


_HELD = frozenset(
    (
        *("boolean", "tinyint", "smallint", "integer", "bigint", "hugeint"),
        *("utinyint", "usmallint", "uinteger", "ubigint", "float", "double", "decimal"),
        *("varchar", "enum", "uuid", "null"),
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
        ", ".join(f'{one} AS "{name}"' for one, name in zip(columns, aliases, strict=True))
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


@contextmanager
def opened(store: Store) -> Iterator[Tables]:
    """The tables of a store, to be asked in SQL; the settings are locked."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="bert-probe-") as spilled:
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": MEMORY,
            "temp_directory": spilled,
            "max_temp_directory_size": SPILLED,
            "python_enable_replacements": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "allow_persistent_secrets": False,
        }
        with duckdb.connect(":memory:", config=settings) as connection:
            for statement in _opening(store):
                connection.execute(statement)
            for name in _lazily(store):
                connection.register(name, _dataset(store, name))
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            views = connection.execute(
                "SELECT lower(view_name) FROM duckdb_views() WHERE internal"
            ).fetchall()
            yield Tables(store, connection, frozenset(name for (name,) in views))


def _opening(store: Store) -> Iterator[str]:
    """Allow the files of the tables that DuckDB reads by itself, and name them."""
    read = {name: [str(one.resolve()) for one in store.files(name)] for name in _directly(store)}
    yield f"SET allowed_paths = {_listed([one for files in read.values() for one in files])}"
    for name, files in read.items():
        yield f"CREATE VIEW {name} AS FROM read_parquet({_listed(files)})"


def _directly(store: Store) -> list[str]:
    """Tables of Parquet; none where there is no shard, or a folder's name would be read as a pattern."""
    if not store.shards or _WILD.search(str(store.folder.resolve())):
        return []
    return [name for name, layout in store.layouts.items() if layout.ending == "parquet"]


def _lazily(store: Store) -> list[str]:
    """All others: columns and rows of theirs are read by Arrow, as far as a query asks for them."""
    direct = _directly(store)
    return [name for name in store.layouts if name not in direct]


def _dataset(store: Store, name: str) -> ds.Dataset:
    return store.table(name) if store.shards else ds.dataset(store.layouts[name].schema.empty_table())


def literal(text: str) -> str:
    """A text as SQL has it."""
    return "'{}'".format(text.replace("'", "''"))


def _listed(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(literal, texts))}]"


def _check_one_select(statements: Sequence[duckdb.Statement]) -> None:
    import duckdb

    kinds = [one.type for one in statements]
    if kinds == [duckdb.StatementType.SELECT]:
        return
    given = kinds[0].name if len(kinds) == 1 else f"{len(kinds) or 'no'} statements"
    raise SelectionError(
        f"A store is only read, by a single SELECT, DESCRIBE, SUMMARIZE or SHOW TABLES; that is {given}. "
        "Write one of these."
    )


@contextmanager
def _told(store: Store) -> Iterator[None]:
    """What DuckDB refuses is a sentence, with the names that there are."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException:
        raise SelectionError(
            f"The query needs more than {MEMORY} of memory, or {SPILLED} of temporary files. Ask for fewer "
            "rows or columns at a time."
        ) from None
    except duckdb.PermissionException:
        raise SelectionError(
            "A query reads the tables of its store, and no other file or address. Open others with DuckDB "
            "itself (docs/store.md)."
        ) from None
    except duckdb.BinderException as error:
        columns = (f"{name} ({', '.join(one.schema.names)})" for name, one in store.layouts.items())
        raise SelectionError(f"{_said(error, store)} There are: {'; '.join(columns)}.") from None
    except (duckdb.Error, RuntimeError) as error:
        raise SelectionError(f"{_said(error, store)} The tables are {', '.join(store.layouts)}.") from None


def _said(error: Exception, store: Store) -> str:
    """The sentence of an error of DuckDB, without its kind, the query, the path and all that is around it."""
    text = str(error).replace(str(store.folder.resolve()), store.folder.name)
    first, *more = text.strip().split("\n")
    said = re.sub(r"^[\w ]+ Error: ", "", first).strip()
    near = next((one.strip() for one in more if one.startswith("Did you mean")), "")
    said = said if said.endswith((".", "!", "?")) else f"{said}."
    return f"{said} {near}".strip()
