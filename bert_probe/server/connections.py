"""Limits on connections, which uvicorn reads before the app sees anything of them.

uvicorn reads heads of any length, waits for them forever and accepts any number of connections. A single
client could so exhaust the memory or the file descriptors of the process, whatever Host it sends.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from functools import wraps
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST: Final = 1_000
"""Connections of all clients."""
MOST_OF_CLIENT: Final = 250
"""Connections of a client, which is an IP address; behind a proxy all readers are one."""
SECONDS: Final = 20.0
"""The longest that a connection may have no request under way, also while a head arrives."""
HEAD_BYTES: Final = 65_536
"""Bytes in a row that are not part of a body: an address, headers, trailers. What arrives at once is read."""
MESSAGE_BYTES: Final = 16_000_000
"""Of a message of a WebSocket."""
INCOMPLETE_BYTES: Final = 160_000_000
"""Of the incomplete messages of all WebSockets."""
_FILES: Final = 4_096
"""File descriptors: those of `MOST` connections, of others until they are refused, and of the app itself."""
_MARK: Final = "bert_probe_limits"

_BUSY: Final = (b"503 Service Unavailable", b"Too many connections are open. Close some, and try again.\n")
_TOO_LARGE: Final = (
    b"431 Request Header Fields Too Large",
    b"The address and the headers of a request may have 64 KB. Send less.\n",
)


def limit() -> None:
    """Change uvicorn's protocols accordingly, once for the process."""
    _allow_files()
    protocols: list[Any] = [H11Protocol]
    with suppress(ImportError):
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        protocols.append(HttpToolsProtocol)
        if not hasattr(HttpToolsProtocol, _MARK):
            _limit_heads(HttpToolsProtocol)  # h11 limits them itself
    for protocol in protocols:
        if not hasattr(protocol, _MARK):
            setattr(protocol, _MARK, True)
            _limit_connections(protocol)
    with suppress(ImportError):
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

        if not hasattr(WebSocketsSansIOProtocol, _MARK):
            setattr(WebSocketsSansIOProtocol, _MARK, True)
            _limit_messages(WebSocketsSansIOProtocol)


def _allow_files() -> None:
    """Raise the soft limit of file descriptors: asyncio floods the log where none is left to accept with."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _limit_connections(protocol: Any) -> None:
    """Refuse connections beyond a number, and close those that have no request under way."""
    connection_made, on_response_complete = protocol.connection_made, protocol.on_response_complete

    @wraps(connection_made)
    def limited(self: Any, transport: asyncio.Transport) -> None:
        self.config.ws_max_size = min(self.config.ws_max_size, MESSAGE_BYTES)
        connection_made(self, transport)
        if _is_one_too_many(self):
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
    """Close a connection later, unless another request is under way by then.

    What a client goes on sending, such as a body that nothing reads, does not count as a request.
    """
    timer: asyncio.TimerHandle | None = getattr(connection, "idle_timer", None)
    if timer is not None:
        timer.cancel()
    connection.idle_timer = connection.loop.call_later(SECONDS, _close_idle, connection)


def _is_one_too_many(connection: Any) -> bool:
    if len(connection.connections) > MOST:
        return True
    client = _client(connection)
    return sum(_client(other) == client for other in list(connection.connections)) > MOST_OF_CLIENT


def _client(connection: Any) -> str:
    """Return the IP address of the other end; "" for a Unix socket."""
    return connection.client[0] if connection.client else ""


def _close_idle(connection: Any) -> None:
    transport, cycle = connection.transport, connection.cycle
    if transport.is_closing() or transport.get_protocol() is not connection:  # closed, or a WebSocket now
        return
    if cycle is None or cycle.response_complete:
        transport.close()


def _refuse(transport: asyncio.Transport, status: bytes, sentence: bytes) -> None:
    transport.write(
        b"HTTP/1.1 %b\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
        b"cache-control: no-store\r\nconnection: close\r\n\r\n%b" % (status, len(sentence), sentence)
    )
    transport.close()


def _limit_heads(protocol: Any) -> None:
    """Count the bytes since the last part of a body, and refuse a head or trailers that are too long."""
    data_received = protocol.data_received

    @wraps(data_received)
    def counted(self: Any, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.head_bytes = getattr(self, "head_bytes", 0) + len(data)
        data_received(self, data)
        is_open = not self.transport.is_closing() and self.transport.get_protocol() is self
        if is_open and self.head_bytes > HEAD_BYTES:
            _refuse(self.transport, *_TOO_LARGE)

    protocol.data_received = counted
    for name in ("on_headers_complete", "on_body", "on_chunk_header", "on_message_complete"):
        setattr(protocol, name, _resetting(getattr(protocol, name, None)))


def _resetting(callback: Any) -> Any:
    def reset(self: Any, *args: Any) -> None:
        self.head_bytes = 0
        if callback is not None:
            callback(self, *args)

    return reset


def _limit_messages(protocol: Any) -> None:
    """Count the bytes since the last complete message, and end connections where all have too many."""
    data_received, complete = protocol.data_received, protocol.send_receive_event_to_app

    @wraps(data_received)
    def counted(self: Any, data: bytes) -> None:
        self.incomplete_bytes = getattr(self, "incomplete_bytes", 0) + len(data)
        data_received(self, data)
        others = (getattr(connection, "incomplete_bytes", 0) for connection in list(self.connections))
        if self.incomplete_bytes > HEAD_BYTES and sum(others) > INCOMPLETE_BYTES:
            self.transport.abort()

    @wraps(complete)
    def completed(self: Any) -> None:
        self.incomplete_bytes = 0
        complete(self)

    protocol.data_received, protocol.send_receive_event_to_app = counted, completed
