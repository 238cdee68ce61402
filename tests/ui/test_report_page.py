"""Test view files, and the Report page: views are added, sorted and annotated, and survive a reload."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from streamlit.testing.v1 import AppTest

from bert_probe.reports import view_files
from bert_probe.reports.drafts import Draft, DraftEntry
from bert_probe.reports.numbers import NamedModels
from bert_probe.reports.view_files import ModelReference, TextInput, ViewFile
from bert_probe.runtime import shared_cache
from bert_probe.server import sessions
from bert_probe.ui import drafts, url_texts
from bert_probe.ui.sentence_input import EXAMPLES
from tests.helpers import questions
from tests.helpers.pages import HOSTILE, consent_buttons, error_text, open_page, page_text, url_params
from tests.helpers.server import answer
from tests.helpers.treebank import SAILING_FILE, SLEEPING_FILE

TEXT = "we left the ground"


@pytest.fixture(autouse=True)
def ready() -> None:
    shared_cache.open_checkpoint("", "")  # finish the imports now, so that pages do not wait for them
    sessions._texts.clear()


def click(app: AppTest, label: str, key: str = "") -> AppTest:
    buttons = [button for button in app.button if button.label == label and (not key or button.key == key)]
    buttons[0].click().run()
    assert not app.exception
    return app


def picked(app: AppTest) -> list[DraftEntry]:
    draft: Draft = app.session_state["tray"]
    return list(draft.entries)


def note(app: AppTest, index: int) -> str:
    """Return the key of the field for the note of the view at `index`."""
    return f"report_note_{picked(app)[index].key}"


def dropped(content: bytes, page: str = "tokens") -> AppTest:
    """Drop a view file onto a page, and return the page's app test."""
    app = open_page(page, a="another text")
    view_uploader(app).upload("x.json", content, "application/json").run()
    return app


def view_uploader(app: AppTest) -> Any:
    (uploader,) = [each for each in app.get("file_uploader") if "view_upload" in each.proto.id]
    return uploader


def test_note_that_does_not_fit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    app = a_report("one", "two")
    monkeypatch.setattr(drafts, "MAX_BYTES", 2_000)
    text = "long " * 500
    app.text_area(key=note(app, 1)).set_value(text).run()
    assert "would be larger than" in app.toast[0].value
    assert [entry.note for entry in picked(app)] == ["one", "two"]
    assert app.text_area(key=note(app, 1)).value == text
    app.run()
    assert app.text_area(key=note(app, 1)).value == text
    app.text_area(key=note(app, 1)).set_value("short").run()
    assert [entry.note for entry in picked(app)] == ["one", "short"]
    assert app.text_area(key=note(app, 1)).value == "short"
    monkeypatch.setattr(drafts, "MAX_BYTES", 100)
    app.text_input(key="report_title").set_value("A title").run()
    assert "would be larger than" in app.toast[0].value
    assert app.text_input(key="report_title").value == "A title"


def test_refused_notes_stay_with_their_views(monkeypatch: pytest.MonkeyPatch) -> None:
    app = a_report("", "", "", "four " * 100)
    texts = ["one " * 400, "two " * 400]
    draft: Draft = app.session_state["tray"]
    monkeypatch.setattr(drafts, "MAX_BYTES", len(draft.to_bytes()) + 1_000)
    for index, text in enumerate(texts):
        app.text_area(key=note(app, index)).set_value(text).run()
    assert note_fields(app) == [*texts, "", "four " * 100]
    assert page_text(app).count("This text is not saved.") == 2
    app.button(key=f"down {picked(app)[1].key}").click().run()
    assert note_fields(app) == [texts[0], "", texts[1], "four " * 100]
    app.button(key=f"remove {picked(app)[1].key}").click().run()
    assert note_fields(app) == [*texts, "four " * 100]
    assert [entry.note for entry in picked(app)] == ["", "", "four " * 100]
    app.button(key=f"remove {picked(app)[2].key}").click().run()
    # There is space for one of the two notes now.
    assert note_fields(app) == texts
    assert [entry.note for entry in picked(app)] == [texts[0], ""]
    app.button(key=f"remove {picked(app)[0].key}").click().run()
    assert note_fields(app) == [texts[1]]
    assert [entry.note for entry in picked(app)] == [texts[1]]
    assert "This text is not saved." not in page_text(app)


def test_refused_note_is_not_shown_in_another_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    app = a_report("", "")
    monkeypatch.setattr(drafts, "MAX_BYTES", 2_000)
    app.text_area(key=note(app, 0)).set_value("one " * 500).run()
    app.session_state["tray"] = Draft("", tuple(DraftEntry(entry.view) for entry in picked(app)))
    app.run()
    assert note_fields(app) == ["", ""]


def note_fields(app: AppTest) -> list[str]:
    return [app.text_area(key=note(app, index)).value or "" for index in range(len(picked(app)))]


def a_report(*notes: str) -> AppTest:
    """Return the Report page with a view for each note."""
    entries = [
        DraftEntry(ViewFile("Tokens", texts=(TextInput(f"{TEXT} {number} {note[:20]}"),)), note)
        for number, note in enumerate(notes)
    ]
    app = open_page("tokens", a=TEXT)
    app.session_state["tray"] = Draft("", tuple(entries))
    return app.switch_page("../../pages/report.py").run()


def test_view_added_on_page_is_listed() -> None:
    app = open_page("tokens", a=TEXT)
    click(app, "Add to report")
    app.switch_page("../../pages/attention.py").run()
    click(app, "Add to report")
    app.switch_page("../../pages/report.py").run()
    assert not app.exception
    heatmap, lines = (entry.view for entry in picked(app))
    assert (heatmap.question, heatmap.page, heatmap.texts[0].text) == ("Tokens", "tokens", TEXT)
    assert (lines.question, lines.page, lines.drawn["as"]) == ("Attention", "attention", "lines")
    assert "**1 · Tokens**" in page_text(app)
    assert "“we left the ground”" in page_text(app)


def test_report_is_empty_initially() -> None:
    app = open_page("report")
    assert not app.exception
    assert [element.value for element in app.header] == ["The report has no views yet"]
    assert "tray_kept" not in url_params(app)


def test_views_can_be_reordered_annotated_and_removed() -> None:
    app = a_report("one", "two", "three")
    click(app, "↓", f"down {picked(app)[0].key}")
    app.text_area(key=note(app, 1)).set_value(f"{HOSTILE} {{{{1, id}}}} 37").run()
    assert [entry.note for entry in picked(app)] == ["two", f"{HOSTILE} {{{{1, id}}}} 37", "three"]
    assert "These numbers were typed manually" in page_text(app)
    click(app, "Remove", f"remove {picked(app)[0].key}")
    assert [entry.note for entry in picked(app)][1:] == ["three"]
    assert app.text_area(key=note(app, 1)).value == "three"
    app.text_input(key="report_title").set_value("A title").run()
    assert app.session_state["tray"].title == "A title"


@pytest.mark.parametrize("index", [0, 1, 2])
def test_removed_view_can_be_restored(index: int) -> None:
    app = a_report("one", "two", "three")
    before = picked(app)
    click(app, "Remove", f"remove {before[index].key}")
    assert picked(app) == [entry for entry in before if entry is not before[index]]
    click(app, "Undo")
    assert picked(app) == before
    assert "Undo" not in [button.label for button in app.button]


def test_view_without_room_can_be_restored_later(monkeypatch: pytest.MonkeyPatch) -> None:
    app = a_report("one", "two")
    before = picked(app)
    monkeypatch.setattr(drafts, "MAX_BYTES", len(Draft(entries=tuple(before)).to_bytes()))
    click(app, "Remove", f"remove {before[1].key}")
    app.text_area(key=note(app, 0)).set_value("a longer note").run()
    click(app, "Undo")
    assert "The draft has no room for this view" in app.toast[0].value
    assert [entry.note for entry in picked(app)] == ["a longer note"]
    app.text_area(key=note(app, 0)).set_value("one").run()
    assert picked(click(app, "Undo")) == before


def test_undo_is_offered_until_the_views_change() -> None:
    app = a_report("one")
    click(app, "Remove", f"remove {picked(app)[0].key}")
    assert "Undo" in [button.label for button in app.button]
    click(app, "Try an example")
    assert "Undo" not in [button.label for button in app.button]


def test_late_note_of_a_removed_view_is_not_written_to_another_view() -> None:
    app = a_report("one", "two")
    field = app.text_area(key=note(app, 0))
    click(app, "Remove", f"remove {picked(app)[0].key}")
    field.set_value("late").run()
    assert not app.exception
    assert [entry.note for entry in picked(app)] == ["two"]


def test_example_becomes_a_report() -> None:
    app = click(open_page("report"), "Try an example")
    assert [entry.view.question for entry in picked(app)] == ["MinimalPair", "Similarity", "Attention"]
    assert "verified" not in page_text(app), "its notes have no number that cannot be verified"
    with patch.object(NamedModels, "float64_references", NamedModels.of):
        click(app, "Create the report")
    page = app.session_state["report_preview"].page.decode()
    assert "Example: full or empty?" in page
    assert "{{" not in re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    compare = dropped(picked(app)[0].view.to_bytes())
    assert compare.title[0].value == "Compare"
    assert compare.text_area(key="draft_a").value == EXAMPLES[0].a


def test_report_is_built_from_views() -> None:
    app = a_report("the first token has the id {{1, id}}")
    # Skip the float64 reference, which takes a second to open.
    with patch.object(NamedModels, "float64_references", NamedModels.of):
        click(app, "Create the report")
    assert not app.exception
    labels = [element.proto.label for element in app.get("download_button")]
    assert [label.split(" ·")[0] for label in labels] == [
        "Save these views",
        "Page (HTML)",
        "All files (ZIP)",
    ]
    status, headers, body = answer(app.session_state["report_preview"].address)
    assert (status, body) == (200, app.session_state["report_preview"].page)
    assert "sandbox allow-scripts allow-downloads;" in headers["content-security-policy"]
    assert answer("/report-preview/guessed")[0] == 404


def test_view_contains_its_input_files() -> None:
    app = open_page("probes", probes_part="relations")
    for key, content in (("data", SAILING_FILE), ("held_out", SLEEPING_FILE)):
        file = (f"{key}.conllu", content.encode(), "text/plain")
        app.file_uploader(key=f"probes_{key}_upload").set_value(file)
    click(app.run(), "Evaluate the heads")
    click(app, "Add to report")
    view = picked(app)[0].view
    assert [*view.files] == ["chosen", "reported"]
    elsewhere = dropped(view.to_bytes())
    assert "conllu: 3 sentences" in page_text(elsewhere)
    assert "conllu: 2 sentences" in page_text(elsewhere)
    assert url_params(elsewhere)["probes_part"] == "relations"


def test_view_contains_texts_of_map() -> None:
    app = open_page("map", map_from="file")
    app.file_uploader(key="map_upload").set_value(("a.txt", b"a boat\nthe wide river\n", "text/plain")).run()
    click(app, "Add to report")
    view = picked(app)[0].view
    assert view.sentences == ("a boat", "the wide river")
    elsewhere = dropped(view.to_bytes())
    assert "2 texts from sentences" in page_text(elsewhere)


EVALUATION_FILES = {
    "pairs": {"pairs": ("pairs.csv", questions.PAIRS)},
    "labels": {"texts": ("texts.csv", questions.CLASS_TEXTS)},
    "search": {
        "documents": ("documents.jsonl", "".join(f"{each.line}\n" for each in questions.DOCUMENTS)),
        "queries": ("queries.jsonl", questions.QUERIES),
        "judgments": ("judgments.tsv", questions.JUDGMENTS),
    },
}
"""Section of the Evaluate page → name and content of its files, by argument."""


def contents_of_tables(app: AppTest) -> list[str]:
    return [element.value.to_csv() for element in app.dataframe]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("part", EVALUATION_FILES)
def test_view_of_an_evaluation_contains_its_files(part: str) -> None:
    app = open_page("evaluate", evaluate_part=part, **{f"evaluate_{part}_from": "file"})
    for argument, (name, content) in EVALUATION_FILES[part].items():
        app.file_uploader(key=f"evaluate_{argument}_upload").set_value((name, content.encode(), "text/plain"))
    click(app.run(), "Add to report")
    tables = contents_of_tables(app)
    assert len(tables) > 1
    assert "The browser's URL does not contain the data that you uploaded" in page_text(app)
    view = picked(app)[0].view
    assert {*view.files} == {*EVALUATION_FILES[part]}
    assert contents_of_tables(dropped(view.to_bytes())) == tables

    app = open_page("evaluate", evaluate_part=part, **{f"evaluate_{part}_from": "file"})
    (argument, (name, content)), *_ = EVALUATION_FILES[part].items()
    file = (f"other-{name}", "\n".join(content.splitlines()[:-1]).encode(), "text/plain")
    app.file_uploader(key=f"evaluate_{argument}_upload").set_value(file).run()
    view_uploader(app).upload("x.json", view.to_bytes(), "application/json").run()
    assert contents_of_tables(app) == tables
    assert f"The data are from {name}." in page_text(app).replace("\\", "")
    assert "other-" not in page_text(app), "the uploader is empty"


def test_view_of_sample_data_keeps_an_uploaded_file() -> None:
    app = click(open_page("evaluate"), "Add to report")
    assert "The browser's URL is a link to this view" in page_text(app)
    view = picked(app)[0].view
    app = open_page("evaluate", evaluate_pairs_from="file")
    file = ("own.csv", questions.PAIRS.encode(), "text/plain")
    app.file_uploader(key="evaluate_pairs_upload").set_value(file).run()
    view_uploader(app).upload("x.json", view.to_bytes(), "application/json").run()
    assert "evaluate_pairs_from" not in url_params(app)
    assert app.session_state["evaluate_pairs_file"].value.name == "own.csv"


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("source", ["paste", "file"])
def test_view_of_heads_contains_its_sentences(source: str) -> None:
    app = open_page("heads", heads_part="many", sentences_source=source)
    content = "A small boat sinks.\nNobody reads.\n"
    if source == "paste":
        app.text_area(key="many_pasted").set_value(content).run()
    else:
        file = ("a.txt", content.encode(), "text/plain")
        app.file_uploader(key="many_upload").set_value(file).run()
    click(app, "Profile 2 sentences")
    click(app, "Add to report")
    elsewhere = dropped(picked(app)[0].view.to_bytes(), "heads")
    assert "sentences.txt was uploaded earlier" in page_text(elsewhere).replace("\\", "")
    assert contents_of_tables(click(elsewhere, "Profile 2 sentences")) == contents_of_tables(app)


def test_view_of_sentences_may_look_like_a_table() -> None:
    app = open_page("sentences", sentences_from="file")
    file = ("names.csv", b'name\n"Smith,John"\n"Jones,Ann"\n"Brown,Eve"\n', "text/plain")
    app.file_uploader(key="sentences_upload").set_value(file).run()
    click(app, "Add to report")
    view = picked(app)[0].view
    elsewhere = dropped(view.to_bytes(), "sentences")
    assert "3 sentences from sentences.jsonl" in page_text(elsewhere).replace("\\", "")
    click(elsewhere, "Add to report")
    assert picked(elsewhere)[0].view.sentences == view.sentences == ("Smith,John", "Jones,Ann", "Brown,Eve")


@pytest.mark.prove
def test_view_of_a_threshold_contains_its_pairs_and_options() -> None:
    app = open_page("search", threshold_target="precision", documents_from="file")
    documents = ("documents.txt", b"A boat sinks.\nA map of the river.\n", "text/plain")
    app.file_uploader(key="documents_upload").set_value(documents).run()
    pairs = ("pairs.csv", questions.PAIRS.encode(), "text/plain")
    app.file_uploader(key="threshold_upload").set_value(pairs).run()
    app.number_input(key="threshold_precision").set_value(0.5).run()
    app.number_input(key="threshold_from 1.5 4").set_value(4.0).run()
    exports = [button for button in app.button if button.label == "Add to report"]
    next(button for button in exports if "threshold" in button.key).click().run()
    elsewhere = dropped(picked(app)[0].view.to_bytes(), "search")
    assert elsewhere.number_input(key="threshold_precision").value == 0.5
    assert elsewhere.number_input(key="threshold_from 1.5 4").value == 4
    assert contents_of_tables(elsewhere)[-1] == contents_of_tables(app)[-1]


def test_too_large_view_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_files, "MOST_BYTES", 10)
    app = open_page("map", map_from="file")
    app.file_uploader(key="map_upload").set_value(("a.txt", b"a boat\nanother river\n", "text/plain")).run()
    (button,) = [candidate for candidate in app.button if candidate.label == "Add to report"]
    assert button.disabled
    assert "a view file can have at most" in button.help
    assert "a view file can have at most" in page_text(app)


def test_view_that_cannot_be_read_again_is_not_added() -> None:
    with patch.object(ViewFile, "of", lambda *_: ViewFile("NoQuestion")):
        app = open_page("tokens", a="a text without a view")
        app.session_state["tray"] = Draft("", (DraftEntry(ViewFile("Tokens"), "a note"),))
        click(app, "Add to report")
    assert "does not exist in this version" in app.toast[0].value
    assert [entry.note for entry in picked(app.switch_page("../../pages/report.py").run())] == ["a note"]


def test_invalid_view_is_reported_and_others_are_kept() -> None:
    app = a_report("{{99, id}}")
    with patch.object(NamedModels, "float64_references", NamedModels.of):
        click(app, "Create the report")
    assert "View 1: The note refers to row 99" in error_text(app)
    assert [entry.note for entry in picked(app)] == ["{{99, id}}"]


def test_reload_restores_draft_or_reports_it_missing() -> None:
    app = open_page("tokens", a=TEXT)
    click(app, "Add to report")
    address = url_params(app)
    again = open_page("report", **address)
    assert picked(again) == picked(app)
    third = open_page("report", **address)
    assert third.session_state["tray"] is again.session_state["tray"], "equal drafts are stored once"
    third.text_input(key="report_title").set_value("A title").run()
    changed = open_page("report", **url_params(third))
    assert changed.session_state["tray"].title == "A title"
    assert picked(changed)[0].view is picked(again)[0].view, "equal views are stored once"
    opened = open_page("report", view_kept=address["tray_kept"])
    assert picked(opened)[0].view is picked(again)[0].view
    sessions._texts.clear()  # clear the texts, as after a restart of the server
    gone = open_page("report", **address)
    assert "are no longer stored" in page_text(gone)


def test_number_of_views_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "MOST_VIEWS", 1)
    app = open_page("tokens", a=TEXT)
    click(app, "Add to report")
    app.switch_page("../../pages/attention.py").run()
    click(app, "Add to report")
    assert len(picked(app)) == 1
    assert "at most 1 views" in app.toast[-1].value


def test_double_click_adds_a_view_once() -> None:
    app = open_page("tokens", a=TEXT)
    click(app, "Add to report")
    click(app, "Add to report")
    assert len(picked(app)) == 1
    assert "already ends with this view" in app.toast[-1].value


# ---------------------------------------------------------------- view files


def a_view(**address: str) -> ViewFile:
    return ViewFile("Tokens", texts=(TextInput(TEXT),), page="tokens", address={"a": TEXT} | address)


@pytest.mark.parametrize(
    "text", [TEXT, "we left the ground " * 200, HOSTILE], ids=["short", "long", "hostile"]
)
def test_view_opens_on_its_page(text: str) -> None:
    app = dropped(a_view(a=text).to_bytes(), "parameters")
    assert not app.exception
    assert app.title[0].value == "Tokens"
    assert app.text_area(key="draft_a").value == text
    assert ("a_kept" in url_params(app)) == (len(text) > 1_500)


def test_several_views_open_on_report_page() -> None:
    draft = Draft("T", (DraftEntry(a_view(), "a note"),))
    app = dropped(draft.to_bytes())
    assert app.title[0].value == "Report"
    assert app.session_state["tray"] == draft


def test_view_without_page_is_added_to_report() -> None:
    app = dropped(ViewFile("Tokens", texts=(TextInput(TEXT),)).to_bytes())
    assert app.title[0].value == "Report"
    assert [entry.view.question for entry in picked(app)] == ["Tokens"]


@pytest.mark.parametrize("parameter", ["model", "other"])
def test_model_of_view_is_opened_only_after_consent(
    parameter: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    # Copy the model to a folder that no other test has opened.
    folder = str(shutil.copytree(family_folder("bert"), tmp_path / "bert"))
    app = dropped(a_view(**{parameter: folder}).to_bytes())
    assert app.header[0].value == "Open the model of this view?"
    assert folder in error_text(app)
    assert shared_cache.cached_checkpoint(folder, "") is None
    assert app.text_area(key="draft_a").value == "another text"
    click(app, "Cancel")
    assert consent_buttons(app) == []


def test_consent_shows_the_view(family_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = str(shutil.copytree(family_folder("bert"), tmp_path / "bert"))
    view = a_view(model=folder)
    references = (ModelReference(folder, weights_sha256="0" * 64),)
    app = dropped(ViewFile("Tokens", {}, references, page="tokens", address=view.address).to_bytes())
    click(app, "Open")
    assert app.session_state["request"].model == folder
    assert "differ from those with which the view was created" in page_text(app)
    shared_cache.evict(folder)


@pytest.mark.parametrize("digest", ["0" * 64, ""])
def test_other_weights_of_second_model_are_reported(
    digest: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = str(shutil.copytree(family_folder("bert"), tmp_path / "bert"))
    view = ViewFile(
        "HeadChange",
        texts=(TextInput(TEXT),),
        models=(ModelReference(), ModelReference(folder, weights_sha256=digest)),
        page="changes",
        address={"a": TEXT, "other": folder},
    )
    app = dropped(view.to_bytes(), "changes")
    click(app, "Open")
    assert not app.exception
    warning = "The weights of model B differ from those with which the view was created"
    assert (warning in page_text(app)) == bool(digest)
    shared_cache.evict(folder)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "not valid JSON"),
        (ViewFile("Tokens", page="../secret").to_bytes(), "the page '../secret'"),
        (b'{"bert_probe_view": 2}', "by a later version of BERT Probe"),
    ],
)
def test_invalid_view_file_is_reported_and_draft_is_kept(content: bytes, sentence: str) -> None:
    app = dropped(content)
    assert not app.exception
    assert sentence in error_text(app)
    assert app.text_area(key="draft_a").value == "another text"
    click(app, "Close")
    assert error_text(app) == ""


def test_app_opens_view_given_at_start() -> None:
    name = sessions.store_text(a_view().to_bytes().decode())
    app = open_page("attention", view_kept=name)
    assert app.title[0].value == "Tokens"
    assert app.text_area(key="draft_a").value == TEXT
    gone = open_page("attention", view_kept="0" * 32)
    assert "no longer stored" in error_text(gone)


def test_link_is_limited_to_2000_characters() -> None:
    app = open_page("tokens", a="x" * 1_400)
    assert "The browser's URL is a link to this view." in page_text(app)
    assert url_texts.length(url_params(app)) <= url_texts.MAX_LINK
    app.text_area(key="draft_a").set_value("x " * 1_000)
    app.toggle(key="draft_truncate").set_value(True)
    click(app, "Run")
    assert "would exceed 2,000 characters" in page_text(app)
    assert "a" not in url_params(app)
    click(app, "Add to report")
    assert picked(app)[0].view.address["a"] == "x " * 1_000


SURROGATE = "\ud800"
VIEW = {"bert_probe_view": 1, "page": "tokens", "address": {"a": TEXT}}
ASKED = {"question": "Tokens", "texts": [{"text": TEXT}]}


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (VIEW | {"address": {"a": SURROGATE}}, "lone surrogate"),
        (VIEW | {"address": {SURROGATE: "a"}}, "lone surrogate"),
        (VIEW | {"models": [{"name": SURROGATE}]}, "lone surrogate"),
        (VIEW | {"models": SURROGATE}, "models"),
        (VIEW | {SURROGATE: "a"}, "ud800"),
        ({"bert_probe_tray": 1, "title": SURROGATE, "views": []}, "lone surrogate"),
        ({"bert_probe_tray": 1, "views": [{"view": ASKED, "note": SURROGATE}]}, "lone surrogate"),
        (VIEW | {"address": {f"name {number}": "" for number in range(501)}}, "501 names"),
        (VIEW | {"page": "../../etc/passwd"}, "which this app does not have"),
        ({"bert_probe_tray": 1, "views": [{"view": ASKED}] * 51}, "at most 50 views"),
    ],
)
def test_hostile_file_is_refused_on_page(file: dict[str, object], sentence: str) -> None:
    app = dropped(json.dumps(file).encode())
    assert not app.exception
    assert sentence in page_text(app)


@pytest.mark.parametrize("content", [{"title": SURROGATE, "views": []}, {"views": [{"view": ASKED}] * 51}])
def test_link_to_a_draft_that_is_refused_opens_an_empty_report(content: dict[str, object]) -> None:
    draft = json.dumps({"bert_probe_tray": 1} | content)
    for parameters in ({"tray": draft}, {"tray_kept": sessions.store_text(draft)}):
        app = open_page("report", **parameters)
        assert not app.exception
        assert picked(app) == []
        assert not app.run().exception


@pytest.mark.gate(cases=2)
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
