"""Serve individual layers of a head view, so that a change of layer does not rerun the page's script."""

from __future__ import annotations

import secrets
from dataclasses import fields
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary, ref

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from bert_probe.errors import ProbeError
from bert_probe.runtime import shared_cache
from bert_probe.server import sessions

if TYPE_CHECKING:
    from bert_probe.analyses.attention.heads import Labels
    from bert_probe.model.trace import Trace
    from bert_probe.views.head_view import HeadViewData


class LayerLink:
    """An unguessable URL of the layers of a head view, for the current session.

    The URL is valid as long as this object is referenced, the session's browser is connected, and the trace
    is alive; only a weak reference to the trace is stored.

    Attributes:
        address: URL path prefix; the layer's number, counted from 1, follows.
    """

    def __init__(self, data: HeadViewData) -> None:
        self._session, self._trace = sessions.current(), ref(data.trace)
        self._options = {
            field.name: getattr(data, field.name) for field in fields(data) if field.name != "trace"
        }
        name = secrets.token_urlsafe(24)
        self.address = f"/layers/{name}/"
        _links[name] = self

    @property
    def data(self) -> HeadViewData | None:
        """The head view, or None if the link has expired."""
        from bert_probe.views.head_view import HeadViewData  # the caller has already imported it

        trace = self._trace()
        return (
            None
            if trace is None or not sessions.is_connected(self._session)
            else HeadViewData(trace, **self._options)
        )

    def serves(self, data: HeadViewData) -> bool:
        """Return whether this link serves the weights of a head view."""
        own = self.data
        return own is not None and _source(own) == _source(data)


LABELS: Final = "labels"
"""Path segment that replaces the layer number in a request for the head labels, which are too slow for the
first paint.
"""

_links: WeakValueDictionary[str, LayerLink] = WeakValueDictionary()


def _source(data: HeadViewData) -> tuple[object, ...]:
    """Return everything that determines the weights of a head view. Traces are compared by identity."""
    return data.trace, data.measure, data.words, data.residual


def labels(trace: Trace) -> Labels:
    """Return one-word labels for the heads of each layer; () if the text is too long to measure heads."""
    from bert_probe.views.head_view import compute_labels

    return compute_labels(trace, shared_cache.answers.of)


def _serve(request: Request) -> Response:
    link = _links.get(request.path_params["name"])
    data = None if link is None else link.data
    name = request.path_params["layer"]
    names = [] if data is None else [str(layer + 1) for layer in range(data.trace.layers)]
    headers = {"Cache-Control": "no-store"}
    if data is None and name == LABELS:
        # The response is not an error, because the browser requests labels after the first paint.
        # The user may have left the page by then.
        return Response(status_code=204, headers=headers)
    if data is None or name not in (*names, LABELS):
        return PlainTextResponse(
            "This layer does not exist or has expired. Reload the page.", status_code=404, headers=headers
        )
    from bert_probe.views import head_view  # `LayerLink.data` has already imported it

    try:
        if name == LABELS:
            return JSONResponse(labels(data.trace), headers=headers)
    except ProbeError as error:
        return PlainTextResponse(str(error), status_code=409, headers=headers)
    layer = names.index(name)
    if data.what.takes_long(data.trace, layer):
        # After a 204, the browser requests this layer from the page's script, which starts a job.
        return Response(status_code=204, headers=headers)
    try:
        payload = head_view.payload(data, layer, key="", ask=shared_cache.answers.of)
    except ProbeError as error:
        return PlainTextResponse(str(error), status_code=409, headers=headers)
    # Floats do not compress well: Streamlit's gzip would take longer than it saves.
    headers["Content-Encoding"] = "identity"
    return Response(payload, media_type="application/octet-stream", headers=headers)


ROUTES: Final[list[BaseRoute]] = [Route("/layers/{name}/{layer}", _serve)]
