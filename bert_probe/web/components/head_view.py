"""The head view in a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bert_probe.views import head_view as views
from bert_probe.views.head_view import Picture, View
from bert_probe.web import store
from bert_probe.web.components.mounting import mounted


def head_view(data: bytes, *, key: str, on_change: Callable[[], None]) -> None:
    """Draw a `payload`; ``on_change`` runs when a reader looks elsewhere, see `views.head_view.reported`."""
    _component(key=key, data=data, on_view_change=on_change)


def payload(
    picture: Picture, layer: int, *, key: str, wish: Mapping[str, Any] | None = None, source: str = ""
) -> bytes:
    """See `views.head_view.payload`; what is asked for is kept for all sessions."""
    return views.payload(picture, layer, key=key, wish=wish, source=source, ask=store.answers.of)


def page(picture: Picture, view: View) -> bytes:
    """See `views.head_view.page`; what is asked for is kept for all sessions."""
    return views.page(picture, view, ask=store.answers.of).html().encode()


_component = mounted("head_view", '<section class="head-view"></section>')
