"""Check whether a request is accepted: by its host name and, for the API, by its token.

A malicious website can make its own host name resolve to this machine (DNS rebinding) and then read the
responses. However, the browser sets the Host and Origin headers, so a page cannot forge them. Both headers
are checked first.

Programs on this machine can use the API; programs on other machines need a token. Other websites can make a
user's browser send requests to the API. Such requests cannot contain JSON, because no CORS header allows them
to, and the browser names the website in the Origin header.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Sequence
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from bert_probe.api import errors
from bert_probe.api.errors import Problem
from bert_probe.errors import AddressError
from bert_probe.server import paths

HOSTS_VARIABLE: Final = "BERT_PROBE_HOSTS"
"""Name of the environment variable with additional host names, separated by commas."""

_REMEDY: Final = f"add the host name to {HOSTS_VARIABLE} or pass it with bert-probe app --allow"
_NAME: Final = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]"
_HOST: Final = re.compile(rf"({_NAME})\.?(?::[0-9]{{0,5}})?", re.IGNORECASE)
_PATTERN: Final = re.compile(rf"(?:\*\.)?(?:{_NAME})|[0-9a-f:.]+:[0-9a-f:.]*", re.IGNORECASE)

TOKEN_VARIABLE: Final = "BERT_PROBE_TOKEN"
"""Name of the environment variable that contains the token."""
MIN_CHARACTERS: Final = 16
"""Minimum length of a token; shorter tokens can be guessed."""
MAX_CHARACTERS: Final = 512
_MIN_DISTINCT: Final = 8
_TOKEN: Final = re.compile(rf"[A-Za-z0-9._~+/-]{{{MIN_CHARACTERS},{MAX_CHARACTERS}}}={{0,2}}")
"""Syntax of a Bearer token (RFC 6750, section 2.1)."""

_PROXY_HEADER: Final = re.compile(
    r"forwarded|via|x-forwarded-.*|x-real-ip|x-(original|cluster|envoy)-.*|(x-|true-|cf-|fastly-)[a-z-]*-ip"
)
"""Matches the names of headers that a proxy adds to the requests of its clients."""


def text_response(text: str, status: int) -> PlainTextResponse:
    """Return a plain-text response that browsers do not cache."""
    return PlainTextResponse(f"{text}\n", status_code=status, headers={"Cache-Control": "no-store"})


def can_deny(scope: Scope) -> bool:
    """Return whether the server can answer a WebSocket handshake with an HTTP response."""
    return "websocket.http.response" in scope.get("extensions", {})


@cache
def own_names() -> tuple[str, ...]:
    """Return the host names of this machine that the settings file lists, such as localhost."""
    return tuple(paths.settings()["server.allowedHosts"])


def additional_names(names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the additional host names in lower case, without duplicates.

    These are the names in `HOSTS_VARIABLE` and ``names``. ``*.example.org`` matches all subdomains.

    Raises:
        AddressError: A name is not a valid host name.
    """
    from_variable = [name.strip() for name in os.environ.get(HOSTS_VARIABLE, "").split(",")]
    candidates = [*filter(None, from_variable), *(name.strip() for name in names)]
    for name in candidates:
        if not _PATTERN.fullmatch(name):
            raise AddressError(
                f"{name[:200]!r} is not a host name. Pass the name as in the browser's address bar, without "
                "http:// and port: lab.example.org, or *.example.org for all subdomains."
            )
    return tuple(dict.fromkeys(name.lower().strip("[]") for name in candidates))


class AllowedHosts:
    """ASGI middleware that rejects requests to unknown host names, and WebSockets from pages of other sites.

    A WebSocket may come from a page of the same host and port, from a page of an additional host name
    (because a proxy may change Host), or from a program, which does not send Origin.

    Args:
        names: Allowed host names, in addition to `own_names`.
        address: Address on which the app listens, which is an allowed host as well. WebSockets from pages of
            the same host but another port are rejected.
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
                f"BERT Probe does not accept {problem}. Open the app at localhost, or, if you control "
                f"this host name, {_REMEDY}.",
                421,
            )
        if scope["type"] == "http" or not origins:
            return None
        if is_same_page(origins, hosts[0], self._names, is_secure=scope.get("scheme") == "wss"):
            return None
        page = _quote(", ".join(origins))
        return text_response(
            f"BERT Probe does not accept WebSocket connections from pages at {page}. Open the app at its own "
            f"address, or, if you control this host name, {_REMEDY}.",
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


def token(file: Path | None = None) -> str:
    """Return the token from a file or, without a file, from the environment variable `TOKEN_VARIABLE`.

    Return "" if the variable is not set.

    Raises:
        AddressError: The file cannot be read, other users can read it, or it does not contain a token.
    """
    if file is None:
        text, source = os.environ.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
        if not text:
            return ""
    else:
        text, source = _read_token(file), str(file)
    if not _TOKEN.fullmatch(text) or len(set(text)) < _MIN_DISTINCT:
        raise AddressError(
            f"The {len(text):,} characters in {source} are not a valid token. A token is a single line of "
            f"{MIN_CHARACTERS} to {MAX_CHARACTERS} characters, at least {_MIN_DISTINCT} of them different, "
            "from A-Z, a-z, 0-9 and . _ ~ + / = -. To generate one: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return text


def _read_token(file: Path) -> str:
    """Return the content of a token file without its line ending."""
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            content = stream.read(MAX_CHARACTERS + 3)
        text = content.decode("utf-8")
    except (OSError, ValueError) as error:
        raise AddressError(
            f"The token file {file} cannot be read: {_reason(error)}. Choose another file."
        ) from None
    if os.name == "posix" and mode & 0o077:
        raise AddressError(
            f"The token file {file} can be read or changed by other users of this machine (mode "
            f"{stat.S_IMODE(mode):o}). Restrict its permissions: chmod 600 {file}"
        )
    return text.removesuffix("\n").removesuffix("\r")


def _reason(error: Exception) -> str:
    return error.strerror or "no reason given" if isinstance(error, OSError) else "it is not UTF-8"


class Authorization:
    """Decides for each request whether the API may answer it.

    Args:
        names: Allowed host names, in addition to the names of this machine.
        token: Token that requests from other machines need; if "", all such requests are rejected.
    """

    def __init__(self, names: Sequence[str], token: str) -> None:
        self._names, self._token = names, token.encode()

    def refusal(self, request: Request) -> Problem | None:
        """Return the `Problem` with which to reject the request; None if the request is allowed."""
        origins = request.headers.getlist("origin")
        host, is_secure = request.headers.get("host", ""), request.url.scheme == "https"
        if origins and not is_same_page(origins, host, self._names, is_secure):
            return Problem(
                errors.LOCAL_ONLY,
                "Pages of other sites cannot use the API. Send the request from a program or from a page of "
                "the app.",
            )
        if self._is_local(request) or self._has_token(request):
            return None
        if not self._token:
            return Problem(
                errors.LOCAL_ONLY,
                "The API answers only programs on this machine. To use the API from other machines, "
                f"start the app with a token, in {TOKEN_VARIABLE} or with bert-probe app --token-file, "
                "and send the header Authorization: Bearer <token>.",
            )
        return Problem(
            errors.TOKEN_REQUIRED,
            "Requests from other machines need the token. Send the header Authorization: Bearer <token>.",
            headers={"WWW-Authenticate": 'Bearer realm="BERT Probe"'},
        )

    def _is_local(self, request: Request) -> bool:
        """Return whether a program on this machine, other than a proxy, sent the request."""
        if any(map(_PROXY_HEADER.fullmatch, request.headers.keys())):
            return False
        return _is_loopback(request.client.host if request.client else "") and is_own(
            request.headers.get("host", "")
        )

    def _has_token(self, request: Request) -> bool:
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        # compare_digest takes constant time, so response times do not leak parts of the token.
        is_equal = hmac.compare_digest(credentials.strip().encode("utf-8", "replace"), self._token)
        return bool(self._token) and scheme.lower() == "bearer" and is_equal


def _is_loopback(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback
