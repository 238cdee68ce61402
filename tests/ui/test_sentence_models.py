"""Test the pages Sentences and Answer with sentence-transformers checkpoints that have prompts or modules."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import bert_probe
from bert_probe import Sentences, SentenceSimilarity
from tests.helpers import sentence_models
from tests.helpers.pages import error_text, open_page, page_text

TEXTS = ["a boat", "the wide river", "a light at night"]


def _saved(name: str, family_folder: Callable[[str], Path], folder: Path) -> str:
    layout = sentence_models.LAYOUTS[name]
    return str(sentence_models.save(name, family_folder(layout.family), folder))


def test_prompt_and_dimensions_are_choices_on_the_page(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    model = _saved("prompts", family_folder, tmp_path)
    options = {"model": model, "sentences": "\n".join(TEXTS), "sentences_part": "nearest"}
    app = open_page("sentences", prompt="passage", dimensions="16", **options)
    assert not app.exception
    assert not error_text(app)
    assert app.segmented_control(key="prompt").options == ["query", "document", "passage", "No prompt"]
    question = Sentences("model", "nearest", prompt="passage", dimensions=16)
    expected = question.of(bert_probe.load(model), TEXTS)
    assert app.dataframe[0].value["cosine"].tolist() == [pair.score for pair in expected.compared.nearest()]
    assert "prepended to each text" in page_text(app)
    app.segmented_control(key="prompt").set_value("none").run()
    assert "prepended to each text" not in page_text(app)


def test_answer_shows_the_score_of_the_checkpoint(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    model = _saved("dot", family_folder, tmp_path)
    app = open_page("answer", model=model, a=TEXTS[0], b=TEXTS[1])
    checkpoint = bert_probe.load(model)
    result = SentenceSimilarity().of(*(checkpoint.trace(text) for text in TEXTS[:2]))
    assert not app.exception
    assert (app.metric[0].label, app.metric[0].value) == ("Dot product", f"{result.score:.4f}")
    assert "cells equals the dot product" in page_text(app)


def test_unsupported_modules_are_named_and_other_poolings_work(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    model = _saved("mean", family_folder, tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules.append(modules[1] | {"name": "last", "type": "sentence_transformers.models.LSTM"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    app = open_page("sentences", model=model, sentences="\n".join(TEXTS), sentences_part="nearest")
    assert not app.exception
    assert not error_text(app)
    assert "The module LSTM is not supported" in page_text(app)
    assert len(app.dataframe[0].value) == 3
