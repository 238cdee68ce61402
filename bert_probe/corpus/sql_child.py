"""The child process in which the module `sql` runs DuckDB queries over a store.

The operating system limits the memory of the child process, because some DuckDB functions allocate gigabytes
that DuckDB's own memory limit does not count. A query that exceeds the limit fails or ends only the child
process, not the process that serves users.

`python -m bert_probe.corpus.sql_child` reads lines of JSON: a `ConnectionSetup`, then one query per line. It
answers each query with a line of JSON and, unless this line has an "error", an Arrow stream. The process
exits at the end of its input.
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

from bert_probe.errors import SelectionError

if TYPE_CHECKING:
    import duckdb
    from duckdb.sqltypes import DuckDBPyType


_BATCH_ROWS: Final = 10_000
_GLOB: Final = re.compile(r"[*?\[]")
"""Matches the characters that make DuckDB interpret a file name as a glob pattern."""
_LISTING_WORDS: Final = ("show", "duckdb_columns")
"""Words that occur in every query that lists all tables."""


class ConnectionSetup(TypedDict):
    """Settings of a DuckDB connection to a store, which the parent process sends."""

    folder: str  # absolute path of the store
    tables: Mapping[str, TableSetup]
    memory: str  # DuckDB's memory limit, such as "1GB"
    spill_folder: str
    spill_size: str
    address_space: int  # bytes that the process may allocate, if the system supports a limit
    rows: int  # maximum number of rows in a result
    bytes: int  # maximum size of a result in bytes


class TableSetup(TypedDict):
    """The files of one table of a store, and their schema."""

    files: Sequence[str]
    is_parquet: bool
    schema: str  # serialized Arrow schema, encoded in base64


class StoreConnection:
    """A DuckDB connection with locked settings that can read only the tables of a store."""

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
        self._unregistered = [name for name in setup["tables"] if name not in files]
        allowed = [file for table_files in files.values() for file in table_files]
        self.duckdb.execute(f"SET allowed_paths = {_list_literal(allowed)}")
        for name, table_files in files.items():
            self.duckdb.execute(f"CREATE VIEW {name} AS FROM read_parquet({_list_literal(table_files)})")
        self.duckdb.execute("SET enable_external_access = false")
        self.duckdb.execute("SET lock_configuration = true")
        views = self.duckdb.execute("SELECT lower(view_name) FROM duckdb_views() WHERE internal").fetchall()
        self._internal_views = frozenset(name for (name,) in views)

    def select(self, sql: str) -> pa.Table:
        """Check a query, run it, and return its rows.

        Raises:
            SelectionError: the query is not a single SELECT, uses a function or table that is not allowed,
                fails in DuckDB, or its result is too large.
        """
        self._register(sql.lower())
        with _as_selection_errors(self.setup):
            _check_one_select(self.duckdb.extract_statements(sql))
            descriptions = self.duckdb.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
        try:
            parsed = json.loads(descriptions[0][0])
        except RecursionError:
            raise SelectionError("The query is nested too deeply. Use fewer subqueries.") from None
        check(parsed, frozenset(self.setup["tables"]), self._internal_views)
        with _as_selection_errors(self.setup):
            return self._fetch(sql)

    def _register(self, sql: str) -> None:
        """Register pyarrow datasets for tables that a query names but that DuckDB cannot read itself.

        A table is registered only when a query names it, because importing pyarrow.dataset is slow.
        """
        lists_tables = any(word in sql for word in _LISTING_WORDS)
        for name in list(self._unregistered):
            if lists_tables or name in sql:
                self.duckdb.register(name, _dataset(self.setup["tables"][name]))
                self._unregistered.remove(name)

    def _fetch(self, sql: str) -> pa.Table:
        max_rows, max_bytes = self.setup["rows"], self.setup["bytes"]
        batches, rows, size = [], 0, 0
        with _arrow_compatible(self.duckdb, sql).to_arrow_reader(_BATCH_ROWS) as reader:
            for batch in reader:
                rows, size = rows + batch.num_rows, size + sum(map(_table_size, batch.columns))
                if rows > max_rows or size > max_bytes:
                    raise SelectionError(
                        f"The result has more than {max_rows:,} rows or {max_bytes // 2**20} MB. Add a LIMIT "
                        "or a WHERE, select fewer columns, or open the files themselves (docs/store.md)."
                    )
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)


def _table_size(values: pa.Array, is_nested: bool = False) -> int:
    """Estimate the memory, in bytes, that the values of a column take as Python objects and as JSON text.

    Arrow stores a boolean in one bit, a NULL in no bytes, and the name of a struct field only once, whereas
    JSON repeats the name in each row. Even a small Arrow table could therefore fill the memory of the process
    that displays it.
    """
    size = max(values.nbytes, _VALUE_BYTES * len(values))
    if pa.types.is_struct(values.type):
        names = sum(len(field.name) for field in values.type)
        size += len(values) * (_DICT_BYTES + _CHARACTER_BYTES * names)
        size += sum(_table_size(child, True) for child in values.flatten())
    elif pa.types.is_nested(values.type):
        size += len(values) * _LIST_BYTES + _table_size(values.flatten(), True)
    elif is_nested and not pa.types.is_primitive(values.type):
        size *= 2  # Count the values and their JSON text, because both are in memory at the same time.
    return int(size)


def _is_native(table: TableSetup, setup: ConnectionSetup) -> bool:
    """Return whether DuckDB can read a table itself, from Parquet files whose path is not a glob pattern."""
    return table["is_parquet"] and bool(table["files"]) and not _GLOB.search(setup["folder"])


def _dataset(table: TableSetup) -> Any:
    import pyarrow.dataset as ds

    schema = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(table["schema"])))
    if not table["files"]:
        return ds.dataset(schema.empty_table())
    return ds.dataset(list(table["files"]), schema=schema, format="parquet" if table["is_parquet"] else "ipc")


_VALUE_BYTES = 16
"""Estimated minimum size of a value as a Python object, in bytes."""
_LIST_BYTES, _DICT_BYTES = 64, 192
"""Estimated sizes in bytes: an empty list, and a dict with a few keys."""
_CHARACTER_BYTES = 4
"""Maximum size of a character in a Python string, in bytes; strings that contain an emoji have this size."""
_EXACT_TYPES = frozenset(
    (
        *("boolean", "tinyint", "smallint", "integer", "bigint", "hugeint"),
        *("utinyint", "usmallint", "uinteger", "ubigint", "float", "double", "decimal"),
        *("varchar", "uuid", "null"),
    )
)
"""DuckDB types whose values Arrow and pandas represent exactly."""
_NESTED_TYPES = ("list", "array", "struct")


def _arrow_compatible(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyRelation:
    """Cast the columns of a query whose values Arrow or Python cannot represent exactly.

    Python does not support dates after the year 9999. Arrow supports neither the time 24:00:00 nor 128-bit
    unsigned integers. Such values would raise an error or change. Therefore, dates and times become strings
    in the format of DuckDB, and 128-bit unsigned integers become doubles. Maps, and lists and structs that
    contain any of these types, become JSON strings.
    """
    relation = connection.sql(sql)
    columns = [_expression(number, data_type) for number, data_type in enumerate(relation.types, 1)]
    if columns == [f"#{number}" for number in range(1, len(columns) + 1)]:
        return relation
    relation = connection.sql(_without_semicolon(connection, sql))
    aliases = (name.replace('"', '""') for name in relation.columns)
    return relation.project(
        ", ".join(f'{column} AS "{name}"' for column, name in zip(columns, aliases, strict=True))
    )


def _without_semicolon(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Return a statement without its final semicolon, so that it can be a subquery."""
    import duckdb

    end = len(sql)
    for _ in range(4):  # try several semicolons, because a final comment may contain semicolons
        end = sql.rfind(";", 0, end)
        with suppress(duckdb.ParserException):
            if end >= 0 and not connection.extract_statements(sql[end:]):
                connection.extract_statements(sql[:end])
                sql = sql[:end]
    return sql


def _expression(number: int, data_type: DuckDBPyType) -> str:
    """Return the SQL expression that selects a column by its number, from 1, and casts it if needed."""
    if _is_exact(data_type):
        return f"#{number}"
    if data_type.id == "uhugeint":
        return f"#{number}::DOUBLE"
    if data_type.id in (*_NESTED_TYPES, "map", "tuple"):
        return f"to_json(#{number})::VARCHAR"
    return f"#{number}::VARCHAR"


def _is_exact(data_type: DuckDBPyType) -> bool:
    if data_type.id in _NESTED_TYPES:  # skip the second child of an array type, which is its size
        children = (child for _, child in data_type.children if isinstance(child, type(data_type)))
        return all(map(_is_exact, children))
    return data_type.id in _EXACT_TYPES


def literal(text: str) -> str:
    """Return a string as an SQL string literal."""
    return "'{}'".format(text.replace("'", "''"))


def _list_literal(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(literal, texts))}]"


def _check_one_select(statements: Sequence[duckdb.Statement]) -> None:
    import duckdb

    types = [statement.type for statement in statements]
    if types == [duckdb.StatementType.SELECT]:
        return
    actual = types[0].name if len(types) == 1 else f"{len(types) or 'no'} statements"
    raise SelectionError(
        f"A query must be a single SELECT, DESCRIBE, SUMMARIZE or SHOW TABLES statement, not {actual}. "
        "Write one of these statements."
    )


@contextmanager
def _as_selection_errors(setup: ConnectionSetup) -> Iterator[None]:
    """Convert DuckDB errors to a `SelectionError` that lists the tables or columns of the store."""
    import duckdb

    try:
        yield
    except (duckdb.OutOfMemoryException, MemoryError):
        raise SelectionError(out_of_memory(setup)) from None
    except duckdb.PermissionException:
        raise SelectionError(
            "A query can read only the tables of its store, not other files or URLs. Read other files "
            "with DuckDB itself (docs/store.md)."
        ) from None
    except duckdb.BinderException as error:
        columns = (f"{name} ({', '.join(_columns(table))})" for name, table in setup["tables"].items())
        raise SelectionError(f"{_sentence(error, setup)} The columns are: {'; '.join(columns)}.") from None
    except duckdb.IOException as error:
        raise SelectionError(
            f"A file of the store was deleted or changed while the store was open: {_sentence(error, setup)} "
            "Restore the store, and open it again."
        ) from None
    except (duckdb.Error, RuntimeError, pa.ArrowException) as error:
        if "bad_alloc" in str(error):
            raise SelectionError(out_of_memory(setup)) from None
        tables = ", ".join(setup["tables"])
        raise SelectionError(f"{_sentence(error, setup)} The tables are {tables}.") from None


def out_of_memory(setup: ConnectionSetup) -> str:
    """Return the error message for a query that needs too much memory or temporary space."""
    return (
        f"The query needs more than {setup['memory']} of memory, or {setup['spill_size']} of temporary "
        "files. Select fewer rows or columns."
    )


def _columns(table: TableSetup) -> list[str]:
    names: list[str] = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(table["schema"]))).names
    return names


def _sentence(error: Exception, setup: ConnectionSetup) -> str:
    """Return the first line and the hint of a DuckDB error, without its type, query and folder path."""
    text = str(error).replace(setup["folder"], Path(setup["folder"]).name)
    first, *lines = text.strip().split("\n")
    sentence = re.sub(r"^[\w ]+ Error: ", "", first).strip()
    sentence = re.sub(r'Use "SET .*', "Use a simpler query.", sentence)  # settings are locked
    hint = next((line.strip() for line in lines if line.startswith("Did you mean")), "")
    sentence = sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
    return f"{sentence} {hint}".strip()


def _limit_memory(size: int) -> None:
    """Limit the address space of this process to `size` bytes more than its current size.

    The current size includes the stacks of DuckDB's threads.
    """
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
    """Yield the parsed JSON lines of a stream. When it ends, exit the process, even during a query."""
    lines: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield json.loads(lines.get())


def main() -> None:
    """Run the queries from standard input, and write their results to standard output."""
    lines, out = _lines(sys.stdin.buffer), sys.stdout.buffer
    setup: ConnectionSetup = next(lines)
    connection: StoreConnection | None = None
    for sql in lines:
        try:
            if connection is None:
                with _as_selection_errors(setup):
                    connection = StoreConnection(setup)
                _limit_memory(setup["address_space"])
            table = connection.select(sql)
        except SelectionError as error:
            out.write(json.dumps({"error": str(error)}).encode() + b"\n")
        else:
            out.write(b"{}\n")
            with pa.ipc.new_stream(out, table.schema) as writer:
                writer.write_table(table)
            del table
        out.flush()


_OPERATORS: Final = (
    "+ - * / // % ** ^ & | ~ << >> || @ ! !__postfix && @> <@ <-> <=> -> ->> ^@ ~~ !~~ ~~* !~~* ~~~"
)
_TEXT: Final = """
    array_to_string ascii bit_length char_length character_length chr contains
    ends_with ilike_escape instr lcase left left_grapheme length length_grapheme like_escape lower ltrim
    md5 nfc_normalize not_ilike_escape not_like_escape octet_length ord position prefix
    regexp_escape regexp_extract regexp_full_match regexp_matches reverse right right_grapheme
    rtrim sha1 sha256 split split_part starts_with str_split string_split string_to_array strip_accents
    strlen strpos substr substring substring_grapheme suffix trim ucase unicode upper hamming
    jaccard mismatches
"""
_NUMBERS: Final = """
    abs acos acosh add asin asinh atan atan2 atanh bit_count cbrt ceil ceiling cos cosh cot degrees
    divide even exp fdiv floor fmod gcd greatest greatest_common_divisor hash isfinite isinf isnan
    lcm least least_common_multiple ln log log10 log2 mod multiply nextafter pi pow power radians round
    round_even roundbankers sign signbit sin sinh sqrt subtract tan tanh trunc xor
"""
_LISTS: Final = """
    array_aggr array_aggregate array_append array_apply array_cat array_concat array_contains
    array_cosine_distance array_cosine_similarity array_cross_product array_distance array_distinct
    array_dot_product array_extract array_filter array_has array_has_all array_has_any array_indexof
    array_inner_product array_intersect array_length array_negative_dot_product
    array_negative_inner_product array_pop_back array_pop_front array_position array_prepend
    array_push_back array_push_front array_reverse array_reverse_sort array_select array_slice
    array_sort array_transform array_unique array_value array_where array_zip cardinality element_at
    flatten len list_aggr list_aggregate list_any_value list_append list_apply list_avg list_bool_and
    list_bool_or list_cat list_concat list_contains list_cosine_distance list_cosine_similarity
    list_count list_distance list_distinct list_dot_product list_element list_extract list_filter
    list_first list_has list_has_all list_has_any list_indexof list_inner_product list_intersect
    list_last list_max list_median list_min list_mode list_negative_dot_product
    list_negative_inner_product list_pack list_position list_prepend list_product list_reverse
    list_reverse_sort list_select list_slice list_sort list_stddev_pop list_stddev_samp
    list_sum list_transform list_unique list_value list_var_pop list_var_samp list_where list_zip map
    map_concat map_contains map_entries map_extract map_extract_value map_from_entries map_keys
    map_values row struct_concat struct_contains struct_extract struct_extract_at struct_insert
    struct_keys struct_pack struct_update struct_values union_value unnest
"""
_VALUES: Final = """
    __between coalesce constant_or_null if ifnull nullif can_cast_implicitly typeof
    json_array_length json_contains json_exists json_extract json_extract_path json_extract_path_text
    json_extract_string json_keys json_type json_valid json_value
     error random uuid gen_random_uuid
"""
_DATES: Final = """
    age century current_date date_add date_diff date_part date_sub date_trunc datediff datepart datesub
    datetrunc day dayname dayofmonth dayofweek dayofyear decade epoch epoch_ms era hour isodow isoyear
    last_day make_date make_time make_timestamp millennium microsecond millisecond minute month
    monthname now quarter second strftime strptime time_bucket to_days to_hours to_milliseconds
    to_minutes to_months to_seconds to_timestamp to_weeks to_years today try_strptime week weekday
    weekofyear year yearweek
"""
_AGGREGATES: Final = """
    any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null arg_min
    arg_min_null argmax argmin array_agg avg bit_and bit_or bit_xor bool_and bool_or corr count count_if
    count_star countif covar_pop covar_samp entropy favg first fsum geomean geometric_mean
    histogram kahan_sum kurtosis kurtosis_pop last list mad max max_by mean median min min_by
    mode product quantile quantile_cont quantile_disc regr_avgx regr_avgy regr_count regr_intercept
    regr_r2 regr_slope regr_sxx regr_sxy regr_syy reservoir_quantile sem skewness stddev stddev_pop
    stddev_samp string_agg sum sum_no_overflow sumkahan var_pop var_samp variance wavg weighted_avg
"""
_WINDOWS: Final = """
    cume_dist dense_rank fill first_value lag last_value lead nth_value ntile percent_rank rank
    rank_dense row_number
"""

FUNCTIONS: Final = frozenset(
    " ".join((_OPERATORS, _TEXT, _NUMBERS, _LISTS, _VALUES, _DATES, _AGGREGATES, _WINDOWS)).split()
)
TABLE_FUNCTIONS: Final = frozenset(("range", "generate_series", "unnest", "duckdb_columns"))
_SHOW_TABLES: Final = ('"tables"', "tables")


def check(parsed: dict[str, Any], tables: frozenset[str], views: frozenset[str]) -> None:
    """Check that a query names only allowed functions and tables.

    Args:
        parsed: the query as serialized by DuckDB's `json_serialize_sql`.
        tables: names of the tables of the store.
        views: names of DuckDB's internal views, which describe the process and are not allowed.

    Raises:
        SelectionError: a function or a table is not allowed, or DuckDB cannot serialize the query.
    """
    if parsed.get("error"):
        reason = str(parsed.get("error_message", "")).split("\\n")[0].rstrip(".!")
        raise SelectionError(f"This query cannot be validated ({reason}). Write a single SELECT statement.")
    for node in _nodes(parsed):
        node_type = node.get("type")
        if node_type == "TABLE_FUNCTION" and "function" in node:
            _check_name(node["function"]["function_name"], TABLE_FUNCTIONS, "table function")
            node["function"] = {**node["function"], "function_name": None}
        elif node_type == "BASE_TABLE":
            _check_table(node, views)
        elif node_type == "SHOW_REF":
            name = str(node.get("table_name", ""))
            if name and name not in _SHOW_TABLES and name.strip('"').lower() not in tables:
                raise SelectionError(
                    "SHOW supports only SHOW TABLES. To list the columns of a table, write DESCRIBE rows."
                )
        if node.get("function_name") is not None:
            _check_name(node["function_name"], FUNCTIONS, "function")


def _check_name(name: str, allowed: frozenset[str], kind: str) -> None:
    if name.lower() not in allowed:
        raise SelectionError(
            f"The {kind} {name[:100]!r} is not allowed in queries of a store. Use another {kind}, or open "
            "the files with DuckDB itself (docs/store.md)."
        )


def _check_table(node: dict[str, Any], views: frozenset[str]) -> None:
    path = [str(node.get(part) or "") for part in ("catalog_name", "schema_name", "table_name")]
    catalog, schema, table = (part.lower() for part in path)
    if catalog not in ("", "memory") or schema not in ("", "main") or table in views:
        name = ".".join(filter(None, path))
        raise SelectionError(
            f"A query can read only the tables of its store, not {name[:100]!r}. SHOW TABLES lists the "
            "tables."
        )


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all JSON objects of a serialized query, outer objects first."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


if __name__ == "__main__":
    main()
