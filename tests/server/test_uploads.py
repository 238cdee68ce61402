"""How much uploaded files may take together."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from starlette.types import Receive, Scope, Send
from streamlit import runtime
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.uploaded_file_manager import UploadedFileRec

from bert_probe.server import asgi, sessions, uploads
from bert_probe.ui.sentence_input import MAX_BYTES
from tests.helpers.server import HOST, answer_of

MB = 1_000_000


class Place:
    """Streamlit's keeper of files, and a server in front of it that keeps what it is given."""

    def __init__(self) -> None:
        self.uploaded_file_mgr = MemoryUploadedFileManager("/_stcore/upload_file")
        self.here: set[str] = set()
        self.gate = uploads.BoundedUploads(self.take)
        self.meanwhile: list[tuple[str, int]] = []
        self.answers: list[int] = []

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
        assert place.put("one", 20 * MB) == (408, "The file did not arrive within 0.05 seconds. Try again.\n")
    assert place.put("one", 20 * MB)[0] == 204


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
