"""Layers of a head view for the browser to fetch: another layer then costs no run of the page's script."""

from __future__ import annotations

import secrets
import threading
from typing import Final
from weakref import WeakKeyDictionary

from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from bert_probe.errors import ProbeError
from bert_probe.model.trace import Trace
from bert_probe.web import store
from bert_probe.web.components import head_view
from bert_probe.web.components.head_view import Picture

_names: WeakKeyDictionary[Trace, dict[tuple[object, ...], str]] = WeakKeyDictionary()
_pictures: LRUCache[str, Picture] = LRUCache(
    store.TRACE_BYTES, getsizeof=lambda picture: picture.trace.nbytes
)
_lock = threading.Lock()


def name_of(picture: Picture) -> str:
    """A name that nobody can guess, the same for the same trace and measure; the picture is kept under it."""
    key = (picture.measure, picture.words, picture.residual)
    with _lock:
        names = _names.setdefault(picture.trace, {})
        name = names.setdefault(key, secrets.token_urlsafe(24))
        if name not in _pictures and picture.trace.nbytes <= store.TRACE_BYTES:
            _pictures[name] = picture
        return name


def address(picture: Picture) -> str:
    """Where its layers are, but for the layer's number from 1."""
    return f"/layers/{name_of(picture)}/"


def _serve(request: Request) -> Response:
    with _lock:
        picture = _pictures.get(request.path_params["name"])
    layer: int = request.path_params["layer"]
    headers = {"Cache-Control": "no-store"}
    if picture is None or not 1 <= layer <= picture.trace.layers:
        return PlainTextResponse("There is no such layer, or no longer.", status_code=404, headers=headers)
    try:
        data = head_view.payload(picture, layer - 1, key="")
    except ProbeError as error:
        return PlainTextResponse(str(error), status_code=409, headers=headers)
    # Floats hardly shrink; Streamlit would spend more time on compressing them than it takes to send them.
    headers["Content-Encoding"] = "identity"
    return Response(data, media_type="application/octet-stream", headers=headers)


ROUTES: Final[list[BaseRoute]] = [Route("/layers/{name}/{layer:int}", _serve)]
