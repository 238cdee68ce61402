"""The head view in a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bert_probe.analyses.heads import Heads, Labels
from bert_probe.model.trace import Trace
from bert_probe.views import head_view as views
from bert_probe.views.head_view import LABELLED, Picture
from bert_probe.views.payload import packed
from bert_probe.views.view import View
from bert_probe.web import store
from bert_probe.web.components.mounting import mounted


def head_view(data: bytes, *, key: str, on_change: Callable[[], None]) -> None:
    """Draw a `payload` or what is `announced`; ``on_change`` runs when a reader looks elsewhere."""
    _component(key=key, data=data, on_shown_change=on_change)


def payload(picture: Picture, layer: int, *, key: str, announced: Mapping[str, Any] | None = None) -> bytes:
    """See `views.head_view.payload`; what is asked for is kept for all sessions."""
    return views.payload(picture, layer, key=key, announced=announced, ask=store.answers.of)


def announced(said: Mapping[str, Any], *, key: str) -> bytes:
    """See `views.head_view.announced`; the browser fetches the numbers."""
    return packed({**said, "key": key}, {})


def labels(trace: Trace) -> Labels:
    """[layer][head], a word for what a head does; none of a text that is too long to measure all of them."""
    return store.answers.of(Heads().of, trace).labels if len(trace.tokens) <= LABELLED else ()


def page(picture: Picture, view: View) -> bytes:
    """See `views.head_view.page`; what is asked for is kept for all sessions."""
    return views.page(picture, view, ask=store.answers.of).html().encode()


_component = mounted("head_view", '<section class="head-view"></section>')
