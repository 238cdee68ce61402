"""The second model of the page, B: the field in which it is named, opening it, and exchanging it with A."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import streamlit as st

from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.sources import BUILT_IN
from bert_probe.server import callbacks, paths
from bert_probe.ui import consent, state, workbench
from bert_probe.ui.attention import shown

_MODEL, _REVISION = "other", "other_revision"
"""Of the address and of the fields."""
_NAMED = "second model named"
"""Session key of what the fields held in the last run."""
_LEAVING = "leaving for attention"
"""Session key that a button sets which leads to another page, where A is by then what was B."""


class SecondModel(NamedTuple):
    """What somebody calls B."""

    model: str
    revision: str


def field(exchange_too: bool = True) -> SecondModel | None:
    """Draw the fields; None while no second model is named.

    Args:
        exchange_too: and a button by which it becomes the model of the workbench.
    """
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=420):
            state.words(_MODEL, "Second model, B", "Folder or hub id", on_change=_choose)
        with st.container(width=200):
            state.words(_REVISION, "Revision of B", "Newest", on_change=_choose)
        named = st.session_state[_NAMED] = _named()
        if named and exchange_too:
            st.button("Exchange A and B", on_click=exchange)
    return named


def _named() -> SecondModel | None:
    """Return what the fields hold."""
    model, revision = (str(st.session_state[key]).strip() for key in (_MODEL, _REVISION))
    return SecondModel("" if model == BUILT_IN else model, revision) if model else None


def _choose() -> None:
    """Remember that the reader, and not a link, named B."""
    named = _named()
    if named is not None:
        consent.choose(named, st.session_state.get(_NAMED) or SecondModel("", ""))


def _cancel() -> None:
    st.session_state[_MODEL] = st.session_state[_REVISION] = ""


def missing(a: Checkpoint) -> None:
    """What to do where no second model is named."""
    with st.container(border=True, key="no_second"):
        st.header("A second model is needed", anchor=False)
        st.markdown(
            f"Model A is **{state.plain(a.description.name)}**, of the workbench. Name another one above: a "
            "folder on this machine, or a hub id. Most can be said where B was made of A by training it "
            "further; of models of other sizes, what has a counterpart is compared. Where B has another "
            "tokenizer, it is told which of its heads attend as which of A's."
        )
        st.button("Compare A with itself", type="primary", on_click=_itself, args=(a.description.name,))
        st.caption("Of a model and itself nothing differs: every number is exactly 0.")


def opened(named: SecondModel) -> Checkpoint | None:
    """B, opened with its progress shown; None where it cannot be, which is said."""
    try:
        return workbench.open_model(
            named.model,
            named.revision,
            "opening the second model",
            "It was named as the second model by the address of this page.",
            ("Cancel", _cancel),
        )
    except ProbeError as error:
        refused(error, "The second model cannot be opened")
        return None


def refused(error: ProbeError, title: str) -> None:
    """Why there is nothing to compare."""
    with st.container(border=True, key="refusal"):
        st.header(title, anchor=False)
        st.text(str(error))
        st.caption("Name another second model above. Everything you typed and chose is still there.")


def exchange() -> None:
    """What is B becomes the model of the workbench, and the other way round."""
    now = workbench.request()
    named = _named() or SecondModel("", "")
    workbench.ask(replace(now, model=named.model, revision=named.revision))
    st.session_state[_MODEL], st.session_state[_REVISION] = now.model or BUILT_IN, now.revision


def leave() -> None:
    """Go to the page that a button led to."""
    with callbacks.to_the_end():
        if st.session_state.pop(_LEAVING, False):
            st.switch_page(paths.page("attention"))


def lead_to(layer: int, head: int) -> None:
    """A head, from 1, with buttons that show it in either model."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(f"Show head {layer}.{head}", width="content")
        st.button("in A", on_click=_look, args=(layer, head, False))
        st.button("in B", on_click=_look, args=(layer, head, True))


def lead_to_both(a: tuple[int, int], b: tuple[int, int]) -> None:
    """Layer and head, from 1, of a head of A and of one of B, with buttons that show them."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button(f"Show head {a[0]}.{a[1]} in A", on_click=_look, args=(*a, False))
        st.button(f"Show head {b[0]}.{b[1]} in B", on_click=_look, args=(*b, True))


def _look(layer: int, head: int, other: bool) -> None:
    shown.look_at(layer, (head - 1,))
    if other:
        exchange()
    st.session_state[_LEAVING] = True


def _itself(name: str) -> None:
    st.session_state[_MODEL], st.session_state[_REVISION] = name, workbench.request().revision
