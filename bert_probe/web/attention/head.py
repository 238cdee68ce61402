"""The head view: lines from token to token. What is shown is kept in the session and in the address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import streamlit as st

from bert_probe.analyses.attention import Head
from bert_probe.analyses.heads import Heads
from bert_probe.errors import ProbeError
from bert_probe.model.trace import Trace
from bert_probe.views import head_view as views
from bert_probe.views.head_view import LABELLED, Options, Picture, Pins, Series, View
from bert_probe.views.page import CAVEAT, caption_of
from bert_probe.web import blocks, state, store
from bert_probe.web.attention import shared
from bert_probe.web.attention.shared import Drawn
from bert_probe.web.components import head_view
from bert_probe.web.export import export
from bert_probe.web.layers import Link

KEY = "head_view"
_TOLD = "head_view_told"
"""Session key: layer and heads that the browser knows to be shown."""
_KEPT = "head_view_kept"
"""Session key: options and pins as last reported."""
_FIRST = "head_view_first"
"""Session key: options and pins that the address held when the session began, and the text they are of."""
_SENT = "head_view_sent"
"""Session key: what was sent last, a `_Sent`."""


@dataclass(frozen=True)
class _Sent:
    """The layer and the wish that the browser was sent.

    They stay the same while the reader's own choices change, for which the browser needs nothing from here;
    another text or measure, or layer or heads chosen elsewhere, are sent anew.

    Attributes:
        link: where the picture's layers are.
        turn: counts how often the reader was told of a choice made elsewhere.
        view: what was to be shown.
    """

    link: Link
    turn: int
    view: View


def part(drawn: Drawn) -> None:
    """Draw the view and what belongs to it."""
    trace = drawn.trace
    labels = store.answers.of(Heads().of, trace).labels if len(trace.tokens) <= LABELLED else ()
    picture = Picture(
        trace=trace,
        measure=drawn.measure,
        words=drawn.words,
        residual=drawn.residual,
        labels=labels,
        caption=caption_of(trace),
    )
    _draw(drawn, picture)
    blocks.caveat(CAVEAT)


@st.fragment
def _draw(drawn: Drawn, picture: Picture) -> None:
    """The component and its exports; a choice in it runs this alone."""
    try:
        view = _shown(picture.trace)
        if drawn.what.takes_long(drawn.trace, view.layer - 1):
            # The picture brings its own control of the layer, but it is not there yet.
            view = replace(view, layer=shared.layer_slider(drawn.trace))
        if not shared.computed(drawn, [view.layer - 1]):
            return
        sent = _sent(picture, view)
        wish = views.wished(sent.view, sent.turn)
        data = head_view.payload(picture, sent.view.layer - 1, key=KEY, wish=wish, source=sent.link.address)
        head_view.head_view(data, key=KEY, on_change=lambda: _changed(picture))
        kept = cast(View, st.session_state[_KEPT])
        _exports(drawn, picture, replace(kept, layer=view.layer, series=view.series))
    except ProbeError as error:
        blocks.refusal(error)
    state.publish()


def _exports(drawn: Drawn, picture: Picture, view: View) -> None:
    """The numbers of the heads that are shown, whole rows of them, and the view as a page of its own."""
    layer, series = view.layer - 1, view.series
    heads: list[Head] = ["mean"] if series == "mean" else [*series]
    name = ".".join("mean" if head == "mean" else str(head + 1) for head in heads)
    single = len(heads) == 1
    asked = drawn.one(layer, heads[0]) if single else drawn.all([layer], heads)
    export(
        asked.of(drawn.trace),
        f"attention-layer{view.layer}-head{name}",
        [
            (
                "Interactive page, HTML",
                "head-view.html",
                lambda _: head_view.page(picture, view),
            )
        ],
        "All weights of the heads shown, at full precision, whatever the picture hides.",
        ready=lambda: shared.computed(drawn, range(drawn.trace.layers), start=False),
    )


def choose_heads(heads: Series) -> None:
    """Show these heads, from 0, from now on, and one of them or the mean in all other views."""
    several = None
    if heads == "mean":
        st.session_state["head"] = "mean"
    elif len(heads) == 1:
        st.session_state["head"] = heads[0] + 1
    else:
        several = ".".join(str(head + 1) for head in heads)
    st.session_state["heads"] = several
    state.remember("heads", several)


def _shown(trace: Trace) -> View:
    state.prepare("layer", range(1, trace.layers + 1), trace.layers)
    state.prepare("head", ["mean", *range(1, trace.heads + 1)], "mean")
    single = st.session_state["head"]
    several = st.session_state.get("heads", state.address().get("heads"))
    known = {str(head + 1): head for head in range(trace.heads)}
    heads = tuple(dict.fromkeys(known[head] for head in (several or "").split(".") if head in known))
    series: Series = heads if len(heads) > 1 else "mean" if single == "mean" else (int(single) - 1,)
    return View(st.session_state["layer"], series)


def _sent(picture: Picture, view: View) -> _Sent:
    """What the browser is sent: as before, unless it has to be told something."""
    if _FIRST not in st.session_state:
        st.session_state[_KEPT] = from_address(state.address(), len(picture.units))
        st.session_state[_FIRST] = picture.digest, st.session_state[_KEPT]
    chosen = view.layer, view.series
    before: _Sent | None = st.session_state.get(_SENT)
    link = before.link if before is not None and before.link.leads_to(picture) else Link(picture)
    elsewhere = st.session_state.get(_TOLD, chosen) != chosen
    if before is None or before.link is not link or elsewhere:
        digest, first = st.session_state[_FIRST]
        pins = first.pins if digest == picture.digest else Pins()
        turn = 0 if before is None else before.turn + elsewhere
        before = _Sent(link, turn, replace(view, options=first.options, pins=pins))
        st.session_state[_SENT] = before
    st.session_state[_TOLD] = chosen
    return before


def _changed(picture: Picture) -> None:
    """Take over what the browser reports, before the script runs."""
    held: Any = st.session_state.get(KEY)
    view = views.reported(held, picture)
    if view is None:
        return
    st.session_state["layer"] = view.layer
    choose_heads(view.series)
    # A layer that the browser could not fetch is sent as if it had been chosen elsewhere.
    st.session_state[_TOLD] = None if held["view"].get("lost") else (view.layer, view.series)
    st.session_state[_KEPT] = view
    for name, value in to_address(view).items():
        state.remember(name, value)


def to_address(view: View) -> dict[str, str | None]:
    """Options and pins as parameters; what is as usual is left out."""
    options, pins = view.options, ".".join(map(str, view.pins.units))
    return {
        "layout": None if options.layout == Options.layout else options.layout,
        "direction": None if options.direction == Options.direction else options.direction,
        "hide": None if options.specials else "specials",
        "fit": "1" if options.fit else None,
        "lines": None if options.step is None else str(options.step),
        "pins": f"{view.pins.side}.{pins}" if pins else None,
    }


def from_address(given: Mapping[str, str], count: int) -> View:
    """Options and pins of an address; what is none is left out."""
    step = given.get("lines")
    options = {
        "layout": given.get("layout"),
        "direction": given.get("direction"),
        "specials": given.get("hide") != "specials",
        "fit": given.get("fit") == "1",
        "step": next((known for known in views.STEPS if str(known) == step), None),
    }
    side, *units = given.get("pins", "query").split(".")
    known = {str(unit): unit for unit in range(count)}
    pins = {"side": side, "units": [known[unit] for unit in units if unit in known]}
    return View(1, "mean", views.options_from(options), views.pins_from(pins, count))
