"""What is shown of a map: from the address to the browser, and back."""

from __future__ import annotations

from typing import cast

import streamlit as st

from bert_probe.analyses.vectors.token_map import TokenMapResult
from bert_probe.ui import state
from bert_probe.ui.components.layer_map import layer_map
from bert_probe.views.layer_map import COLOURS, MODES, MapSelection, MapView, digest, usual

_KEYS = {"mode": "map_view", "layer": "map_layer", "by": "map_colour"}
_START = "map start"
"""Session key of what is shown first, and of what: it stays while the same is drawn."""


def drawn(found: TokenMapResult) -> tuple[MapSelection, MapView]:
    """Draw it; what the reader chose, and what is shown."""
    of, asked = digest(found), _asked(found)
    if st.session_state.get(_START, ("",))[0] != of:
        st.session_state[_START] = (of, asked)
    chosen, shown = layer_map(found, key="layer_map", start=st.session_state[_START][1])
    now = shown or asked
    ordinary = usual(found)
    for name, key in _KEYS.items():
        value = cast(dict[str, object], now)[name]
        state.remember(key, None if value == cast(dict[str, object], ordinary)[name] else str(value))
    return chosen, now


def _asked(found: TokenMapResult) -> MapView:
    """What the address asks for, as far as it is there."""
    address, shown = state.address(), usual(found)
    mode, layer, by = (address.get(key) for key in _KEYS.values())
    layers = [str(one) for one in range(found.layers + 1)]
    for name, key, given, there in (
        ("mode", "view", mode, MODES),
        ("layer", "layer", layer, layers),
        ("by", "colour", by, COLOURS),
    ):
        if given is None:
            continue
        if given in there:
            shown = cast(MapView, {**shown, name: int(given) if name == "layer" else given})
        else:
            st.caption(f":orange[There is no {key} {state.plain(given)} here; showing the usual one.]")
    return shown
