"""Serve the scripts of the components, which are built in `js/`."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from bert_probe.views import built


def path(name: str) -> str:
    """Return the URL path of a component's script; it contains a hash of the content."""
    return f"/script/{built.file_name(name)}"


def _route(name: str) -> Route:
    async def serve(_request: Request) -> Response:
        # The path changes with the content, so the browser can cache it forever.
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(built.script(name), media_type="text/javascript", headers=headers)

    return Route(path(name), serve)


ROUTES: Final[list[BaseRoute]] = [_route(name) for name in built.COMPONENTS]
