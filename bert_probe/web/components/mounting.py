"""How a page gets what `js/` builds: the style from Streamlit, the module by an address of its own."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from streamlit.components.v2 import component

from bert_probe.views import built


def mounted(name: str, html: str) -> Any:
    """A component of Streamlit that draws one of the `built.COMPONENTS` in an element.

    The browser fetches the module once: Streamlit would send it again with all that is drawn anew.
    """
    address = f"/script/{built.file_name(name)}"
    return component(
        f"bert_probe.{name}",
        html=html,
        # In two lines each, as Streamlit takes a single one for the path of a file.
        css=built.style(name),
        js=f"const script = await import(`${{location.origin}}{address}`);\nexport default script.default;",
    )


def _route(name: str) -> Route:
    async def serve(_request: Request) -> Response:
        # Its address changes with it, so a browser may keep it for good.
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(built.script(name), media_type="text/javascript", headers=headers)

    return Route(f"/script/{built.file_name(name)}", serve)


ROUTES: Final[list[BaseRoute]] = [_route(name) for name in built.COMPONENTS]
"""Where the browser gets the modules."""
