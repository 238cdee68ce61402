"""The Query section of the Corpus page: SQL queries on the tables of a store."""

from __future__ import annotations

from typing import Final

import streamlit as st

from bert_probe.corpus.sql import SqlQuery, SqlQueryResult
from bert_probe.corpus.store import Store
from bert_probe.corpus.tables import ROWS
from bert_probe.errors import SelectionError
from bert_probe.ui import blocks, jobs, state, url_texts
from bert_probe.ui.export import export

_TIMEOUT: Final = 20.0
"""Maximum duration of a query in seconds."""
_MAX_ROWS: Final = 5_000
"""Maximum number of rows of a result that are sent to the browser."""

EXAMPLES: Final = {
    "Longest rows": f"SELECT row, tokens, text FROM {ROWS} ORDER BY tokens DESC LIMIT 20",
    "Most frequent words": "SELECT lower(text) AS word, count(*) AS times FROM tokens\n"
    "WHERE NOT special GROUP BY word ORDER BY times DESC LIMIT 50",
    "Heads that attend to the previous token": "SELECT layer, head, avg(previous) AS mean FROM profiles\n"
    "GROUP BY layer, head ORDER BY mean DESC LIMIT 10",
    "Columns of all tables": "SELECT table_name, column_name, data_type FROM duckdb_columns()\n"
    "WHERE NOT internal ORDER BY table_name, column_index",
}

_DRAFT, _SQL = "corpus_sql_written", "sql"
_FILLED: Final = "corpus_sql_filled"
"""Session key of the last query that was copied from the URL into the text field."""
_RUN: Final = "corpus queries run"
"""Session key of the queries that the user ran. A query from a link runs only after a click."""


def part(corpus: Store) -> None:
    """Draw the text field for a query, its buttons, and the result."""
    examples = {
        name: sql for name, sql in EXAMPLES.items() if "profiles" not in sql or corpus.has("profiles")
    }
    sql = url_texts.recall(_SQL)
    if sql and sql != st.session_state.get(_FILLED):
        st.session_state[_DRAFT] = st.session_state[_FILLED] = sql
    elif _DRAFT not in st.session_state:
        st.session_state[_DRAFT] = next(iter(examples.values()))
    st.text_area(
        "SELECT statement (DuckDB SQL)",
        key=_DRAFT,
        height=110,
        help="Tables: " + ", ".join(corpus.layouts) + ". The query can read these tables only.",
        persist_state="session",
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Run", type="primary", on_click=_run)
        st.menu_button("Examples", list(examples), key="corpus_sql_example", on_click=_run_example)
        corner = st.container(width="content")
    if not sql:
        return
    if sql not in _queries_run():
        st.caption("This query comes from the URL of this page and has not run. Read it, then press Run.")
        return
    try:
        result = jobs.answer(
            "sql query",
            SqlQuery(sql).of,
            corpus,
            label="Run again",
            unit="seconds",
            start=True,
            limits=(_TIMEOUT,),
        )
    except SelectionError as error:
        with st.container(border=True, key="corpus_sql_refused"):
            st.text(str(error))
        return
    if result is not None:
        with corner:
            export(result, "corpus-query")
        _table(result)


def _run() -> None:
    sql = st.session_state[_DRAFT].strip()
    url_texts.remember(_SQL, sql or None)
    _queries_run().add(sql)


def _queries_run() -> set[str]:
    state.preserve(_RUN)
    queries: set[str] = st.session_state.setdefault(_RUN, set())
    return queries


def _run_example() -> None:
    sql = EXAMPLES.get(st.session_state["corpus_sql_example"])
    if sql is not None:
        st.session_state[_DRAFT] = sql
        _run()


def _table(result: SqlQueryResult) -> None:
    frame = result.frame()
    blocks.table(frame.head(_MAX_ROWS), "Result of the query", max_height=560)
    rows = f"{len(frame):,} rows."
    if len(frame) > _MAX_ROWS:
        rows = f"The first {_MAX_ROWS:,} of {len(frame):,} rows."
    st.caption(f"{rows} The export contains all rows.")
