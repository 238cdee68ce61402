"""Test preloading: slow imports happen once, and their errors are raised by the wait."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from bert_probe.ui import preload


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    preload._start_imports.cache_clear()
    yield
    preload._start_imports.cache_clear()


def test_modules_are_imported_after_wait() -> None:
    preload.start()
    preload.wait()
    assert preload.is_done()
    assert {"bert_probe.model.loading", "bert_probe.ui.overview"} <= set(sys.modules)


def test_wait_starts_imports_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    start = threading.Thread.start

    def watched(thread: threading.Thread) -> None:
        begun.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", watched)
    preload.wait()
    preload.start()
    preload.wait()
    assert begun == ["imports"]


def test_sessions_that_start_at_once_start_imports_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    start, barrier = threading.Thread.start, threading.Barrier(8)

    def watched(thread: threading.Thread) -> None:
        begun.append(thread.name)
        if thread.name == "imports":
            time.sleep(0.05)  # the other threads call `preload.start` in the meantime
        start(thread)

    def session() -> None:
        barrier.wait()
        preload.start()

    monkeypatch.setattr(threading.Thread, "start", watched)
    threads = [threading.Thread(target=session) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    preload.wait()
    assert begun.count("imports") == 1


def test_import_error_is_raised_by_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bert_probe.model.loading", None)
    preload.start()
    for _ in range(2):
        with pytest.raises(ImportError, match="loading"):
            preload.wait()
