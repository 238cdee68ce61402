"""Rows in which a head looks from a word of one tag to a word of another."""

from __future__ import annotations

from typing import Final

import streamlit as st

from bert_probe.corpus.attention_search import AttentionSearch, AttentionSearchResult
from bert_probe.corpus.ingest import NEIGHBOURS
from bert_probe.corpus.query import SqlQuery
from bert_probe.corpus.store import Store
from bert_probe.runtime import shared_cache as shared
from bert_probe.ui import blocks, jobs, state
from bert_probe.ui.corpus import rows
from bert_probe.ui.corpus.heads import choose_head
from bert_probe.ui.export import export

TOP: Final = 100
"""Pairs that are listed."""

_MOST: Final = 200
"""Tags, and relations, that can be chosen from."""


def part(corpus: Store) -> None:
    """Draw it."""
    if not corpus.has(NEIGHBOURS):
        st.info("This store does not hold where heads look. Run it with --keep profiles,vectors,neighbours.")
        return
    tags, relations = _names(corpus, "tag"), _names(corpus, "relation")
    if not tags:
        st.info("The words of this store have no tags. Make one of CoNLL-U files, which have them.")
        return
    usual = "VERB" if "VERB" in tags else tags[0]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        head = choose_head(corpus)
        query = _choice("find_query", "From a word tagged", tags, usual)
        key = _choice("find_key", "To a word tagged", tags, "NOUN" if "NOUN" in tags else "")
        relation = _choice("find_relation", "Related by", relations, "")
        place = st.container(width="content")
    if not (query or key or relation):
        st.info("Choose a tag of either word, or a relation.")
        return
    asked = AttentionSearch(head, query or None, key or None, relation or None, TOP)
    found = jobs.answered("corpus find", asked.of, corpus, label="Find the rows", unit="seconds", start=True)
    if found is not None:
        with place:
            export(found, "corpus-find")
        _show(corpus, found, head)


def _names(corpus: Store, column: str) -> list[str]:
    """Tags or relations that the words have, the most frequent first."""
    sql = (
        f"SELECT {column}, count(*) AS words FROM tokens WHERE {column} IS NOT NULL "
        f"GROUP BY {column} ORDER BY words DESC, {column} LIMIT {_MOST}"
    )
    names: list[str] = shared.answers.of(SqlQuery(sql).of, corpus).answer.column(0).to_pylist()
    return names


def _choice(key: str, label: str, names: list[str], default: str) -> str:
    with st.container(width=170):
        options = {"": "anything", **{name: name for name in names}}
        return state.choose(key, label, options, default, labelled=True)


def _show(corpus: Store, found: AttentionSearchResult, head: tuple[int, int]) -> None:
    where = f"layer {head[0] + 1}, head {head[1] + 1}"
    if not found.sentences:
        st.info(f"In no row does {where} look so. Choose other tags, or another head.")
        return
    frame = found.frame()[["row", "weight", "query_word", "key_word", "text"]]
    st.caption(
        f"{len(frame):,} pairs of words, the largest weights first"
        + (", and no more are listed" if len(frame) == TOP else "")
        + f". Of all words, {where} looks from the first most at the second."
    )
    at = rows.listed(frame, f"corpus_found {found.question!r}", "Pairs of words", ["weight"])
    if at is not None:
        shown = rows.of_attention(corpus, head)
        if not corpus.question.words:  # the file's words may be others than those of the head view
            shown |= {"pins": f"query.{found.queries[at] - 1}"}
        words = [state.plain(one[at]) for one in (found.query_words, found.key_words)]
        rows.detail(
            corpus,
            found.sentences[at],
            {"attention": shown},
            f"**{words[0]}** → **{words[1]}** {found.weights[at]:.4f}",
        )
    blocks.caveat("The tags are the file's own. Attention says where a head reads from, not what it is for.")
