"""How much uploaded files may take together."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from streamlit import runtime
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.uploaded_file_manager import UploadedFileRec

from bert_probe.server import asgi, sessions, uploads
from bert_probe.ui.sentence_input import MAX_BYTES
from tests.helpers.server import HOST, answer_of, finish

MB = 1_000_000


class Place:
    """Streamlit's keeper of files, and a server in front of it that keeps what it is given."""

    def __init__(self) -> None:
        self.uploaded_file_mgr = MemoryUploadedFileManager("/_stcore/upload_file")
        self.here: set[str] = set()
        self.gate = uploads.BoundedUploads(self.take)
        self.meanwhile: list[tuple[str, int]] = []
        self.answers: list[int] = []
        self.name = "a.txt"  # of the files of `slow`

    async def take(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """What Streamlit does with a file; others may come while it is on its way."""
        for session, size in self.meanwhile:
            self.meanwhile = []
            self.answers.append(self.put(session, size)[0])
        if scope["method"] == "PUT":
            *_, session, file = scope["path"].split("/")
            size = int(dict(scope["headers"])[b"content-length"])
            self.uploaded_file_mgr.add_file(
                session, UploadedFileRec(file, "a.txt", "text/plain", b"x" * size)
            )
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def put(self, session: str, size: int | str | None, method: str = "PUT") -> tuple[int, str]:
        """Status and text for a file of so many bytes."""
        self.here.add(session)
        length = () if size is None else ((b"content-length", str(size).encode()),)
        path = f"/_stcore/upload_file/{session}/{uuid.uuid4()}"
        status, _, body = answer_of(self.gate, path, headers=(*HOST, *length), method=method)
        return status, body.decode()

    @property
    def kept(self) -> int:
        files = self.uploaded_file_mgr.file_storage.values()
        return sum(len(file.data) for held in files for file in held.values())


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place()
    monkeypatch.setattr(runtime, "get_instance", lambda: made)
    monkeypatch.setattr(sessions, "is_here", lambda session: session in made.here)
    return made


def test_a_session_keeps_so_much_and_no_more(place: Place) -> None:
    assert [place.put("one", 5 * MB)[0] for _ in range(6)] == [204] * 4 + [413] * 2
    assert place.kept == uploads.SESSION_BYTES == 20 * MB
    assert place.put("one", 1) == (
        413,
        "The files of this page would be more than 20 MB together. Remove one, or reload the page.\n",
    )
    assert place.put("other", 5 * MB)[0] == 204, "another reader has room"
    place.uploaded_file_mgr.remove_session_files("one")
    assert place.put("one", 5 * MB)[0] == 204


def test_all_sessions_keep_so_much_and_no_more(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "ALL_BYTES", 25 * MB)
    assert [place.put(f"{number}", 10 * MB)[0] for number in range(3)] == [204, 204, 413]
    status, said = place.put("2", 6 * MB)
    assert (status, "more than 25 MB together. Try again when others are done" in said) == (413, True)
    assert place.put("2", 5 * MB)[0] == 204
    place.here.remove("0")
    assert place.put("3", 10 * MB)[0] == 204, "files of a closed page make room"
    assert place.kept == 25 * MB


def test_files_on_their_way_count(place: Place) -> None:
    place.meanwhile = [("one", 11 * MB)]
    assert place.put("one", 10 * MB)[0] == 204
    assert place.answers == [413]
    assert place.put("one", 10 * MB)[0] == 204, "nothing stays set aside"


def test_file_that_does_not_arrive_frees_its_room(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stall(*_: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(uploads, "SECONDS", 0.05)
        patched.setattr(place.gate, "app", stall)
        assert place.put("one", 20 * MB) == (
            408,
            "0 of 20,000,000 bytes of the file arrived in time. Try again.\n",
        )
    assert place.put("one", 20 * MB)[0] == 204


class Upload:
    """A file that arrives piece by piece, in place of a browser."""

    def __init__(self, place: Place, session: str, size: int, client: str = "10.0.0.1") -> None:
        self.place, self.size = place, size
        self.session, self.client = session, client
        self.pieces: asyncio.Queue[Message] = asyncio.Queue()
        self.arrived = asyncio.Event()  # the app waits for a piece, all others are read
        self.sent: list[Message] = []
        self.task = asyncio.create_task(self._put())

    async def _put(self) -> None:
        self.place.here.add(self.session)
        scope = {
            "type": "http",
            "method": "PUT",
            "path": f"/_stcore/upload_file/{self.session}/{uuid.uuid4()}",
            "headers": [(b"content-length", str(self.size).encode())],
            "client": (self.client, 50_000),
        }
        await self.place.gate(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self.pieces.empty():
            self.arrived.set()
        return await self.pieces.get()

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    async def give(self, size: int, *, more: bool = True) -> None:
        """Send so many bytes, and wait until they are read or the upload ends."""
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
def slow(place: Place) -> Place:
    """A server that reads the whole file, as Streamlit does."""

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        size = len(await Request(scope, receive).body())
        *_, session, file = scope["path"].split("/")
        place.uploaded_file_mgr.add_file(session, UploadedFileRec(file, place.name, "", b"x" * size))
        await Response(status_code=204)(scope, receive, send)

    place.gate = uploads.BoundedUploads(read)
    return place


def test_uploads_that_only_state_a_length_leave_others_their_room(slow: Place) -> None:
    async def attack() -> None:
        halves = [Upload(slow, f"{number // 4}", 5 * MB) for number in range(48)]
        for upload in halves:
            await upload.give(70)
        reader = Upload(slow, "reader", 5 * MB, "10.0.0.2")
        await reader.give(5 * MB, more=False)
        assert await reader.status() == 204
        for upload in halves:
            upload.pieces.put_nowait({"type": "http.disconnect"})
        await asyncio.gather(*(upload.task for upload in halves))

    finish(attack())


def test_client_gets_no_more_than_its_share(slow: Place) -> None:
    async def attack() -> None:
        # 4 files of each of 5 sessions are complete, and as many of the next 2 are not.
        for session in range(5):
            for _ in range(4):
                upload = Upload(slow, f"{session}", 5 * MB)
                await upload.give(5 * MB, more=False)
                assert await upload.status() == 204
        assert slow.kept == uploads.CLIENT_BYTES
        late = Upload(slow, "5", 5 * MB)
        assert await late.status() == 413
        assert late.text().startswith("The files from your address would be more than 100 MB together.")
        reader = Upload(slow, "reader", 5 * MB, "10.0.0.2")
        await reader.give(5 * MB, more=False)
        assert await reader.status() == 204
        slow.here.remove("0")
        again = Upload(slow, "5", 5 * MB)
        await again.give(5 * MB, more=False)
        assert await again.status() == 204, "files of a closed page make room"

    finish(attack())


def test_file_without_room_ends_while_it_arrives(slow: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "CLIENT_BYTES", 9 * MB)

    async def attack() -> None:
        first, second = Upload(slow, "one", 5 * MB), Upload(slow, "two", 5 * MB)
        await first.give(4 * MB)
        await second.give(4_500_000)
        await first.give(1 * MB)
        assert await first.status() == 413
        assert (b"connection", b"close") in first.sent[0]["headers"]
        await second.give(500_000, more=False)
        assert await second.status() == 204

    finish(attack())


def test_upload_without_progress_ends(slow: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "STALL_SECONDS", 0.05)

    async def attack() -> None:
        upload = Upload(slow, "one", 5 * MB)
        await upload.give(70)
        assert await upload.status() == 408
        assert upload.text() == "70 of 5,000,000 bytes of the file arrived in time. Try again.\n"

    finish(attack())


def test_file_with_null_in_its_name_is_refused(slow: Place) -> None:
    slow.name = "nul\0.csv"

    async def attack() -> None:
        upload = Upload(slow, "one", 3)
        await upload.give(3, more=False)
        assert await upload.status() == 400
        assert upload.text() == "The name of the file holds a NUL character. Rename the file.\n"
        assert slow.kept == 0
        slow.name = "a.csv"
        upload = Upload(slow, "one", 3)
        await upload.give(3, more=False)
        assert (await upload.status(), slow.kept) == (204, 3)

    finish(attack())


def test_aborted_upload_raises_nothing_and_frees_its_room(slow: Place) -> None:
    async def attack() -> None:
        for _ in range(5):
            upload = Upload(slow, "one", 5 * MB)
            await upload.give(70)
            upload.pieces.put_nowait({"type": "http.disconnect"})
            await upload.task
            assert upload.sent == []

    finish(attack())


@pytest.mark.parametrize("size", [None, "", "-1", "1e3", "9" * 5000])
def test_a_file_states_its_length(place: Place, size: str | None) -> None:
    assert place.put("one", size)[0] == 411
    assert place.put("one", 0, "DELETE")[0] == 204, "nothing else is asked for it"


def test_other_requests_pass(place: Place) -> None:
    for path in ("/", "/_stcore/upload_file/a", "/health"):
        assert answer_of(place.gate, path)[0] == 204


def test_one_file_that_the_page_takes_fits_several_times() -> None:
    assert 3 * MAX_BYTES < uploads.SESSION_BYTES < uploads.ALL_BYTES
    kinds = [one.cls for one in asgi.middleware()]
    assert kinds.index(uploads.BoundedUploads) == len(kinds) - 1, "names and headers come first"
