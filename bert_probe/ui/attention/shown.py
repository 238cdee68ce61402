"""What is shown of attention: one value under one session key, which the address spells.

The browser reports what a reader chooses with a revision one higher than the last it knew. Whoever else
chooses (another page, going back) changes the address, and the next run finds there a view that is not the
one it holds: that is a new revision too. A run that is slower than the reader sends an older one, which the
browser does not follow.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import streamlit as st

from bert_probe.analyses.highlights.first_look import FirstLook, first_look
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import state
from bert_probe.views import view as views
from bert_probe.views.head_view import HeadReason
from bert_probe.views.view import Pins, Place, Series, VersionedView, View

KEY = "view"
"""Session key of the one `Shown`."""
REPORT = "shown"
"""Name under which components report."""


def now(trace: Trace) -> VersionedView:
    """What is to be shown of a trace; says what the address asks for in vain."""
    state.hold(KEY)  # its revision goes on where a reader goes back
    held: VersionedView | None = st.session_state.get(KEY)
    of = views.digest(trace.tokens)
    view, unknown = views.from_address(state.address(), trace, lambda: _usual(trace))
    for one in unknown:
        given, instead = state.plain(one.given), state.plain(one.shown)
        st.caption(f":orange[There is no {one.what} {given} here; showing {instead}.]")
    if held is not None and held.of != of and held.view.pins == view.pins:
        view = replace(view, pins=Pins())  # they were of the text before
    if held is None:
        # By the clock: a session that begins anew outranks what a browser still knows of the one before.
        shown = VersionedView(int(time.time()), of, view)
    elif (held.of, held.view) != (of, view):
        shown = VersionedView(held.revision + 1, of, view)
    else:
        shown = held
    _keep(shown)
    return shown


def report(component: str, trace: Trace) -> None:
    """Take over what a component's reader chose, before the script runs.

    At a tie the browser's counts: it is what the reader did last.
    """
    held: VersionedView | None = st.session_state.get(KEY)
    given: Any = st.session_state.get(component)
    told = views.read(given.get(REPORT) if isinstance(given, Mapping) else None, trace)
    if told is not None and (held is None or told.revision >= held.revision):
        _keep(told)


def look_at(layer: int, series: Series, asking: int | None = None) -> None:
    """Show this layer, from 1, and these heads, from 0, wherever attention is shown next.

    Args:
        asking: place among the words of the text of one whose attention is to be shown alone.
    """
    if asking is None:
        written = views.to_address(View(layer, series))
        _write({name: written[name] for name in ("layer", "head", "heads")})
        return
    _write(views.to_address(View(layer, series, pins=Pins("query", (asking,)), words=True)))


def first(trace: Trace) -> FirstLook:
    """What is shown when nobody has chosen layer or heads."""
    return shared_cache.answers.of(first_look, trace)


def reason(trace: Trace, view: View) -> HeadReason | None:
    """Why a head's weights are shown that nobody has chosen; None where somebody has, or none stands out."""
    if views.places_itself(state.address()) or view.measure != View.measure:
        return None
    look = first(trace)
    return None if look.head == "mean" else HeadReason(look.layer + 1, look.head, look.reason)


def _usual(trace: Trace) -> Place:
    look = first(trace)
    return look.layer + 1, "mean" if look.head == "mean" else (look.head,)


def _keep(shown: VersionedView) -> None:
    """Hold it, and spell it in the address; layer and heads only once somebody has chosen."""
    held: VersionedView | None = st.session_state.get(KEY)
    place = shown.view.layer, shown.view.series
    chosen = views.places_itself(state.address())
    if not chosen and held is not None and held.of == shown.of:
        chosen = place != (held.view.layer, held.view.series)
    st.session_state[KEY] = shown
    _write(views.to_address(shown.view, None if chosen else place))


def _write(parameters: Mapping[str, str | None]) -> None:
    for name, value in parameters.items():
        state.remember(name, value)
        # Controls of other pages have names of these: they begin with what the address says.
        st.session_state.pop(name, None)
