"""What our own middleware answers in place of the app: a sentence, to a request or to a connection."""

from __future__ import annotations

from starlette.responses import PlainTextResponse
from starlette.types import Scope


def sentence(text: str, status: int) -> PlainTextResponse:
    """A sentence as plain text, which no browser keeps: the same request may be answered another time."""
    return PlainTextResponse(f"{text}\n", status_code=status, headers={"Cache-Control": "no-store"})


def may_be_answered(scope: Scope) -> bool:
    """Whether a connection (websocket) that is not begun can be given a response, with headers of ours."""
    return "websocket.http.response" in scope.get("extensions", {})
