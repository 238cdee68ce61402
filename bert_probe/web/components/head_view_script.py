"""The head view's script, which the server has ready before what draws the view is imported."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

# One ES module in several files: the browser gets them joined, with a single `export default` at the end.
_FILES: Final = (
    "visible_text.js",
    "matrix_model.js",
    "matrix_layout.js",
    "matrix_parts.js",
    "matrix_save.js",
    "svg_pen.js",
    "head_view_model.js",
    "head_view_layout.js",
    "head_view_paint.js",
    "head_view_parts.js",
    "head_view.js",
)

SCRIPT: Final = "\n".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in _FILES)


async def _serve(_request: Request) -> Response:
    # Its address changes with it, so a browser may keep it for good.
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(SCRIPT, media_type="text/javascript", headers=headers)


ROUTE: Final = Route(f"/script/head-view-{hashlib.sha256(SCRIPT.encode()).hexdigest()[:16]}.js", _serve)
"""Where the browser gets the script, once: Streamlit would send it again with every layer."""
