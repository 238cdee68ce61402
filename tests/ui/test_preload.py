"""Test preloading: slow imports happen once, and their errors are raised by the wait."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from bert_probe.ui import preload


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    preload._imports.cache_clear()
    yield
    preload._imports.cache_clear()


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


def test_import_error_is_raised_by_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bert_probe.model.loading", None)
    preload.start()
    for _ in range(2):
        with pytest.raises(ImportError, match="loading"):
            preload.wait()
