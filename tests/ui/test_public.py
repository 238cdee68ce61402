"""Test pages of a public server: disabled features are not drawn, and are refused if they are requested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from bert_probe import AttentionLong
from bert_probe.core import files
from bert_probe.errors import NotFoundError, TooLargeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.sources import BUILT_IN
from bert_probe.reports.view_files import ModelReference, TextInput, ViewFile
from bert_probe.runtime import permissions, tables
from bert_probe.runtime.permissions import Permissions
from bert_probe.server import asgi
from bert_probe.ui import report, view_files
from bert_probe.ui.export import long_table_zip, table_bytes, table_zip
from tests.helpers.gate import prove_unless
from tests.helpers.pages import error_text, open_page, page_text

PUBLIC = permissions.public()
PAGES = ("attention", "answer", "parameters", "sizes", "report", "tokens", "search", "heads", "probes", "map")
ABSENT = (
    "Folder",
    "Revision",
    "Data type",
    "Hub ID",
    "on this machine",
    "this machine",
    "Save the model",
    "config.json",
)
"""Text of fields, help and captions that the pages of a public server do not have."""


@pytest.fixture(autouse=True)
def public(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Permissions]:
    monkeypatch.chdir(tmp_path)
    with permissions.using(PUBLIC):
        yield PUBLIC


def everything(app: AppTest) -> str:
    """Return all elements of the page and of the sidebar, with labels, options and help texts."""
    return "\n".join(str(block.proto) for block in _elements(app))


def _elements(app: AppTest) -> Iterator[Any]:
    for root in (app.main, app.sidebar):
        for element in root:
            if hasattr(element, "proto") and element.proto is not None:
                yield element


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("page", prove_unless({"answer", "parameters", "sizes"}, PAGES))
def test_pages_do_not_mention_what_is_switched_off(page: str) -> None:
    app = open_page(page)
    text = everything(app)
    assert not app.exception
    assert "Run" in text
    assert [part for part in ABSENT if part in text] == []
    assert "kept in memory only" in text
    assert not any("HTTP request" in caption.value for caption in app.caption)


def test_pages_of_an_app_on_the_users_machine_mention_it() -> None:
    with permissions.using(Permissions()):
        text = everything(open_page("sizes"))
    assert [part for part in ABSENT if part not in text] == ["Folder", "Save the model"]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("page", ["train", "corpus", "changes"])
def test_a_page_that_is_switched_off_opens_the_front_page(page: str) -> None:
    app = open_page(page)
    assert not app.exception
    assert app.title[0].value == asgi.FRONT_PAGE.title()


@pytest.mark.parametrize("model", ["/etc", "google-bert/bert-base-uncased"])
def test_a_link_to_another_model_says_which_models_there_are(model: str) -> None:
    app = open_page("tokens", model=model, dtype="float64")
    assert f"'{model}' is not available on this server" in error_text(app)
    assert BUILT_IN in error_text(app)
    assert f"Press Run to use {BUILT_IN}." in page_text(app)
    next(button for button in app.button if button.label == "Run").click().run()
    assert not app.exception
    assert error_text(app) == ""


def test_several_models_are_offered_and_no_others(tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    with permissions.using(replace(PUBLIC, models=(BUILT_IN, other))):
        app = open_page("tokens")
        (box,) = [box for box in app.selectbox if box.label == "Model"]
        assert box.options == [BUILT_IN, other]
        assert not box.proto.accept_new_options
        app = open_page("changes")
        (box,) = [box for box in app.selectbox if box.label == "Second model, B"]
        assert box.options == ["Choose a model", BUILT_IN, other]
        assert [button.label for button in app.button if "Fine-tune" in button.label] == []
        assert "Choose model B above." in page_text(app)
        app = open_page("changes", other="/etc")
        assert not app.exception
        assert "There is no other" in page_text(app)


def test_a_default_model_that_is_not_built_in_is_opened(family_folder: object) -> None:
    name = str(family_folder("bert"))  # type: ignore[operator]
    with permissions.using(replace(PUBLIC, models=(name,))):
        app = open_page("tokens", a="we left")
        assert not app.exception
        assert error_text(app) == ""
        app = open_page("tokens", a="we left", model=BUILT_IN)
        assert "is not available on this server" in error_text(app)


def test_a_view_of_another_model_is_refused() -> None:
    view = ViewFile(
        "Tokens",
        texts=(TextInput("a boat"),),
        page="tokens",
        address={"a": "a boat", "model": "/etc"},
        models=(ModelReference("/etc", ""),),
    )
    app = open_page("tokens")
    app.session_state[view_files._PENDING] = view
    app.run()
    assert "'/etc' is not available on this server" in error_text(app)
    with pytest.raises(Exception, match="which this app does not have"):
        view_files.parse(replace(view, page="train").to_bytes(), "a.json")


def test_report_of_saved_views_opens_models_in_float32_only() -> None:
    report._open_model(ModelReference())
    with pytest.raises(NotFoundError, match=r"'float64' is not available .* Choose float32"):
        report._open_model(ModelReference(dtype="float64"))


def test_weights_are_not_converted(tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "pytorch_model.bin").write_bytes(b"\x80")
    with permissions.using(replace(PUBLIC, models=(str(folder),))):
        app = open_page("tokens")
    assert "pytorch_model.bin" in error_text(app)
    assert not app.exception
    assert [button.label for button in app.button if button.label.startswith("Convert")] == []
    assert "Convert the weights" not in [element.value for element in app.subheader]


def test_exported_tables_have_the_limits_of_the_api(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = AttentionLong().of(minilm.trace("A boat."))
    table = result.table()
    monkeypatch.setattr(tables, "MAX_CELLS", table.size)
    downloads: list[Callable[[], bytes]] = [
        partial(table_bytes, result, "csv", False),
        partial(table_zip, result, "attention", False),
        partial(long_table_zip, result, "attention", False),
    ]
    contents = [download() for download in downloads]
    assert contents[0] == files.to_bytes(table, "csv")
    monkeypatch.setattr(tables, "MAX_CELLS", table.size - 1)
    for download in downloads:
        with pytest.raises(TooLargeError, match="or use the command line"):
            download()
    with permissions.using(Permissions()):
        assert [len(download()) for download in downloads] == list(map(len, contents))
