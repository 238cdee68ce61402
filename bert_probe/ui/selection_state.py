"""The current attention selection: one `VersionedSelection` in the session, mirrored in the URL.

The browser sends each selection with a new, higher revision. Another page, or navigating back, changes only
the URL; the next run detects that the URL and the session differ, and increases the revision. If the user
makes a selection while a run is in progress, that run sends an older revision, which the browser ignores.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import streamlit as st

from bert_probe.analyses.attention.heads import FirstLook
from bert_probe.analyses.attention.heads import first_look as find_first_look
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import state
from bert_probe.views import selection as views
from bert_probe.views.head_view import HeadReason
from bert_probe.views.selection import LayerAndHeads, Pins, Selection, Series, VersionedSelection

KEY = "view"
"""Session key of the `VersionedSelection`."""
REPORT = "selection"
"""Name of the state value in which components report selections."""


def current(trace: Trace) -> VersionedSelection:
    """Return the current selection for a trace, and draw a caption for each invalid URL parameter."""
    state.preserve(KEY)  # Keep the last revision when the user navigates back.
    last: VersionedSelection | None = st.session_state.get(KEY)
    text = views.digest(trace.tokens)
    selection, unknown = views.from_address(state.url_parameters(), trace, lambda: _initial_heads(trace))
    for choice in unknown:
        value, replacement = state.escape(choice.value), state.escape(choice.replacement)
        st.caption(f":orange[There is no {choice.parameter} {value}; showing {replacement} instead.]")
    if last is not None and last.of != text and last.value.pins == selection.pins:
        selection = replace(selection, pins=Pins())  # remove the pins, which belong to the previous text
    if last is None:
        # The clock ensures that this revision exceeds those that the browser has from an earlier session.
        versioned = VersionedSelection(int(time.time()), text, selection)
    elif (last.of, last.value) != (text, selection):
        versioned = VersionedSelection(last.revision + 1, text, selection)
    else:
        versioned = last
    _store(versioned)
    return versioned


def receive_report(component: str, trace: Trace) -> None:
    """Store the selection that a component reported. Streamlit runs this callback before the script.

    If the revisions are equal, the report wins, because it is the user's latest action.
    """
    last: VersionedSelection | None = st.session_state.get(KEY)
    values: Any = st.session_state.get(component)
    report = views.selection_from_json(values.get(REPORT) if isinstance(values, Mapping) else None, trace)
    if report is not None and (last is None or report.revision >= last.revision):
        _store(report)


def show_head(layer: int, series: Series, query: int | None = None) -> None:
    """Select a layer and heads in the attention views. Layers count from 1, and heads from 0.

    Args:
        query: index of a word to pin, so that only its attention is shown; None for all words. The view then
            shows words, and its other options have their defaults.
    """
    if query is None:
        parameters = views.to_address(Selection(layer, series))
        _set_parameters({name: parameters[name] for name in ("layer", "head", "heads")})
        return
    _set_parameters(views.to_address(Selection(layer, series, pins=Pins("query", (query,)), words=True)))


def first_look(trace: Trace) -> FirstLook:
    """Return the layer and the head that are initially selected."""
    return shared_cache.answers.of(find_first_look, trace)


def reason(trace: Trace, selection: Selection) -> HeadReason | None:
    """Return why the initial head was selected.

    Return None if the user selected a head, or if all heads are averaged because no head is notable.
    """
    if views.has_layer_or_heads(state.url_parameters()) or selection.measure != Selection.measure:
        return None
    look = first_look(trace)
    return None if look.head == "mean" else HeadReason(look.layer + 1, look.head, look.reason)


def _initial_heads(trace: Trace) -> LayerAndHeads:
    look = first_look(trace)
    return look.layer + 1, "mean" if look.head == "mean" else (look.head,)


def _store(versioned: VersionedSelection) -> None:
    """Store a selection in the session and the URL. The URL omits the layer and heads if they are default."""
    last: VersionedSelection | None = st.session_state.get(KEY)
    layer_and_heads = versioned.value.layer, versioned.value.series
    is_chosen = views.has_layer_or_heads(state.url_parameters())
    if not is_chosen and last is not None and last.of == versioned.of:
        is_chosen = layer_and_heads != (last.value.layer, last.value.series)
    st.session_state[KEY] = versioned
    _set_parameters(views.to_address(versioned.value, None if is_chosen else layer_and_heads))


def _set_parameters(parameters: Mapping[str, str | None]) -> None:
    for name, value in parameters.items():
        state.remember(name, value)
        # Reset widgets with the same key on other pages, so that they take their values from the URL.
        st.session_state.pop(name, None)
