"""Check host names, as protection against DNS rebinding and cross-site WebSockets.

A foreign page can make its own host name resolve to this machine (DNS rebinding) and then read the responses.
However, the browser sets the headers Host and Origin, so a page cannot forge them. Both are checked first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from bert_probe.errors import AddressError
from bert_probe.server import paths
from bert_probe.server.responses import can_deny, text_response

VARIABLE: Final = "BERT_PROBE_HOSTS"
"""Name of the environment variable with additional host names, separated by commas."""

_REMEDY: Final = f"add it to {VARIABLE} or pass it as bert-probe app --allow"
_NAME: Final = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]"
_HOST: Final = re.compile(rf"({_NAME})\.?(?::[0-9]{{0,5}})?", re.IGNORECASE)
_PATTERN: Final = re.compile(rf"(?:\*\.)?(?:{_NAME})|[0-9a-f:.]+:[0-9a-f:.]*", re.IGNORECASE)


@cache
def own_names() -> tuple[str, ...]:
    """Return the names of this machine, as listed in the settings file."""
    return tuple(paths.settings()["server.allowedHosts"])


def additional_names(names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the additional host names: those in `VARIABLE` and `names`, in lower case, without duplicates.

    ``*.example.org`` matches all subdomains.

    Raises:
        AddressError: A name is not a valid host name.
    """
    from_variable = [name.strip() for name in os.environ.get(VARIABLE, "").split(",")]
    candidates = [*filter(None, from_variable), *(name.strip() for name in names)]
    for name in candidates:
        if not _PATTERN.fullmatch(name):
            raise AddressError(
                f"{name[:200]!r} is not a host name. Give the name as in the browser's address bar, without "
                "http:// and port: lab.example.org, or *.example.org for all subdomains."
            )
    return tuple(dict.fromkeys(name.lower().strip("[]") for name in candidates))


class AllowedHosts:
    """ASGI middleware that rejects requests to unknown host names, and WebSockets from foreign pages.

    A WebSocket may come from a page of the same host and port, from a page of an additional host name
    (because a proxy may change Host), or from a program, which does not send Origin.

    Args:
        names: Allowed host names, in addition to `own_names`.
        address: Address on which the app listens, also an allowed host. Pages on other ports are foreign.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str], address: str = "") -> None:
        self.app = app
        self._names = names
        self._allowed = (*own_names(), *names, address.lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request to an allowed host, and reject all other requests."""
        if scope["type"] in ("http", "websocket"):
            refusal = self._refusal(scope)
            if refusal is not None:
                await _refuse(refusal, scope, receive, send)
                return
        if scope["type"] == "websocket":
            scope = _same_origin(scope)
        await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not _is_among(hosts[0], self._allowed):
            problem = f"the host name {_quote(hosts[0])}" if len(hosts) == 1 else f"{len(hosts)} Host headers"
            return text_response(
                f"BERT Probe does not accept {problem}. Open the app at localhost, or, if the name is yours, "
                f"{_REMEDY}.",
                421,
            )
        if scope["type"] == "http" or not origins:
            return None
        if is_same_page(origins, hosts[0], self._names, is_secure=scope.get("scheme") == "wss"):
            return None
        page = _quote(", ".join(origins))
        return text_response(
            f"BERT Probe does not accept WebSockets from pages of {page}. Open the app itself, or, if that "
            f"name is yours, {_REMEDY}.",
            403,
        )


def is_same_page(origins: Sequence[str], host: str, names: Sequence[str], is_secure: bool) -> bool:
    """Return whether a request comes from a page of the same host and port, or from a page of one of `names`.

    Names of this machine in `names` are ignored, because another port belongs to another program.

    Args:
        origins: Values of all Origin headers.
        host: Value of the Host header.
        names: Additional host names.
        is_secure: Whether the request uses TLS. If so, pages of the same host must use https; otherwise they
            may use http or https, because a proxy may add TLS.
    """
    scheme, _, origin = origins[0].lower().partition("://")
    if len(origins) != 1 or scheme not in ("http", "https"):
        return False
    if origin == host.lower():
        return scheme == "https" or not is_secure
    return _is_among(origin, names) and not is_own(origin)


def is_own(host: str) -> bool:
    """Return whether a host is one of this machine's own names, such as localhost."""
    return _is_among(host, own_names())


def _is_among(host: str, names: Sequence[str]) -> bool:
    """Return whether a host, ignoring its port, matches one of the names."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match[1].lower().strip("[]")
    return any(
        name.endswith(allowed[1:]) if allowed.startswith("*.") else name == allowed for allowed in names
    )


def _quote(text: str) -> str:
    return ascii(text if len(text) <= 100 else f"{text[:100]}...")


def _same_origin(scope: Scope) -> Scope:
    """Set the Host header of an accepted WebSocket to the host of its page.

    If the two hosts differ, Streamlit would query an external server for this machine's IP address.
    """
    headers = MutableHeaders(raw=list(scope["headers"]))
    if "origin" in headers:
        headers["host"] = headers["origin"].partition("://")[2]
    return {**scope, "headers": headers.raw}


async def _refuse(refusal: PlainTextResponse, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http" or can_deny(scope):
        await refusal(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008})
