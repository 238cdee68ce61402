"""Corpus: many sentences, read once into a store, and asked in a moment."""

from __future__ import annotations

import streamlit as st

from bert_probe.corpus.ingest import PROFILES
from bert_probe.corpus.store import Store
from bert_probe.errors import ProbeError
from bert_probe.ui import blocks, state, workbench
from bert_probe.ui.corpus import about, build, distribution, find, query, search, stores

NEW = "new"
"""Stands in the address for a store that is yet to be made."""

PARTS = {"heads": "Heads", "near": "Nearest contexts", "find": "Find", "sql": "Query", "about": "About"}
DRAWN = {
    "heads": distribution.part,
    "near": search.part,
    "find": find.part,
    "sql": query.part,
    "about": about.part,
}

COMMAND = "bert-probe corpus run sentences.txt --out corpora/mine\nbert-probe app --corpus corpora"


def chosen() -> str:
    """The name of a store, or `NEW`."""
    made = st.session_state.pop(build.MADE, None)
    if made is not None:
        state.remember("store", made)
        st.session_state["store"] = made
    asked = st.session_state.get("store") or state.address().get("store", "")
    offered = stores.offered(asked)
    if asked not in ("", NEW, *offered):
        st.caption(f":orange[{state.plain(stores.missing(asked))}]")
        state.remember("store", None)
        st.session_state.pop("store", None)
    if not offered:
        return NEW
    name = state.choose("store", "Store", offered | {NEW: "Make a new one …"}, next(iter(offered)))
    state.remember("store", name)  # which one is usual depends on who looks
    return name


def empty() -> None:
    """What a corpus is for, and the ways to one."""
    st.markdown(
        "One sentence is an anecdote. A corpus is many, read once: then you see how each head behaves over "
        "all of them, find the sentences in which it does the most, and the contexts that are most like "
        "that of a word."
    )
    build.part(workbench.checkpoint())
    st.markdown("**Any number of sentences**, on the command line:")
    st.code(COMMAND, language=None)


def shown(store: Store) -> None:
    """What a store has to say."""
    about.unfinished(store)
    part = state.pick("corpus_part", "Part", PARTS, "heads" if store.has(PROFILES) else "about")
    DRAWN[part](store)


def main() -> None:
    """The page."""
    blocks.heading("Corpus", "What heads and words do over many sentences: yours, or a million.")
    try:
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            with st.container(width=320):
                name = chosen()
            store = None if name == NEW else stores.opened(name)
            if store is not None:
                about.line(store)
        if store is None:
            empty()
        else:
            shown(store)
    except ProbeError as error:
        blocks.refusal(error, "Change what is chosen above, choose another store, or make one.")


main()
