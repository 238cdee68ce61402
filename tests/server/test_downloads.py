"""Test downloads: the ZIP file of a trained model, its limits and its link; and files made by Streamlit."""

from __future__ import annotations

import asyncio
import io
import shutil
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from starlette.types import Message
from streamlit.proto.BackMsg_pb2 import BackendOperationRequest
from streamlit.proto.ForwardMsg_pb2 import BackendOperationResponse
from streamlit.runtime import media_file_manager
from streamlit.runtime.backend_operation_handler import DeferredFileHandler
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.runtime.media_file_storage import MediaFileStorageError
from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage

import bert_probe
from bert_probe import Train
from bert_probe.errors import ReportError
from bert_probe.server import callbacks, media_files, sessions
from bert_probe.training.training_result import TrainingResult
from tests.helpers.server import answer
from tests.helpers.teaching import texts


@pytest.fixture(scope="module")
def training_result(family_folder: Callable[[str], Path]) -> TrainingResult:
    return Train("lora", epochs=1).of(bert_probe.load(family_folder("bert")), texts(12))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Redirect temporary files to the test's folder, and return it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_zip_contains_the_same_files_as_save_model(
    training_result: TrainingResult, tmp_path: Path, temporary: Path
) -> None:
    link = sessions.Download(training_result)
    status, headers, body = answer(link.address)
    assert (status, headers["content-type"], headers["cache-control"]) == (200, "application/zip", "no-store")
    assert headers["content-disposition"] == 'attachment; filename="trained-model.zip"'
    assert headers["content-length"] == str(len(body))
    with zipfile.ZipFile(io.BytesIO(body)) as packed:
        packed.extractall(tmp_path)
    saved, fetched = training_result.save_model(tmp_path / "saved"), tmp_path / "trained-model"
    names = {path.relative_to(saved) for path in saved.rglob("*")}
    assert names == {path.relative_to(fetched) for path in fetched.rglob("*")}
    assert Path("adapter/adapter_model.safetensors") in names
    for name in names:
        if (saved / name).is_file():
            assert (saved / name).read_bytes() == (fetched / name).read_bytes()
    assert [*temporary.iterdir()] == []


def test_too_many_downloads_and_full_disk_are_refused(
    training_result: TrainingResult, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = sessions.Download(training_result)
    for _ in range(sessions.MAX_CONCURRENT_DOWNLOADS):
        sessions._slots.acquire()
    assert answer(link.address)[0] == 503
    for _ in range(sessions.MAX_CONCURRENT_DOWNLOADS):
        sessions._slots.release()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    for _ in range(sessions.MAX_CONCURRENT_DOWNLOADS + 1):
        status, _, body = answer(link.address)
        assert status == 507
        assert b"A ZIP file of the model needs about" in body
    assert [*temporary.iterdir()] == []


@pytest.mark.usefixtures("temporary")
def test_stalled_download_frees_its_slot(
    training_result: TrainingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_CHUNK_SECONDS", 0.01)
    monkeypatch.setattr(sessions, "MAX_CONCURRENT_DOWNLOADS", 1)
    monkeypatch.setattr(sessions, "_slots", threading.BoundedSemaphore(1))
    link = sessions.Download(training_result)
    request = Mock(path_params={"name": link.address.split("/")[2]})
    response = sessions._serve_download(request)
    assert sessions._serve_download(request).status_code == 503

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    asyncio.run(response({}, Mock(), send))
    assert sessions._slots.acquire(blocking=False)


def test_download_link_expires_with_session_and_owner(
    training_result: TrainingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = sessions.Download(training_result)
    address = link.address
    assert len(address) > len("/trained//trained-model.zip") + 31
    monkeypatch.setattr(sessions, "is_connected", lambda _: False)
    assert answer(address)[0] == 404
    monkeypatch.undo()
    del link
    status, _, body = answer(address)
    assert (status, body) == (404, b"This model is no longer available. Train the model again.\n")


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> MediaFileManager:
    """Return a manager of files; the current session is `session[0]`."""
    media_files.keep_downloads()
    monkeypatch.setattr(media_file_manager, "_get_session_id", lambda: SESSION[0])
    SESSION[0] = "one"
    return MediaFileManager(MemoryMediaFileStorage("/media"))


SESSION = ["one"]
"""The session whose script runs."""


def run_script(manager: MediaFileManager, session: str, *contents: bytes) -> list[str]:
    """Run the script of a session with a button for each file, and return the IDs of the functions."""
    SESSION[0] = session
    manager.clear_session_refs()
    names = [add_button(manager, content, str(index)) for index, content in enumerate(contents)]
    manager.remove_orphaned_files()
    return names


def add_button(manager: MediaFileManager, content: bytes, coordinates: str = "0") -> str:
    return manager.add_deferred(lambda: content, "text/csv", coordinates, "vectors.csv")


def served(manager: MediaFileManager, url: str) -> bytes | None:
    """Return the content at a URL; None if the server would answer 404."""
    file = manager.read_file(Path(url).stem)
    return None if file is None else file.content


def test_files_of_equal_size_have_different_urls(manager: MediaFileManager) -> None:
    first = bytes(3_000_000)
    for position in (0, 700_000, 1_500_000, 2_999_999):
        changed = bytearray(first)
        changed[position] = 1
        buttons = run_script(manager, "one", first, bytes(changed))
        urls = [*map(manager.execute_deferred, buttons)]
        assert [served(manager, url) for url in urls] == [first, bytes(changed)]
        assert manager.execute_deferred(buttons[0]) == urls[0]


def test_generated_file_is_available_for_a_limited_time(
    manager: MediaFileManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(media_files, "time", Mock(monotonic=lambda: now))
    buttons = run_script(manager, "one", b"first", b"second")
    urls = [*map(manager.execute_deferred, buttons)]
    for _ in range(3):
        run_script(manager, "two")
    assert [served(manager, url) for url in urls] == [b"first", b"second"]
    now += media_files.KEPT_SECONDS - 1
    assert manager.execute_deferred(buttons[1]) == urls[1]
    now += 2
    run_script(manager, "two")
    assert [served(manager, url) for url in urls] == [None, b"second"]
    now += media_files.KEPT_SECONDS
    run_script(manager, "two")
    assert [served(manager, url) for url in urls] == [None, None]
    assert not manager._file_metadata
    assert manager.execute_deferred(buttons[0]) == urls[0]
    assert served(manager, urls[0]) == b"first"


def test_generated_files_take_limited_memory(
    manager: MediaFileManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_files, "KEPT_BYTES", 100)
    contents = [bytes([number]) * size for number, size in enumerate((60, 30, 30, 500))]
    urls = [*map(manager.execute_deferred, run_script(manager, "one", *contents))]
    assert [served(manager, url) for url in urls] == [None, None, None, contents[3]]
    urls = [*map(manager.execute_deferred, run_script(manager, "one", *contents[:3]))]
    assert [served(manager, url) for url in urls] == [None, *contents[1:3]]


def test_other_files_are_deleted_with_their_references(manager: MediaFileManager) -> None:
    SESSION[0] = "one"
    url = manager.add(b"picture", "image/png", "0")
    assert served(manager, url) == b"picture"
    run_script(manager, "one")
    assert served(manager, url) is None


def test_functions_of_buttons_are_kept_until_the_script_ends(manager: MediaFileManager) -> None:
    def is_available(button: str) -> bool:
        try:
            return manager.execute_deferred(button).startswith("/media/")
        except MediaFileStorageError:
            return False

    (first,) = run_script(manager, "one", b"first")
    manager.clear_session_refs()  # The script of session "one" runs again.
    run_script(manager, "two")
    assert is_available(first)
    SESSION[0] = "one"
    second = add_button(manager, b"second")
    assert is_available(first)
    manager.remove_orphaned_files()
    assert [is_available(first), is_available(second)] == [False, True]
    manager.clear_session_refs("one")
    run_script(manager, "two")
    assert not is_available(second)
    assert not media_files._running
    assert not manager._deferred_callables


def test_files_are_generated_in_turn(manager: MediaFileManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "client", lambda session: session[0])
    active: list[str] = []
    most: list[list[str]] = []

    def generate(client: str) -> bytes:
        active.append(client)
        most.append([*active])
        time.sleep(0.01)
        active.remove(client)
        return b"content"

    manager.clear_session_refs()
    clients = [client for client in "abc" for _ in range(4)]
    buttons = []
    for index, client in enumerate(clients):
        SESSION[0] = client
        buttons.append(manager.add_deferred(partial(generate, client), "text/csv", str(index)))
    handler = DeferredFileHandler(lambda: manager)

    async def request_all() -> list[BackendOperationResponse]:
        requests = [BackendOperationRequest(request_id=name) for name in buttons]
        for request, name in zip(requests, buttons, strict=True):
            request.deferred_file.file_id = name
        return await asyncio.gather(*map(handler.handle, requests, clients))

    responses = asyncio.run(request_all())
    assert all(response.deferred_file.url for response in responses)
    assert max(map(len, most)) == media_files.AT_ONCE
    assert all(len(set(together)) == len(together) for together in most)
    assert len(most) == len(buttons)
    assert not media_files._client_locks


def test_function_is_not_removed_while_its_file_is_generated(
    manager: MediaFileManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    (button,) = run_script(manager, "one", b"content")
    generate = manager.execute_deferred

    def execute(name: str) -> str:
        run_script(manager, "one")  # A script run ends before the function is called.
        return generate(name)

    monkeypatch.setattr(manager, "execute_deferred", execute)
    request = BackendOperationRequest(request_id="1")
    request.deferred_file.file_id = button
    response = asyncio.run(DeferredFileHandler(lambda: manager).handle(request, "one"))
    assert served(manager, response.deferred_file.url) == b"content"
    run_script(manager, "one")
    assert not manager._deferred_callables
    assert not media_files._generating


def test_files_of_other_sessions_are_refused(manager: MediaFileManager) -> None:
    (button,) = run_script(manager, "one", b"private")
    request = BackendOperationRequest(request_id="1")
    request.deferred_file.file_id = button
    handler = DeferredFileHandler(lambda: manager)
    refused, answered = (asyncio.run(handler.handle(request, session)) for session in ("two", "one"))
    assert (refused.deferred_file.url, refused.error_msg) == ("", "This file belongs to another session.")
    assert served(manager, answered.deferred_file.url) == b"private"


def test_reason_why_there_is_no_file_is_shown(manager: MediaFileManager) -> None:
    def generate() -> bytes:
        raise ReportError("The report does not contain your last change.")

    manager.clear_session_refs()
    SESSION[0] = "one"
    request = BackendOperationRequest(request_id="1")
    request.deferred_file.file_id = manager.add_deferred(generate, "text/csv", "1")
    response = asyncio.run(DeferredFileHandler(lambda: manager).handle(request, "one"))
    assert response.error_msg == "The report does not contain your last change."
    assert not media_files._waiting


def test_requests_of_a_session_wait_for_its_callbacks_in_turn(
    manager: MediaFileManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a click contains what its callbacks wrote, also if a script run has removed the function."""
    (button,) = run_script(manager, "one", b"content")
    waiting: list[str] = []
    most: list[int] = []

    async def callbacks_finished(session: str) -> None:
        waiting.append(session)
        most.append(len(waiting))
        await asyncio.sleep(0)
        if len(most) == 1:
            manager._deferred_callables.clear()
        waiting.remove(session)

    monkeypatch.setattr(callbacks, "callbacks_finished", callbacks_finished)
    handler = DeferredFileHandler(lambda: manager)

    async def request_all() -> list[BackendOperationResponse]:
        request = BackendOperationRequest(request_id="1")
        request.deferred_file.file_id = button
        return await asyncio.gather(*(handler.handle(request, "one") for _ in range(3)))

    responses = asyncio.run(request_all())
    assert [served(manager, response.deferred_file.url) for response in responses] == [b"content"] * 3
    assert most == [1, 1, 1]
    assert not media_files._session_locks
    assert not media_files._waiting
    monkeypatch.setattr(media_files, "MAX_WAITING", 2)
    *_, refused = asyncio.run(request_all())
    assert refused.error_msg == "Too many files were requested at the same time. Try again."
    manager._deferred_callables.clear()
    *_, refused = asyncio.run(request_all())
    assert refused.error_msg == "This file is no longer available. Reload the page."
