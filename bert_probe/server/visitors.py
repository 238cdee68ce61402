"""Limits per client: requests and script runs per minute, concurrent sessions, and uploaded files.

A client is an IPv4 address or a /64 IPv6 network, which usually belongs to a single household.
The limits are those of `runtime.permissions`; Streamlit limits only the size of each file.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, cast

from cachetools import LRUCache
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import runtime
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager

from bert_probe.api import errors
from bert_probe.api.errors import Problem
from bert_probe.api.routes import problem_response
from bert_probe.runtime import permissions
from bert_probe.runtime.permissions import Permissions
from bert_probe.server import sessions
from bert_probe.server.access import can_deny, text_response

RUN_PATH: Final = re.compile(r"/api/v1/[^/]+$")
"""Matches the URL paths of API requests that compute a result."""
_MAX_CLIENTS: Final = 10_000
"""Maximum number of clients whose requests are counted; the least recent client is evicted first."""


_WITH_PORT: Final = re.compile(r"\[([^]]+)](?::[0-9]+)?|([0-9.]+):[0-9]+")
"""Matches an IPv6 address in brackets, and an IPv4 address with a port."""


class ClientAddress:
    """ASGI middleware that sets the client of a request to the address in X-Forwarded-For.

    Each proxy appends the address of its client. With `proxies` proxies, the user's address is therefore the
    entry at index `-proxies`. Earlier entries come from the user and are not trusted.

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
            if match := _WITH_PORT.fullmatch(address):  # as some proxies write it
                address = match[1] or match[2]
            with suppress(ValueError):
                ip_address(address)
                scope = {**scope, "client": (address, 0)}
        await self.app(scope, receive, send)


def client_name(scope: Scope) -> str:
    """Return the name under which limits count the client of a request; "" for a Unix socket."""
    return permissions.client_name((scope.get("client") or ("",))[0])


class RateLimit:
    """Limits the number of events per client and minute (token bucket).

    Args:
        per_minute: maximum number of events per minute, and maximum number of events in a burst.
        clock: returns the current time in seconds.
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
        app: the ASGI app that receives the accepted requests.
        permissions: permissions that contain the limits.
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
            return text_response(
                f"This server already has {maximum} open pages, the maximum. Try again later.", 503
            )
        if of_client is not None and self._sessions[client] >= of_client:
            return text_response(
                f"{of_client} pages are open from your IP address, the maximum. Close some of these "
                "pages, and reload this page.",
                503,
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


PART_BYTES: Final = 1 << 18
"""Size in bytes of the parts in which the body of a response is sent."""
SEND_SECONDS: Final = 30.0
"""Number of seconds in which the client must receive a part; otherwise its connection is closed."""


MAX_UNSENT_BYTES: Final = 200_000_000
"""Maximum total size in bytes of the large bodies that clients have not received completely yet."""
MAX_CLIENT_UNSENT_BYTES: Final = 100_000_000
"""The same for the bodies of one client, so that a single client cannot prevent large responses to others."""
_BUSY: Final = Problem(
    errors.BUSY,
    "Too many large responses are being sent. Try again in a moment, or request a smaller result.",
)


class PartialBodies:
    """ASGI middleware that sends large bodies in parts, so that clients that read slowly take little memory.

    The server copies only the part of a body that it is sending. The body itself stays in memory until its
    last part is sent. A large body that would exceed `MAX_CLIENT_UNSENT_BYTES` or `MAX_UNSENT_BYTES` is
    therefore replaced by an error response or, if the response has already started, the response is cut off.
    A body may exceed a limit if no other large body counts toward it.

    Attributes:
        unsent: total size in bytes of the large bodies that are being sent, by client.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.unsent: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, and send the body of its response in parts."""
        start: Message | None = None
        is_ended = False

        async def send_in_parts(message: Message) -> None:
            nonlocal start, is_ended
            if message["type"] == "http.response.start":
                start = message  # sent together with the first part of the body
                return
            body = message.get("body", b"") if message["type"] == "http.response.body" else b""
            if len(body) > PART_BYTES and not is_ended and self._exceeds(scope, len(body)):
                is_ended = True
                await (problem_response(_BUSY) if start is not None else _nothing)(scope, receive, send)
            elif not is_ended:
                if start is not None:
                    await send(start)
                    start = None
                is_ended = not await self._send(scope, send, message, body)

        await self.app(scope, receive, send_in_parts if scope["type"] == "http" else send)

    def _exceeds(self, scope: Scope, size: int) -> bool:
        """Return whether a large body would exceed a limit on the total size of unsent bodies.

        A body that is the only unsent one may be larger than the limits.

        Args:
            size: size of the body in bytes.
        """
        used = self.unsent[client_name(scope)]
        limits = ((used, MAX_CLIENT_UNSENT_BYTES), (self.unsent.total(), MAX_UNSENT_BYTES))
        return any(number and number + size > maximum for number, maximum in limits)

    async def _send(self, scope: Scope, send: Send, message: Message, body: bytes) -> bool:
        """Send a message in parts; return False if the client does not receive a part within the limit."""
        if len(body) <= PART_BYTES:
            await send(message)
            return True
        client = client_name(scope)
        self.unsent[client] += len(body)
        try:
            for start in range(0, len(body), PART_BYTES):
                end = start + PART_BYTES
                part = {**message, "body": body[start:end]}
                part["more_body"] = end < len(body) or message.get("more_body", False)
                async with asyncio.timeout(SEND_SECONDS):
                    await send(part)
        except TimeoutError:
            return False  # the server closes the connection, because the response is incomplete
        finally:
            self.unsent[client] -= len(body)
            if not self.unsent[client]:
                del self.unsent[client]
        return True


async def _nothing(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """Send nothing, so that the server closes the connection, because the response is incomplete."""


UPLOAD_SECONDS: Final = 60.0
"""Time limit for an upload, in seconds."""
STALL_SECONDS: Final = 10.0
"""Number of seconds without data after which an upload is aborted."""

MAX_SESSION_FILES: Final = 200
"""Maximum number of files of a session, because names and empty files take memory, too."""
_MAX_ID_LENGTH: Final = 100
"""Maximum length of the ID of a file in the URL of an upload; Streamlit's IDs have 36 characters."""
_PATH: Final = re.compile(r"/_stcore/upload_file/([^/]+)/([^/]+)$")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")


class _RefusedError(Exception):
    """Raised to end an upload in progress with an error response."""

    def __init__(self, response: PlainTextResponse) -> None:
        super().__init__()
        self.response = response


class BoundedUploads:
    """ASGI middleware that enforces the limits on uploads.

    The session's limit counts the Content-Length of an upload, so that the upload can be rejected before it
    is read. The other limits count only received bytes; otherwise a client could block other clients with a
    false Content-Length.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._stated: Counter[str] = Counter()  # stated bytes of the uploads in progress, by session
        self._open: Counter[str] = Counter()  # number of the uploads in progress, by session
        self._arrived: Counter[str] = Counter()  # received bytes of the uploads in progress, by session
        self._clients: dict[str, str] = {}  # IP address of the latest upload, by session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or reject an upload that exceeds a limit."""
        match = _PATH.search(scope["path"]) if scope["type"] == "http" else None
        if match is None or scope["method"] != "PUT":
            await self.app(scope, receive, send)
            return
        session, stated = match[1], Headers(scope=scope).get("content-length", "")
        if len(match[2]) > _MAX_ID_LENGTH:
            await text_response("The ID of the file in the URL is too long.", 400)(scope, receive, send)
            return
        if not _LENGTH.fullmatch(stated):
            await text_response("Send the size of the file in the header Content-Length.", 411)(
                scope, receive, send
            )
            return
        self._assign(session, scope)
        size = int(stated)
        refusal = self._session_refusal(session, size) or self._refusal(session, size)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def check_name(message: Message) -> None:
            if message["type"] == "http.response.start":
                _reject_null(session, match[2])
            await send(message)

        await self._receive(session, size, scope, receive, check_name)

    async def _receive(self, session: str, size: int, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = 0

        async def count() -> Message:
            nonlocal arrived
            async with asyncio.timeout(STALL_SECONDS):
                message = await receive()
            part = len(message.get("body", b""))
            refusal = self._refusal(session, part)
            if refusal is not None:
                raise _RefusedError(refusal)
            arrived += part
            self._arrived[session] += part
            return message

        self._stated[session] += size
        self._open[session] += 1
        try:
            async with asyncio.timeout(UPLOAD_SECONDS):
                await self.app(scope, count, send)
        except TimeoutError:
            text = f"The upload timed out: only {arrived:,} of {size:,} bytes of the file arrived. Try again."
            await _end(text_response(text, 408))(scope, receive, send)
        except _RefusedError as error:
            await _end(error.response)(scope, receive, send)
        except ClientDisconnect:
            pass  # no response can be sent
        finally:
            for counter, number in ((self._stated, size), (self._arrived, arrived), (self._open, 1)):
                counter[session] -= number
                if not counter[session]:
                    del counter[session]

    def _assign(self, session: str, scope: Scope) -> None:
        """Record the client of a session, and remove the clients of sessions without files."""
        active = _stored_bytes().keys() | self._open.keys()
        self._clients = {name: client for name, client in self._clients.items() if name in active}
        self._clients[session] = client_name(scope)

    def _session_refusal(self, session: str, size: int) -> PlainTextResponse | None:
        maximum = permissions.current().max_session_bytes
        if len(_manager().file_storage.get(session, ())) + self._open[session] >= MAX_SESSION_FILES:
            return text_response(
                f"This session already has {MAX_SESSION_FILES} files, the maximum. Remove a file or reload "
                "the page.",
                413,
            )
        if _stored_bytes()[session] + self._stated[session] + size <= maximum:
            return None
        return text_response(
            f"With this file, the files of this session would exceed the limit of {maximum / 1e6:.0f} MB. "
            "Remove a file or reload the page.",
            413,
        )

    def _refusal(self, session: str, size: int) -> PlainTextResponse | None:
        """Return an error response if `size` more bytes exceed the limit of the client or the server."""
        if self._excess(session, size):
            _remove_closed_sessions()
        excess = self._excess(session, size)
        if not excess:
            return None
        return text_response(f"{excess} Try again later, or use the command line.", 413)

    def _excess(self, session: str, size: int) -> str:
        used, limits = _stored_bytes() + self._arrived, permissions.current()
        if used.total() + size > limits.max_upload_bytes:
            maximum = limits.max_upload_bytes / 1e6
            return f"With this file, the files of all users would exceed the limit of {maximum:.0f} MB."
        client = self._clients[session]
        of_client = sum(used[name] for name in used if self._clients.get(name) == client)
        if of_client + size > limits.max_client_bytes:
            maximum = limits.max_client_bytes / 1e6
            return f"With this file, the files of your IP address would exceed the limit of {maximum:.0f} MB."
        return ""


def _reject_null(session: str, file_id: str) -> None:
    """Remove a file whose name contains NUL, and raise `_RefusedError`.

    With such a file, Streamlit would fail in every run of the page.
    """
    if any("\0" in file.name for file in _manager().get_files(session, [file_id])):
        _manager().remove_file(session, file_id)
        raise _RefusedError(text_response("The file name contains a NUL character. Rename the file.", 400))


def _end(response: PlainTextResponse) -> PlainTextResponse:
    """Close the connection after the response, so that the rest of the file is not read as a new request."""
    response.headers["Connection"] = "close"
    return response


def _manager() -> MemoryUploadedFileManager:
    return cast(MemoryUploadedFileManager, runtime.get_instance().uploaded_file_mgr)


def _stored_bytes() -> Counter[str]:
    """Return the total size of the stored files of each session, in bytes."""
    sessions_files = list(_manager().file_storage.items())
    return Counter(
        {session: sum(len(file.data) for file in list(files.values())) for session, files in sessions_files}
    )


def _remove_closed_sessions() -> None:
    """Remove the files of closed pages; Streamlit keeps them for minutes, in case the browser reconnects."""
    for session in _stored_bytes():
        if not sessions.is_connected(session):
            _manager().remove_session_files(session)
