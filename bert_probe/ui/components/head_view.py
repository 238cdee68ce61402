"""The head view as a Streamlit component."""

from __future__ import annotations

from collections.abc import Callable

from bert_probe.ui.components.mounting import mounted


def head_view(data: bytes, *, key: str, on_change: Callable[[], None]) -> None:
    """Draw a head view from `views.head_view.payload`; call ``on_change`` when the user changes the view."""
    _component(key=key, data=data, on_selection_change=on_change)


_component = mounted("head_view")
