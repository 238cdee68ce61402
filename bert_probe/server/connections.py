"""Patch uvicorn and asyncio to limit connections and to send small responses without delay.

By default, uvicorn reads request heads of any length, waits for them forever and accepts any number of
connections, all before the app sees a request. A single client could exhaust the memory or the file
descriptors of the process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from functools import wraps
from typing import Any, Final

import psutil
from uvicorn.protocols.http.h11_impl import H11Protocol

from bert_probe.runtime import permissions
from bert_probe.server import messages, security_headers

MAX_CONNECTIONS: Final = 1_000
"""Maximum number of open connections to the server."""
MAX_PER_CLIENT: Final = 250
"""Maximum number of connections per client; behind a proxy all users count as one client."""
IDLE_SECONDS: Final = 20.0
"""Number of seconds after which a connection without a complete request head is closed."""
MAX_HEAD_BYTES: Final = 65_536
"""Maximum size of a request's line and headers, or of its trailers, in bytes."""
MAX_HEADERS: Final = 200
"""Maximum number of headers of a request, because a short header takes 30 times its size in memory."""
MAX_PIPELINED: Final = 16
"""Maximum number of requests that wait on a connection until its earlier requests are answered."""
_FILE_DESCRIPTORS: Final = 4_096
"""File descriptors needed for `MAX_CONNECTIONS`, connections that are rejected, and the app's own files."""
_MARK: Final = "bert_probe_limits"

_BUSY: Final = (b"503 Service Unavailable", b"Too many connections are open. Close some, and try again.\n")
_TOO_LARGE: Final = (
    b"431 Request Header Fields Too Large",
    b"The URL and the headers of a request are limited to 64 KB and 200 headers. Send less.\n",
)


def disable_nagle() -> None:
    """Set TCP_NODELAY on all listening sockets; accepted connections inherit it.

    asyncio sets TCP_NODELAY only for sockets whose protocol is IPPROTO_TCP, and Streamlit creates its socket
    without a protocol. With Nagle's algorithm, a response written in two parts, as nearly all are, takes up
    to 40 ms longer.
    """
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.fd >= 0:
            with socket.socket(fileno=os.dup(connection.fd)) as listener:
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def limit() -> None:
    """Patch uvicorn's protocols, once per process, to enforce the limits of this module."""
    _raise_file_limit()
    protocols: list[Any] = [H11Protocol]
    with suppress(ImportError):
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        protocols.append(HttpToolsProtocol)
        if not hasattr(HttpToolsProtocol, _MARK):
            # h11 limits request heads itself, and parses a request only after the response to the last one.
            _limit_heads(HttpToolsProtocol)
            _limit_pipeline(HttpToolsProtocol)
    for protocol in protocols:
        if not hasattr(protocol, _MARK):
            setattr(protocol, _MARK, True)
            _limit_connections(protocol)
    with suppress(ImportError):
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

        if not hasattr(WebSocketsSansIOProtocol, _MARK):
            setattr(WebSocketsSansIOProtocol, _MARK, True)
            messages.limit(WebSocketsSansIOProtocol)


def _raise_file_limit() -> None:
    """Raise the soft limit on file descriptors, because asyncio floods the log when none are left."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _FILE_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_FILE_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def _limit_connections(protocol: Any) -> None:
    """Reject connections that exceed the limits, and close idle connections."""
    connection_made, on_response_complete = protocol.connection_made, protocol.on_response_complete

    @wraps(connection_made)
    def limited(self: Any, transport: asyncio.Transport) -> None:
        self.config.ws_max_size = min(self.config.ws_max_size, messages.MAX_MESSAGE_BYTES)
        # The limits of `messages.limit` count received bytes, and compressed messages could be 1,000
        # times larger.
        self.config.ws_per_message_deflate = False
        connection_made(self, transport)
        if _exceeds_limits(self):
            _refuse(transport, *_BUSY)
        else:
            _watch(self)

    @wraps(on_response_complete)
    def continued(self: Any) -> None:
        on_response_complete(self)
        if not self.transport.is_closing():
            _watch(self)

    protocol.connection_made, protocol.on_response_complete = limited, continued


def _watch(connection: Any) -> None:
    """Close a connection after `IDLE_SECONDS` if no request is in progress at that time.

    Bytes that do not start a request, such as an unread body, do not keep the connection open.
    """
    timer: asyncio.TimerHandle | None = getattr(connection, "idle_timer", None)
    if timer is not None:
        timer.cancel()
    connection.idle_timer = connection.loop.call_later(IDLE_SECONDS, _close_idle, connection)


def _exceeds_limits(connection: Any) -> bool:
    if len(connection.connections) > MAX_CONNECTIONS:
        return True
    if permissions.current().trusted_proxies:  # behind a proxy, all connections have the proxy's address
        return False
    client = _client(connection)
    return sum(_client(other) == client for other in list(connection.connections)) > MAX_PER_CLIENT


def _client(connection: Any) -> str:
    """Return the name under which limits count the client; "" for a Unix socket."""
    return permissions.client_name(connection.client[0] if connection.client else "")


def _close_idle(connection: Any) -> None:
    transport, cycle = connection.transport, connection.cycle
    if transport.is_closing() or transport.get_protocol() is not connection:  # closed, or a WebSocket
        return
    if cycle is None or cycle.response_complete:
        transport.close()


def _refuse(transport: asyncio.Transport, status: bytes, sentence: bytes) -> None:
    headers = {
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Length": str(len(sentence)),
        "Cache-Control": "no-store",
        "Connection": "close",
        **security_headers.headers(),
    }
    lines = "".join(f"{name.lower()}: {value}\r\n" for name, value in headers.items())
    transport.write(b"HTTP/1.1 %b\r\n%b\r\n%b" % (status, lines.encode("latin-1"), sentence))
    transport.close()


def _limit_heads(protocol: Any) -> None:
    """Count headers, and the bytes since the last body chunk; reject heads or trailers that are too long."""
    data_received = protocol.data_received

    @wraps(data_received)
    def counted(self: Any, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.head_bytes = getattr(self, "head_bytes", 0) + len(data)
        data_received(self, data)
        is_open = not self.transport.is_closing() and self.transport.get_protocol() is self
        if is_open and self.head_bytes > MAX_HEAD_BYTES:
            _refuse(self.transport, *_TOO_LARGE)

    header, headers_complete = protocol.on_header, protocol.on_headers_complete

    @wraps(header)
    def limited(self: Any, name: bytes, value: bytes) -> None:
        if self.parser_has_head:  # a trailer, which uvicorn would add to the headers
            return
        if len(self.headers) >= MAX_HEADERS:
            _refuse(self.transport, *_TOO_LARGE)
            raise ValueError("The request has too many headers.")  # makes the parser stop
        header(self, name, value)

    @wraps(headers_complete)
    def checked(self: Any) -> None:
        # The last part of a long head can be complete when it arrives, and `counted` does not see it then.
        size = len(self.url) + sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            _refuse(self.transport, *_TOO_LARGE)
            raise ValueError("The head of the request is too long.")
        self.parser_has_head = True
        headers_complete(self)

    begin = protocol.on_message_begin

    @wraps(begin)
    def begun(self: Any) -> None:
        self.parser_has_head = False
        begin(self)

    protocol.data_received, protocol.on_message_begin = counted, begun
    protocol.on_header, protocol.on_headers_complete = limited, checked
    for name in ("on_headers_complete", "on_body", "on_chunk_header", "on_message_complete"):
        setattr(protocol, name, _resetting(getattr(protocol, name, None)))


def _limit_pipeline(protocol: Any) -> None:
    """Close connections with more than `MAX_PIPELINED` waiting requests.

    httptools parses all requests of a received chunk at once. By default, uvicorn continues to read from the
    connection after each response, although parsed requests are waiting.
    """
    headers_complete, response_complete = protocol.on_headers_complete, protocol.on_response_complete
    invalid = protocol.send_400_response

    @wraps(headers_complete)
    def limited(self: Any) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            # There is no error response, because it would precede the responses to the waiting requests.
            self.pipeline.clear()
            self.transport.close()
            raise ValueError("Too many requests are waiting on this connection.")  # makes the parser stop
        headers_complete(self)

    @wraps(response_complete)
    def continued(self: Any) -> None:
        response_complete(self)
        if self.pipeline:
            self.flow.pause_reading()

    @wraps(invalid)
    def unless_closing(self: Any, message: str) -> None:
        if not self.transport.is_closing():
            invalid(self, message)

    protocol.on_headers_complete, protocol.on_response_complete = limited, continued
    protocol.send_400_response = unless_closing


def _resetting(callback: Any) -> Any:
    def reset(self: Any, *args: Any) -> None:
        self.head_bytes = 0
        if callback is not None:
            callback(self, *args)

    return reset
