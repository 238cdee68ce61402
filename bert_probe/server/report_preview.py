"""Serve previews of reports to frames that can reach neither the app's page nor the network."""

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
        # An origin of its own; its buttons save files.
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
    """Where one session's browser sees a report, under a name that nobody can guess.

    It leads somewhere as long as somebody holds it and its session's browser is connected.

    Attributes:
        page: the report.
        address: of the frame.
    """

    def __init__(self, page: bytes) -> None:
        """A frame for the session whose script is running."""
        self.page, self._session = page, sessions.current()
        name = secrets.token_urlsafe(24)
        self.address = f"/report-preview/{name}"
        _frames[name] = self

    @property
    def is_there(self) -> bool:
        """Whether its session's browser is."""
        return sessions.is_here(self._session)


_frames: WeakValueDictionary[str, Preview] = WeakValueDictionary()


def _serve(request: Request) -> Response:
    found = _frames.get(request.path_params["name"])
    if found is None or not found.is_there:
        return PlainTextResponse(
            "This preview is no longer kept. Make the report again.",
            status_code=404,
            headers={"Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'self'"},
        )
    return HTMLResponse(found.page, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})


ROUTES: Final[list[BaseRoute]] = [Route("/report-preview/{name}", _serve, methods=["GET"])]
