"""The head view as a Streamlit component."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bert_probe.runtime import shared_cache
from bert_probe.ui.components.mounting import mounted
from bert_probe.views import head_view as views
from bert_probe.views.head_view import HeadViewData
from bert_probe.views.payload import pack


def head_view(data: bytes, *, key: str, on_change: Callable[[], None]) -> None:
    """Draw a head view from `payload` or `announced`; call ``on_change`` when the user changes the view."""
    _component(key=key, data=data, on_selection_change=on_change)


def payload(data: HeadViewData, layer: int, *, key: str, announced: Mapping[str, Any] | None = None) -> bytes:
    """Return `views.head_view.payload` for a layer, using attention that is cached for all sessions."""
    return views.payload(data, layer, key=key, announced=announced, ask=shared_cache.answers.of)


def announced(selection: Mapping[str, Any], *, key: str) -> bytes:
    """Serialize a head view's initial state without attention; see `views.head_view.announced`."""
    return pack({**selection, "key": key}, {})


_component = mounted("head_view")
