"""View files on the pages, and the page Report: picked, ordered, noted, made; nothing is lost by a reload."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from streamlit.testing.v1 import AppTest

from bert_probe.reports import attachments
from bert_probe.reports.drafts import Draft, DraftEntry
from bert_probe.reports.numbers import NamedModels
from bert_probe.reports.view_files import ModelReference, TextInput, ViewFile
from bert_probe.runtime import shared_cache
from bert_probe.server import text_store
from bert_probe.ui import drafts, url_texts
from bert_probe.ui.examples import EXAMPLES
from tests.helpers.pages import HOSTILE, address_of, opened, questions, refusal, said
from tests.helpers.server import answer
from tests.helpers.treebank import SAILING_FILE, SLEEPING_FILE

TEXT = "we left the ground"


@pytest.fixture(autouse=True)
def ready() -> None:
    shared_cache.open_checkpoint("", "")  # so that no page waits for it
    text_store._texts.clear()


def click(app: AppTest, label: str, key: str = "") -> AppTest:
    found = [one for one in app.button if one.label == label and (not key or one.key == key)]
    found[0].click().run()
    assert not app.exception
    return app


def picked(app: AppTest) -> list[DraftEntry]:
    found: Draft = app.session_state["tray"]
    return list(found.entries)


def dropped(content: bytes, page: str = "tokens") -> AppTest:
    """A page onto which a view file was dropped."""
    app = opened(page, a="another text")
    app.get("file_uploader")[0].upload("x.json", content, "application/json").run()
    return app


def a_report(*notes: str) -> AppTest:
    """The page with views of one text."""
    entries = [DraftEntry(ViewFile("Tokens", texts=(TextInput(f"{TEXT} {note}"),)), note) for note in notes]
    app = opened("tokens", a=TEXT)
    app.session_state["tray"] = Draft("", tuple(entries))
    return app.switch_page("../../pages/report.py").run()


def test_a_view_is_picked_on_a_page_and_listed() -> None:
    app = opened("tokens", a=TEXT)
    click(app, "Add to report")
    app.switch_page("../../pages/attention.py").run()
    click(app, "Add to report")
    app.switch_page("../../pages/report.py").run()
    assert not app.exception
    one, lines = (entry.view for entry in picked(app))
    assert (one.question, one.page, one.texts[0].text) == ("Tokens", "tokens", TEXT)
    assert (lines.question, lines.page, lines.drawn["as"]) == ("Attention", "attention", "lines")
    assert "**1 · Tokens**" in said(app)
    assert "“we left the ground”" in said(app)


def test_nothing_is_picked_at_first() -> None:
    app = opened("report")
    assert not app.exception
    assert [one.value for one in app.header] == ["The report has no views yet"]
    assert "tray_kept" not in address_of(app)


def test_views_are_ordered_noted_and_taken_out() -> None:
    app = a_report("one", "two", "three")
    click(app, "↓", "down 0")
    app.text_area(key="report_note_1").set_value(f"{HOSTILE} {{{{1, id}}}} 37").run()
    assert [entry.note for entry in picked(app)] == ["two", f"{HOSTILE} {{{{1, id}}}} 37", "three"]
    assert "Typed by hand" in said(app)
    click(app, "Remove", "remove 0")
    assert [entry.note for entry in picked(app)][1:] == ["three"]
    assert app.text_area(key="report_note_1").value == "three"
    app.text_input(key="report_title").set_value("A title").run()
    assert app.session_state["tray"].title == "A title"


def test_example_becomes_a_report() -> None:
    app = click(opened("report"), "Try an example")
    assert [entry.view.question for entry in picked(app)] == ["MinimalPair", "Similarity", "Attention"]
    assert "verified" not in said(app), "its notes have no number that cannot be verified"
    with patch.object(NamedModels, "float64_references", NamedModels.of):
        click(app, "Create the report")
    page = app.session_state["report_preview"].page.decode()
    assert "Example: full or empty?" in page
    assert "{{" not in re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    compare = dropped(picked(app)[0].view.to_bytes())
    assert compare.title[0].value == "Compare"
    assert compare.text_area(key="draft_a").value == EXAMPLES[0].a


def test_a_report_is_made_of_them() -> None:
    app = a_report("the first token has the id {{1, id}}")
    # Without the twin in float64, which takes a second to open.
    with patch.object(NamedModels, "float64_references", NamedModels.of):
        click(app, "Create the report")
    assert not app.exception
    labels = [one.proto.label for one in app.get("download_button")]
    assert [label.split(" ·")[0] for label in labels] == ["Save these views", "Page, HTML", "Everything, ZIP"]
    status, headers, body = answer(app.session_state["report_preview"].address)
    assert (status, body) == (200, app.session_state["report_preview"].page)
    assert "sandbox allow-scripts allow-downloads;" in headers["content-security-policy"]
    assert answer("/report-preview/guessed")[0] == 404


def test_a_view_brings_the_files_that_it_was_asked_of() -> None:
    app = opened("probes", probes_part="relations")
    for key, content in (("data", SAILING_FILE), ("held_out", SLEEPING_FILE)):
        file = (f"{key}.conllu", content.encode(), "text/plain")
        app.file_uploader(key=f"probes_{key}_upload").set_value(file)
    click(app.run(), "Evaluate the heads")
    click(app, "Add to report")
    view = picked(app)[0].view
    assert [*view.files] == ["chosen", "reported"]
    elsewhere = dropped(view.to_bytes())
    assert "conllu: 3 sentences" in said(elsewhere)
    assert "conllu: 2 sentences" in said(elsewhere)
    assert address_of(elsewhere)["probes_part"] == "relations"


def test_a_view_brings_the_texts_of_a_map() -> None:
    app = opened("map", map_from="file")
    app.file_uploader(key="map_upload").set_value(("a.txt", b"a boat\nthe wide river\n", "text/plain")).run()
    click(app, "Add to report")
    view = picked(app)[0].view
    assert view.sentences == ("a boat", "the wide river")
    elsewhere = dropped(view.to_bytes())
    assert "2 texts from sentences" in said(elsewhere)


def test_what_is_too_much_for_a_view_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "MOST_BYTES", 10)
    app = opened("map", map_from="file")
    app.file_uploader(key="map_upload").set_value(("a.txt", b"a boat\nanother river\n", "text/plain")).run()
    (button,) = [one for one in app.button if one.label == "Add to report"]
    assert button.disabled
    assert "a view file can have at most" in button.help
    assert "a view file can have at most" in said(app)


def test_what_is_wrong_with_a_view_is_said_and_nothing_is_lost() -> None:
    app = a_report("{{99, id}}")
    with patch.object(NamedModels, "float64_references", NamedModels.of):
        click(app, "Create the report")
    assert "View 1: The note refers to row 99" in refusal(app)
    assert [entry.note for entry in picked(app)] == ["{{99, id}}"]


def test_a_reload_finds_what_was_picked_or_says_that_it_is_gone() -> None:
    app = opened("tokens", a=TEXT)
    click(app, "Add to report")
    given = address_of(app)
    again = opened("report", **given)
    assert picked(again) == picked(app)
    text_store._texts.clear()  # as after a new start
    gone = opened("report", **given)
    assert "are no longer stored" in said(gone)


def test_a_report_takes_so_many_views_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "MOST_VIEWS", 1)
    app = opened("tokens", a=TEXT)
    click(app, "Add to report")
    click(app, "Add to report")
    assert len(picked(app)) == 1
    assert "at most 1 views" in app.toast[-1].value


# ---------------------------------------------------------------- view files


def a_view(**address: str) -> ViewFile:
    return ViewFile("Tokens", texts=(TextInput(TEXT),), page="tokens", address={"a": TEXT} | address)


@pytest.mark.parametrize(
    "text", [TEXT, "we left the ground " * 200, HOSTILE], ids=["short", "long", "hostile"]
)
def test_a_view_opens_where_it_was_made(text: str) -> None:
    app = dropped(a_view(a=text).to_bytes(), "parameters")
    assert not app.exception
    assert app.title[0].value == "Tokens"
    assert app.text_area(key="draft_a").value == text
    assert ("a_kept" in address_of(app)) == (len(text) > 1_500)


def test_several_views_open_on_the_page_report() -> None:
    held = Draft("T", (DraftEntry(a_view(), "a note"),))
    app = dropped(held.to_bytes())
    assert app.title[0].value == "Report"
    assert app.session_state["tray"] == held


def test_a_view_without_a_page_is_added_to_the_report() -> None:
    app = dropped(ViewFile("Tokens", texts=(TextInput(TEXT),)).to_bytes())
    assert app.title[0].value == "Report"
    assert [entry.view.question for entry in picked(app)] == ["Tokens"]


@pytest.mark.parametrize("parameter", ["model", "other"])
def test_another_model_is_opened_only_when_the_reader_agrees(
    parameter: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    # A folder that no other test has had opened.
    folder = str(shutil.copytree(family_folder("bert"), tmp_path / "bert"))
    app = dropped(a_view(**{parameter: folder}).to_bytes())
    assert app.header[0].value == "Open the model of this view?"
    assert folder in refusal(app)
    assert shared_cache.cached_checkpoint(folder, "") is None
    assert app.text_area(key="draft_a").value == "another text"
    click(app, "Cancel")
    assert questions(app) == []


def test_a_reader_who_agrees_sees_the_view(family_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = str(shutil.copytree(family_folder("bert"), tmp_path / "bert"))
    view = a_view(model=folder)
    named = (ModelReference(folder, weights_sha256="0" * 64),)
    app = dropped(ViewFile("Tokens", {}, named, page="tokens", address=view.address).to_bytes())
    click(app, "Open it")
    assert app.session_state["request"].model == folder
    assert "made with other weights" in said(app)
    shared_cache.evict(folder)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "not valid JSON"),
        (ViewFile("Tokens", page="../secret").to_bytes(), "the page '../secret'"),
        (b'{"bert_probe_view": 2}', "by a later BERT Probe"),
    ],
)
def test_what_is_no_view_is_said_and_nothing_is_lost(content: bytes, sentence: str) -> None:
    app = dropped(content)
    assert not app.exception
    assert sentence in refusal(app)
    assert app.text_area(key="draft_a").value == "another text"
    click(app, "Close")
    assert refusal(app) == ""


def test_the_app_begins_with_a_view_that_it_was_given() -> None:
    name = text_store.put(a_view().to_bytes().decode())
    app = opened("attention", view_kept=name)
    assert app.title[0].value == "Tokens"
    assert app.text_area(key="draft_a").value == TEXT
    gone = opened("attention", view_kept="0" * 32)
    assert "no longer stored" in refusal(gone)


def test_a_link_has_2000_characters_and_no_more() -> None:
    app = opened("tokens", a="x" * 1_400)
    assert "The browser's URL is a link to this view." in said(app)
    assert url_texts.length(address_of(app)) <= url_texts.MAX_LINK
    app.text_area(key="draft_a").set_value("x " * 1_000)
    app.toggle(key="draft_truncate").set_value(True)
    click(app, "Run")
    assert "too long for a link of 2,000 characters" in said(app)
    assert "a" not in address_of(app)
    click(app, "Add to report")
    assert picked(app)[0].view.address["a"] == "x " * 1_000


SURROGATE = "\ud800"
VIEW = {"bert_probe_view": 1, "page": "tokens", "address": {"a": TEXT}}
ASKED = {"question": "Tokens", "texts": [{"text": TEXT}]}


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (VIEW | {"address": {"a": SURROGATE}}, "lone surrogate"),
        (VIEW | {"address": {SURROGATE: "a"}}, "lone surrogate"),
        (VIEW | {"models": [{"name": SURROGATE}]}, "lone surrogate"),
        ({"bert_probe_tray": 1, "title": SURROGATE, "views": []}, "lone surrogate"),
        ({"bert_probe_tray": 1, "views": [{"view": ASKED, "note": SURROGATE}]}, "lone surrogate"),
        (VIEW | {"address": {f"name {number}": "" for number in range(501)}}, "501 names"),
        (VIEW | {"page": "../../etc/passwd"}, "which this version does not have"),
        ({"bert_probe_tray": 1, "views": [{"view": ASKED}] * 51}, "at most 50 views"),
    ],
)
def test_hostile_file_is_refused_on_the_page(file: dict[str, object], sentence: str) -> None:
    app = dropped(json.dumps(file).encode())
    assert not app.exception
    assert sentence in said(app)


@pytest.mark.parametrize(
    "file",
    [
        VIEW | {"address": {"": TEXT, "a": "a\0b", "tray": "x", "tray_kept": "x", "view_kept": "x"}},
        VIEW | {"page": "attention", "address": {"a": TEXT, "layer": "9" * 30, "heads": "1.1." * 5_000}},
        VIEW | {"page": "map", "files": {"rows": {"file": "rows.csv", "kind": "classes", "content": '"\n'}}},
        VIEW | {"page": "sentences", "question": "Sentences", "sentences": ["", "\n", "x" * 100_000]},
        {"bert_probe_tray": 1, "views": [{"view": ASKED, "note": "{{1," + " " * 19_000}]},
        {"bert_probe_tray": 1, "views": [{"view": ASKED | {"drawn": {"as": "x" * 5_000}}}]},
    ],
)
def test_hostile_file_is_opened_without_an_exception(file: dict[str, object]) -> None:
    assert not dropped(json.dumps(file).encode()).exception
