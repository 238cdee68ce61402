"""The toolbar as a Streamlit component."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bert_probe.ui.components.mounting import mounted


def toolbar(data: Mapping[str, Any], *, key: str, on_change: Callable[[], None]) -> None:
    """Draw a toolbar from `views.head_view.initial_state`; call ``on_change`` when the selection changes."""
    _component(key=key, data=data, on_selection_change=on_change)


_component = mounted("toolbar")
