"""The ASGI app: Streamlit with additional routes, security headers, and limits."""

from __future__ import annotations

import asyncio
import html
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

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
from bert_probe.runtime import jobs, permissions
from bert_probe.server import (
    access,
    bertviz_frames,
    callbacks,
    connections,
    media_files,
    messages,
    paths,
    security_headers,
    sessions,
    visitors,
)
from bert_probe.server.access import can_deny, text_response
from bert_probe.views.built import PARAMETERS

MAIN_SCRIPT = Path(__file__).parents[1] / "ui" / "main.py"
"""Absolute path of the Streamlit script, so that the server can be started from any folder."""

FRONT_PAGE = "overview"
"""Name of the default page."""

ATTENTION_PARAMETERS = frozenset(("show", *PARAMETERS))
"""URL parameters that only the attention page reads, but not the front page."""

SECTIONS = {
    "": ("overview", "report"),
    "Text": ("tokens", "compare", "corpus"),
    "Attention": ("attention", "heads", "steps"),
    "Vectors": ("embeddings", "similarity", "context", "sentences", "search", "evaluate", "map"),
    "Output": ("answer", "train"),
    "Model": ("parameters", "sizes", "vocabulary", "positions", "changes", "probes"),
}
"""Navigation: menu title -> page names, which are also the names of their files and their URL paths. The
pages under "" are top-level entries before all menus."""

PAGES = tuple(page for pages in SECTIONS.values() for page in pages)
"""Names of all pages, in navigation order."""


def sections() -> dict[str, tuple[str, ...]]:
    """Return the navigation without pages that the users' permissions exclude."""
    allowed, excluded = permissions.current(), set()
    if not allowed.can_train:
        excluded.add("train")
    if not allowed.can_build_stores and not paths.stores():
        excluded.add("corpus")
    if len(allowed.models) == 1:  # omit the page "changes", which compares two models
        excluded.add("changes")
    menus = {
        title: tuple(name for name in names if name not in excluded) for title, names in SECTIONS.items()
    }
    return {title: names for title, names in menus.items() if names}


def pages() -> tuple[str, ...]:
    """Return the names of the pages available to the users, in navigation order."""
    return tuple(page for names in sections().values() for page in names)


_STREAMLIT = ("_stcore", "static", "media", "component", "app", "auth", "oauth2callback", "vendor")
"""First path segments of Streamlit's own routes."""

_STATIC = Path(__file__).with_name("static")


class _MissingPath(Convertor[str]):
    """A path converter that matches paths that are neither files nor Streamlit routes.

    Streamlit would answer such a path with the front page.
    """

    regex = rf"(?!(?:{'|'.join(_STREAMLIT)})(?:/|$))[^.]+"

    def convert(self, value: str) -> str:
        """Return the path unchanged."""
        return value

    def to_string(self, value: str) -> str:
        """Return the path unchanged."""
        return value


register_url_convertor("nowhere", _MissingPath())


class SecurityHeaders:
    """ASGI middleware that adds `security_headers.headers` to every HTTP response, including errors.

    Existing headers of a response are not changed; for example, BertViz frames have a stricter policy.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._headers = security_headers.headers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, and add the headers to the start of the response."""
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "websocket.close" and not started and can_deny(scope):
                # Replace uvicorn's response to a rejected WebSocket, which would lack the headers.
                await _NO_WEBSOCKET(scope, receive, send_with_headers)
                return
            started = True
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                response_headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    response_headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except Exception:
            # Starlette's own error response bypasses all middleware, so it would lack the headers.
            if scope["type"] == "http" and not started:
                await _SERVER_ERROR(scope, receive, send_with_headers)
            raise


class WithoutMetrics:
    """ASGI middleware that hides Streamlit's metrics, because they are available without a token."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or answer 404 for Streamlit's metrics."""
        # A route cannot replace the metrics, because Streamlit reserves all paths under _stcore.
        is_metrics = scope["type"] == "http" and scope["path"].rstrip("/").endswith("/_stcore/metrics")
        await (_NO_METRICS if is_metrics else self.app)(scope, receive, send)


_NO_METRICS = text_response("Not found. The app's metrics are at /metrics.", 404)
_NO_WEBSOCKET = PlainTextResponse("There is no WebSocket endpoint at this URL.\n", status_code=403)
_SERVER_ERROR = text_response(
    "Internal error; the app's log has the details. Reload the page, or try again.", 500
)


async def health(_request: Request) -> JSONResponse:
    """Answer a health check with the status and the version of the app."""
    content = {"status": "ok", "version": bert_probe.__version__}
    return JSONResponse(content, headers={"Cache-Control": "no-store"})


async def index(_request: Request) -> HTMLResponse:
    """Return Streamlit's index page, with a script and styles that apply before the app has loaded."""
    style = _STATIC.joinpath("page.css").read_text(encoding="utf-8")
    head = f"<script>{security_headers.INDEX_SCRIPT}</script><style>{style}</style></head>"
    page = security_headers.INDEX_FILE.read_text(encoding="utf-8").replace("</head>", head, 1)
    return HTMLResponse(page, headers={"Cache-Control": "no-cache"})


async def robots(_request: Request) -> PlainTextResponse:
    """Return robots.txt, which allows only the front page, because every view has its own URL."""
    return PlainTextResponse("User-agent: *\nAllow: /$\nDisallow: /\n")


_MAX_QUERY_LENGTH = 2_000
"""Maximum length of a query string that the links of the 404 page repeat."""


async def missing(request: Request) -> HTMLResponse:
    """Return a 404 page with links to all pages; the links contain the query string of the request."""
    query = f"?{request.url.query}" if 0 < len(request.url.query) <= _MAX_QUERY_LENGTH else ""
    links = (f'<li><a href="/{html.escape(page + query)}">{page.title()}</a></li>' for page in pages())
    text = _STATIC.joinpath("missing.html").read_text(encoding="utf-8")
    for name, content in (("path", html.escape(request.url.path[:200])), ("pages", "".join(links))):
        text = text.replace(f"<!--{name}-->", content)
    return HTMLResponse(text, status_code=404, headers={"Cache-Control": "no-store"})


async def front_page(request: Request) -> Response:
    """Return the front page, or redirect to the attention page if the query contains that page's parameters.

    The attention page used to be the front page, so old links to it have no path.
    """
    if not ATTENTION_PARAMETERS.isdisjoint(request.query_params):
        return RedirectResponse(f"/attention?{request.url.query}")
    return await index(request)


async def to_front_page(request: Request) -> RedirectResponse:
    """Redirect to the front page, without the parameters of the attention page."""
    parameters = request.query_params.multi_items()
    query = urlencode([(name, value) for name, value in parameters if name not in ATTENTION_PARAMETERS])
    return RedirectResponse(f"/?{query}" if query else "/")


def routes(names: Sequence[str] = (), token: str = "") -> list[BaseRoute]:
    """Return the additional routes for the Streamlit app.

    Args:
        names: Allowed host names, in addition to those in `access.HOSTS_VARIABLE`.
        token: Token that other machines need for the API; if "", the API answers this machine only.
    """
    return [
        Route("/health", health),
        Route("/robots.txt", robots),
        *api_routes(
            access.Authorization(access.additional_names(names), token).refusal, bert_probe.__version__
        ),
        # Redirect to /, because Streamlit serves the default page only there.
        Route(f"/{FRONT_PAGE}", to_front_page),
        Route("/", front_page),
        *(Route(f"/{page}", index) for page in pages() if page != FRONT_PAGE),
        *bertviz_frames.routes(),
        *sessions.routes(),
        # Without these routes, Streamlit would serve the front page for paths that contain a period.
        *(Route(f"/{path}/{{path:path}}", missing) for path in ("api", "trained")),
        Route("/{path:nowhere}", missing),
    ]


def middleware(names: Sequence[str] = (), address: str = "") -> list[Middleware]:
    """Return the middleware around Streamlit's middleware, outermost first.

    Args:
        names: Additional allowed host names.
        address: Address that the server listens on; see `app_arguments`.
    """
    allowed = permissions.current()
    proxies = [Middleware(visitors.ClientAddress, allowed.trusted_proxies)] if allowed.trusted_proxies else []
    page_paths = frozenset(("/", *(f"/{page}" for page in pages())))
    limits = [Middleware(visitors.LimitedVisitors, allowed, page_paths)] if allowed.is_public else []
    return [
        *proxies,
        Middleware(SecurityHeaders),
        Middleware(visitors.PartialBodies),
        *limits,
        Middleware(access.AllowedHosts, access.additional_names(names), address),
        Middleware(WithoutMetrics),
        Middleware(sessions.ClosingNoted),
        Middleware(visitors.BoundedUploads),
    ]


@asynccontextmanager
async def lifespan(_app: object) -> AsyncIterator[None]:
    """Patch uvicorn and Streamlit after the socket is bound and before the first request."""
    connections.disable_nagle()
    connections.limit()
    callbacks.keep_clicks()
    messages.limit_references()
    messages.limit_unsent()
    media_files.keep_downloads()
    sessions.close_disconnected()
    _cancel_jobs_on_signals()
    yield


def _cancel_jobs_on_signals() -> None:
    """Cancel all jobs when the server is interrupted or terminated, because it waits for running requests."""
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if callable(handler):
            signal.signal(number, partial(_stop, loop, handler))


def _stop(
    loop: asyncio.AbstractEventLoop, handler: Callable[[int, Any], object], number: int, frame: Any
) -> None:
    # The event loop cancels the jobs, because this thread may hold the lock of a job.
    loop.call_soon_threadsafe(jobs.cancel_all)
    handler(number, frame)


def app_arguments(
    names: Sequence[str] = (), token_file: Path | None = None, address: str = ""
) -> dict[str, Any]:
    """Return the keyword arguments for `st.App`, which do not depend on how the app is started.

    Args:
        names: Allowed host names, in addition to those of this machine and those in `access.HOSTS_VARIABLE`.
        token_file: File with the token that other machines need for the API. By default, the environment
            variable `access.TOKEN_VARIABLE` contains the token.
        address: Address that the server listens on; "" for a wildcard address. See `access.AllowedHosts`.

    Raises:
        AddressError: A host name or the token is invalid.
    """
    return {
        "script_path": MAIN_SCRIPT,
        "routes": routes(names, access.token(token_file)),
        "middleware": middleware(names, address),
        "lifespan": lifespan,
    }


def apply_settings() -> None:
    """Apply the app's settings, regardless of the server and of the current folder.

    Streamlit reads settings only from the current folder and the folder of the main script. Settings on the
    command line and in environment variables take precedence.
    """
    try:
        settings = paths.settings() | {
            "server.allowedHosts": [*access.own_names(), *access.additional_names()]
        }
        access.token()
        paths.playground()
    except AddressError as error:
        sys.exit(f"bert-probe: {error}")
    for name, value in settings.items():
        source = config.get_where_defined(name)
        if source == ConfigOption.DEFAULT_DEFINITION or Path(source).is_file():
            config.set_option(name, value, str(paths.settings_file()))
