"""The web server around the pages: routes of our own and the headers that keep a page to itself."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import streamlit
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import config
from streamlit.config_option import ConfigOption

import bert_probe
from bert_probe.api.routes import routes as api_routes
from bert_probe.errors import AddressError
from bert_probe.server import (
    authorization,
    bertviz_frames,
    callbacks,
    component_scripts,
    connections,
    downloads,
    hosts,
    layers,
    message_cache,
    paths,
    report_preview,
    sockets,
    uploads,
)
from bert_probe.server.responses import may_be_answered, sentence
from bert_probe.views.addresses import PARAMETERS

MAIN_SCRIPT = Path(__file__).parents[1] / "ui" / "main.py"
"""The Streamlit script; absolute, so that the server may be started from any folder."""

FRONT_PAGE = "overview"
"""The page that the main script makes the default one."""

OF_ATTENTION = frozenset(("show", *PARAMETERS))
"""What an address holds for the page of attention alone; that of the front page holds none of it."""

SECTIONS = {
    "": ("overview", "report"),
    "Text": ("tokens", "compare", "corpus"),
    "Attention": ("attention", "heads", "steps"),
    "Vectors": ("embeddings", "similarity", "context", "sentences", "map"),
    "Answer": ("answer", "train"),
    "Model": ("parameters", "sizes", "vocabulary", "positions", "changes", "probes"),
}
"""The navigation: what a reader asks about, and the names of the pages, their files and addresses. Pages of
"" are entries by themselves, before all others."""

PAGES = tuple(page for pages in SECTIONS.values() for page in pages)
"""Names of all pages, in the order of the navigation."""

_STREAMLIT = ("_stcore", "static", "media", "component", "app", "auth", "oauth2callback", "vendor")
"""First parts of the paths that Streamlit answers itself."""

_STATIC = Path(__file__).with_name("static")
_SCRIPT = _STATIC.joinpath("index.js").read_text(encoding="utf-8")
_INDEX = Path(streamlit.__file__).with_name("static").joinpath("index.html")


class _MissingPath(Convertor[str]):
    """A path that is neither a file nor one of Streamlit's own routes, where it would show its front page."""

    regex = rf"(?!(?:{'|'.join(_STREAMLIT)})(?:/|$))[^.]+"

    def convert(self, value: str) -> str:
        """The path."""
        return value

    def to_string(self, value: str) -> str:
        """The path."""
        return value


register_url_convertor("nowhere", _MissingPath())


def app_policy() -> str:
    """What a page may load: this server and nothing else, so that no text can leave by way of the browser."""
    return "; ".join(
        (
            "default-src 'self'",
            # blob: because components bring their module as one.
            " ".join(("script-src 'self' blob:", *_inline_scripts())),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "frame-src 'self'",
            "worker-src 'self' blob:",
            "object-src 'none'",
            "base-uri 'self'",
            "frame-ancestors 'self'",
            "form-action 'self'",
        )
    )


def _inline_scripts() -> list[str]:
    """Digests of the scripts written into the index page, which would be refused otherwise."""
    page = _INDEX.read_text(encoding="utf-8")
    scripts = [*re.findall(r"<script>(.*?)</script>", page, re.S), _SCRIPT]
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]


_UNUSED_FEATURES = ("camera", "microphone", "geolocation", "payment", "usb", "serial", "midi")

HEADERS = {
    "Content-Security-Policy": app_policy(),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": ", ".join(f"{feature}=()" for feature in _UNUSED_FEATURES),
}
"""Sent with every response."""


class SecurityHeaders:
    """ASGI middleware that adds `HEADERS` to every HTTP response, Streamlit's own and errors included.

    A header that a response already carries is kept: BertViz frames bring a stricter policy.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; add the headers where the response starts."""
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "websocket.close" and not started and may_be_answered(scope):
                # The server would answer by itself, without the headers.
                await _NO_CONNECTION(scope, receive, send_with_headers)
                return
            started = True
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except Exception:
            # Starlette answers outside of all middleware, and so without the headers.
            if scope["type"] == "http" and not started:
                await _FAILED(scope, receive, send_with_headers)
            raise


class WithoutMetrics:
    """ASGI middleware that hides Streamlit's own metrics, which ask for no token; those of the API do."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer that nothing is here."""
        # Not a route: Streamlit keeps paths under _stcore for itself. A base path may come before it.
        is_metrics = scope["type"] == "http" and scope["path"].rstrip("/").endswith("/_stcore/metrics")
        await (_NO_METRICS if is_metrics else self.app)(scope, receive, send)


_NO_METRICS = sentence("Nothing is here. The numbers of the app are at /metrics.", 404)
_NO_CONNECTION = PlainTextResponse("There is nothing to connect to here.\n", status_code=403)
_FAILED = sentence(
    "This could not be answered; the reason is in the log of the app. Reload the page, or try again.", 500
)


async def health(_request: Request) -> JSONResponse:
    """Answer that the server is up, and which version it is."""
    content = {"status": "ok", "version": bert_probe.__version__}
    return JSONResponse(content, headers={"Cache-Control": "no-store"})


async def index(_request: Request) -> HTMLResponse:
    """Streamlit's own index page with our few styles in it; sent by a script they would come too late."""
    style = _STATIC.joinpath("page.css").read_text(encoding="utf-8")
    head = f"<script>{_SCRIPT}</script><style>{style}</style></head>"
    page = _INDEX.read_text(encoding="utf-8").replace("</head>", head, 1)
    return HTMLResponse(page, headers={"Cache-Control": "no-cache"})


async def missing(request: Request) -> HTMLResponse:
    """Say that there is no such page, and offer those that there are, with what was asked for."""
    query = f"?{request.url.query}" if request.url.query else ""
    links = (f'<li><a href="/{html.escape(page + query)}">{page.title()}</a></li>' for page in PAGES)
    text = _STATIC.joinpath("missing.html").read_text(encoding="utf-8")
    for name, written in (("path", html.escape(request.url.path[:200])), ("pages", "".join(links))):
        text = text.replace(f"<!--{name}-->", written)
    return HTMLResponse(text, status_code=404, headers={"Cache-Control": "no-store"})


async def front_page(request: Request) -> Response:
    """The front page; an address from when that was attention leads on to what it shows."""
    if not OF_ATTENTION.isdisjoint(request.query_params):
        return RedirectResponse(f"/attention?{request.url.query}")
    return await index(request)


async def to_front_page(request: Request) -> RedirectResponse:
    """Lead on to the front page with what it can have in its address."""
    given = request.query_params.multi_items()
    query = urlencode([(name, value) for name, value in given if name not in OF_ATTENTION])
    return RedirectResponse(f"/?{query}" if query else "/")


def routes(names: Sequence[str] = (), token: str = "") -> list[BaseRoute]:
    """The routes beside Streamlit's own."""
    return [
        Route("/health", health),
        *api_routes(authorization.Authorization(hosts.given(names), token).refusal, bert_probe.__version__),
        # Streamlit knows its default page by the bare address only; by its name it would not be found.
        Route(f"/{FRONT_PAGE}", to_front_page),
        Route("/", front_page),
        *(Route(f"/{page}", index) for page in PAGES if page != FRONT_PAGE),
        *bertviz_frames.routes(),
        *component_scripts.ROUTES,
        *layers.ROUTES,
        *downloads.ROUTES,
        *report_preview.ROUTES,
        Route("/{path:nowhere}", missing),
    ]


def middleware(names: Sequence[str] = (), address: str = "") -> list[Middleware]:
    """The middleware around Streamlit's own, first the outermost."""
    return [
        Middleware(SecurityHeaders),
        Middleware(hosts.AllowedHosts, hosts.given(names), address),
        Middleware(WithoutMetrics),
        Middleware(uploads.BoundedUploads),
    ]


@asynccontextmanager
async def lifespan(_app: object) -> AsyncIterator[None]:
    """What is done when the server has its socket and before it answers."""
    sockets.send_at_once()
    connections.limit()
    callbacks.keep_clicks()
    message_cache.refer_to_recent_messages()
    yield


def parts(names: Sequence[str] = (), token_file: Path | None = None, address: str = "") -> dict[str, Any]:
    """What `st.App` is made of, for every way to start it.

    Args:
        names: what the app answers to beside its own names and those of `hosts.VARIABLE`.
        token_file: holds what others than this machine need for the API; else `authorization.VARIABLE` may.
        address: where the server listens, if that is not an address for all; see `hosts.AllowedHosts`.

    Raises:
        AddressError: something that is no name of a machine, or no token.
    """
    return {
        "script_path": MAIN_SCRIPT,
        "routes": routes(names, authorization.token(token_file)),
        "middleware": middleware(names, address),
        "lifespan": lifespan,
    }


def use_settings() -> None:
    """The app's settings, also under a server that is not Streamlit's and was started from another folder.

    Streamlit would look for them there, and beside its main script. Options of its command line are kept.
    """
    try:
        settings = paths.settings() | {"server.allowedHosts": [*hosts.own(), *hosts.given()]}
        authorization.token()
    except AddressError as error:
        sys.exit(f"bert-probe: {error}")
    for name, value in settings.items():
        where = config.get_where_defined(name)
        if where == ConfigOption.DEFAULT_DEFINITION or Path(where).is_file():
            config.set_option(name, value, str(paths.settings_file()))
