"""Test limits on the number, duration and memory of connections, and the socket option TCP_NODELAY."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.session_manager import SessionClientDisconnectedError
from streamlit.web.server.starlette.starlette_websocket import StarletteSessionClient
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from bert_probe.server import asgi, connections, messages, security_headers
from tests.helpers.server import run_in_thread

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
HANDSHAKE = (
    HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"

CHUNK = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"

Connect = Callable[[], Awaitable["Client"]]


class Client:
    """A client that sends raw bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> int:
        """Read the next response completely, and return its status."""
        return (await self.response())[0]

    async def response(self) -> tuple[int, dict[str, str]]:
        """Read the next response completely; return its status, and its headers by name in lower case."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        pairs = (line.split(": ", 1) for line in head.split("\r\n")[1:-2])
        headers = {name.lower(): value for name, value in pairs}
        await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(head.split()[1]), headers

    async def until_closed(self, data: bytes = b"") -> None:
        """Send `data` repeatedly, if any, until the server has closed the connection."""
        while data:
            try:
                await self.send(data)
            except ConnectionError:
                return
        with suppress(ConnectionError):
            await self.reader.read()


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond to requests without reading their bodies, and reply to each WebSocket message with its size.

    The response contains the names of the request's headers.
    """
    if scope["type"] == "http":
        names = b" ".join(name for name, _ in scope["headers"])
        headers = [(b"content-length", b"0"), (b"x-names", names)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "bytes": str(len(message["bytes"])).encode()})


@asynccontextmanager
async def serving(http: str) -> AsyncIterator[Connect]:
    async with asgi.lifespan(None):
        config = uvicorn.Config(
            answer, port=0, http=http, ws="websockets-sansio", lifespan="off", log_level="critical"
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.001)
        address = server.servers[0].sockets[0].getsockname()
        clients: list[Client] = []

        async def connect() -> Client:
            clients.append(Client(*await asyncio.open_connection(*address)))
            return clients[-1]

        try:
            yield connect
        finally:
            for client in clients:
                client.writer.transport.abort()
            server.should_exit = True
            await task


def run(http: str, attack: Callable[[Connect], Awaitable[None]]) -> None:
    async def attacked() -> None:
        async with serving(http) as connect, asyncio.timeout(30):
            await attack(connect)
            client = await connect()
            await client.send(HEAD + b"\r\n")
            assert await client.status() == 200

    run_in_thread(attacked())


both = pytest.mark.parametrize("http", ["httptools", "h11"])


@pytest.mark.gate(cases=3)
@both
@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET /", b"a" * 65_536),
        (HEAD + b"A: ", b"a" * 65_536),
        (HEAD, b"A: a\r\n" * 10_000),
        (CHUNKED + b"1\r\na\r\n0\r\n", b"A: a\r\n" * 10_000),
        (CHUNKED + b"1;", b"a" * 65_536),
    ],
    ids=["address", "header", "headers", "trailers", "chunk extension"],
)
def test_endless_head_is_refused(http: str, start: bytes, more: bytes) -> None:
    async def attack(connect: Connect) -> None:
        client = await connect()
        await client.send(start)
        await client.until_closed(more)

    run(http, attack)


@pytest.mark.gate(cases=3)
@both
@pytest.mark.parametrize(
    ("start", "more"),
    [(b"", b""), (b"GET / HT", b""), (HEAD + b"\r\n" + HEAD, b""), (CHUNKED, CHUNK)],
    ids=["nothing", "half a line", "half of the second head", "body that is not read"],
)
def test_connection_without_request_is_closed(
    http: str, start: bytes, more: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.1)

    async def attack(connect: Connect) -> None:
        client = await connect()
        await client.send(start)
        await client.until_closed(more)

    run(http, attack)


@both
@pytest.mark.parametrize("limit", ["MAX_CONNECTIONS", "MAX_PER_CLIENT"])
def test_too_many_connections_are_refused(http: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, limit, 3)

    async def attack(connect: Connect) -> None:
        clients = [await connect() for _ in range(5)]
        assert [await client.status() for client in clients[3:]] == [503, 503]
        for client in clients:
            await client.send(HEAD + b"Connection: close\r\n\r\n")
            await client.until_closed()

    run(http, attack)


@both
def test_requests_on_one_connection_are_answered(http: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_HEAD_BYTES", 200)

    async def attack(connect: Connect) -> None:
        client = await connect()
        for _ in range(20):
            await client.send(HEAD + b"\r\n")
            assert await client.status() == 200

    run(http, attack)


def test_complete_head_beyond_the_limit_is_refused() -> None:
    async def attack(connect: Connect) -> None:
        for extra, status in ((b"x" * 60_000, 200), (b"x" * 66_000, 431)):
            client = await connect()
            await client.send(HEAD + b"X-Padding: " + extra + b"\r\n\r\n")
            assert await client.status() == status

    run("httptools", attack)


def test_request_with_many_headers_is_refused() -> None:
    async def attack(connect: Connect) -> None:
        for count, status in ((198, 200), (200, 431)):  # and the header Host
            client = await connect()
            await client.send(HEAD + b"A: a\r\n" * count + b"\r\n")
            assert await client.status() == status

    run("httptools", attack)


@both
def test_pipelined_requests_are_limited(http: str) -> None:
    """Requests that arrive at once are answered in order; too many of them close the connection."""

    async def attack(connect: Connect) -> None:
        client = await connect()
        await client.send((HEAD + b"\r\n") * connections.MAX_PIPELINED)
        for _ in range(connections.MAX_PIPELINED):
            assert await client.status() == 200
        if http == "httptools":  # h11 reads the next request after each response
            await client.send((HEAD + b"\r\n") * 1_000)
            await client.until_closed()

    run(http, attack)


def test_pipelined_requests_are_not_read_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are not read while parsed requests wait for the responses to earlier ones."""
    monkeypatch.setattr(connections, "MAX_PIPELINED", 1_000_000)
    waiting: list[int] = []
    start = HttpToolsProtocol._start_asgi_task

    def recorded(self: HttpToolsProtocol, *args: Any) -> None:
        waiting.append(len(self.pipeline))
        start(self, *args)

    monkeypatch.setattr(HttpToolsProtocol, "_start_asgi_task", recorded)
    request = HEAD + b"A: " + b"a" * 1_000 + b"\r\n\r\n"

    async def attack(connect: Connect) -> None:
        client = await connect()
        sending = asyncio.create_task(client.send(request * 5_000))
        for _ in range(5_000):
            assert await client.status() == 200
        await sending

    run("httptools", attack)
    assert max(waiting) * len(request) < 300_000  # asyncio reads at most 256 KB at once


def assert_refusal(response: tuple[int, dict[str, str]], expected_status: int) -> None:
    """Check the status and the headers of a response that this module sends without the app."""
    status, headers = response
    expected = {name.lower(): value for name, value in security_headers.headers().items()}
    assert status == expected_status
    assert headers == expected | {
        "content-type": "text/plain; charset=utf-8",
        "content-length": headers["content-length"],
        "cache-control": "no-store",
        "connection": "close",
    }


@both
def test_refused_connection_gets_security_headers(http: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)

    async def attack(connect: Connect) -> None:
        clients = [await connect() for _ in range(2)]
        assert_refusal(await clients[1].response(), 503)
        await clients[0].send(HEAD + b"Connection: close\r\n\r\n")
        await clients[0].until_closed()

    run(http, attack)


@pytest.mark.parametrize(("excess", "end"), [(1, b""), (100, b"\r\n\r\n")], ids=["incomplete", "complete"])
def test_refused_head_gets_security_headers(excess: int, end: bytes) -> None:
    async def attack(connect: Connect) -> None:
        client = await connect()
        head = (HEAD + b"X-Padding: ").ljust(connections.MAX_HEAD_BYTES + excess, b"x")
        await client.send(head + end)
        assert_refusal(await client.response(), 431)

    run("httptools", attack)


def frame(size: int, data: bytes) -> bytes:
    """Return the start of a masked binary message of `size` bytes: its header and `data`."""
    return b"\x82\xff" + struct.pack(">Q", size) + bytes(4) + data


def test_websocket_stays_open_and_its_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 100_000)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.05)

    async def attack(connect: Connect) -> None:
        client = await connect()
        await client.send(HANDSHAKE)
        assert await client.status() == 101
        await asyncio.sleep(0.1)  # longer than the limit for a connection without a request
        await client.send(frame(100_000, b"\x0a\x9c\x8d\x06" + bytes(99_996)))  # one field of 99,996 bytes
        assert await client.reader.readexactly(8) == b"\x82\x06100000"
        await client.send(frame(100_001, b""))
        await client.until_closed()

    run("httptools", attack)


def test_message_with_too_many_fields_closes_the_connection() -> None:
    message = BackMsg()
    message.file_urls_request.file_names.extend([""] * 100_000)

    async def attack(connect: Connect) -> None:
        client = await connect()
        await client.send(HANDSHAKE)
        assert await client.status() == 101
        content = message.SerializeToString()
        await client.send(frame(len(content), content))
        await client.until_closed()

    run("httptools", attack)


def test_fields_of_messages_are_counted_in_nested_messages() -> None:
    text, widgets, names = BackMsg(), BackMsg(), BackMsg()
    text.rerun_script.widget_states.widgets.add(id="a", string_value="b" * 1_000_000)
    for number in range(1_000):
        widgets.rerun_script.widget_states.widgets.add(
            id=f"widget {number}", int_value=number, bool_value=True
        )
    names.file_urls_request.file_names.extend(["f" * 100] * messages.MAX_FILE_NAMES)
    for message in (text, widgets, names):
        content = message.SerializeToString()
        assert messages.announced_files(content) is not None
        assert messages.announced_files(content + b"\x07" * 6_000) is None  # not valid
        assert messages.announced_files(content + b"\x0a\x7f") is None  # longer than the message
    for repeated in (
        widgets.rerun_script.widget_states.widgets,
        widgets.rerun_script.cached_message_hashes,
        names.file_urls_request.file_names,
    ):
        empty = type(repeated[0])() if len(repeated) else ""
        repeated.extend([empty] * 5_000)
    widgets.rerun_script.widget_states.ClearField("widgets")
    assert messages.announced_files(widgets.SerializeToString()) is None
    assert messages.announced_files(names.SerializeToString()) is None
    selection = BackMsg()
    selection.rerun_script.widget_states.widgets.add(id="a").string_array_value.data.extend([""] * 5_000)
    assert messages.announced_files(selection.SerializeToString()) is None


def test_short_messages_with_many_files_or_fields_are_rejected() -> None:
    message = BackMsg()
    message.file_urls_request.file_names.extend(["a"] * messages.MAX_FILE_NAMES)
    message.file_urls_request.request_id = "b"
    assert messages.announced_files(message.SerializeToString()) is not None
    message.file_urls_request.file_names.append("")
    assert messages.announced_files(message.SerializeToString()) is None
    halves = BackMsg()
    halves.file_urls_request.file_names.extend([""] * (messages.MAX_FILE_NAMES // 2 + 1))
    assert messages.announced_files(halves.SerializeToString()) is not None
    assert messages.announced_files(halves.SerializeToString() * 2) is None  # a parser merges the two fields
    assert messages.announced_files(b"\x10\x01" * 100) is None  # the same field 100 times
    group = b"\x83\x7d\x84\x7d"  # an unknown field, which parsers skip
    assert messages.announced_files(group + halves.SerializeToString()) is None


def test_large_json_is_rejected() -> None:
    message = BackMsg()
    widget = message.rerun_script.widget_states.widgets.add(id="a", json_value="1" * messages.MAX_JSON_BYTES)
    assert messages.announced_files(message.SerializeToString()) is not None
    widget.json_value += "1"
    assert messages.announced_files(message.SerializeToString()) is None
    widget.string_value = "[1]" * 499_900
    assert messages.announced_files(message.SerializeToString()) is not None
    widget.string_value += "{" * 200
    assert messages.announced_files(message.SerializeToString()) is None


def test_long_url_is_rejected() -> None:
    """Streamlit keeps it with the session."""
    for field in ("query_string", "page_name", "url"):
        message = BackMsg()
        message.rerun_script.widget_states.widgets.add(id="a", string_value="text" * 1_000_000)
        parent = message.rerun_script.context_info if field == "url" else message.rerun_script
        setattr(parent, field, "a" * messages.MAX_ADDRESS_BYTES)
        assert messages.announced_files(message.SerializeToString()) is not None
        setattr(parent, field, "a" * (messages.MAX_ADDRESS_BYTES + 1))
        assert messages.announced_files(message.SerializeToString()) is None


def test_long_request_for_a_download_is_rejected() -> None:
    for field in ("file", "request"):
        message = BackMsg()
        message.backend_operation_request.request_id = "r" * (6_000 if field == "request" else 10)
        message.backend_operation_request.deferred_file.file_id = "f" * (6_000 if field == "file" else 32)
        assert messages.announced_files(message.SerializeToString()) is None
    message.backend_operation_request.request_id = "r" * 36
    assert messages.announced_files(message.SerializeToString()) is not None


@pytest.mark.parametrize(
    "start", [b"\x82\x80", b"\x81\x80", b"\x89\x80", b"\x8a\x80"], ids=["binary", "text", "ping", "pong"]
)
def test_too_many_frames_close_the_connection(start: bytes) -> None:
    async def attack(connect: Connect) -> None:
        client = await connect()
        await client.send(HANDSHAKE)
        assert await client.status() == 101
        await client.until_closed((start + bytes(4)) * (messages.MAX_FRAMES + 500))

    run("httptools", attack)


@both
def test_trailers_are_not_headers(http: str) -> None:
    async def attack(connect: Connect) -> None:
        client = await connect()
        await client.send(CHUNKED + b"0\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n")
        assert (await client.response())[1]["x-names"] == "host transfer-encoding"
        await client.send(HEAD + b"X-Other: a\r\n\r\n")
        assert (await client.response())[1]["x-names"] == "host x-other"

    run(http, attack)


def test_request_that_is_no_handshake_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "HANDSHAKE_SECONDS", 0.1)

    async def attack(connect: Connect) -> None:
        client = await connect()
        await client.send(HANDSHAKE.replace(b"GET", b"POST").replace(b"Host", b"Content-Length: 2\r\nHost"))
        await client.send(b"{}")
        await client.until_closed()

    run("httptools", attack)


def test_each_announced_file_counts_as_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "FRAMES_PER_SECOND", 0)
    message = BackMsg()
    message.file_urls_request.file_names.extend([""] * 190)
    content = message.SerializeToString()
    frame = b"\x82\xfe" + struct.pack(">H", len(content)) + bytes(4) + content

    async def attack(connect: Connect) -> None:
        client = await connect()
        await client.send(HANDSHAKE)
        assert await client.status() == 101
        await client.send(frame * 5)
        for _ in range(5):
            assert await client.reader.readexactly(5) == b"\x82\x03" + str(len(content)).encode()
        await client.send(frame)
        await client.until_closed()

    run("httptools", attack)


def test_messages_that_a_client_does_not_receive_are_limited() -> None:
    messages.limit_unsent()
    message = ForwardMsg()
    message.delta.new_element.text.body = "a" * 10_000_000

    async def run() -> None:
        is_read, codes = asyncio.Event(), list[int]()

        async def send_bytes(_: bytes) -> None:
            await is_read.wait()

        async def close(code: int) -> None:
            codes.append(code)

        async def accepted(client: StarletteSessionClient, count: int) -> int:
            """Send messages of 10 MB, and return how many are sent before the connection is closed."""
            for number in range(count):
                try:
                    client.write_forward_msg(message)
                except SessionClientDisconnectedError:
                    return number
                await asyncio.sleep(0.001)
            return count

        socket = Mock(client=Mock(host="203.0.113.7"), headers={}, cookies={})
        socket.send_bytes, socket.close = send_bytes, close
        first, second, third = (StarletteSessionClient(socket) for _ in range(3))
        is_read.set()
        assert await accepted(first, 20) == 20
        is_read.clear()
        assert await accepted(first, 4) == 4
        # The last message that was received counts, too, because it may still be on the way.
        assert await accepted(second, 20) == 4
        assert await accepted(third, 20) == 4
        await asyncio.sleep(0.001)
        assert codes == [1013, 1013]
        for client in (first, second, third):
            await client.aclose()
        assert not messages._SendQueue.open

    asyncio.run(run())


def test_large_message_may_have_many_frames() -> None:
    async def attack(connect: Connect) -> None:
        client = await connect()
        await client.send(HANDSHAKE)
        assert await client.status() == 101
        part, count = 4_000, 2 * messages.MAX_FRAMES
        content = b"\x0a" + b"\xfb\xa3\xe8\x03" + bytes(part * count - 5)  # one field
        for number in range(count):
            opcode = (0x02 if number == 0 else 0) | (0x80 if number == count - 1 else 0)
            head = bytes([opcode, 0xFE]) + struct.pack(">H", part) + bytes(4)
            await client.send(head + content[number * part : (number + 1) * part])
        assert await client.reader.readexactly(9) == b"\x82\x078000000"

    run("httptools", attack)


def test_messages_are_not_compressed() -> None:
    async def attack(connect: Connect) -> None:
        client = await connect()
        offer = b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
        await client.send(HANDSHAKE.removesuffix(b"\r\n") + offer)
        status, headers = await client.response()
        assert status == 101
        assert "sec-websocket-extensions" not in headers

    run("httptools", attack)


def test_incomplete_messages_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_INCOMPLETE_BYTES", 500_000)

    async def attack(connect: Connect) -> None:
        clients = [await connect() for _ in range(4)]
        for client in clients:
            await client.send(HANDSHAKE)
            assert await client.status() == 101
        for client in clients:
            await client.send(frame(1_000_000, bytes(200_000)))
        done, _ = await asyncio.wait(
            [asyncio.create_task(client.until_closed()) for client in clients],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert done

    run("httptools", attack)


def test_incomplete_messages_of_closed_connections_are_released() -> None:
    """The app and timers can refer to a connection for minutes after it was closed."""
    size = 4_000_000
    fragment = b"\x02" + frame(size, bytes(size))[1:]

    async def attack(connect: Connect) -> None:
        tracemalloc.start()
        for _ in range(3):
            client = await connect()
            await client.send(HANDSHAKE)
            assert await client.status() == 101
            await client.send(fragment)
            await client.send(b"\x80" + frame(size, bytes(size - 1))[1:])
        protocols: list[Any] = [
            item for item in gc.get_objects() if isinstance(item, WebSocketsSansIOProtocol)
        ]
        open_connections = [protocol for protocol in protocols if protocol.connections]
        while sum(connection.incomplete_bytes for connection in open_connections) < 6 * size:
            await asyncio.sleep(0.01)
        before, _ = tracemalloc.get_traced_memory()
        for connection in open_connections:
            connection.transport.abort()
        while open_connections[0].connections:
            await asyncio.sleep(0.01)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert before - after > 6 * size * 0.95

    run("httptools", attack)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Return a listening socket without a protocol, like Streamlit's."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock


def test_accepted_connections_have_tcp_nodelay(listener: socket.socket) -> None:
    async def start() -> None:
        async with asgi.lifespan(None):
            pass

    run_in_thread(start())
    with socket.create_connection(listener.getsockname()), listener.accept()[0] as connection:
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_lifespan_is_used_by_every_way_to_start() -> None:
    assert asgi.app_arguments()["lifespan"] is asgi.lifespan
