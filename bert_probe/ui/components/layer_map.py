"""The map of layers in a page."""

from __future__ import annotations

from bert_probe.analyses.vectors.token_map import TokenMapResult
from bert_probe.ui.components import choices
from bert_probe.ui.components.mounting import mounted
from bert_probe.views.layer_map import MapSelection, MapView, chosen, digest, payload, reported


def layer_map(found: TokenMapResult, *, key: str, start: MapView) -> tuple[MapSelection, MapView | None]:
    """Draw it, and return what the reader chose and what is shown, if that was changed.

    `start` is shown first. It should stay while the same is drawn: another one sends all points anew.
    """
    of = digest(found)
    data = payload(found, key=key, start=start, began=choices.start(key))
    state = _component(key=key, data=data, on_chosen_change=_ignore, on_shown_change=_ignore)
    return chosen(state, of, len(found.marks)), reported(state, of, found.layers)


def _ignore() -> None:
    """Streamlit lists a state value in the result only if it has a callback."""


_component = mounted("layer_map", '<section class="layer-map"></section>')
