"""Rows of a store as a list, of which one is read in full and opens in the other pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd
import streamlit as st

from bert_probe.core import snippets
from bert_probe.core.provenance import InputRecord
from bert_probe.corpus.columns import SentenceRow
from bert_probe.corpus.store import Store
from bert_probe.runtime import shared_cache as shared
from bert_probe.server import paths, text_store
from bert_probe.ui import state, url_texts, workbench

_LONGEST: Final = 2_000
"""Characters of a text that are shown."""

_PAGES: Final = (
    "attention",
    "overview",
    "tokens",
    "heads",
    "steps",
    "embeddings",
    "similarity",
    "map",
    "compare",
    "answer",
)
"""Those that read a text, the likeliest first."""


def listed(frame: pd.DataFrame, key: str, alt: str, numbers: Sequence[str] = ()) -> int | None:
    """Draw rows; the place of the one that is chosen, the first unless another one is, or None of none.

    Args:
        frame: a line a row.
        key: of what is listed; of other rows, none is chosen.
        numbers: columns with four decimals.
    """
    if not len(frame):
        return None
    config: dict[str, Any] = {name: st.column_config.NumberColumn(format="%.4f") for name in numbers}
    config |= {"text": st.column_config.TextColumn(width="large")}
    event: Any = st.dataframe(
        frame,
        hide_index=True,
        width="stretch",
        height=min(38 + 35 * len(frame), 390),
        key=key,
        on_select="rerun",
        selection_mode="single-row",
        column_config=config,
        alt=alt,
    )
    rows = event.selection.rows
    return rows[0] if rows and rows[0] < len(frame) else 0


def detail(corpus: Store, one: SentenceRow, choices: Mapping[str, Mapping[str, str]], said: str = "") -> None:
    """A row in full, and the ways from it to the other pages.

    Args:
        choices: page → what it shows of it, also of one that shows no text otherwise.
        said: what is to be told of it, as Markdown.
    """
    with st.container(border=True, key="corpus_row"):
        where = f"Row {one.row:,} · {state.plain(one.file)}, line {one.line:,}"
        st.caption(" · ".join(filter(None, [where, said])))
        st.markdown(state.plain(one.text, _LONGEST) + (" …" if len(one.text) > _LONGEST else ""))
        given = address_of(corpus, one)
        if given is None:
            st.caption("Its model was in memory only: open it again to see this row in other pages.")
            return
        with st.container(horizontal=True, gap="small"):
            for page in dict.fromkeys((*_PAGES, *choices)):
                address = {**given, **choices.get(page, {})}
                if url_texts.length(address) <= url_texts.LINK:
                    st.page_link(paths.page(page), label=page.title(), query_params=address)


def of_attention(corpus: Store, head: tuple[int, int]) -> dict[str, str]:
    """Parameters by which the page of attention shows a head, from 0, in the units of a store."""
    shown = {"layer": str(head[0] + 1), "head": str(head[1] + 1)}
    return shown | ({"words": "1"} if corpus.question.words else {})


def address_of(corpus: Store, one: SentenceRow) -> dict[str, str] | None:
    """The parameters by which all pages read a row with the model of its store; None where there is none."""
    text = {"text": one.text, "pair": None, "tokens_dropped": one.dropped}
    given = snippets.url_parameters(InputRecord(corpus.manifest["model"], (text,))) or _of_open_model(
        corpus, one
    )
    if given is None or url_texts.length(given) <= url_texts.IN_ADDRESS:
        return given
    return {**given, text_store.parameter("a"): text_store.put(given.pop("a"))}


def _of_open_model(corpus: Store, one: SentenceRow) -> dict[str, str] | None:
    """With the model of the workbench, where that is the store's by its weights."""
    now = workbench.request()
    found = shared.opened(now.model, now.revision)
    if found is None or found.description.weights_sha256 != corpus.manifest["model"]["weights_sha256"]:
        return None
    named = {"model": now.model, "revision": now.revision}
    return {"a": one.text, **{name: value for name, value in named.items() if value}}
