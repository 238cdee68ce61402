"""Test the offer to convert a model whose weights are pickled."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_probe.conversion import convert as conversion
from bert_probe.conversion.convert import ConvertedModel
from bert_probe.errors import PickledWeightsError, WeightsError
from bert_probe.runtime import shared_cache
from bert_probe.ui.workbench import Request
from tests.helpers import pickles
from tests.helpers.folders import copy
from tests.helpers.pages import error_text, open_page, page_text
from tests.helpers.waiting import wait_until
from tests.helpers.work import all_jobs_ended


@pytest.fixture
def pickled(tmp_path: Path, family_folder: Callable[[str], Path]) -> Path:
    folder = copy(family_folder("bert"), tmp_path / "pickled")
    pickles.write(folder, b"")
    return folder


def test_refused_model_is_converted_and_opened(
    pickled: Path, tmp_path: Path, family_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "converted"

    def convert(model: str, folder: str, revision: str | None, **_: Any) -> ConvertedModel:
        assert (model, revision) == (str(pickled), None)
        shutil.copytree(family_folder("bert"), folder)
        return ConvertedModel(Path(folder), {})

    monkeypatch.setattr(conversion, "convert", convert)
    app = open_page("tokens", model=str(pickled), a="a boat")
    assert "only available as pytorch_model.bin" in error_text(app)
    assert app.text_input("opening_convert_folder").value.endswith("pickled-safetensors")
    app.text_input("opening_convert_folder").set_value(str(target)).run()
    app.button("opening conversion start").click().run()
    wait_until(all_jobs_ended)
    app.run()
    assert app.session_state["request"] == Request("a boat", model=str(target))
    assert not app.exception
    assert "Convert the weights" not in page_text(app)


def test_refused_pickle_is_reported_below_the_offer(pickled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(*_: Any, **__: Any) -> ConvertedModel:
        raise WeightsError("pytorch_model.bin refers to os.system. Use other weights.")

    monkeypatch.setattr(conversion, "convert", convert)
    app = open_page("tokens", model=str(pickled), a="a boat")
    app.button("opening conversion start").click().run()
    wait_until(all_jobs_ended)
    app.run()
    assert [error.value for error in app.error] == [
        "pytorch\\_model\\.bin refers to os\\.system\\. Use other weights\\."
    ]


def test_copy_on_the_hub_is_offered(monkeypatch: pytest.MonkeyPatch, family: Any) -> None:
    opened: list[tuple[str, str]] = []

    def open_checkpoint(model: str, revision: str, _progress: Any, _dtype: str) -> Any:
        opened.append((model, revision))
        if not revision:
            raise PickledWeightsError("Only a pickle.", model, "refs/pr/5")
        return family("bert")

    monkeypatch.setattr(shared_cache, "open_checkpoint", open_checkpoint)
    app = open_page("tokens", model="someone/pickled", a="a boat")
    app.button("opening_convert_hub").click().run()
    assert opened[-1] == ("someone/pickled", "refs/pr/5")
    assert app.session_state["request"].revision == "refs/pr/5"
    assert not app.exception
