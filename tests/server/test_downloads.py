"""A taught model as a zip: the folder that would be saved, made when it is fetched, and gone then."""

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

import bert_probe
from bert_probe import Train
from bert_probe.server import downloads, sessions
from bert_probe.training.training_result import TrainingResult
from tests.helpers.server import answer
from tests.helpers.teaching import texts


@pytest.fixture(scope="module")
def taught(family_folder: Callable[[str], Path]) -> TrainingResult:
    return Train("lora", epochs=1).of(bert_probe.load(family_folder("bert")), texts(12))


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for what is temporary."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_the_zip_holds_the_folder_that_would_be_saved(
    taught: TrainingResult, tmp_path: Path, temporary: Path
) -> None:
    link = downloads.Download(taught)
    status, headers, body = answer(link.address)
    assert (status, headers["content-type"], headers["cache-control"]) == (200, "application/zip", "no-store")
    assert headers["content-disposition"] == 'attachment; filename="taught-model.zip"'
    assert headers["content-length"] == str(len(body))
    with zipfile.ZipFile(io.BytesIO(body)) as packed:
        packed.extractall(tmp_path)
    saved, fetched = taught.save_model(tmp_path / "saved"), tmp_path / "taught-model"
    names = {one.relative_to(saved) for one in saved.rglob("*")}
    assert names == {one.relative_to(fetched) for one in fetched.rglob("*")}
    assert Path("adapter/adapter_model.safetensors") in names
    for name in names:
        if (saved / name).is_file():
            assert (saved / name).read_bytes() == (fetched / name).read_bytes()
    assert [*temporary.iterdir()] == []


def test_only_a_few_at_once_and_none_where_there_is_no_room(
    taught: TrainingResult, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = downloads.Download(taught)
    for _ in range(downloads.AT_ONCE):
        downloads._room.acquire()
    assert answer(link.address)[0] == 503
    for _ in range(downloads.AT_ONCE):
        downloads._room.release()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    for _ in range(downloads.AT_ONCE + 1):
        status, _, body = answer(link.address)
        assert status == 507
        assert b"A zip of the model needs about" in body
    assert [*temporary.iterdir()] == []


@pytest.mark.usefixtures("temporary")
def test_reader_who_takes_nothing_gives_up_its_place(
    taught: TrainingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_CHUNK_SECONDS", 0.01)
    monkeypatch.setattr(downloads, "AT_ONCE", 1)
    monkeypatch.setattr(downloads, "_room", threading.BoundedSemaphore(1))
    link = downloads.Download(taught)
    request = Mock(path_params={"name": link.address.split("/")[2]})
    response = downloads._serve(request)
    assert downloads._serve(request).status_code == 503

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    asyncio.run(response({}, Mock(), send))
    assert downloads._room.acquire(blocking=False)


def test_a_link_ends_with_its_session_and_its_holder(
    taught: TrainingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = downloads.Download(taught)
    address = link.address
    assert len(address) > len("/taught//taught-model.zip") + 31
    monkeypatch.setattr(sessions, "is_here", lambda _: False)
    assert answer(address)[0] == 404
    monkeypatch.undo()
    del link
    status, _, body = answer(address)
    assert (status, body) == (404, b"There is no such model, or no longer. Save it, or train it again.\n")
