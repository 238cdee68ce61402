"""The head that the parts of the page are about."""

from __future__ import annotations

import streamlit as st

from bert_probe.core.field_types_of_lists import OneHead
from bert_probe.corpus.head_summary import resolved
from bert_probe.corpus.store import Store
from bert_probe.errors import SelectionError
from bert_probe.ui import state

KEY = "corpus_head"


def chosen_head(corpus: Store) -> tuple[int, int] | None:
    """The head of the address, from 0; None where it names none that is there."""
    written = state.address().get(KEY)
    if written is None:
        return None
    try:
        return resolved([OneHead().read(KEY, written, corpus.sizes)], corpus)[0]
    except SelectionError:
        st.caption(f":orange[There is no head {state.plain(written)} here.]")
        state.remember(KEY, None)
        return None


def remember(layer: int, head: int) -> None:
    """Choose a head, from 0."""
    state.remember(KEY, f"{layer + 1}.{head + 1}")
    st.session_state.pop(KEY, None)


def choose_head(corpus: Store) -> tuple[int, int]:
    """A list of all heads."""
    sizes = corpus.sizes
    options = {
        f"{layer + 1}.{head + 1}": f"Layer {layer + 1}, head {head + 1}"
        for layer in range(sizes.layers)
        for head in range(sizes.heads)
    }
    with st.container(width=170):
        chosen = state.choose(KEY, "Head", options, next(iter(options)), labelled=True)
    layer, head = chosen.split(".")
    return int(layer) - 1, int(head) - 1
