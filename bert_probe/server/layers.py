"""Layers of a head view for the browser to fetch: another layer then costs no run of the page's script."""

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
    """Where one session's browser fetches the layers of a picture, under a name that nobody can guess.

    It leads somewhere as long as somebody holds it, its session's browser is connected, and the trace is
    there: it keeps none, but whoever looks at a picture does.

    Attributes:
        address: where the layers are, but for the layer's number from 1.
    """

    def __init__(self, picture: HeadViewData) -> None:
        """A link for the session whose script is running."""
        self._session, self._trace = sessions.current(), ref(picture.trace)
        self._rest = {
            field.name: getattr(picture, field.name) for field in fields(picture) if field.name != "trace"
        }
        name = secrets.token_urlsafe(24)
        self.address = f"/layers/{name}/"
        _links[name] = self

    @property
    def picture(self) -> HeadViewData | None:
        """What it leads to, or None if nothing any more."""
        from bert_probe.views.head_view import HeadViewData  # one was made, so it is there

        trace = self._trace()
        return (
            None
            if trace is None or not sessions.is_here(self._session)
            else HeadViewData(trace, **self._rest)
        )

    def leads_to(self, picture: HeadViewData) -> bool:
        """Whether the numbers of this picture are there."""
        own = self.picture
        return own is not None and _numbers(own) == _numbers(picture)


LABELS: Final = "labels"
"""In place of a layer's number: what each head does, which takes longer than the first picture may."""

_links: WeakValueDictionary[str, LayerLink] = WeakValueDictionary()


def _numbers(picture: HeadViewData) -> tuple[object, ...]:
    # A trace is the same as itself alone, however like another one it is.
    return picture.trace, picture.measure, picture.words, picture.residual


def labels(trace: Trace) -> Labels:
    """[layer][head], a word for what a head does; none of a text that is too long to measure all of them."""
    from bert_probe.analyses.attention.heads import Heads
    from bert_probe.views.head_view import LABELLED

    return shared_cache.answers.of(Heads().of, trace).labels if len(trace.tokens) <= LABELLED else ()


def _serve(request: Request) -> Response:
    link = _links.get(request.path_params["name"])
    picture = None if link is None else link.picture
    asked = request.path_params["layer"]
    known = [] if picture is None else [str(layer + 1) for layer in range(picture.trace.layers)]
    headers = {"Cache-Control": "no-store"}
    if picture is None and asked == LABELS:
        # They are asked for after the first paint, when the reader may have gone on: no error of anybody's.
        return Response(status_code=204, headers=headers)
    if picture is None or asked not in (*known, LABELS):
        return PlainTextResponse("There is no such layer, or no longer.", status_code=404, headers=headers)
    from bert_probe.views import head_view  # as above

    try:
        if asked == LABELS:
            return JSONResponse(labels(picture.trace), headers=headers)
    except ProbeError as error:
        return PlainTextResponse(str(error), status_code=409, headers=headers)
    layer = known.index(asked)
    if picture.what.takes_long(picture.trace, layer):
        # The browser then asks the page for this layer, and the page begins the work.
        return Response(status_code=204, headers=headers)
    try:
        data = head_view.payload(picture, layer, key="", ask=shared_cache.answers.of)
    except ProbeError as error:
        return PlainTextResponse(str(error), status_code=409, headers=headers)
    # Floats hardly shrink; Streamlit would spend more time on compressing them than it takes to send them.
    headers["Content-Encoding"] = "identity"
    return Response(data, media_type="application/octet-stream", headers=headers)


ROUTES: Final[list[BaseRoute]] = [Route("/layers/{name}/{layer}", _serve)]
