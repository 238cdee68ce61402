"""Test the Train page: settings, refused files, and results."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

import bert_probe
from bert_probe import Evaluate, EvaluateMasks, Train
from bert_probe.runtime import shared_cache
from bert_probe.server import sessions
from bert_probe.text.datasets import everyday_topics_file, to_file
from bert_probe.text.labeled_texts import parse_labeled_texts
from bert_probe.text.sentence_files import parse_sentences
from bert_probe.text.tagged_sentences import parse_tagged_sentences
from bert_probe.ui import train_data, train_running
from bert_probe.ui.train import summary
from bert_probe.ui.train_data import TrainingData
from bert_probe.ui.train_running import TrainingOutcome
from bert_probe.views import matrix
from bert_probe.views.matrix import Cell
from tests.helpers import sentence_models
from tests.helpers.pages import HOSTILE, error_text, open_page, page_text, url_params

Folder = Callable[[str], Path]

ROWS = 24


def table(hostile: str = "") -> bytes:
    """Return a table of labeled texts about a river or other subjects."""
    lines = [
        f"a {word} {number},{label}"
        for number in range(ROWS // 2)
        for word, label in (("river", "wet" + hostile), ("ground", "dry"))
    ]
    return ("text,label\n" + "\n".join(lines) + "\n").encode()


def open_with_file(folder: Path, content: bytes, name: str = "mine.csv", **address: str) -> AppTest:
    """Return the page after an upload of a file."""
    app = open_page("train", model=str(folder), data="file", **address)
    app.file_uploader(key="train_data_upload").set_value((name, content, "text/plain"))
    return app.run()


def rendered_markup(markdown: str) -> list[str]:
    """Return the Markdown in a text that Streamlit would render."""
    left = re.sub(r"\\.", "", markdown)
    return [piece for piece in ("<img", "**bold", "x^2$", ":red[", "](http") if piece in left]


def press(app: AppTest, label: str) -> AppTest:
    button = next(candidate for candidate in app.button if candidate.label == label)
    app = button.click().run()
    assert not app.exception
    return app


def trained(
    folder: Path, content: bytes, name: str = "mine.csv", **address: str
) -> tuple[AppTest, TrainingOutcome]:
    app = open_with_file(folder, content, name, **{"epochs": "2"} | address)
    assert not app.exception
    app = press(app, "Start training")
    return app, app.session_state["train_outcome"]


def test_first_visit_offers_example_and_counts_updated_parameters(family_folder: Folder) -> None:
    app = open_page("train", model=str(family_folder("bert")))
    assert not app.exception
    assert "300 texts, 6 classes" in page_text(app)
    assert len(app.dataframe[0].value) == 100
    assert app.dataframe[1].value["count"].tolist() == [50] * 6
    plan = re.sub(r"\\", "", page_text(app))
    assert "240 texts are used for training, and 60 are held out." in plan
    assert "a learning rate of 5e-5, 3e-5 or 2e-5." in plan
    assert re.search(r"in 450 steps of 16 texts. Training needs about .* of memory", plan)
    assert [button.label for button in app.button][:1] == ["Start training"]


def test_settings_round_trip_through_url(family_folder: Folder) -> None:
    settings = {"update": "top", "top_layers": "1", "epochs": "2", "rate": "0.002", "batch": "8", "seed": "7"}
    app = open_with_file(family_folder("bert"), table(), held_out="0.5", **settings)
    assert not app.exception
    assert url_params(app) | settings == url_params(app)
    assert "in 4 steps of 8 texts" in page_text(app)
    app.radio(key="update").set_value("head").run()
    assert "update" not in app.query_params
    app = open_with_file(family_folder("bert"), table(), rate="fast")
    assert "rate must be a number, not 'fast'." in error_text(app)
    assert "Your other settings are kept" in page_text(app)


def test_training_matches_library(family_folder: Folder) -> None:
    app, result = trained(family_folder("bert"), table(), held_out="0.5", rate="0.01", epochs="4")
    checkpoint = bert_probe.load(family_folder("bert"))
    again = Train(epochs=4, rate=0.01, held_out=0.5).of(checkpoint, parse_labeled_texts(table(), "mine.csv"))
    pd.testing.assert_frame_equal(result.training.table(), again.table())
    judged = Evaluate().of(again.checkpoint, again.held_out, again.data)
    pd.testing.assert_frame_equal(result.evaluation.table(), judged.table())
    assert f"held-out texts: **{judged.main:.1%}**" in page_text(app)
    for value in judged.baselines.values():
        assert f"{value:.1%}" in page_text(app)
    sentence = f"Training has ended. {summary(judged)} The details are under Result, below the settings."
    assert [element.value for element in app.success] == [sentence]
    assert app.text_input(key="train_folder").placeholder == "mine-model"
    result_table = next(element.value for element in app.dataframe if "recall" in element.value)
    pd.testing.assert_frame_equal(result_table, judged.by_class(), check_dtype=False)
    assert again.python in [element.value for element in app.get("code")]
    assert again.shell in [element.value for element in app.get("code")]
    app.number_input(key="seed").set_value(3).run()
    assert app.session_state["train_outcome"] is result, "the result stays while settings change"
    object.__setattr__(result.training, "ended", "stopped")
    app.run()
    assert not app.success
    assert "Training was stopped early" in app.warning[0].value
    app.switch_page("../../pages/tokens.py").run()
    app.switch_page("../../pages/train.py").run()
    assert "Result" in [element.value for element in app.header]


def test_text_opens_on_answer_page_with_unsaved_model(family_folder: Folder) -> None:
    app, result = trained(family_folder("bert"), table())
    app.segmented_control(key="train_texts").set_value("uncertain").run()
    first = result.evaluation.least_certain[0]
    app = press(app, "Open in Answer")
    address = url_params(app)
    assert address["a"] == result.evaluation.texts[first]
    assert shared_cache.cached_checkpoint(address["model"], "") is result.training.checkpoint
    app.switch_page("../../pages/answer.py").run()
    assert not app.exception
    shares = app.dataframe[0].value.set_index("label")["probability"]
    np.testing.assert_allclose(shares.max(), result.evaluation.certainty[first], rtol=1e-4)
    shared_cache.evict(address["model"])
    app.run()
    assert "trained in this app but not saved, and has been removed from memory" in error_text(app)


def test_model_is_saved_to_new_folder_and_opens_from_it(family_folder: Folder, tmp_path: Path) -> None:
    app, result = trained(family_folder("bert"), table())
    app = press(app, "Save")
    assert "The field for the folder is empty" in re.sub(r"\\", "", app.error[0].value)
    place = tmp_path / "mine"
    place.mkdir()
    (place / "config.json").write_text("{}")
    app.text_input(key="train_folder").set_value(str(place)).run()
    (link,) = app.get("link_button")
    assert link.proto.url == result.download.address
    app = press(app, "Save")
    assert "already exists" in re.sub(r"\\", "", app.error[0].value)
    assert (place / "config.json").read_text() == "{}"
    app.checkbox(key="train_replace").set_value(True).run()
    app = press(app, "Save")
    assert "because config.json was not saved by BERT Probe" in re.sub(r"\\", "", app.error[0].value)
    assert (place / "config.json").read_text() == "{}"
    (place / "config.json").unlink()
    app = press(app, "Save")
    app = press(app, "Save")
    assert not app.error
    assert result.folder == str(place)
    app = press(app, "Open model")
    assert app.title[0].value == "Answer"
    assert url_params(app)["model"] == str(place)
    opened_again = Evaluate().of(bert_probe.load(place), result.training.held_out)
    np.testing.assert_allclose(opened_again.certainty, result.evaluation.certainty, rtol=1e-5)


def test_cancel_keeps_best_checkpoint(family_folder: Folder) -> None:
    checkpoint = bert_probe.load(family_folder("bert"))
    planned = Train().plan(checkpoint, parse_labeled_texts(table(), "mine.csv"))
    run = train_running.TrainingRun(
        TrainingData(parse_labeled_texts(table(), "mine.csv"), None, 0.2, "mine.csv"), planned
    )
    stopped: list[int] = []

    def report(done: int, _total: int) -> None:
        if run.history:
            run.stop.set()
            stopped.append(done)

    result = run.work(report)
    assert len(stopped) == 1, "the next step is the last one requested"
    assert result.training.ended == "stopped"
    assert result.evaluation is not None
    assert "of 0 s" not in run.time_left(1, 2)


def test_file_errors_are_listed_and_settings_kept(family_folder: Folder) -> None:
    content = f"text,label\nfine,a\n,b\nno label,\n{HOSTILE},a,b\n".encode()
    app = open_with_file(family_folder("bert"), content, f"{HOSTILE}.csv", seed="5")
    assert not app.exception
    assert "has 3 errors:" in page_text(app)
    listed = next(element.value for element in app.markdown if element.value.startswith("- line"))
    assert [line.split(":")[0] for line in listed.split("\n")] == ["- line 3", "- line 4", "- line 5"]
    assert not rendered_markup(page_text(app))
    assert not [element for element in app.button if element.label == "Start training"]
    assert url_params(app)["seed"] == "5"
    app = open_with_file(family_folder("bert"), b"a word without a tag\n\nx", "mine.conll")
    assert "error:" in page_text(app)
    app = open_with_file(family_folder("bert"), b"\xff\xfe", "mine.csv")
    assert "UTF-8" in error_text(app)
    app = open_with_file(family_folder("bert"), b"text,label\nOne,a\nTwo,a\n")
    assert "All 2 texts have the label a" in error_text(app)


def test_too_many_examples_are_refused(family_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_data, "_MAX_ROWS", ROWS)
    assert not error_text(open_with_file(family_folder("bert"), table()))
    app = open_with_file(family_folder("bert"), table() + b"another river,wet\n")
    assert f"mine.csv has more than {ROWS} rows. Remove rows, or split the file." in page_text(app)
    app = open_page("train", model=str(family_folder("bert")), data="lines")
    app.text_area(key="train_lines").set_value("a river\n" * (ROWS + 1)).run()
    assert f"There are more than {ROWS} lines, the limit of this page" in page_text(app)


def test_plan_is_made_again_if_it_was_dropped(family_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    app = open_with_file(family_folder("bert"), table())
    plan, text = app.session_state["train_plan"], page_text(app)
    monkeypatch.setattr(sessions, "MAX_VALUE_BYTES", 0)
    sessions.SessionValue(b"other", "another session")
    assert plan.value is None
    # The file was dropped, too.
    app.file_uploader(key="train_data_upload").set_value(("mine.csv", table(), "text/plain"))
    assert page_text(app.run()) == text


def test_hostile_labels_are_shown_as_text(family_folder: Folder) -> None:
    hostile = HOSTILE.replace(",", "").replace('"', "")
    app, result = trained(family_folder("bert"), table(hostile))
    assert f"wet{hostile}" in result.evaluation.labels
    assert not rendered_markup(
        "\n".join(element.value for part in (app.markdown, app.caption) for element in part)
    )


def test_regression_multilabel_and_tagging_show_their_metrics(family_folder: Folder) -> None:
    numbers = table().replace(b"wet", b"1.5").replace(b"dry", b"-0.5")
    app, result = trained(family_folder("bert"), numbers, held_out="0.5")
    assert result.evaluation.kind == "number"
    assert "Mean squared error" in page_text(app)
    assert "-0.5 to 1.5, mean 0.5" in page_text(app)
    several = table().replace(b"text,label", b"text,labels").replace(b"wet", b"wet|cold")
    app, result = trained(family_folder("bert"), several, held_out="0.5")
    assert "Exact-match accuracy on" in page_text(app)
    assert "Confusion matrix" not in [element.value for element in app.header]
    tags = "".join(f"Anna B-PER\nsees O\nboat{number} O\n\n" for number in range(ROWS)).encode()
    app, result = trained(family_folder("bert"), tags, "mine.conll")
    assert "24 sentences, 2 tags" in page_text(app)
    assert "held-out words: **" in page_text(app)
    assert result.evaluation.kind == "tags"


LINES = tuple(f"the river {number} runs past a small bridge" for number in range(20))


@pytest.mark.prove
def test_masked_language_model_is_trained_on_pasted_lines(family_folder: Folder) -> None:
    app = open_page("train", model=str(family_folder("bert")), data="lines", epochs="2", whole_words="1")
    assert not app.exception
    assert "No labels are needed" in page_text(app)
    app.text_area(key="train_lines").set_value("\n\n".join(LINES)).run()
    assert "20 texts for masked-language modeling" in page_text(app)
    assert url_params(app)["whole_words"] == "1"
    app = press(app, "Start training")
    result = app.session_state["train_outcome"]
    again = Train(epochs=2, whole_words=True).of(bert_probe.load(family_folder("bert")), LINES)
    pd.testing.assert_frame_equal(result.training.table(), again.table())
    judged = EvaluateMasks().of(again.checkpoint, again.held_out)
    pd.testing.assert_frame_equal(result.mask_evaluation.table(), judged.table())
    assert f"held-out texts: **{judged.measures['first_guess']:.1%}**" in page_text(app)
    assert judged.python in [element.value for element in app.get("code")]
    assert again.shell in [element.value for element in app.get("code")]
    app = press(app, "Open in Answer")
    assert url_params(app)["a"] == again.held_out[0]
    app.switch_page("../../pages/answer.py").run()
    assert not app.exception
    assert "Predictions for token" in page_text(app)
    app.switch_page("../../pages/train.py").run()
    assert app.text_area(key="train_lines").value.startswith("the river 0")


def test_text_file_is_read_as_lines_to_mask(family_folder: Folder) -> None:
    app = open_with_file(family_folder("bert"), "\n".join([*LINES, HOSTILE]).encode(), "mine.txt")
    assert not app.exception
    assert "21 texts for masked-language modeling" in page_text(app)
    assert app.dataframe[0].value["text"].tolist()[-1] == HOSTILE
    assert not rendered_markup(page_text(app))
    assert parse_sentences(to_file((*LINES, "a")), "a.txt") == (*LINES, "a")


@pytest.mark.prove
def test_tag_confusion_cell_opens_its_sentence(
    family_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = "".join(f"Anna B-PER\nsees O\n{HOSTILE.split()[1]}{number} O\n\n" for number in range(ROWS))
    app, result = trained(family_folder("bert"), tags.encode(), "mine.conll")
    judged = result.evaluation
    true, answered = int(judged.true[2]), int(judged.predicted[2])
    monkeypatch.setattr(matrix, "pinned_cell", lambda *_: Cell(true, answered))
    app.run()
    unit = judged.where(true, answered)[0]
    sentence = result.training.held_out[judged.rows[unit]]
    assert sentence.words[judged.words[unit]] == judged.texts[unit]
    assert not rendered_markup(page_text(app))
    app.button(key="open cell 0").click().run()
    assert url_params(app)["a"] == sentence.text
    assert shared_cache.cached_checkpoint(url_params(app)["model"], "") is result.training.checkpoint


def test_files_of_snippets_round_trip() -> None:
    for content in (everyday_topics_file(), b'text_a,text_b,label\n"a, ""b""",c,1.5\nd,e,2\n'):
        rows = parse_labeled_texts(content, "a.csv")
        assert parse_labeled_texts(to_file(rows), "a.csv").digest == rows.digest
    several = parse_labeled_texts(b"text,labels\na,x|y\nb,\n", "a.csv")
    assert parse_labeled_texts(to_file(several), "a.csv").digest == several.digest
    tagged = parse_tagged_sentences(b"One\tO\nRome\tB-LOC\n\nTwo\tO\n", "a.conll")
    assert parse_tagged_sentences(to_file(tagged), "a.conll") == tagged


@pytest.fixture
def sentence_folder(tmp_path: Path, family_folder: Folder) -> Path:
    """Return the folder of a tiny sentence-transformers model."""
    return sentence_models.save("cls", family_folder("bert"), tmp_path / "sentences")


@pytest.mark.prove
def test_head_on_the_sentence_vector(sentence_folder: Path) -> None:
    app = open_with_file(sentence_folder, table())
    assert not app.exception
    assert "fitted to the model's own sentence vectors" in page_text(app)
    assert not [field for field in app.number_input if field.label == "Epochs"]
    app = press(app, "Start training")
    training = app.session_state["train_outcome"].training
    assert training.best.penalty is not None
    assert "Accuracy on" in page_text(app)
    app = open_with_file(sentence_folder, table(), train_head="cls")
    assert "steps of 16 texts" in page_text(app)


@pytest.mark.prove
def test_similarity_training(sentence_folder: Path) -> None:
    rows = "".join(f"the river {number % 7},a boat {number % 5},{number % 4}\n" for number in range(20))
    content = ("text_a,text_b,score\n" + rows).encode()
    app, outcome = trained(sentence_folder, content, epochs="1", update="top")
    assert outcome.training.task == "sentence-similarity"
    assert outcome.evaluation is None
    text = page_text(app)
    assert "20 scored pairs for sentence similarity" in text
    assert f"held-out scored pairs: **{outcome.training.best.measure:.4f}**; before training" in text
    app = press(app, "Compare with the model before training")
    assert url_params(app)["model"] == str(sentence_folder)
    assert shared_cache.cached_checkpoint(url_params(app)["other"], "") is outcome.training.checkpoint
    app.switch_page("../../pages/evaluate.py").run()
    assert not app.exception
    summary_table = next(element.value for element in app.dataframe if "measure" in element.value)
    row = summary_table.set_index("measure").loc["Spearman, cosine"]
    first, best = outcome.training.history[0].measure, outcome.training.best.measure
    assert [row["value"], row["other"]] == pytest.approx([first, best], abs=1e-6)
    maps = [element for element in app.get("plotly_chart") if "only in the second" in element.proto.spec]
    assert len(maps) == 2


@pytest.mark.prove
def test_head_is_compared_with_the_original_on_the_changes_page(sentence_folder: Path) -> None:
    app, outcome = trained(sentence_folder, table())
    assert "Only the head was trained" in page_text(app)
    app = press(app, "Compare with the model before training")
    app.switch_page("../../pages/changes.py").run()
    assert not app.exception
    assert url_params(app)["model"] == str(sentence_folder)
    assert shared_cache.cached_checkpoint(url_params(app)["other"], "") is outcome.training.checkpoint
    assert "Which parameters changed?" in [element.value for element in app.header]
