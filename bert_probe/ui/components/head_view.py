"""The head view in a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bert_probe.runtime import shared_cache
from bert_probe.ui.components.mounting import mounted
from bert_probe.views import head_view as views
from bert_probe.views.head_view import HeadViewData
from bert_probe.views.payload import packed
from bert_probe.views.view import View


def head_view(data: bytes, *, key: str, on_change: Callable[[], None]) -> None:
    """Draw a `payload` or what is `announced`; ``on_change`` runs when a reader looks elsewhere."""
    _component(key=key, data=data, on_shown_change=on_change)


def payload(
    picture: HeadViewData, layer: int, *, key: str, announced: Mapping[str, Any] | None = None
) -> bytes:
    """See `views.head_view.payload`; what is asked for is kept for all sessions."""
    return views.payload(picture, layer, key=key, announced=announced, ask=shared_cache.answers.of)


def announced(said: Mapping[str, Any], *, key: str) -> bytes:
    """See `views.head_view.announced`; the browser fetches the numbers."""
    return packed({**said, "key": key}, {})


def page(picture: HeadViewData, view: View) -> bytes:
    """See `views.head_view.page`; what is asked for is kept for all sessions."""
    return views.page(picture, view, ask=shared_cache.answers.of).html().encode()


_component = mounted("head_view", '<section class="head-view"></section>')
