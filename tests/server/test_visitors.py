"""Test limits on uploaded files."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock
from weakref import WeakSet, ref

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from streamlit import runtime
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.uploaded_file_manager import UploadedFileRec

from bert_probe.runtime import permissions
from bert_probe.runtime.permissions import Permissions
from bert_probe.server import asgi, sessions, visitors
from tests.helpers.server import HOST, answer_of, run_in_thread
from tests.helpers.waiting import wait_until

MB = 1_000_000


class FakeRuntime:
    """A stub for Streamlit's runtime and its upload endpoint."""

    def __init__(self) -> None:
        self.uploaded_file_mgr = MemoryUploadedFileManager("/_stcore/upload_file")
        self.connected: set[str] = set()
        self.middleware = visitors.BoundedUploads(self.handle)
        self.concurrent: list[tuple[str, int]] = []
        self.answers: list[int] = []
        self.name = "a.txt"  # name of the files that `slow` uploads

    async def handle(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Store an uploaded file like Streamlit, after the concurrent uploads have run."""
        for session, size in self.concurrent:
            self.concurrent = []
            self.answers.append(self.put(session, size)[0])
        if scope["method"] == "PUT":
            *_, session, file = scope["path"].split("/")
            size = int(dict(scope["headers"])[b"content-length"])
            self.uploaded_file_mgr.add_file(
                session, UploadedFileRec(file, "a.txt", "text/plain", b"x" * size)
            )
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def put(
        self, session: str, size: int | str | None, method: str = "PUT", file: str = ""
    ) -> tuple[int, str]:
        """Upload a file of `size` bytes, and return the status and text of the response."""
        self.connected.add(session)
        length = () if size is None else ((b"content-length", str(size).encode()),)
        path = f"/_stcore/upload_file/{session}/{file or uuid.uuid4()}"
        status, _, body = answer_of(self.middleware, path, headers=(*HOST, *length), method=method)
        return status, body.decode()

    @property
    def stored_bytes(self) -> int:
        files = self.uploaded_file_mgr.file_storage.values()
        return sum(len(file.data) for by_id in files for file in by_id.values())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime()
    monkeypatch.setattr(runtime, "get_instance", lambda: fake)
    monkeypatch.setattr(sessions, "is_connected", lambda session: session in fake.connected)
    return fake


def test_files_of_a_session_are_limited(server: FakeRuntime) -> None:
    assert [server.put("one", 5 * MB)[0] for _ in range(6)] == [204] * 4 + [413] * 2
    assert server.stored_bytes == Permissions().max_session_bytes == 20 * MB
    assert server.put("one", 1) == (
        413,
        "With this file, the files of this session would exceed the limit of 20 MB. Remove a file or "
        "reload the page.\n",
    )
    assert server.put("other", 5 * MB)[0] == 204, "other sessions are not affected"
    server.uploaded_file_mgr.remove_session_files("one")
    assert server.put("one", 5 * MB)[0] == 204


def test_number_of_files_and_their_ids_are_limited(
    server: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitors, "MAX_SESSION_FILES", 2)
    assert server.put("one", 1, file="a" * 101) == (400, "The ID of the file in the URL is too long.\n")
    assert [server.put("one", 0)[0] for _ in range(3)] == [204, 204, 413]
    assert server.put("one", 0)[1].startswith("This session already has 2 files, the maximum.")
    assert server.put("other", 0)[0] == 204
    server.concurrent = [("third", 0), ("third", 0)]
    server.put("third", 0)
    assert server.answers == [204, 413], "uploads in progress count"


def test_files_of_all_sessions_are_limited(server: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions, "_current", Permissions(max_upload_bytes=25 * MB))
    assert [server.put(f"{number}", 10 * MB)[0] for number in range(3)] == [204, 204, 413]
    status, text = server.put("2", 6 * MB)
    assert (status, "would exceed the limit of 25 MB. Try again later" in text) == (413, True)
    assert server.put("2", 5 * MB)[0] == 204
    server.connected.remove("0")
    assert server.put("3", 10 * MB)[0] == 204, "files of a closed page are removed"
    assert server.stored_bytes == 25 * MB


def test_uploads_in_progress_count(server: FakeRuntime) -> None:
    server.concurrent = [("one", 11 * MB)]
    assert server.put("one", 10 * MB)[0] == 204
    assert server.answers == [413]
    assert server.put("one", 10 * MB)[0] == 204, "finished uploads no longer count as in progress"


def test_aborted_upload_does_not_count(server: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stall(*_: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(visitors, "UPLOAD_SECONDS", 0.05)
        patched.setattr(server.middleware, "app", stall)
        assert server.put("one", 20 * MB) == (
            408,
            "The upload timed out: only 0 of 20,000,000 bytes of the file arrived. Try again.\n",
        )
    assert server.put("one", 20 * MB)[0] == 204


class SlowUpload:
    """An upload whose body arrives in parts."""

    def __init__(self, server: FakeRuntime, session: str, size: int, client: str = "10.0.0.1") -> None:
        self.server, self.size = server, size
        self.session, self.client = session, client
        self.pieces: asyncio.Queue[Message] = asyncio.Queue()
        self.arrived = asyncio.Event()  # set while the app waits for the next part of the body
        self.sent: list[Message] = []
        self.task = asyncio.create_task(self._put())

    async def _put(self) -> None:
        self.server.connected.add(self.session)
        scope = {
            "type": "http",
            "method": "PUT",
            "path": f"/_stcore/upload_file/{self.session}/{uuid.uuid4()}",
            "headers": [(b"content-length", str(self.size).encode())],
            "client": (self.client, 50_000),
        }
        await self.server.middleware(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self.pieces.empty():
            self.arrived.set()
        return await self.pieces.get()

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    async def give(self, size: int, *, more: bool = True) -> None:
        """Send `size` bytes of the body, and wait until the app has read them or has ended the upload."""
        self.arrived.clear()
        self.pieces.put_nowait({"type": "http.request", "body": b"x" * size, "more_body": more})
        waiting = asyncio.ensure_future(self.arrived.wait())
        await asyncio.wait([waiting, self.task], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()

    async def status(self) -> int:
        await self.task
        return int(self.sent[0]["status"])

    def text(self) -> str:
        body: bytes = self.sent[1]["body"]
        return body.decode()


@pytest.fixture
def slow(server: FakeRuntime) -> FakeRuntime:
    """Return a server that reads the complete file before it stores the file, like Streamlit."""

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        size = len(await Request(scope, receive).body())
        *_, session, file = scope["path"].split("/")
        server.uploaded_file_mgr.add_file(session, UploadedFileRec(file, server.name, "", b"x" * size))
        await Response(status_code=204)(scope, receive, send)

    server.middleware = visitors.BoundedUploads(read)
    return server


def test_announced_lengths_do_not_block_other_clients(slow: FakeRuntime) -> None:
    async def attack() -> None:
        halves = [SlowUpload(slow, f"{number // 4}", 5 * MB) for number in range(48)]
        for upload in halves:
            await upload.give(70)
        reader = SlowUpload(slow, "reader", 5 * MB, "10.0.0.2")
        await reader.give(5 * MB, more=False)
        assert await reader.status() == 204
        for upload in halves:
            upload.pieces.put_nowait({"type": "http.disconnect"})
        await asyncio.gather(*(upload.task for upload in halves))

    run_in_thread(attack())


@pytest.mark.parametrize("network", ["10.0.0.1", "2001:db8:1:2::"])
def test_files_of_a_client_are_limited(slow: FakeRuntime, network: str) -> None:
    async def attack() -> None:
        # 5 sessions with 4 files each reach the client's limit. An IPv6 network counts as one client.
        for session in range(5):
            for _ in range(4):
                client = f"{network}{session + 1}" if ":" in network else network
                upload = SlowUpload(slow, f"{session}", 5 * MB, client)
                await upload.give(5 * MB, more=False)
                assert await upload.status() == 204
        assert slow.stored_bytes == Permissions().max_client_bytes
        late = SlowUpload(slow, "5", 5 * MB, network)
        assert await late.status() == 413
        assert late.text().startswith(
            "With this file, the files of your IP address would exceed the limit of 100 MB."
        )
        reader = SlowUpload(slow, "reader", 5 * MB, "10.0.0.2")
        await reader.give(5 * MB, more=False)
        assert await reader.status() == 204
        slow.connected.remove("0")
        again = SlowUpload(slow, "5", 5 * MB, network)
        await again.give(5 * MB, more=False)
        assert await again.status() == 204, "files of a closed page are removed"

    run_in_thread(attack())


def test_upload_beyond_the_limit_is_aborted(slow: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions, "_current", Permissions(max_client_bytes=9 * MB))

    async def attack() -> None:
        first, second = SlowUpload(slow, "one", 5 * MB), SlowUpload(slow, "two", 5 * MB)
        await first.give(4 * MB)
        await second.give(4_500_000)
        await first.give(1 * MB)
        assert await first.status() == 413
        assert (b"connection", b"close") in first.sent[0]["headers"]
        await second.give(500_000, more=False)
        assert await second.status() == 204

    run_in_thread(attack())


def test_stalled_upload_is_aborted(slow: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "STALL_SECONDS", 0.05)

    async def attack() -> None:
        upload = SlowUpload(slow, "one", 5 * MB)
        await upload.give(70)
        assert await upload.status() == 408
        assert upload.text() == (
            "The upload timed out: only 70 of 5,000,000 bytes of the file arrived. Try again.\n"
        )

    run_in_thread(attack())


def test_file_with_null_in_its_name_is_refused(slow: FakeRuntime) -> None:
    slow.name = "nul\0.csv"

    async def attack() -> None:
        upload = SlowUpload(slow, "one", 3)
        await upload.give(3, more=False)
        assert await upload.status() == 400
        assert upload.text() == "The file name contains a NUL character. Rename the file.\n"
        assert slow.stored_bytes == 0
        slow.name = "a.csv"
        upload = SlowUpload(slow, "one", 3)
        await upload.give(3, more=False)
        assert (await upload.status(), slow.stored_bytes) == (204, 3)

    run_in_thread(attack())


def test_disconnected_upload_raises_nothing_and_does_not_count(slow: FakeRuntime) -> None:
    async def attack() -> None:
        for _ in range(5):
            upload = SlowUpload(slow, "one", 5 * MB)
            await upload.give(70)
            upload.pieces.put_nowait({"type": "http.disconnect"})
            await upload.task
            assert upload.sent == []

    run_in_thread(attack())


@pytest.mark.parametrize("size", [None, "", "-1", "1e3", "9" * 5000])
def test_content_length_is_required(server: FakeRuntime, size: str | None) -> None:
    assert server.put("one", size)[0] == 411
    assert server.put("one", 0, "DELETE")[0] == 204, "other methods do not need it"


def test_other_requests_are_forwarded(server: FakeRuntime) -> None:
    for path in ("/", "/_stcore/upload_file/a", "/health"):
        assert answer_of(server.middleware, path)[0] == 204


def test_session_limit_allows_several_files_of_maximum_size() -> None:
    for limits in (Permissions(), permissions.public()):
        assert 3 * limits.max_file_bytes < limits.max_session_bytes < limits.max_upload_bytes
    classes = [middleware.cls for middleware in asgi.middleware()]
    assert classes.index(visitors.BoundedUploads) == len(classes) - 1, (
        "headers and host names are checked first"
    )


def send_body(body: bytes, send: Callable[[Message], Awaitable[None]], more: bool = False) -> None:
    """Send a response with a body, and optionally an empty end, through `PartialBodies`."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body, "more_body": more})
        if more:
            await send({"type": "http.response.body"})

    asyncio.run(visitors.PartialBodies(app)({"type": "http"}, Mock(), send))


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize(
    "size", [0, 10, visitors.PART_BYTES, visitors.PART_BYTES + 1, 3 * visitors.PART_BYTES]
)
def test_large_bodies_are_sent_in_parts(size: int, more: bool) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    send_body(body, send, more)
    parts = [message.get("body", b"") for message in sent[1:]]
    assert b"".join(parts) == body
    assert max(map(len, parts)) <= visitors.PART_BYTES
    assert [bool(message.get("more_body")) for message in sent[1:]] == [True] * (len(parts) - 1) + [False]


def test_client_that_stops_reading_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "SEND_SECONDS", 0.01)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        if len(sent) == 2:
            await asyncio.Event().wait()
        sent.append(message)

    send_body(bytes(4 * visitors.PART_BYTES), send, more=True)
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[-1]["more_body"]


def test_large_bodies_that_are_not_received_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visitors, "PART_BYTES", 5)
    monkeypatch.setattr(visitors, "MAX_CLIENT_UNSENT_BYTES", 100)
    monkeypatch.setattr(visitors, "MAX_UNSENT_BYTES", 200)
    requests = [("a", 150), ("a", 10), ("b", 60), ("c", 40), ("c", 30), ("a", 5), ("b", 5)]
    statuses: list[int] = []

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * scope["size"]})

    async def slow_clients() -> None:
        received = asyncio.Event()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            else:
                await received.wait()

        middleware = visitors.PartialBodies(app)
        sending = []
        for client, size in requests:
            scope = {"type": "http", "client": (client, 1), "size": size}
            sending.append(asyncio.ensure_future(middleware(scope, Mock(), send)))
            await asyncio.sleep(0)
        received.set()
        await asyncio.gather(*sending)
        assert not middleware.unsent

    asyncio.run(slow_clients())
    # Beside the body for a, which is the first, only 50 bytes are left for other clients.
    assert statuses == [200, 503, 503, 200, 503, 200, 200]


@pytest.mark.parametrize("wrap", [lambda error: ("a.csv", error), lambda error: Content(error)])
def test_stored_errors_do_not_keep_what_was_read(wrap: Callable[[Exception], object]) -> None:
    class Rows:
        """The rows of a refused file."""

    found: list[ref[Rows]] = []

    def read() -> object:
        rows = Rows()
        found.append(ref(rows))
        try:
            raise ValueError("The file has too many rows.")
        except ValueError as error:
            return wrap(error)

    stored = sessions.SessionValue(read(), "")
    assert stored.value is not None
    assert found[0]() is None


@dataclass
class Content:
    """A value whose size is counted."""

    nbytes: Any


def test_files_of_a_client_do_not_wait_for_all_files_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, release = sessions.ReadingQueue(), threading.Event()
    order: list[str] = []
    monkeypatch.setattr(sessions, "current", lambda: threading.current_thread().name)
    monkeypatch.setattr(sessions, "client", lambda session: session[0])

    def read() -> None:
        with queue.turn():
            order.append(sessions.current())
            release.wait()

    threads = [threading.Thread(target=read, name=name) for name in ("a1", "a2", "a3", "b")]
    for thread in threads:
        thread.start()
        if thread.name == "a1":
            wait_until(lambda: order == ["a1"])
    wait_until(lambda: queue._lock._asked == 2)
    wait_until(queue._client_locks["b"].locked)
    release.set()
    for thread in threads:
        thread.join()
    assert order[:2] == ["a1", "b"]
    assert sorted(order) == ["a1", "a2", "a3", "b"]


def test_values_of_sessions_are_dropped_from_the_largest_client(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(sessions, "client", lambda session: session[0])
    monkeypatch.setattr(sessions, "_values", WeakSet())
    monkeypatch.setattr("bert_probe.server.sessions.time.monotonic", lambda: now)
    monkeypatch.setattr(sessions, "MAX_VALUE_BYTES", 100)
    monkeypatch.setattr(sessions, "MAX_CLIENT_VALUE_BYTES", 60)

    def hold(session: str, size: int) -> sessions.SessionValue[Content]:
        nonlocal now
        now += 1
        return sessions.SessionValue(Content(size), session)

    other = hold("b1", 35)
    first, second, third = hold("a1", 20), hold("a2", 20), hold("a3", 20)
    now += 1
    assert first.value is not None  # used
    fourth = hold("a4", 20)
    assert second.value is None
    assert all(stored.value is not None for stored in (other, first, third, fourth))
    del fourth
    assert hold("b2", 25).value is not None  # 100 in all
    same = [hold("a1", 50) for _ in range(3)]  # values of a page in use are kept
    assert all(stored.value is not None for stored in same)
    assert other.value is not None
    now += 2 * sessions._PROTECTED_SECONDS
    last = hold("a1", 50)
    assert last.value is not None
    assert all(stored.value is None for stored in same)
