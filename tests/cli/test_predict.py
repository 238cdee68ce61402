"""Test the command predict: its columns for each task, its notes, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bert_probe.model.checkpoint import Checkpoint
from tests.helpers import command_line
from tests.helpers.command_line import CommandResult
from tests.helpers.families import PAIR, TEXT

Run = Callable[..., CommandResult]
Folders = Callable[[str, str], Path]


@pytest.fixture
def run(minilm: Checkpoint) -> Run:
    """Return a function that runs the command in this process with the built-in model, opened only once."""
    return partial(command_line.bert_probe, "predict", built_in=minilm)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("task", "arguments", "columns"),
    [
        ("fill-mask", ["The [MASK]"], "position,rank,token,id,probability,logit"),
        ("text-classification", [TEXT, "--pair", PAIR], "label,probability,logit"),
        (
            "token-classification",
            [TEXT, "--aggregation", "max", "--outside"],
            "start,end,text,label,probability",
        ),
        ("question-answering", [PAIR, "--pair", TEXT, "--no-answer"], "rank,start,end,text,probability"),
        ("next-sentence-prediction", [TEXT, "--pair", PAIR], "label,probability,logit"),
    ],
)
def test_columns_depend_on_the_task(
    run: Run, trained_folder: Folders, task: str, arguments: list[str], columns: str
) -> None:
    model = str(trained_folder("bert", task))
    rows = run(*arguments, "--model", model).rows
    assert ",".join(rows[0]) == columns
    assert len(rows) > 1
    assert run(*arguments, "--model", model, "--task", task).rows == rows


def test_prediction_of_the_built_in_model_is_a_cosine(run: Run) -> None:
    header, values = run("A small boat", "--pair", "The little ship").rows
    assert header == ["cosine"]
    assert 0.5 < float(values[0]) < 0.9
    cells = run("A small boat", "--pair", "The little ship", "--show", "contributions").rows
    total = sum(float(cell) for row in cells[1:] for cell in row[1:])
    assert total == pytest.approx(float(values[0]), abs=1e-6)


def test_notes_are_printed_to_standard_error(run: Run, trained_folder: Folders) -> None:
    model = str(trained_folder("bert", "fill-mask"))
    ended = run("[MASK] and [MASK]", "--targets", "unknown,river", "--model", model)
    assert ended.status == 0
    assert ended.text.count("\n") == 5
    assert ended.err.splitlines() == [
        "bert-probe: “unknown” is not in the vocabulary; its first subword token, un, is used instead.",
        "bert-probe: Each of the 2 masks is predicted independently, with the others masked.",
    ]


def test_mask_option_replaces_a_word(run: Run, trained_folder: Folders) -> None:
    model = str(trained_folder("bert", "fill-mask"))
    rows = run("The unknown river", "--mask", "unknown", "--top", "7", "--model", model).rows
    assert len(rows) == 8
    assert run("The [MASK] river", "--top", "7", "--model", model).rows == rows


def test_long_context_is_read_in_windows(run: Run, trained_folder: Folders) -> None:
    ended = run(PAIR, "--pair", f"{TEXT} " * 30, "--model", str(trained_folder("bert", "question-answering")))
    assert ended.status == 0
    assert "overlapping windows" in ended.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a"], "Sentence similarity requires two texts. Pass the second text with --pair."),
        (
            ["a", "--task", "fill-mask"],
            "no trained head for fill-mask. It has a task head for sen",
        ),
        (
            ["a", "--pair", "b", "--aggregation", "max"],
            "--aggregation does not apply to sentence-similarity.",
        ),
        (["a", "--pair", "b", "--targets", "c"], "--targets does not apply to sentence-similarity."),
        (["a", "--task", "guessing"], "guessing"),
        (["a", "--task", "fill-mask", "--top", "0"], "top must be 1 or more, not 0."),
        (["a", "--task", "fill-mask", "--targets", ","], "must be a list of words"),
    ],
)
def test_invalid_input_is_refused(run: Run, arguments: list[str], message: str) -> None:
    assert message in run(*arguments).refusal


def test_encoder_without_a_head_is_refused(run: Run, family_folder: Callable[[str], Path]) -> None:
    refusal = run("a", "--model", str(family_folder("bert"))).refusal
    assert "has no trained task head. Use a model that was fine-tuned for a task." in refusal
