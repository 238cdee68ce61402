"""Plain-text error responses of the middleware."""

from __future__ import annotations

from starlette.responses import PlainTextResponse
from starlette.types import Scope


def text_response(text: str, status: int) -> PlainTextResponse:
    """Return a plain-text response that browsers do not cache."""
    return PlainTextResponse(f"{text}\n", status_code=status, headers={"Cache-Control": "no-store"})


def can_deny(scope: Scope) -> bool:
    """Return whether the server can answer a WebSocket handshake with an HTTP response."""
    return "websocket.http.response" in scope.get("extensions", {})
