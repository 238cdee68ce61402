"""The layer map as a Streamlit component."""

from __future__ import annotations

from bert_probe.analyses.vectors.token_map import TokenMapResult
from bert_probe.ui.components import choices
from bert_probe.ui.components.mounting import mounted
from bert_probe.views.layer_map import MapSelection, MapView, digest, payload, read_selection, read_view


def layer_map(result: TokenMapResult, *, key: str, start: MapView) -> tuple[MapSelection, MapView | None]:
    """Draw the layer map; return the user's selection, and the current view if the user changed it.

    `start` is the initial view. Keep it constant for a result, because a change sends all points again.
    """
    of = digest(result)
    data = payload(result, key=key, start=start, began=choices.start(key))
    values = _component(key=key, data=data, on_selection_change=_ignore, on_display_change=_ignore)
    return read_selection(values, of, len(result.marks)), read_view(values, of, result.layers)


def _ignore() -> None:
    """Do nothing. Streamlit returns a state value only if a callback is registered for it."""


_component = mounted("layer_map")
