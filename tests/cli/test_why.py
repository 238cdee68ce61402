"""The command why: the columns of each question, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bert_probe.analyses.attribution.methods import methods
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers import command_line
from tests.helpers.command_line import Ended
from tests.helpers.families import PAIR, TEXT

Run = Callable[..., Ended]
Folders = Callable[[str, str], Path]
BOATS = ("A small boat", "--pair", "The little ship")


@pytest.fixture
def run(minilm: Checkpoint) -> Run:
    """Run the command in this process, with the built-in model opened once."""
    return partial(command_line.bert_probe, "why", built_in=minilm)


def test_two_texts_have_a_matrix_that_adds_up_to_their_cosine(run: Run) -> None:
    cells = run(*BOATS).rows
    total = sum(float(cell) for row in cells[1:] for cell in row[1:])
    header, values = command_line.bert_probe("predict", *BOATS).rows
    assert header == ["cosine"]
    assert total == pytest.approx(float(values[0]), abs=1e-6)
    assert run(*BOATS, "--task", "sentence-similarity").rows == cells
    by_input = run(*BOATS, "--method", "integrated-jacobians", "--steps", "2").rows
    assert [row[0] for row in by_input] == [row[0] for row in cells]


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ([], "position,token,score"),
        (["--method", "decompx", "--words"], "position,token,score"),
        (["--target", "O", "--removal", "masked"], "position,token,score"),
        (["--heads"], "layer,head,change"),
        (["--heads", "--show", "layers", "--replacement", "mean"], "layer,change"),
        (["--heads", "--show", "importance"], "layer,head,importance"),
    ],
)
def test_the_columns(run: Run, trained_folder: Folders, options: list[str], columns: str) -> None:
    rows = run(
        TEXT, "--pair", PAIR, *options, "--model", str(trained_folder("bert", "text-classification"))
    ).rows
    assert ",".join(rows[0]) == columns
    assert len(rows) > 3


def test_the_check_and_its_means_over_a_file(run: Run, trained_folder: Folders, tmp_path: Path) -> None:
    model = ("--model", str(trained_folder("bert", "text-classification")), "--orders", "2")
    rows = run(TEXT, "--check", *model).rows
    assert rows[0][:4] == ["method", "comprehensiveness", "sufficiency", "foretold"]
    assert [row[0] for row in rows[1:]] == [*methods(), "random"]
    file = tmp_path / "texts.txt"
    file.write_text(f"{TEXT}\n\n{PAIR}\t{TEXT}\n", encoding="utf-8")
    rows = run("--file", str(file), *model).rows
    assert rows[0] == ["method", "comprehensiveness", "sufficiency", "foretold", "texts"]
    assert {row[4] for row in rows[1:]} == {"2"}
    file.write_text(f"O\t{TEXT}\nB-LOC\t{PAIR}\t{TEXT}\n", encoding="utf-8")
    rows = run("--file", str(file), "--heads", "--parts", "3", *model[:2]).rows
    assert rows[0] == ["order", "removed", "accuracy"]
    assert len(rows) == 1 + 3 * 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Give a TEXT, or texts with --file"),
        (("A small boat",), "Give the second with --pair"),
        ((*BOATS, "--heads", "--check"), "--check and --heads are two questions"),
        ((*BOATS, "--steps", "3", "--heads"), "--steps has no meaning here"),
        ((*BOATS, "--orders", "3", "--method", "attention"), "--orders has no meaning here"),
        ((*BOATS, "--task", "fill-mask"), "no trained head for fill-mask, and none is made up"),
        ((*BOATS, "--target", "x", "--method", "attention"), "so it takes no target ('x')"),
        ((*BOATS, "--at", "boat", "--heads"), "Leave the token out"),
        (("A small boat", "--file", "/dev/null"), "Give a TEXT, or texts with --file"),
    ],
)
def test_what_is_refused(run: Run, arguments: tuple[str, ...], said: str) -> None:
    ended = run(*arguments)
    assert ended.status == 2
    assert said in ended.err
    assert ended.err.count("\n") == 1
