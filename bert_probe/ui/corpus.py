"""The Corpus page. This module selects the view, store and section, and draws the Find and Query sections."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd
import streamlit as st

from bert_probe.corpus.attention_search import AttentionSearch, AttentionSearchResult
from bert_probe.corpus.build import incomplete_note
from bert_probe.corpus.inputs import NEIGHBORS, PROFILES
from bert_probe.corpus.schema import REFUSALS, ROWS
from bert_probe.corpus.sql import SqlQuery, SqlQueryResult
from bert_probe.corpus.store import Store
from bert_probe.errors import ProbeError, SelectionError
from bert_probe.runtime import permissions, shared_cache
from bert_probe.ui import (
    blocks,
    corpus_heads,
    corpus_health,
    corpus_rows,
    corpus_search,
    corpus_stores,
    jobs,
    state,
    url_texts,
    workbench,
)
from bert_probe.ui.export import export

NEW: Final = "/new"
"""Value of the URL parameter `store` that selects the form for building a new store."""
_VIEWS: Final = {"stores": "Sentence stores", "vectors": "Vector health"}
_PARTS: Final = {
    "heads": "Heads",
    "near": "Nearest contexts",
    "find": "Find",
    "sql": "Query",
    "health": "Health",
    "about": "About",
}
_COMMAND: Final = "bert-probe corpus run sentences.txt --out corpora/mine\nbert-probe app --corpus corpora"
_MAX_REFUSALS: Final = 1_000
"""Maximum number of rejected rows that the page lists."""


def render() -> None:
    """Draw the Corpus page."""
    blocks.heading(
        "Corpus",
        "See how each attention head behaves on many sentences, which sentences are typical or extreme "
        "for a head, and where a word is used in a similar way. The model reads each sentence once, "
        "and the results are saved in a store, which may contain millions of sentences. Health finds "
        "duplicates, outliers and hubs among vectors.",
    )
    try:
        if state.segmented_control("corpus_view", "View", _VIEWS, "stores") == "vectors":
            corpus_health.render_vectors(workbench.checkpoint())
            return
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            with st.container(width=320):
                name = _choose_store()
            store = None if name == NEW else corpus_stores.open_store(name)
            if store is not None:
                _summary(store)
        if store is None:
            _new_store()
        else:
            _store(store)
    except ProbeError as error:
        blocks.error_box(error, "Change your selection above, choose another store, or build one.")


def _choose_store() -> str:
    """Draw a selector for the store; return its name, or `NEW`."""
    built = st.session_state.pop(corpus_stores.BUILT, None)
    if built is not None:
        state.remember("store", built)
        st.session_state["store"] = built
    requested = st.session_state.get("store") or state.url_parameters().get("store", "")
    available = corpus_stores.available(requested)
    if requested not in ("", NEW, *available):
        st.caption(f":orange[{state.escape(corpus_stores.missing_message(requested))}]")
        state.remember("store", None)
        st.session_state.pop("store", None)
    if not available:
        return NEW
    options = available | ({NEW: "Build a new store …"} if permissions.current().can_build_stores else {})
    name = state.selectbox("store", "Store", options, next(iter(available)))
    state.remember("store", name)  # even the default store, because the default differs between sessions
    return name


def _new_store() -> None:
    """Draw the options for building a store."""
    st.markdown(
        "A corpus is a set of sentences that the model encodes once. The results show how each head "
        "behaves on all sentences, which sentences are typical or extreme for a head, and which contexts "
        "of a word are most similar."
    )
    corpus_stores.build_part(workbench.checkpoint())
    st.markdown("For **any number of sentences**, use the command line:")
    st.code(_COMMAND, language=None)


def _store(store: Store) -> None:
    """Draw the section selector and the selected section for a store."""
    if note := incomplete_note(store):
        st.warning(note)
    default = "heads" if store.has(PROFILES) else "about"
    part = state.segmented_control("corpus_part", "Section", _PARTS, default)
    draw = {
        "heads": corpus_heads.part,
        "near": corpus_search.part,
        "find": render_find,
        "sql": render_query,
        "health": corpus_health.render_store,
        "about": _about,
    }[part]
    draw(store)


# ---------------------------------------------------------------- about


def _summary(store: Store) -> None:
    """Draw a summary of the store next to its name."""
    unit = "words" if store.question.words else "tokens"
    parts = [
        f"**{store.rows:,}** sentences",
        f"**{store.tokens:,}** {unit}",
        *([f"**{store.refusals:,}** rejected"] if store.refusals else []),
        f"encoded with **{state.escape(str(store.manifest['model']['model']))}**",
    ]
    st.markdown(" · ".join(parts), width="content")


def _about(store: Store) -> None:
    """Draw the contents, the input files and the rejected rows of a store."""
    if corpus_stores.is_temporary(store):
        st.info(
            "This store was built on this page and is deleted when no page shows the store any more. To "
            "build a permanent store, run bert-probe corpus run on the same file."
        )
    manifest, question = store.manifest, store.question
    model = manifest["model"]
    files = [file for shard in store.shards for file in shard.files.values()]
    properties = [
        ("Sentences", f"{store.rows:,}"),
        ("Words" if question.words else "Tokens", f"{store.tokens:,}"),
        ("Rejected", f"{store.refusals:,}"),
        ("Model", model["model"]),
        ("Revision", model.get("revision") or "–"),
        ("Weights, SHA-256", model["weights_sha256"]),
        ("Precision", model.get("dtype", "–")),
        ("Contents", ", ".join(question.keep) or "tokens only"),
        ("Layers with stored vectors", ", ".join(map(str, store.layers)) or "none"),
        ("Precision of stored vectors", question.dtype if store.layers else "–"),
        ("Shards", f"{len(store.shards):,}"),
        ("Size in bytes", f"{sum(file['bytes'] for file in files):,}"),
        ("Digest, SHA-256", store.digest),
    ]
    _table(pd.DataFrame(properties, columns=["property", "value"]), "Contents of the store")
    st.header("Input files", anchor=False)
    inputs = [(file["name"], file["bytes"], file["sha256"]) for file in manifest["inputs"]]
    _table(pd.DataFrame(inputs, columns=["file", "bytes", "sha256"]), "Input files of the store")
    if not store.refusals:
        return
    st.header("Rejected rows", anchor=False)
    refusals = store.table(REFUSALS).head(_MAX_REFUSALS).to_pandas()
    _table(refusals[["row", "file", "line", "reason", "text"]], "Rejected rows and the reasons")
    if store.refusals > len(refusals):
        st.caption(
            f"The table shows the first {len(refusals):,} of {store.refusals:,} rejected rows. The store "
            "contains all rejected rows."
        )


def _table(frame: pd.DataFrame, alt: str) -> None:
    config: dict[str, Any] = {
        "reason": st.column_config.TextColumn(width="large"),
        "value": st.column_config.TextColumn(width="large"),
    }
    height = min(38 + 35 * len(frame), 560)
    blocks.table(frame, alt, max_height=height, column_config=config)


_TIMEOUT: Final = 20.0
"""Time limit for an SQL query, in seconds."""
_MAX_ROWS: Final = 5_000
"""Maximum number of rows of a query result that are sent to the browser."""
_MAX_RESULT_BYTES: Final = 4_000_000
"""Maximum size in bytes, in Arrow format, of the rows of a query result that are sent to the browser."""

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
"""Session key of the last SQL query that was copied from the URL into the text field."""
_RUN: Final = "corpus queries run"
"""Session key of the SQL queries that the user has run. A query from a link needs a click to run."""


def render_query(corpus: Store) -> None:
    """Draw a text field for an SQL query, the buttons that run a query, and the result."""
    examples = {
        name: sql for name, sql in EXAMPLES.items() if "profiles" not in sql or corpus.has("profiles")
    }
    sql = url_texts.recall(_SQL)
    example = next(iter(examples.values()))
    if sql and (sql != st.session_state.get(_FILLED) or _DRAFT not in st.session_state):
        st.session_state[_DRAFT] = st.session_state[_FILLED] = sql
    elif _DRAFT not in st.session_state:
        st.session_state[_DRAFT] = example
    state.preserve(_FILLED)
    state.keep_draft(_DRAFT, _SQL, sql or example)
    st.text_area(
        "SELECT statement (DuckDB SQL)",
        key=_DRAFT,
        height=110,
        help="Tables: " + ", ".join(corpus.layouts) + ". The query can read only these tables.",
        persist_state="session",
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Run", type="primary", on_click=_run)
        st.menu_button("Examples", list(examples), key="corpus_sql_example", on_click=_run_example)
        corner = st.container(width="content")
    if not sql:
        return
    if sql not in _queries_run():
        st.caption(
            "This query comes from the URL of this page and has not been run. Check the query, then "
            "press Run."
        )
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
        _show_result(result)


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


def _show_result(result: SqlQueryResult) -> None:
    total = len(result.answer)
    frame = result.head(_MAX_ROWS, _MAX_RESULT_BYTES)
    if total and frame.empty:
        st.info("The first row is too large to show here. Export the result, or select fewer values.")
        return
    blocks.table(frame, "Result of the query", max_height=560)
    count = (
        f"{total:,} rows."
        if len(frame) == total
        else f"The table shows the first {len(frame):,} of {total:,} rows."
    )
    st.caption(f"{count} The export contains all rows.")


_MAX_PAIRS: Final = 100
"""Maximum number of word pairs in the list."""
_MAX_NAMES: Final = 200
"""Maximum number of options in a select box of tags or relations."""


def render_find(corpus: Store) -> None:
    """Draw the Find section of the Corpus page, which searches for word pairs that a head connects."""
    if not corpus.has(NEIGHBORS):
        st.info(
            "This store does not record which words the heads attend to. Build the store with --keep "
            "profiles,vectors,neighbors."
        )
        return
    tags, relations = _names(corpus, "tag"), _names(corpus, "relation")
    if not tags:
        st.info("The words of this store have no tags. Build a store from CoNLL-U files, which contain tags.")
        return
    default = "VERB" if "VERB" in tags else tags[0]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        head = corpus_rows.choose_head(corpus)
        query = _choose("find_query", "Tag of the first word", tags, default)
        key = _choose("find_key", "Tag of the second word", tags, "NOUN" if "NOUN" in tags else "")
        relation = _choose("find_relation", "Relation", relations, "")
        corner = st.container(width="content")
    if not (query or key or relation):
        st.info("Choose a tag for at least one of the words, or a relation.")
        return
    result = jobs.answer(
        "attention search",
        AttentionSearch(head, query or None, key or None, relation or None, _MAX_PAIRS).of,
        corpus,
        label="Find rows",
        unit="seconds",
        start=True,
    )
    if result is not None:
        with corner:
            export(result, "corpus-find")
        _pairs(corpus, result, head)


def _names(corpus: Store, column: str) -> list[str]:
    """Return the distinct tags or relations of the store's words, most frequent first."""
    sql = (
        f"SELECT {column}, count(*) AS words FROM tokens WHERE {column} IS NOT NULL "
        f"GROUP BY {column} ORDER BY words DESC, {column} LIMIT {_MAX_NAMES}"
    )
    names: list[str] = shared_cache.answers.of(SqlQuery(sql).of, corpus).answer.column(0).to_pylist()
    return names


def _choose(key: str, label: str, names: list[str], default: str) -> str:
    with st.container(width=170):
        options = {"": "Any", **{name: name for name in names}}
        return state.selectbox(key, label, options, default, show_label=True)


def _pairs(corpus: Store, result: AttentionSearchResult, head: tuple[int, int]) -> None:
    name = f"layer {head[0] + 1}, head {head[1] + 1}"
    if not result.sentences:
        st.info(f"No row matches this selection for {name}. Choose other tags or another head.")
        return
    frame = result.frame()[["row", "weight", "query_word", "key_word", "text"]]
    st.caption(
        ("1 word pair" if len(frame) == 1 else f"{len(frame):,} word pairs, sorted by weight")
        + (f"; at most {_MAX_PAIRS} are listed" if len(frame) == _MAX_PAIRS else "")
        + f". From the first word, {name} attends most to the second."
    )
    index = corpus_rows.choose_row(frame, f"corpus_found {result.question!r}", "Word pairs", ["weight"])
    if index is not None:
        parameters = corpus_rows.attention_parameters(corpus, head)
        # Pin the query in the head view only if the store contains tokens: stored words may differ from the
        # words of the head view.
        if not corpus.question.words:
            parameters |= {"pins": f"query.{result.queries[index] - 1}"}
        query, key = (state.escape(words[index]) for words in (result.query_words, result.key_words))
        corpus_rows.detail(
            corpus,
            result.sentences[index],
            {"attention": parameters},
            f"**{query}** → **{key}** {result.weights[index]:.4f}",
        )
    blocks.caveat(
        "The tags come from the input files. Attention shows from which words a head reads, not the "
        "function of the head."
    )
