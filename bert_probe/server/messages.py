"""Patch uvicorn and Streamlit to limit the WebSocket messages from and to a client.

By default, a short message can make the server compute for long or send much, and the messages that a client
does not receive stay in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import wraps
from typing import Any, ClassVar, Final
from weakref import WeakSet

from starlette.websockets import WebSocket
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ClientState_pb2 import ClientState, ContextInfo
from streamlit.proto.Common_pb2 import FileURLsRequest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.app_session import AppSession
from streamlit.runtime.session_manager import SessionClientDisconnectedError
from streamlit.web.server.starlette.starlette_websocket import StarletteSessionClient

from bert_probe.runtime import permissions

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
MAX_ADDRESS_BYTES: Final = 65_536
"""Maximum size in bytes of the URL parameters, and of each other text about the browser, in a request for a
script run. Streamlit keeps them with the session. This is also the limit for the head of an HTTP request.
"""
_MAX_BRACKETS: Final = 500_000
"""Maximum number of brackets in a WebSocket message, because texts of some widgets are JSON, too."""
_MAX_MEMBERS: Final = 20
"""Maximum number of fields at the top level of a WebSocket message; Streamlit's messages have 1 or 2."""
FREE_UNSENT_BYTES: Final = 1_000_000
"""Size in bytes of the messages that each WebSocket may keep until they are received."""
MAX_UNSENT_BYTES: Final = 200_000_000
"""Maximum total size in bytes of the WebSocket messages that clients have not received yet."""
MAX_CLIENT_UNSENT_BYTES: Final = 100_000_000
"""The same for the messages of one client."""
_CLOSING: Final = "closing_task"
_TRY_AGAIN: Final = 1013
"""WebSocket close code: try again later."""
_SMALL_BYTES: Final = 65_536
"""Maximum size of an incomplete message that is never aborted, in bytes."""
HANDSHAKE_SECONDS: Final = 20.0
"""Number of seconds after which a connection without a complete handshake is aborted."""
_MARK: Final = "bert_probe_limits"


def limit(protocol: Any) -> None:
    """Patch uvicorn's WebSocket protocol to abort connections with too many bytes, fields or frames.

    A connection with a large incomplete message is aborted while the total exceeds `MAX_INCOMPLETE_BYTES`,
    one with a message that `announced_files` rejects, and one with too many frames for `MAX_FRAMES`.
    """
    data_received, complete = protocol.data_received, protocol.send_receive_event_to_app
    connection_made, connection_lost = protocol.connection_made, protocol.connection_lost

    @wraps(connection_made)
    def timed(self: Any, transport: asyncio.Transport) -> None:
        connection_made(self, transport)
        self.loop.call_later(HANDSHAKE_SECONDS, _abort_incomplete, self)

    @wraps(data_received)
    def counted(self: Any, data: bytes) -> None:
        self.incomplete_bytes = getattr(self, "incomplete_bytes", 0) + len(data)
        _allow_frames(self, len(data))
        for start in range(0, len(data), _SLICE_BYTES):
            if self.transport.is_closing():
                return
            data_received(self, data[start : start + _SLICE_BYTES])
        total = sum(getattr(connection, "incomplete_bytes", 0) for connection in list(self.connections))
        if self.incomplete_bytes > _SMALL_BYTES and total > MAX_INCOMPLETE_BYTES:
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

    @wraps(connection_lost)
    def released(self: Any, error: Exception | None) -> None:
        connection_lost(self, error)
        # The incomplete message is no longer counted, but the connection can be referenced for a long time.
        self.frames = []
        self.conn.parser.close()  # refers to the last frame
        self.conn.reader.buffer.clear()

    protocol.connection_made, protocol.connection_lost = timed, released
    protocol.data_received, protocol.send_receive_event_to_app = counted, completed
    for kind in ("text", "bytes", "cont", "ping", "pong"):
        setattr(protocol, f"handle_{kind}", _counting_frames(getattr(protocol, f"handle_{kind}")))


def _abort_incomplete(connection: Any) -> None:
    """Abort a connection without a handshake, such as a POST request that asks for a WebSocket."""
    if not connection.handshake_complete:
        connection.transport.abort()


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

    A message is rejected if it has too many fields or file names, too much JSON or too long URL parameters,
    or if it is long and not valid. A long request for a download is rejected, too, because Streamlit logs the
    IDs of such requests.
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
                limit = _MAX_MEMBERS if descriptor is BackMsg.DESCRIPTOR else MAX_MESSAGE_FIELDS
                if count > limit:
                    return None
                key, position = _varint(message, position)
                start, position = _end_of_field(message, position, key & 7)
                field = descriptor.fields_by_number.get(key >> 3)
                if field is None:
                    continue
                names += field.name == "file_names"
                if names > MAX_FILE_NAMES:
                    return None
                if is_long and (field.name == _OPERATION or _is_too_large(field, position - start)):
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


def _is_too_large(field: Any, size: int) -> bool:
    if field.name in ("json_value", "json_trigger_value"):
        return size > MAX_JSON_BYTES
    is_about_browser = field.containing_type in (ClientState.DESCRIPTOR, ContextInfo.DESCRIPTOR)
    return is_about_browser and field.message_type is None and size > MAX_ADDRESS_BYTES


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
            QueueFull: too many messages wait on this WebSocket, or the total size of the messages to this
                client or to all clients exceeds a limit. The sizes are limited only if a message waits, and
                more than `FREE_UNSENT_BYTES` would wait on this WebSocket.
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


def limit_unsent() -> None:
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
