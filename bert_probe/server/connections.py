"""Patch uvicorn, asyncio and Streamlit to limit connections and to send small responses without delay.

By default, uvicorn reads request heads of any length, waits for them forever and accepts any number of
connections, all before the app sees a request. A single client could exhaust the memory or the file
descriptors of the process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import wraps
from typing import Any, ClassVar, Final
from weakref import WeakSet

import psutil
from starlette.websockets import WebSocket
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.Common_pb2 import FileURLsRequest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.app_session import AppSession
from streamlit.runtime.session_manager import SessionClientDisconnectedError
from streamlit.web.server.starlette.starlette_websocket import StarletteSessionClient
from uvicorn.protocols.http.h11_impl import H11Protocol

from bert_probe.runtime import permissions
from bert_probe.server import security_headers

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
MAX_MESSAGE_BYTES: Final = 16_000_000
"""Maximum size of a WebSocket message in bytes."""
MAX_INCOMPLETE_BYTES: Final = 160_000_000
"""Maximum total size of the incomplete messages of all WebSockets, in bytes."""
MAX_MESSAGE_FIELDS: Final = 5_000
"""Maximum number of fields of a WebSocket message, nested ones included. An empty field has two bytes, but
takes up to 100 bytes in Streamlit's objects, and 800 bytes if it is the name of a file to be uploaded.
"""
MAX_FRAMES: Final = 1_000
"""Maximum number of WebSocket frames that a connection may send at once. After that, it may send
`FRAMES_PER_SECOND` frames per second, and one more per 1,000 bytes. Parsing a frame takes the server longer
than sending it takes the client.
"""
FRAMES_PER_SECOND: Final = 100
_SLICE_BYTES: Final = 4_096
"""Size of the parts in which received WebSocket data is parsed, in bytes."""
MAX_FILE_NAMES: Final = 200
"""Maximum number of files that a WebSocket message announces for upload. Each counts as a frame, too."""
MAX_JSON_BYTES: Final = 100_000
"""Maximum size in bytes of the JSON from a component of a page. Parsed JSON can take 50 times as much."""
_MAX_BRACKETS: Final = 500_000
"""Maximum number of brackets in a WebSocket message, because texts of some widgets are JSON, too."""
_MAX_MEMBERS: Final = 20
"""Maximum number of fields at the top level of a WebSocket message; Streamlit's messages have 1 or 2."""
_FILE_DESCRIPTORS: Final = 4_096
"""File descriptors needed for `MAX_CONNECTIONS`, connections that are rejected, and the app's own files."""
_MARK: Final = "bert_probe_limits"
FREE_UNSENT_BYTES: Final = 1_000_000
"""Size in bytes of the messages that each WebSocket may keep until they are received."""
MAX_UNSENT_BYTES: Final = 200_000_000
"""Maximum total size in bytes of the WebSocket messages that clients have not received yet."""
MAX_CLIENT_UNSENT_BYTES: Final = 100_000_000
"""The same for the messages of one client."""
_CLOSING: Final = "closing_task"
_TRY_AGAIN: Final = 1013
"""WebSocket close code: try again later."""

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
            _limit_messages(WebSocketsSansIOProtocol)


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
        self.config.ws_max_size = min(self.config.ws_max_size, MAX_MESSAGE_BYTES)
        # The limits of `_limit_messages` count received bytes, and compressed messages could be 1,000
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


def _limit_messages(protocol: Any) -> None:
    """Abort connections with too many bytes, fields or frames.

    A connection with a large incomplete message is aborted while the total exceeds `MAX_INCOMPLETE_BYTES`,
    one with a message that `announced_files` rejects, and one with too many frames for `MAX_FRAMES`.
    """
    data_received, complete = protocol.data_received, protocol.send_receive_event_to_app

    @wraps(data_received)
    def counted(self: Any, data: bytes) -> None:
        self.incomplete_bytes = getattr(self, "incomplete_bytes", 0) + len(data)
        _allow_frames(self, len(data))
        for start in range(0, len(data), _SLICE_BYTES):
            if self.transport.is_closing():
                return
            data_received(self, data[start : start + _SLICE_BYTES])
        total = sum(getattr(connection, "incomplete_bytes", 0) for connection in list(self.connections))
        if self.incomplete_bytes > MAX_HEAD_BYTES and total > MAX_INCOMPLETE_BYTES:
            self.transport.abort()

    @wraps(complete)
    def completed(self: Any) -> None:
        self.incomplete_bytes = 0
        names = announced_files(b"".join(self.frames))
        self.frames_left -= names or 0
        if names is None or self.frames_left < 0:
            self.frames = []
            self.transport.abort()
            return
        complete(self)

    protocol.data_received, protocol.send_receive_event_to_app = counted, completed
    for kind in ("text", "bytes", "cont", "ping", "pong"):
        setattr(protocol, f"handle_{kind}", _counting_frames(getattr(protocol, f"handle_{kind}")))


def _allow_frames(connection: Any, received_bytes: int) -> None:
    """Increase the number of frames that a connection may send, by the time and the received bytes."""
    now = connection.loop.time()
    seconds = now - getattr(connection, "frames_time", now)
    more = seconds * FRAMES_PER_SECOND + received_bytes / 1_000
    connection.frames_left = min(MAX_FRAMES, getattr(connection, "frames_left", MAX_FRAMES) + more)
    connection.frames_time = now


def _counting_frames(callback: Any) -> Any:
    @wraps(callback)
    def counted(self: Any, *args: Any) -> None:
        self.frames_left -= 1
        if self.frames_left < 0:
            self.transport.abort()
        elif not self.transport.is_closing():
            callback(self, *args)

    return counted


def announced_files(message: bytes) -> int | None:
    """Return how many files a message announces for upload, or None if the message is rejected.

    A message is rejected if it has too many fields, file names or JSON, or if it is long and not valid. A
    long request for a download is rejected, too, because Streamlit logs the IDs of such requests.
    """
    is_long = len(message) > MAX_MESSAGE_FIELDS
    if message.count(b"[") + message.count(b"{") > _MAX_BRACKETS:
        return None
    count = names = 0
    parts: list[tuple[int, int, Any]] = [(0, len(message), BackMsg.DESCRIPTOR)]
    try:
        while parts:
            position, end, descriptor = parts.pop()
            while position < end:
                count += 1
                names += descriptor is FileURLsRequest.DESCRIPTOR
                limit = _MAX_MEMBERS if descriptor is BackMsg.DESCRIPTOR else MAX_MESSAGE_FIELDS
                if count > limit or names > MAX_FILE_NAMES:
                    return None
                key, position = _varint(message, position)
                start, position = _end_of_field(message, position, key & 7)
                field = descriptor.fields_by_number.get(key >> 3)
                if field is None:
                    continue
                if is_long and (field.name == _OPERATION or _is_large_json(field.name, position - start)):
                    return None
                # A short message can only have too many file names, whose parts are counted in any case.
                is_counted = is_long or field.message_type is FileURLsRequest.DESCRIPTOR
                if key & 7 == _SIZED and field.message_type is not None and is_counted:
                    parts.append((start, position, field.message_type))
            if position > end:
                return None
    except KeyError:  # a type of fields that Streamlit does not use, such as a group
        return None
    except IndexError:
        return None if is_long else names
    return names


def _is_large_json(field: str, size: int) -> bool:
    return field in ("json_value", "json_trigger_value") and size > MAX_JSON_BYTES


_OPERATION: Final = "backend_operation_request"
_SIZED: Final = 2
"""Type of protobuf fields with a size: strings, and messages."""


def _end_of_field(message: bytes, position: int, kind: int) -> tuple[int, int]:
    """Return the start and the end of the content of a protobuf field after its key."""
    if kind == 0:
        return position, _varint(message, position)[1]
    if kind == _SIZED:
        size, position = _varint(message, position)
        return position, position + size
    return position, position + {1: 8, 5: 4}[kind]


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return an integer and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError("The message has an integer of more than 64 bits.")


class _SendQueue(asyncio.Queue[bytes]):
    """Messages that wait to be sent on a WebSocket. Counts their bytes until the client has received them.

    Args:
        client: name under which limits count the client.
    """

    open: ClassVar[WeakSet[_SendQueue]] = WeakSet()
    """The queues of all WebSockets."""

    def __init__(self, maxsize: int, client: str) -> None:
        super().__init__(maxsize)
        self.client = client
        self._waiting = self._sent = self._taken = 0
        self.open.add(self)

    @property
    def size(self) -> int:
        """Total size of the messages in bytes, with those that are being sent."""
        return self._waiting + self._sent + self._taken

    async def get(self) -> bytes:
        """Return the next message. The caller sends it before the next call."""
        # The previous message may still be on the way. The one before it has been received, because the
        # server starts to send a message only then.
        self._sent, self._taken = self._taken, 0
        return await super().get()

    def put_nowait(self, item: bytes) -> None:
        """Add a message.

        Raises:
            QueueFull: too many messages wait on this WebSocket, or their total size exceeds a limit.
        """
        if self.size and self.size + len(item) > FREE_UNSENT_BYTES:
            queues = list(self.open)
            of_client = sum(queue.size for queue in queues if queue.client == self.client)
            total = sum(queue.size for queue in queues)
            if of_client + len(item) > MAX_CLIENT_UNSENT_BYTES or total + len(item) > MAX_UNSENT_BYTES:
                raise asyncio.QueueFull
        super().put_nowait(item)

    def _put(self, item: bytes) -> None:
        super()._put(item)
        self._waiting += len(item)

    def _get(self) -> bytes:
        item = super()._get()
        self._waiting -= len(item)
        self._taken = len(item)
        return item

    def close(self) -> None:
        """Delete the messages."""
        self.open.discard(self)
        while not self.empty():
            self.get_nowait()


def limit_unsent_messages() -> None:
    """Patch Streamlit's WebSockets, once per process, to limit the messages that clients have not received.

    A WebSocket is closed if a message would exceed a limit. The browser then opens a new one.
    """
    if hasattr(StarletteSessionClient, _MARK):
        return
    setattr(StarletteSessionClient, _MARK, True)
    start, write = StarletteSessionClient.__init__, StarletteSessionClient.write_forward_msg
    close = StarletteSessionClient.aclose

    @wraps(start)
    def starting(self: StarletteSessionClient, websocket: WebSocket) -> None:
        start(self, websocket)  # the task that reads from the queue starts later
        client = permissions.client_name(websocket.client.host if websocket.client else "")
        self._send_queue = _SendQueue(self._send_queue.maxsize, client)

    @wraps(write)
    def limited(self: StarletteSessionClient, msg: ForwardMsg) -> None:
        is_open = not self._closed.is_set()
        try:
            write(self, msg)
        except SessionClientDisconnectedError:
            if is_open:
                self._sender_task.cancel()
                self._send_queue.close()  # type: ignore[attr-defined]
                setattr(self, _CLOSING, asyncio.create_task(self._websocket.close(_TRY_AGAIN)))
            raise

    @wraps(close)
    async def closing(self: StarletteSessionClient) -> None:
        self._send_queue.close()  # type: ignore[attr-defined]
        await close(self)

    StarletteSessionClient.__init__ = starting  # type: ignore[method-assign]
    StarletteSessionClient.write_forward_msg = limited  # type: ignore[method-assign]
    StarletteSessionClient.aclose = closing  # type: ignore[method-assign]


RECENT: Final = 4
"""Number of finished runs after which a large message that was not used in these runs is sent in full again.

Streamlit sends a hash instead of a large message that the browser has cached. The browser drops messages that
were not used in the last 20 finished runs (``global.maxCachedMessageAge``). This limit is lower, because some
runs can finish between a request and its response.
"""
_ATTRIBUTE: Final = "sent_messages"


class SentMessages:
    """Tracks in which recent run of a session each large message was last sent or referred to."""

    def __init__(self) -> None:
        self._finished = 0
        self._used: dict[str, int] = {}

    def record(self, messages: Iterable[ForwardMsg]) -> None:
        """Record messages in the order in which they are sent to the browser."""
        for message in messages:
            kind = message.WhichOneof("type")
            if kind == "ref_hash":
                self._used[message.ref_hash] = self._finished
            elif message.metadata.cacheable:
                self._used[message.hash] = self._finished
            elif kind == "script_finished" and message.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN:
                self._finished += 1
                self._used = {name: run for name, run in self._used.items() if self._finished - run <= RECENT}

    def recent(self, hashes: Iterable[str]) -> list[str]:
        """Return the hashes of messages that were used in the last `RECENT` finished runs."""
        return [name for name in hashes if name in self._used]


def limit_references() -> None:
    """Patch Streamlit's sessions, once per process, so that only recently used messages are sent as hashes.

    All other messages are sent completely; see `RECENT`.
    """
    if hasattr(AppSession, _ATTRIBUTE):
        return
    setattr(AppSession, _ATTRIBUTE, None)
    flush, request = AppSession.flush_browser_queue, AppSession.request_rerun

    @wraps(flush)
    def recording(self: AppSession) -> list[ForwardMsg]:
        messages = flush(self)
        _sent(self).record(messages)
        return messages

    @wraps(request)
    def filtering(self: AppSession, client_state: ClientState | None) -> None:
        if client_state is not None:
            recent = _sent(self).recent(client_state.cached_message_hashes)
            del client_state.cached_message_hashes[:]
            client_state.cached_message_hashes.extend(recent)
        request(self, client_state)

    AppSession.flush_browser_queue = recording  # type: ignore[method-assign]
    AppSession.request_rerun = filtering  # type: ignore[method-assign]


def _sent(session: AppSession) -> SentMessages:
    messages: SentMessages | None = getattr(session, _ATTRIBUTE)
    if messages is None:
        messages = SentMessages()
        setattr(session, _ATTRIBUTE, messages)
    return messages
