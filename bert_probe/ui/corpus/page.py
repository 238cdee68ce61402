"""The Corpus page: the selector for a store, the builder of stores, and the sections about a store."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd
import streamlit as st

from bert_probe.corpus.ingest import PROFILES
from bert_probe.corpus.store import Store
from bert_probe.corpus.tables import REFUSALS
from bert_probe.errors import ProbeError
from bert_probe.ui import blocks, state, workbench
from bert_probe.ui.corpus import distribution, find, query, search, stores

NEW: Final = "new"
"""URL value for building a new store."""
_PARTS: Final = {
    "heads": "Heads",
    "near": "Nearest contexts",
    "find": "Find",
    "sql": "Query",
    "about": "About",
}
_COMMAND: Final = "bert-probe corpus run sentences.txt --out corpora/mine\nbert-probe app --corpus corpora"
_MAX_REFUSALS: Final = 1_000
"""Maximum number of rejected rows in the list."""


def render() -> None:
    """Draw the page."""
    blocks.heading(
        "Corpus",
        "Statistics of attention heads and nearest contexts of words over a corpus, from a few sentences to "
        "millions. The model encodes the corpus once and saves the results in a store.",
    )
    try:
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            with st.container(width=320):
                name = _choose_store()
            store = None if name == NEW else stores.open_store(name)
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
    built = st.session_state.pop(stores.BUILT, None)
    if built is not None:
        state.remember("store", built)
        st.session_state["store"] = built
    requested = st.session_state.get("store") or state.url_parameters().get("store", "")
    available = stores.available(requested)
    if requested not in ("", NEW, *available):
        st.caption(f":orange[{state.escape(stores.missing_message(requested))}]")
        state.remember("store", None)
        st.session_state.pop("store", None)
    if not available:
        return NEW
    options = available | {NEW: "Build a new store …"}
    name = state.selectbox("store", "Store", options, next(iter(available)))
    state.remember("store", name)  # even for the default, which depends on the session
    return name


def _new_store() -> None:
    """Draw the options for building a store."""
    st.markdown(
        "A corpus is a set of sentences that the model encodes once. It shows how each head behaves on all "
        "sentences, which sentences are typical or extreme for a head, and which contexts of a word are most "
        "similar."
    )
    stores.build_part(workbench.checkpoint())
    st.markdown("For **any number of sentences**, use the command line:")
    st.code(_COMMAND, language=None)


def _store(store: Store) -> None:
    """Draw the selected section of the page for a store."""
    if not store.finished:
        st.warning(
            f"This store is incomplete: it contains {store.records:,} of {store.manifest['records']:,} "
            "sentences, and all results are for these sentences only. To complete the store, repeat the "
            "command bert-probe corpus run."
        )
    default = "heads" if store.has(PROFILES) else "about"
    part = state.segmented_control("corpus_part", "Part", _PARTS, default)
    draw = {
        "heads": distribution.part,
        "near": search.part,
        "find": find.part,
        "sql": query.part,
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
    if stores.is_temporary(store):
        st.info(
            "This store was built on this page and is deleted when no page shows it. To build a permanent "
            "store, run bert-probe corpus run on the same file."
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
        st.caption(f"The first {len(refusals):,} of {store.refusals:,}. The store contains all.")


def _table(frame: pd.DataFrame, alt: str) -> None:
    config: dict[str, Any] = {
        "reason": st.column_config.TextColumn(width="large"),
        "value": st.column_config.TextColumn(width="large"),
    }
    height = min(38 + 35 * len(frame), 560)
    blocks.table(frame, alt, max_height=height, column_config=config)
