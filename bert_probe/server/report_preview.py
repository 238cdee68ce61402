"""Serve previews of reports to sandboxed frames that can reach neither the app nor the network."""

from __future__ import annotations

import secrets
from typing import Final
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from bert_probe.server import sessions

POLICY: Final = "; ".join(
    (
        # The frame has an opaque origin, but its buttons may save files.
        "sandbox allow-scripts allow-downloads",
        "default-src 'none'",
        "script-src 'unsafe-inline'",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "frame-ancestors 'self'",
        "base-uri 'none'",
        "form-action 'none'",
    )
)


class Preview:
    """An unguessable URL of a report, for the current session.

    The URL is valid as long as this object is referenced and the session's browser is connected.

    Attributes:
        page: The report as HTML.
        address: Path of the URL.
    """

    def __init__(self, page: bytes) -> None:
        self.page, self._session = page, sessions.current()
        name = secrets.token_urlsafe(24)
        self.address = f"/report-preview/{name}"
        _previews[name] = self

    @property
    def is_there(self) -> bool:
        """Whether the session's browser is still connected."""
        return sessions.is_connected(self._session)


_previews: WeakValueDictionary[str, Preview] = WeakValueDictionary()


def _serve(request: Request) -> Response:
    preview = _previews.get(request.path_params["name"])
    if preview is None or not preview.is_there:
        return PlainTextResponse(
            "This preview has expired. Create the report again.",
            status_code=404,
            headers={"Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'self'"},
        )
    return HTMLResponse(
        preview.page, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}
    )


ROUTES: Final[list[BaseRoute]] = [Route("/report-preview/{name}", _serve, methods=["GET"])]
