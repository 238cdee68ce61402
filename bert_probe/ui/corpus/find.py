"""The Find section of the Corpus page: pairs of words, chosen by tags or relation, between which a head
attends."""

from __future__ import annotations

from typing import Final

import streamlit as st

from bert_probe.corpus.attention_search import AttentionSearch, AttentionSearchResult
from bert_probe.corpus.ingest import NEIGHBORS
from bert_probe.corpus.sql import SqlQuery
from bert_probe.corpus.store import Store
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, jobs, state
from bert_probe.ui.corpus import rows
from bert_probe.ui.export import export

_MAX_PAIRS: Final = 100
"""Maximum number of word pairs in the list."""
_MAX_NAMES: Final = 200
"""Maximum number of tags and of relations in a select box."""


def part(corpus: Store) -> None:
    """Draw the Find section."""
    if not corpus.has(NEIGHBORS):
        st.info(
            "This store does not record which words the heads attend to. Build it with --keep "
            "profiles,vectors,neighbors."
        )
        return
    tags, relations = _names(corpus, "tag"), _names(corpus, "relation")
    if not tags:
        st.info("The words of this store have no tags. Build a store from CoNLL-U files, which contain tags.")
        return
    default = "VERB" if "VERB" in tags else tags[0]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        head = rows.choose_head(corpus)
        query = _choose("find_query", "From a word tagged", tags, default)
        key = _choose("find_key", "To a word tagged", tags, "NOUN" if "NOUN" in tags else "")
        relation = _choose("find_relation", "Relation", relations, "")
        corner = st.container(width="content")
    if not (query or key or relation):
        st.info("Choose a tag for either word, or a relation.")
        return
    result = jobs.answer(
        "attention search",
        AttentionSearch(head, query or None, key or None, relation or None, _MAX_PAIRS).of,
        corpus,
        label="Find the rows",
        unit="seconds",
        start=True,
    )
    if result is not None:
        with corner:
            export(result, "corpus-find")
        _pairs(corpus, result, head)


def _names(corpus: Store, column: str) -> list[str]:
    """Return the tags or relations of the words, sorted by descending frequency."""
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
        st.info(f"No row matches for {name}. Choose other tags, or another head.")
        return
    frame = result.frame()[["row", "weight", "query_word", "key_word", "text"]]
    st.caption(
        f"{len(frame):,} word pairs, sorted by weight"
        + (f"; at most {_MAX_PAIRS} are listed" if len(frame) == _MAX_PAIRS else "")
        + f". From the first word, {name} attends most to the second."
    )
    index = rows.choose_row(frame, f"corpus_found {result.question!r}", "Word pairs", ["weight"])
    if index is not None:
        parameters = rows.attention_parameters(corpus, head)
        if (
            not corpus.question.words
        ):  # otherwise the words of the store may differ from those of the head view
            parameters |= {"pins": f"query.{result.queries[index] - 1}"}
        query, key = (state.escape(words[index]) for words in (result.query_words, result.key_words))
        rows.detail(
            corpus,
            result.sentences[index],
            {"attention": parameters},
            f"**{query}** → **{key}** {result.weights[index]:.4f}",
        )
    blocks.caveat(
        "The tags come from the input files. Attention shows where a head reads from, not what its function "
        "is."
    )
