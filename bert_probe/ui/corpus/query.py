"""SQL over the tables of a store."""

from __future__ import annotations

from typing import Final

import streamlit as st

from bert_probe.corpus.query import SqlQuery, SqlQueryResult
from bert_probe.corpus.store import Store
from bert_probe.corpus.tables import ROWS
from bert_probe.errors import SelectionError
from bert_probe.ui import jobs, state, url_texts
from bert_probe.ui.export import export

SECONDS: Final = 20.0
"""The longest that a query may take here."""
SHOWN: Final = 5_000
"""Rows of an answer that are sent to the browser."""

EXAMPLES: Final = {
    "The longest rows": f"SELECT row, tokens, text FROM {ROWS} ORDER BY tokens DESC LIMIT 20",
    "The most frequent words": "SELECT lower(text) AS word, count(*) AS times FROM tokens\n"
    "WHERE NOT special GROUP BY word ORDER BY times DESC LIMIT 50",
    "Heads that look at the token before": "SELECT layer, head, avg(previous) AS mean FROM profiles\n"
    "GROUP BY layer, head ORDER BY mean DESC LIMIT 10",
    "Columns of all tables": "SELECT table_name, column_name, data_type FROM duckdb_columns()\n"
    "WHERE NOT internal ORDER BY table_name, column_index",
}

_WRITTEN, _ASKED = "corpus_sql_written", "sql"
_FILLED: Final = "corpus_sql_filled"
"""Session key of the query of the address that was last put into the text field."""
_RUN: Final = "corpus queries run"
"""Session key of the queries that the reader ran. Anybody can write a link: its query waits for a click."""


def part(corpus: Store) -> None:
    """Draw the text field of the query, its buttons, and the rows that it selects."""
    examples = {
        name: sql for name, sql in EXAMPLES.items() if "profiles" not in sql or corpus.has("profiles")
    }
    sql = url_texts.recall(_ASKED)
    if sql and sql != st.session_state.get(_FILLED):
        st.session_state[_WRITTEN] = st.session_state[_FILLED] = sql
    elif _WRITTEN not in st.session_state:
        st.session_state[_WRITTEN] = next(iter(examples.values()))
    st.text_area(
        "A SELECT in DuckDB's dialect",
        key=_WRITTEN,
        height=110,
        help="The tables are " + ", ".join(corpus.layouts) + ". It reads them and nothing else.",
        persist_state="session",
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Run", type="primary", on_click=_run)
        st.menu_button("Examples", list(examples), key="corpus_sql_example", on_click=_example)
        place = st.container(width="content")
    if not sql:
        return
    if sql not in _queries_run():
        st.caption("This query comes from the address of this page and has not run. Read it, then press Run.")
        return
    asked = SqlQuery(sql)
    try:
        found = jobs.answered(
            "corpus query",
            asked.of,
            corpus,
            label="Run again",
            unit="seconds",
            start=True,
            limits=(SECONDS,),
        )
    except SelectionError as error:
        with st.container(border=True, key="corpus_sql_refused"):
            st.text(str(error))
        return
    if found is not None:
        with place:
            export(found, "corpus-query")
        _show(found)


def _run() -> None:
    sql = st.session_state[_WRITTEN].strip()
    url_texts.remember(_ASKED, sql or None)
    _queries_run().add(sql)


def _queries_run() -> set[str]:
    state.hold(_RUN)
    queries: set[str] = st.session_state.setdefault(_RUN, set())
    return queries


def _example() -> None:
    chosen = EXAMPLES.get(st.session_state["corpus_sql_example"])
    if chosen is not None:
        st.session_state[_WRITTEN] = chosen
        _run()


def _show(found: SqlQueryResult) -> None:
    frame = found.frame()
    st.dataframe(
        frame.head(SHOWN),
        hide_index=True,
        width="stretch",
        height=min(38 + 35 * max(1, len(frame)), 560),
        alt="What the query selects",
    )
    told = f"{len(frame):,} rows." if len(frame) <= SHOWN else f"The first {SHOWN:,} of {len(frame):,} rows."
    st.caption(f"{told} The export holds all of them.")
