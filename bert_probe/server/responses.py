"""Small responses: plain-text errors of the middleware, and component scripts, which are built in `js/`."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from bert_probe.views import built


def text_response(text: str, status: int) -> PlainTextResponse:
    """Return a plain-text response that browsers do not cache."""
    return PlainTextResponse(f"{text}\n", status_code=status, headers={"Cache-Control": "no-store"})


def can_deny(scope: Scope) -> bool:
    """Return whether the server can answer a WebSocket handshake with an HTTP response."""
    return "websocket.http.response" in scope.get("extensions", {})


def script_path(name: str) -> str:
    """Return the URL path of a component's script; the path contains a hash of the script."""
    return f"/script/{built.file_name(name)}"


def _script_route(name: str) -> Route:
    async def serve(_request: Request) -> Response:
        # The path changes with the content, so the browser can cache it forever.
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(built.script(name), media_type="text/javascript", headers=headers)

    return Route(script_path(name), serve)


SCRIPT_ROUTES: Final[list[BaseRoute]] = [_script_route(name) for name in built.COMPONENTS]
