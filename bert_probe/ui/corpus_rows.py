"""Elements of the Corpus page: a list of rows, a row with links to other pages, and the selected head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd
import streamlit as st

from bert_probe.core import snippets
from bert_probe.core.field_types_of_lists import OneHead
from bert_probe.core.provenance import InputRecord
from bert_probe.corpus.heads import resolved
from bert_probe.corpus.store import SentenceRow, Store
from bert_probe.errors import CheckpointError, SelectionError
from bert_probe.runtime import shared_cache
from bert_probe.server import paths, sessions
from bert_probe.ui import blocks, state, url_texts, workbench

_HEAD: Final = "corpus_head"
_MAX_CHARACTERS: Final = 2_000
"""Maximum number of characters of a row's text that the page shows."""

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
"""Pages that can show a row's text, in the order of their links."""


def head_of_url(corpus: Store) -> tuple[int, int] | None:
    """Return the layer and head in the URL, counted from 0, or None if missing or invalid."""
    text = state.url_parameters().get(_HEAD)
    if text is None:
        return None
    try:
        return resolved([OneHead().read(_HEAD, text, corpus.sizes)], corpus)[0]
    except SelectionError:
        st.caption(f":orange[The model of this store has no head {state.escape(text)}.]")
        state.remember(_HEAD, None)
        return None


def select_head(layer: int, head: int) -> None:
    """Select a head in the URL. Layer and head count from 0."""
    state.remember(_HEAD, f"{layer + 1}.{head + 1}")
    st.session_state.pop(_HEAD, None)


def choose_head(corpus: Store) -> tuple[int, int]:
    """Draw a select box for the head; return the selected layer and head, counted from 0."""
    sizes = corpus.sizes
    options = {
        f"{layer + 1}.{head + 1}": f"Layer {layer + 1}, head {head + 1}"
        for layer in range(sizes.layers)
        for head in range(sizes.heads)
    }
    with st.container(width=170):
        value = state.selectbox(_HEAD, "Head", options, next(iter(options)), show_label=True)
    layer, head = value.split(".")
    return int(layer) - 1, int(head) - 1


def choose_row(frame: pd.DataFrame, key: str, alt: str, numbers: Sequence[str] = ()) -> int | None:
    """Draw a table of rows and return the index of the selected row, or None if there are no rows.

    Args:
        frame: the table.
        key: widget key. It should depend on the rows, so that a new table starts with its first row selected.
        alt: description of the table for screen readers.
        numbers: columns that are formatted with four decimals.
    """
    if not len(frame):
        return None
    config: dict[str, Any] = {name: st.column_config.NumberColumn(format="%.4f") for name in numbers}
    config |= {"text": st.column_config.TextColumn(width="large")}
    event: Any = blocks.table(
        frame,
        alt,
        max_height=390,
        key=key,
        on_select="rerun",
        selection_mode="single-row",
        column_config=config,
    )
    return next(iter(blocks.selected_rows(event, frame)), 0)


def detail(
    corpus: Store, row: SentenceRow, parameters: Mapping[str, Mapping[str, str]], note: str = ""
) -> None:
    """Draw the text of a row, with links to other pages.

    Args:
        corpus: the store that contains the row.
        row: the row, with its text, file and line number.
        parameters: additional URL parameters of each page's link. Pages not in `_PAGES` are appended.
        note: Markdown text about the row.
    """
    with st.container(border=True, key="corpus_row"):
        position = f"Row {row.row:,} · {state.escape(row.file)}, line {row.line:,}"
        st.caption(" · ".join(filter(None, [position, note])))
        st.markdown(
            state.escape(row.text, _MAX_CHARACTERS) + (" …" if len(row.text) > _MAX_CHARACTERS else "")
        )
        row_parameters = url_of(corpus, row)
        if row_parameters is None:
            st.caption(
                "The model of this store was only in memory. To see this row on other pages, open or train "
                "the same model again."
            )
            return
        with st.container(horizontal=True, gap="small"):
            for page in dict.fromkeys((*_PAGES, *parameters)):
                url = {**row_parameters, **parameters.get(page, {})}
                if url_texts.length(url) <= url_texts.MAX_LINK:
                    st.page_link(paths.page_script(page), label=page.title(), query_params=url)


def attention_parameters(corpus: Store, head: tuple[int, int]) -> dict[str, str]:
    """Return URL parameters that show a head on the Attention page.

    The page shows whole words if the store contains words, otherwise tokens.

    Args:
        corpus: the store.
        head: layer and head, counted from 0.
    """
    parameters = {"layer": str(head[0] + 1), "head": str(head[1] + 1)}
    return parameters | ({"words": "1"} if corpus.question.words else {})


def url_of(corpus: Store, row: SentenceRow) -> dict[str, str] | None:
    """Return URL parameters that open a row with the store's model, or None if the model is unavailable."""
    text = {"text": row.text, "pair": None, "tokens_dropped": row.dropped}
    record = InputRecord(corpus.manifest["model"], (text,))
    parameters = snippets.url_parameters(record) or _url_with_open_model(corpus, row)
    if parameters is None or url_texts.length(parameters) <= url_texts.MAX_URL:
        return parameters
    return {**parameters, sessions.text_parameter("a"): sessions.store_text(parameters.pop("a"))}


def _url_with_open_model(corpus: Store, row: SentenceRow) -> dict[str, str] | None:
    """Return URL parameters that open a row with the app's current model.

    Return None if the weights or the tokenizer of this model differ from those of the store's model.
    """
    now = workbench.request()
    checkpoint = shared_cache.cached_checkpoint(now.model, now.revision, now.dtype)
    if checkpoint is None:
        return None
    try:
        corpus.check(checkpoint)
    except CheckpointError:
        return None
    model = {"model": now.model, "revision": now.revision}
    return {"a": row.text, **{name: value for name, value in model.items() if value}}
