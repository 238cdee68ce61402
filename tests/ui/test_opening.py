"""Test opening a model from a page: progress, cancellation, sharing, and independence of other models."""

from __future__ import annotations

import gc
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from bert_probe.errors import WeightsError
from bert_probe.model import loading
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import shared_cache
from bert_probe.ui import workbench
from tests.helpers import families
from tests.helpers.opening import really_load, use_empty_checkpoint_cache
from tests.helpers.pages import error_text, open_page, page_text
from tests.helpers.waiting import wait_until
from tests.helpers.work import all_jobs_ended


class Opening:
    """A replacement for `load` whose steps the test controls; it fails or returns a checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.begun: list[str | None] = []
        self.error: Exception | None = None
        self.go = threading.Event()

    def __call__(
        self,
        model: str | None,
        _revision: str | None,
        dtype: str,
        progress: Any,
        notice: Callable[[str], None],
    ) -> Checkpoint:
        assert dtype == "float32"
        if model is None:
            return self.checkpoint
        self.begun.append(model)
        notice("438 MB of weights.")
        while not self.go.is_set():
            progress(120_000_000, 438_000_000)
            self.go.wait(0.02)
        if self.error is not None:
            raise self.error
        return self.checkpoint


@pytest.fixture
def opening(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opening]:
    stand_in = Opening(minilm)
    monkeypatch.setattr(loading, "load", stand_in)
    monkeypatch.setattr(workbench, "PATIENCE", 0.05)
    use_empty_checkpoint_cache(monkeypatch)
    yield stand_in
    stand_in.go.set()
    wait_until(all_jobs_ended)


def buttons(app: AppTest) -> list[str]:
    return [button.label for button in app.button]


def bars(app: AppTest) -> list[str]:
    return [element.proto.text for element in app.get("progress")]


def test_page_shows_progress_while_model_opens(opening: Opening) -> None:
    app = open_page("tokens", a="One two", model="org/large")
    wait_until(lambda: bars(app.run()) == ["Opening org/large. 438 MB of weights.  \n120 of 438 MB"])
    assert "Cancel" in buttons(app)
    assert not app.exception
    assert error_text(app) == ""
    assert "dimensions" not in page_text(app), "a model that is not open is not described"
    opening.go.set()
    wait_until(lambda: "384 dimensions" in page_text(app.run()))
    assert bars(app) == []
    assert opening.begun == ["org/large"]


def test_canceled_opening_can_be_restarted_and_keeps_typed_text(opening: Opening) -> None:
    app = open_page("tokens", a="One two", model="org/large")
    wait_until(lambda: "Cancel" in buttons(app.run()))
    next(button for button in app.button if button.label == "Cancel").click().run()
    app.run()
    assert "Cancelled after 120 of 438 MB. No result was saved." in page_text(app)
    assert app.text_area(key="draft_a").value == "One two"
    next(button for button in app.button if button.label == "Open org/large").click().run()
    wait_until(lambda: "Cancel" in buttons(app.run()))
    assert len(opening.begun) == 2


def test_concurrent_openings_of_one_model_are_shared_without_blocking_others(opening: Opening) -> None:
    first = open_page("tokens", a="One two", model="org/large")
    second = open_page("tokens", a="Three", model="org/large")
    wait_until(lambda: "Cancel" in buttons(first.run()))
    wait_until(lambda: bars(second.run())[0].endswith("120 of 438 MB"))
    other = open_page("tokens", a="Four five")
    assert "384 dimensions" in page_text(other)
    next(button for button in first.button if button.label == "Cancel").click().run()
    opening.go.set()
    wait_until(lambda: "384 dimensions" in page_text(second.run()))


def test_failed_opening_is_reported_and_retried_only_on_request(opening: Opening) -> None:
    opening.error = WeightsError("These weights are broken. Download them again.")
    opening.go.set()
    app = open_page("tokens", a="One two", model="org/large")
    wait_until(lambda: error_text(app.run()) == "These weights are broken. Download them again.")
    app.run()
    assert opening.begun == ["org/large"]
    assert "Open org/large" in buttons(app)
    opening.error = None
    next(button for button in app.button if button.label == "Open org/large").click().run()
    wait_until(lambda: "384 dimensions" in page_text(app.run()))


@pytest.mark.usefixtures("opening")
def test_stalled_opening_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench, "_SILENCE", 0.1)
    app = open_page("tokens", a="One two", model="org/large")
    wait_until(lambda: "The job made no progress" in error_text(app.run()))
    assert "Open org/large" in buttons(app)


def test_folder_with_replaced_files_is_reopened(family_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(family_folder("bert"), folder)
    app = open_page("tokens", model=str(folder))
    before = shared_cache.cached_checkpoint(str(folder), "")
    assert before is not None
    traces = shared_cache.traces(before, [("A boat", None)], False)
    app.run()
    assert shared_cache.cached_checkpoint(str(folder), "") is before
    assert "were replaced" not in page_text(app)
    folder.rename(tmp_path / "aside")
    assert shared_cache.cached_checkpoint(str(folder), "") is before, (
        "missing files may be about to be replaced"
    )
    families.build("bert", folder, seed=3)
    app.run()
    assert not app.exception
    after = shared_cache.cached_checkpoint(str(folder), "")
    assert after is not None
    assert after.description.weights_sha256 != before.description.weights_sha256
    assert "The model's files have been replaced since this page was opened" in page_text(app)
    assert "were replaced. The model was opened again" in app.toast[0].value
    assert shared_cache.traces(after, [("A boat", None)], False)[0] is not traces[0]
    (folder / "tokenizer_config.json").write_text((folder / "tokenizer_config.json").read_text())
    assert shared_cache.cached_checkpoint(str(folder), "") is None, "every file that is read counts"


@pytest.fixture
def models(
    family_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Return a function that creates the folder of a model, which is opened with the real `load`."""
    monkeypatch.setattr(loading, "load", really_load)
    use_empty_checkpoint_cache(monkeypatch)

    def create(name: str) -> str:
        return str(shutil.copytree(family_folder("bert"), tmp_path / name))

    return create


def evict_all() -> None:
    shared_cache._checkpoints.resize(shared_cache.CHECKPOINTS)
    shared_cache._traces.resize(shared_cache.TRACE_BYTES)
    gc.collect()


@pytest.mark.parametrize("page", ["answer", "sentences", "changes"])
def test_sessions_do_not_keep_models_that_the_cache_has_evicted(
    page: str, models: Callable[[str], str]
) -> None:
    app = open_page(page, a="One boat", b="Two boats", model=models("a"), other=models("b"))
    assert not app.exception
    references = [weakref.ref(checkpoint) for checkpoint in shared_cache._checkpoints.values()]
    assert len(references) == (2 if page == "changes" else 1)
    evict_all()
    assert [reference() for reference in references] == [None] * len(references)


def test_evicted_model_that_an_open_page_uses_is_not_loaded_again(
    models: Callable[[str], str],
) -> None:
    model = models("a")
    app = open_page("similarity", a="One boat", b="Two boats", model=model)
    reference = weakref.ref(shared_cache._checkpoints.values()[0])
    evict_all()
    assert reference() is not None, "the page needs the model"
    open_page("tokens", a="One boat", model=model)
    assert shared_cache._checkpoints.values() == [reference()]
    evict_all()
    del app
    gc.collect()
    assert reference() is None


def test_evicted_model_is_loaded_again_if_its_files_have_changed(
    models: Callable[[str], str],
) -> None:
    model = models("a")
    used = shared_cache.open_checkpoint(model, "")
    evict_all()
    assert shared_cache.cached_checkpoint(model, "") is used
    evict_all()
    families.build("bert", Path(model), seed=3)
    assert shared_cache.cached_checkpoint(model, "") is None
    assert shared_cache.open_checkpoint(model, "").description.weights_sha256 != (
        used.description.weights_sha256
    )
