"""Test downloads: the ZIP file of a trained model, its limits and its link; and files made by Streamlit."""

from __future__ import annotations

import asyncio
import io
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from starlette.types import Message
from streamlit.runtime import media_file_manager
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.runtime.media_file_storage import MediaFileKind, MediaFileStorageError
from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage

import bert_probe
from bert_probe import Train
from bert_probe.server import media_files, sessions
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
def storage() -> MemoryMediaFileStorage:
    media_files.keep_downloads()
    return MemoryMediaFileStorage("/media")


def add(
    storage: MemoryMediaFileStorage, data: bytes, kind: MediaFileKind = MediaFileKind.DOWNLOADABLE
) -> str:
    return storage.load_and_get_id(data, "text/csv", kind, "vectors.csv")


def stored(storage: MemoryMediaFileStorage, names: list[str]) -> list[bool]:
    """Return whether each file can be downloaded."""
    found = []
    for name in names:
        try:
            found.append(len(storage.get_file(f"{name}.csv").content) > 0)
        except MediaFileStorageError:
            found.append(False)
    return found


def test_files_of_equal_size_have_different_ids(storage: MemoryMediaFileStorage) -> None:
    first = bytes(3_000_000)
    for position in (0, 700_000, 1_500_000, 2_999_999):
        second = bytearray(first)
        second[position] = 1
        names = [add(storage, first), add(storage, bytes(second))]
        assert storage.get_file(names[0]).content == first
        assert storage.get_file(names[1]).content == second
    assert add(storage, first) == names[0]


def test_deleted_download_stays_available_for_a_limited_time(
    storage: MemoryMediaFileStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(media_files, "time", Mock(monotonic=lambda: now))
    names = [add(storage, b"first"), add(storage, b"second"), add(storage, b"third")]
    for name in (names[0], names[0], names[1]):
        storage.delete_file(name)
    assert stored(storage, names) == [True, True, True]
    add(storage, b"second")  # This download is in use again.
    now += media_files.KEPT_SECONDS + 1
    storage.delete_file(names[2])
    assert stored(storage, names) == [False, True, True]
    storage.delete_file(names[1])
    storage.delete_file("unknown")
    assert stored(storage, names) == [False, True, True]


def test_deleted_downloads_take_limited_memory(
    storage: MemoryMediaFileStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_files, "KEPT_BYTES", 100)
    names = [add(storage, bytes([number]) * size) for number, size in enumerate((60, 30, 30, 500))]
    for name in names[:3]:
        storage.delete_file(name)
    assert stored(storage, names) == [False, True, True, True]
    storage.delete_file(names[3])
    assert stored(storage, names) == [False, False, False, True]


def test_pictures_are_deleted_at_once(storage: MemoryMediaFileStorage) -> None:
    name = add(storage, b"picture", MediaFileKind.MEDIA)
    storage.delete_file(name)
    assert stored(storage, [name]) == [False]


def test_functions_of_buttons_are_kept_until_the_script_ends(
    storage: MemoryMediaFileStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, session = MediaFileManager(storage), ["one"]
    monkeypatch.setattr(media_file_manager, "_get_session_id", lambda: session[0])

    def button() -> str:
        return manager.add_deferred(lambda: b"content", "text/csv", "1.0", "vectors.csv")

    def available(name: str) -> bool:
        try:
            return manager.execute_deferred(name).startswith("/media/")
        except MediaFileStorageError:
            return False

    manager.clear_session_refs()
    first = button()
    manager.remove_orphaned_files()
    manager.clear_session_refs()  # The script runs again.
    session[0] = "two"
    manager.clear_session_refs()
    manager.remove_orphaned_files()
    assert available(first)
    session[0] = "one"
    second = button()
    assert available(first)
    manager.remove_orphaned_files()
    assert not available(first)
    assert available(second)
    manager.clear_session_refs("one")
    manager.remove_orphaned_files()
    assert not available(second)
    assert not media_files._running
    assert not manager._deferred_callables
