"""Limit the requests, script runs and concurrent sessions of each client of a public server.

A client is an IPv4 address or a /64 IPv6 network, which usually belongs to a single household.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from cachetools import LRUCache
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bert_probe.runtime.permissions import Permissions
from bert_probe.server.responses import can_deny, text_response

RUN_PATH: Final = re.compile(r"/api/v1/[^/]+$")
"""Matches the paths of HTTP requests that compute something."""
_MAX_CLIENTS: Final = 10_000
"""Maximum number of clients whose requests are counted; the least recent client is forgotten first."""


class ClientAddress:
    """ASGI middleware that sets the client of a request to the address in X-Forwarded-For.

    Each proxy appends the address of its client. With `proxies` proxies, the user's address is therefore the
    entry with this number from the end. Earlier entries come from the user and are not trusted.

    Args:
        proxies: number of proxies between the users and this server, 1 or more.
    """

    def __init__(self, app: ASGIApp, proxies: int) -> None:
        self.app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request with the user's address as its client."""
        if scope["type"] in ("http", "websocket"):
            addresses = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
            address = addresses[-self._proxies].strip() if len(addresses) >= self._proxies else ""
            if _parse(address) is not None:
                scope = {**scope, "client": (address, 0)}
        await self.app(scope, receive, send)


def client_name(scope: Scope) -> str:
    """Return the name of a request's client: its IPv4 address, or its IPv6 network; "" for a Unix socket."""
    address = (scope.get("client") or ("",))[0]
    parsed = _parse(address)
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))
    return address


def _parse(address: str) -> object:
    """Parse an IP address; return None if the string is invalid."""
    try:
        return ip_address(address)
    except ValueError:
        return None


class RateLimit:
    """Limits the number of events per client and minute (token bucket).

    Args:
        per_minute: maximum number of events per minute, and maximum burst size.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity, self._rate, self._clock = per_minute, per_minute / 60, clock
        self._clients: LRUCache[str, tuple[float, float]] = LRUCache(_MAX_CLIENTS)

    def delay(self, client: str) -> float:
        """Count an event of a client and return 0, or return the seconds until the next event is allowed."""
        now = self._clock()
        left, last = self._clients.get(client, (float(self._capacity), now))
        left = min(self._capacity, left + (now - last) * self._rate)
        is_allowed = left >= 1
        self._clients[client] = (left - is_allowed, now)
        return 0.0 if is_allowed else (1 - left) / self._rate


class LimitedVisitors:
    """ASGI middleware that limits the requests, script runs and sessions of clients.

    HTTP requests beyond a limit get status 429, and pages get status 503 if no session is available. Messages
    that would start script runs beyond the limit are delayed, so a page becomes slower but does not fail.

    Args:
        page_paths: URL paths of the pages, each of which starts a session.
    """

    def __init__(self, app: ASGIApp, permissions: Permissions, page_paths: Collection[str] = ()) -> None:
        self.app = app
        self._page_paths = page_paths
        self._permissions = permissions
        self._requests = RateLimit(permissions.requests_per_minute or 1)
        self._runs = RateLimit(permissions.runs_per_minute or 1)
        self._sessions: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or reject it if it exceeds a limit."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        client = client_name(scope)
        refusal = self._refusal(scope, client)
        if refusal is not None:
            await _refuse(refusal, scope, receive, send)
        elif scope["type"] == "websocket":
            await self._session(client, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _refusal(self, scope: Scope, client: str) -> PlainTextResponse | None:
        delay = self._requests.delay(client)
        if not delay and scope["type"] == "http" and RUN_PATH.search(scope["path"]):
            delay = self._runs.delay(client)
        if delay:
            response = text_response(
                "Too many requests from your IP address. Wait a moment, and reload the page.", 429
            )
            response.headers["Retry-After"] = str(math.ceil(delay))
            return response
        starts_session = scope["type"] == "websocket" or scope["path"] in self._page_paths
        return self._session_refusal(client) if starts_session else None

    def _session_refusal(self, client: str) -> PlainTextResponse | None:
        maximum, of_client = self._permissions.max_sessions, self._permissions.max_client_sessions
        if maximum is not None and self._sessions.total() >= maximum:
            return text_response(f"All {maximum} pages of this server are in use. Try again later.", 503)
        if of_client is not None and self._sessions[client] >= of_client:
            return text_response(
                f"{of_client} pages are open from your IP address. Close some, and reload the page.", 503
            )
        return None

    async def _session(self, client: str, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_limited() -> Message:
            message = await receive()
            if message["type"] == "websocket.receive":
                while delay := self._runs.delay(client):
                    await asyncio.sleep(delay)
            return message

        self._sessions[client] += 1
        try:
            await self.app(scope, receive_limited, send)
        finally:
            self._sessions[client] -= 1
            if not self._sessions[client]:
                del self._sessions[client]


async def _refuse(refusal: PlainTextResponse, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http" or can_deny(scope):
        await refusal(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1013})
