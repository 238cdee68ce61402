"""Test the attribution commands: columns and errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bert_probe.analyses.attribution.methods import methods
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers import command_line
from tests.helpers.command_line import CommandResult
from tests.helpers.families import PAIR, TEXT

Run = Callable[..., CommandResult]
Folders = Callable[[str, str], Path]
BOATS = ("A small boat", "--pair", "The little ship")


@pytest.fixture
def run(minilm: Checkpoint) -> Run:
    """Return a function that runs a command in this process with the built-in model, opened only once."""
    return partial(command_line.bert_probe, built_in=minilm)


def test_contributions_add_up_to_the_cosine(run: Run) -> None:
    cells = run("why", *BOATS).rows
    total = sum(float(cell) for row in cells[1:] for cell in row[1:])
    header, values = run("predict", *BOATS).rows
    assert header == ["cosine"]
    assert total == pytest.approx(float(values[0]), abs=1e-6)
    assert run("why", *BOATS, "--task", "sentence-similarity").rows == cells
    by_input = run("similarity-attribution", "A small boat", "The little ship", "--steps", "2").rows
    assert [row[0] for row in by_input] == [row[0] for row in cells]


@pytest.mark.parametrize(
    ("command", "options", "columns"),
    [
        ("why", [], "position,token,score"),
        ("why", ["--method", "decompx", "--words"], "position,token,score"),
        ("why", ["--target", "O", "--removal", "masked"], "position,token,score"),
        ("head-attribution", [], "layer,head,change"),
        ("head-attribution", ["--show", "layers", "--replacement", "mean"], "layer,change"),
        ("head-attribution", ["--show", "importance"], "layer,head,importance"),
    ],
)
def test_columns_depend_on_the_question(
    run: Run, trained_folder: Folders, command: str, options: list[str], columns: str
) -> None:
    model = str(trained_folder("bert", "text-classification"))
    rows = run(command, TEXT, "--pair", PAIR, *options, "--model", model).rows
    assert ",".join(rows[0]) == columns
    assert len(rows) > 3


def test_faithfulness_and_pruning_read_texts_and_files(
    run: Run, trained_folder: Folders, tmp_path: Path
) -> None:
    model = ("--model", str(trained_folder("bert", "text-classification")), "--orders", "2")
    rows = run("faithfulness", TEXT, *model).rows
    assert rows[0][:4] == ["method", "comprehensiveness", "sufficiency", "loo_correlation"]
    assert [row[0] for row in rows[1:]] == [*methods(), "random"]
    file = tmp_path / "texts.txt"
    file.write_text(f"{TEXT}\n\n{PAIR}\t{TEXT}\n", encoding="utf-8")
    rows = run("faithfulness-summary", str(file), *model).rows
    assert rows[0] == ["method", "comprehensiveness", "sufficiency", "loo_correlation", "texts"]
    assert {row[4] for row in rows[1:]} == {"2"}
    file.write_text(f"O\t{TEXT}\nB-LOC\t{PAIR}\t{TEXT}\n", encoding="utf-8")
    rows = run("head-pruning", str(file), "--parts", "3", *model[:2]).rows
    assert rows[0] == ["order", "removed", "accuracy"]
    assert len(rows) == 1 + 3 * 4


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("why",), "Missing argument 'TEXT'"),
        (("faithfulness",), "Missing argument 'TEXT'"),
        (("head-attribution",), "Missing argument 'TEXT'"),
        (("faithfulness-summary",), "Missing argument 'FILE'"),
        (("similarity-attribution", "A small boat"), "Missing argument 'TEXT_B'"),
        (
            ("why", "A small boat"),
            "Sentence similarity requires two texts. Pass the second text with --pair.",
        ),
        (
            ("faithfulness", "A small boat"),
            "Sentence similarity requires two texts. Pass the second text with --pair.",
        ),
        (
            ("head-attribution", "A small boat"),
            "Sentence similarity requires two texts. Pass the second text with --pair.",
        ),
        (("head-attribution", *BOATS, "--steps", "3"), "No such option '--steps'"),
        (("why", *BOATS, "--orders", "3", "--method", "attention"), "No such option '--orders'"),
        (("why", *BOATS, "--method", "integrated-jacobians"), "is not one of"),
        (
            ("why", *BOATS, "--task", "fill-mask"),
            "no trained head for fill-mask. It has a task head for sentence-similarity",
        ),
        (("why", *BOATS, "--target", "x", "--method", "attention"), "accepts no target ('x')"),
        (("head-attribution", *BOATS, "--at", "boat"), "is predicted for the whole text"),
        (("faithfulness-summary", "A small boat"), "A small boat cannot be opened"),
        (("head-pruning", "nowhere.txt"), "nowhere.txt cannot be opened"),
    ],
)
def test_invalid_input_is_refused(run: Run, arguments: tuple[str, ...], reason: str) -> None:
    assert reason in run(*arguments).refusal
