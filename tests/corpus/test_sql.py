"""Test SQL queries over a store, and their isolation."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import bert_probe
from bert_probe.corpus import sql
from bert_probe.corpus.sql_child import StoreConnection
from bert_probe.errors import SelectionError
from bert_probe.model.progress import Cancelled
from tests.helpers.command_line import bert_probe as run
from tests.helpers.gate import PROVE, prove_unless

Stores = Callable[[str], bert_probe.Store]
ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t"


def test_sql_returns_tables_unchanged(stores: Stores) -> None:
    store = stores("tokens")
    with sql.open_tables(store) as tables:
        for name in store.layouts:
            result = tables.select(f"FROM {name}")
            assert result.to_pydict() == store.table(name).to_table().to_pydict()
            assert result.column_names == store.layouts[name].schema.names


def test_store_that_is_deleted_meanwhile_is_named_as_the_reason(stores: Stores, tmp_path: Path) -> None:
    folder = tmp_path / "deleted"
    shutil.copytree(stores("tokens").folder, folder)
    store = bert_probe.open_corpus(folder)
    setup = sql._setup(store, str(tmp_path))
    shutil.rmtree(folder)
    with closing(sql.StoreTables(store, setup)) as tables:
        for _ in range(2):
            with pytest.raises(SelectionError, match=r"deleted or changed .* Restore the store") as raised:
                tables.select("SELECT count(*) FROM rows")
            assert str(tmp_path) not in str(raised.value)


def test_query_matches_pandas(stores: Stores) -> None:
    store = stores("tokens")
    rows = store.table("rows").to_table().to_pandas()
    result = bert_probe.SqlQuery("SELECT count(*) AS n, sum(tokens), avg(tokens) AS mean FROM rows").of(store)
    table = result.table()
    assert table.columns.tolist() == ["n", "sum(tokens)", "mean"]
    assert table.iloc[0].tolist() == [6, rows["tokens"].sum(), rows["tokens"].mean()]
    assert result.provenance["question"] == {"analysis": "sql query", "sql": result.question.sql}
    assert result.provenance["store_sha256"] == store.digest
    vectors = bert_probe.SqlQuery(
        "SELECT vector FROM vectors WHERE row = 7 AND position = 2 AND layer = 0"
    ).of(store)
    trace = store.checkpoint(trust=True).trace(rows["text"].iloc[-1])
    output = np.array(json.loads(vectors.table()["vector"][0]), np.float32)
    assert np.array_equal(output, trace.states[0][1].astype(np.float32))


def test_every_sql_type_becomes_a_cell(stores: Stores, tmp_path: Path) -> None:
    result = bert_probe.SqlQuery(
        "SELECT * FROM (VALUES"
        " (1, 0.5, true, 'a', [1.5, 2], {'a': 1}, DATE '2020-01-02', 1::UBIGINT, 7::HUGEINT),"
        " (NULL, NULL, NULL, NULL, NULL, NULL, NULL, 18446744073709551615, 9223372036854775808))"
        " AS t(whole, half, truth, word, list, pair, day, large, a)"
    ).of(stores("tokens"))
    first, second = result.table().astype(object).where(result.table().notna(), None).to_numpy().tolist()
    assert first == [1, 0.5, "True", "a", "[1.5, 2.0]", '{"a": 1}', "2020-01-02", 1.0, 7.0]
    assert second[:7] == [None] * 7
    assert second[7:] == [2.0**64, 2.0**63]
    for ending in ("csv", "json", "parquet", "npz"):
        assert result.save(tmp_path / f"a.{ending}")
    twice = bert_probe.SqlQuery("SELECT 1 AS a, 2 AS a, 3 AS a_2").of(stores("tokens")).table()
    assert twice.columns.tolist() == ["a", "a_2", "a_2_2"]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def test_nested_values_are_json(stores: Stores) -> None:
    nan = "'nan'::DOUBLE"
    query = (
        f"SELECT {{'a': {nan}, 'b': [-{nan}, '-inf'::DOUBLE, 1]}} AS a, row(1, [2, NULL]) AS b, [{nan}] AS c"
    )
    cells = bert_probe.SqlQuery(query).of(stores("tokens")).table().iloc[0]
    assert [json.loads(cell, parse_constant=_refuse) for cell in cells] == [
        {"a": "nan", "b": ["nan", "-inf", 1]},
        [1, [2, None]],
        ["nan"],
    ]


REVEALING = (
    "SELECT current_setting('temp_directory')",
    "SELECT 'allowed_paths'.current_setting()",
    "SELECT CURRENT_SETTING('secret_directory')",
    "SELECT [current_setting(x) FOR x IN ['allowed_paths']]",
    "SELECT list_transform(['home_directory'], lambda x: current_setting(x))",
    "DESCRIBE SELECT current_setting('temp_directory')",
    "SUMMARIZE SELECT current_setting('temp_directory')",
    "WITH a AS (SELECT current_setting('temp_directory') AS b) SELECT (SELECT b FROM a) FROM rows",
    "SELECT count(*) FILTER (current_setting('temp_directory') LIKE '/t%') FROM rows",
    "SELECT row FROM rows ORDER BY current_setting('temp_directory')",
    "SELECT row FROM rows QUALIFY row_number() OVER (PARTITION BY current_setting('temp_directory')) = 1",
    "SELECT * FROM range(length(current_setting('temp_directory')))",
    "FROM duckdb_settings()",
    "FROM duckdb_views()",
    "FROM duckdb_views",
    "FROM main.duckdb_views",
    "FROM system.main.duckdb_views",
    "FROM pg_catalog.pg_views",
    "FROM pg_settings",
    "FROM information_schema.views",
    "FROM sqlite_master",
    "FROM pragma_database_list",
    "FROM duckdb_databases()",
    "FROM duckdb_external_file_cache()",
    "FROM duckdb_temporary_files()",
    "FROM duckdb_extensions()",
    "FROM duckdb_secrets()",
    "FROM duckdb_logs",
    "FROM duckdb_logs()",
    "FROM duckdb_prepared_statements()",
    "SELECT (WITH duckdb_views AS (SELECT 1) SELECT 1), * FROM duckdb_views",
    "SUMMARIZE duckdb_views",
    "DESCRIBE duckdb_views",
    "SHOW DATABASES",
    "SHOW ALL TABLES",
    "SELECT pg_get_viewdef(0)",
    "SELECT getvariable('a')",
    "SELECT current_query()",
    "SELECT write_log('a')",
    "FROM query('SELECT 1')",
    "FROM query_table('rows')",
    "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT sleep_ms(1)",
    "SELECT pg_sleep(1)",
    "SELECT repeat('a', 3000000000)",
    "SELECT lpad('a', 2000000000, 'b')",
    "SELECT replace(text, '', text) FROM rows",
    "SELECT concat_ws(text, text, text) FROM rows",
    "SELECT concat(text, text) FROM rows",
    "SELECT hex(text) FROM rows",
    "SELECT format('{:>2000000000}', 'a')",
    "SELECT printf('%2000000000d', 1)",
    "SELECT range(3000000000)",
    "SELECT list_resize([1], 3000000000)",
    "SELECT levenshtein(text, text) FROM rows",
    "SELECT regexp_extract_all(text, repeat('(', 100000) || repeat(')', 100000)) FROM rows",
)


@pytest.mark.parametrize("query", REVEALING)
def test_query_cannot_reveal_the_process_or_exhaust_it(query: str, tables: sql.StoreTables) -> None:
    with pytest.raises(SelectionError) as caught:
        tables.select(query)
    assert any(
        part in str(caught.value)
        for part in ("is not allowed", "can read only", "SHOW supports only SHOW TABLES")
    )
    assert str(tables.store.folder) not in str(caught.value)


def test_error_of_a_broken_file_names_no_path(stores: Stores, tmp_path: Path) -> None:
    shutil.copytree(stores("tokens").folder, tmp_path / "copy")
    store = bert_probe.open_corpus(tmp_path / "copy")
    with sql.open_tables(store) as tables:
        for file in store.files("rows"):
            file.write_bytes(b"broken" * 100)
        with pytest.raises(SelectionError) as caught:
            tables.select("SELECT text FROM rows")
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        "SHOW TABLES",
        "DESCRIBE rows",
        "SUMMARIZE rows",
        "SHOW rows",
        "VALUES (1, 'a')",
        "TABLE rows",
        "SELECT x.lower().upper() FROM (SELECT text AS x FROM rows)",
        "SELECT COLUMNS(*) FROM main.rows",
        "SELECT [x * 2 FOR x IN [1, 2]], {'a': 1}.a, [1, 2][1], text[1:2], -row FROM rows",
        "SELECT list_transform([1], lambda x: x + 1), coalesce(NULL, 1), CASE WHEN true THEN 1 END, 1 IN (2)",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t",
        "SELECT row, lag(text) OVER w, rank() OVER w FROM rows WINDOW w AS (ORDER BY row)",
        "SELECT regexp_matches(text, 'a+'), text ILIKE 'a', text SIMILAR TO 'a', text GLOB '*' FROM rows",
        "SELECT a.row FROM rows a JOIN tokens USING (row) LEFT JOIN range(3) ON true, unnest([1]) GROUP BY 1",
        "SELECT count(*) FILTER (row > 0), string_agg(text, ',' ORDER BY row) FROM rows GROUP BY CUBE (row)",
        "SELECT row FROM rows WHERE EXISTS (SELECT 1) AND row BETWEEN 0 AND 9 UNION SELECT 1",
        "SELECT extract(year FROM DATE '2020-01-02' + INTERVAL 1 DAY), 1::VARCHAR, TRY_CAST('a' AS INT)",
        "SELECT * FROM rows TABLESAMPLE 1 ROWS",
        "FROM (PIVOT (SELECT row, tokens FROM rows) ON row IN (1, 2) USING sum(tokens))",
    ],
)
def test_ordinary_query_is_answered(query: str, tables: sql.StoreTables) -> None:
    tables.select(query)


WIDE = {
    "date '294247-01-10'": "294247-01-10",
    "date '5877642-06-25 (BC)'": "5877642-06-25 (BC)",
    "date 'infinity'": "infinity",
    "timestamp '294247-01-10 04:00:54.775806'": "294247-01-10 04:00:54.775806",
    "timestamp_s '294247-01-10 04:00:54'": "294247-01-10 04:00:54",
    "timestamp_ns '2000-01-01 00:00:00.000000001'": "2000-01-01 00:00:00.000000001",
    "timestamptz '-infinity'": "-infinity",
    "time '24:00:00'": "24:00:00",
    "timetz '23:59:59+15:59'": "23:59:59+15:59",
    "time_ns '23:59:59.999999999'": "23:59:59.999999999",
    "interval '1 month 2 days 3 microseconds'": "1 month 2 days 00:00:00.000003",
    "170141183460469231731687303715884105727::hugeint": 2.0**127,
    "340282366920938463463374607431768211455::uhugeint": 2.0**128,
    r"'\xAA\x00'::blob": r"\xAA\x00",
    "'101'::bit": "101",
    "'a'::enum('a', 'b')": "a",
    "123456789012345678901234567890::bignum": "123456789012345678901234567890",
    "1::variant": "1",
    "union_value(n := 2)": "2",
    "map {'a': 1, 'b': NULL}": '{"a":1,"b":null}',
    "[date '294247-01-10', NULL]": '["294247-01-10",null]',
    "{'x': date 'infinity', 'y': interval '1 month'}": '{"x":"infinity","y":"1 month"}',
    "array[interval '1 day']::interval[1]": '["1 day"]',
    "date '294247-01-10' AS \"a;b\"; -- ; ": "294247-01-10",
}
"""DuckDB expressions for values that Python, Arrow or pandas do not support → text of the table cell."""


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("value", prove_unless([*WIDE][::4], WIDE))
def test_value_beyond_python_types_is_a_cell(value: str, stores: Stores, tmp_path: Path) -> None:
    result = bert_probe.SqlQuery(f"SELECT {value}").of(stores("tokens"))
    assert result.table().iloc[0, 0] == WIDE[value]
    for ending in ("csv", "json", "parquet"):
        assert result.save(tmp_path / f"a.{ending}")


REACHING = (
    "SELECT * FROM read_csv('{}')",
    "SELECT * FROM read_text('{}')",
    "SELECT * FROM read_blob('/etc/*')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM sniff_csv('{}')",
    "SELECT * FROM read_json('{}')",
    "SELECT * FROM read_parquet('{}')",
    "SELECT * FROM parquet_metadata('{}')",
    "SELECT * FROM '{}'",
    "SELECT * FROM 'http://127.0.0.1:9/a.csv'",
    "SELECT * FROM read_parquet('https://example.org/a.parquet')",
    "SELECT * FROM rows WHERE (SELECT count(*) FROM read_text('{}')) > 0",
    "SELECT * FROM query('SELECT * FROM read_text(''{}'')')",
    "SELECT * FROM read_duckdb('{}')",
    "SELECT * FROM sqlite_scan('{}', 'a')",
    "SELECT getenv('HOME')",
    "COPY rows TO '{}.copy'",
    "COPY rows FROM '{}'",
    "EXPORT DATABASE '{}.export'",
    "IMPORT DATABASE '{}'",
    "ATTACH '{}.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{}'",
    "PRAGMA database_list",
    "PRAGMA enable_external_access",
    "SET enable_external_access = true",
    "SET allowed_paths = ['{}']",
    "SET memory_limit = '100GB'",
    "RESET memory_limit",
    "CALL enable_logging(storage_path = '{}.log')",
    "CREATE SECRET (TYPE http)",
    "CREATE TABLE a AS SELECT 1",
    "CREATE MACRO a() AS 1",
    "DROP VIEW rows",
    "INSERT INTO rows VALUES (1)",
    "WITH a AS (INSERT INTO rows VALUES (1) RETURNING *) SELECT * FROM a",
    "UPDATE rows SET row = 1",
    "DELETE FROM rows",
    "SELECT * FROM query('DROP VIEW rows')",
    "VACUUM",
    "CHECKPOINT",
    "BEGIN",
    "USE main",
    "PREPARE a AS SELECT 1",
    "EXPLAIN ANALYZE SELECT 1",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW rows",
)


@pytest.fixture(scope="module")
def tables(stores: Stores) -> Iterator[sql.StoreTables]:
    """Return a connection that all attacks share, because no attack may change the store."""
    with sql.open_tables(stores("tokens")) as tables:
        yield tables


@pytest.mark.parametrize("query", REACHING)
def test_query_cannot_reach_other_files_or_network(
    query: str, tables: sql.StoreTables, tmp_path: Path
) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("a,b\n1,top secret\n", encoding="utf-8")
    with pytest.raises(SelectionError) as caught:
        tables.select(query.replace("{}", str(file)))
    assert tables.select("SELECT count(*) FROM rows").column(0)[0].as_py() == 6
    assert "\n" not in str(caught.value)
    assert "top secret" not in str(caught.value)
    assert str(caught.value).endswith(".")
    assert list(tmp_path.iterdir()) == [file]


def test_connection_itself_refuses_every_statement_type(stores: Stores, tmp_path: Path) -> None:
    """DuckDB refuses the statements even without BERT Probe's check of the statement type."""
    import duckdb  # If imported at the top of the file, DuckDB would report leaks at exit.

    file = tmp_path / "secret.csv"
    file.write_text("a\n1\n", encoding="utf-8")
    frame = pa.table({"a": [1]})  # noqa: F841 - what a replacement scan finds
    with closing(StoreConnection(sql._setup(stores("tokens"), str(tmp_path / "spill"))).duckdb) as connection:
        for query in (
            f"COPY rows TO '{file}.copy'",
            f"ATTACH '{file}.db'",
            f"EXPORT DATABASE '{file}.export'",
            f"CREATE TABLE a AS FROM read_csv('{file}')",
            "INSTALL httpfs",
            "LOAD httpfs",
            "SET enable_external_access = true",
            "SET lock_configuration = false",
            "RESET memory_limit",
            "SELECT * FROM frame",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(query)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "not no statements"),
        ("-- nothing", "not no statements"),
        ("SELECT 1; SELECT 2", "not 2 statements"),
        ("DROP VIEW rows", "not DROP"),
        (
            "SELEC 1",
            'at or near "SELEC". The tables are rows, tokens, profiles, statistics, vectors, neighbors',
        ),
        (
            "SELECT txt FROM rows",
            '"txt" not found in FROM clause! The columns are: rows (row, file, line, text, tokens,',
        ),
        ("SELECT * FROM rowz", 'rowz does not exist! Did you mean "rows"? The tables are rows,'),
        ("SELECT * FROM rows WHERE row = 'a'", "Could not convert string 'a' to INT64."),
        ("SELECT ?", "The tables are rows,"),
        ("SELECT '\ud800'", "lone surrogate"),
        ("SELECT '\x00", "."),
        ("SELECT 1 --" + "x" * 20_000, "has 20,011 characters, but at most 20,000 are allowed"),
        ("SELECT * FROM " + "(FROM " * 900 + "rows" + ")" * 900, "nested too deeply"),
        ("SELECT " + "1+" * 2_000 + "1", "exceeded. Use a simpler query. The tables are"),
    ],
)
def test_invalid_sql_raises_readable_error(query: str, message: str, tables: sql.StoreTables) -> None:
    with pytest.raises(SelectionError) as caught:
        tables.select(query)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seconds", [0, -1, math.nan])
def test_invalid_time_limit_is_refused(seconds: float, stores: Stores) -> None:
    with pytest.raises(SelectionError, match="The time limit must be above 0 seconds, not "):
        bert_probe.SqlQuery("SELECT 1").of(stores("tokens"), seconds)


def test_query_stops_at_time_limit(stores: Stores) -> None:
    begun = time.monotonic()
    with pytest.raises(SelectionError, match=r"longer than 0\.3 seconds"):
        bert_probe.SqlQuery(ENDLESS).of(stores("tokens"), seconds=0.3)
    assert time.monotonic() - begun < 10

    with pytest.raises(Cancelled):
        bert_probe.SqlQuery(ENDLESS).of(stores("tokens"), progress=Mock(side_effect=Cancelled))


def test_query_after_stopped_query_is_answered(stores: Stores) -> None:
    with sql.open_tables(stores("tokens")) as tables:
        with pytest.raises(SelectionError, match="longer than"):
            tables.select(ENDLESS, seconds=0.05)
        assert tables.select("SELECT count(*) FROM rows").column(0).to_pylist() == [6]


DOUBLING = (
    "WITH RECURSIVE t(n, s) AS (SELECT 1, 'a' UNION ALL SELECT n + 1, s || s FROM t WHERE n < {}) "
    "SELECT max(length(s)) FROM t"
)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux limits the address space")
def test_memory_that_duckdb_does_not_count_is_limited(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "MAX_ADDRESS_SPACE", 2**28)
    with sql.open_tables(stores("tokens")) as tables:
        with pytest.raises(SelectionError, match="more than 1GB of memory"):
            tables.select(DOUBLING.format(28))
        assert tables.select(DOUBLING.format(8)).column(0).to_pylist() == [128]


def test_process_of_a_query_ends_with_its_input(stores: Stores, tmp_path: Path) -> None:
    child = sql._start(sql._setup(stores("tokens"), str(tmp_path)))
    sql._send(child, ENDLESS)
    child.communicate(timeout=60)  # close the child's standard input, as happens when the parent process ends
    assert child.returncode == 0


@pytest.mark.usefixtures("in_store_folder")
def test_control_c_stops_query() -> None:
    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    ended = run("corpus", "query", "tokens", ENDLESS)
    assert (ended.status, ended.out) == (130, b"")
    assert ended.err == "bert-probe: Interrupted.\n"


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("setting", "value", "query", "message"),
    [
        ("MAX_ROWS", 100, "FROM range(101)", "more than 100 rows"),
        ("MAX_BYTES", 2**20, "SELECT md5(range::VARCHAR) FROM range(100000)", "or 1 MB"),
        ("MAX_MEMORY", "20MB", "SELECT list(range) FROM range(100000000)", "more than 20MB of memory"),
    ],
)
def test_large_answer_is_refused(
    setting: str, value: Any, query: str, message: str, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, setting, value)
    with pytest.raises(SelectionError, match=message):
        bert_probe.SqlQuery(query).of(stores("tokens"))


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    "query",
    prove_unless(
        lambda query: not re.search(r"NULL|SELECT list|{a: ", query),
        [
            f"SELECT '{'a' * 3000}'::ENUM('{'a' * 3000}') FROM range(100000)",
            f"SELECT {', '.join(['NULL'] * 200)} FROM range(100000)",
            f"SELECT {', '.join(['range % 2 = 0'] * 200)} FROM range(100000)",
            "SELECT list(true) FROM range(20000000)",
            "SELECT {'a': list(true)} FROM range(20000000)",
            f"SELECT {{'{'k' * 9000}': range}} FROM range(300000)",
            f"SELECT list({{'{'k' * 9000}': range}}) FROM range(300000)",
            f"SELECT {'{a: ' * 14}range{'}' * 14} FROM range(1000000)",
        ],
    ),
    ids=[
        "enum",
        "null",
        "boolean",
        "list",
        "struct",
        "field names",
        "field names in a list",
        "nested structs",
    ],
)
def test_answer_that_is_small_only_in_arrow_is_refused(query: str, stores: Stores) -> None:
    with pytest.raises(SelectionError, match="or 256 MB"):
        bert_probe.SqlQuery(query).of(stores("tokens"))


@pytest.mark.prove
def test_columns_of_the_same_name_are_numbered(stores: Stores) -> None:
    table = (
        bert_probe.SqlQuery("SELECT 1 AS a, 2 AS a, 3 AS a_2, 4 AS a, 5 AS b").of(stores("tokens")).table()
    )
    assert table.iloc[0].to_dict() == {"a": 1, "a_2": 2, "a_2_2": 3, "a_3": 4, "b": 5}
    query = f"SELECT {', '.join('a' * 6000)} FROM (SELECT 1 AS a)"
    names = bert_probe.SqlQuery(query).of(stores("tokens"))
    assert len(set(names.frame().columns)) == 6000  # An algorithm with quadratic time would take minutes.


def test_large_answer_is_refused_before_it_is_complete(stores: Stores) -> None:
    """Counting all ten billion rows would take minutes."""
    begun = time.monotonic()
    with pytest.raises(SelectionError, match="more than 1,000,000 rows"):
        bert_probe.SqlQuery("FROM range(10000000000)").of(stores("tokens"))
    assert time.monotonic() - begun < 10


@pytest.mark.prove
def test_store_folder_may_have_any_name(stores: Stores, tmp_path: Path) -> None:
    for name in ("it's", "[a-b]*?", "a=b", "ünï 东") if PROVE else ("it's [a-b]*?",):
        shutil.copytree(stores("words").folder, tmp_path / name)
        store = bert_probe.open_corpus(tmp_path / name)
        counts = "SELECT (SELECT count(*) FROM rows) AS rows, (SELECT count(*) FROM vectors) AS vectors"
        table = bert_probe.SqlQuery(counts).of(store).table()
        assert table.iloc[0].tolist() == [6, 2 * store.tokens]


def test_first_rows_are_converted_alone(stores: Stores) -> None:
    table = pa.table({"n": range(50), "list": [list(range(100 * row)) for row in range(50)]})
    result = replace(sql.SqlQuery("FROM rows").of(stores("tokens")), answer=table)
    pd.testing.assert_frame_equal(result.head(20, 1_000_000), result.frame().head(20))
    assert len(result.head(20, 50_000)) == 10
    assert len(result.head(20, 0)) == 0
