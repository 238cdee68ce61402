"""Test that the command evaluate prints the tables of `Evaluate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bert_probe import Evaluate, load, read_labeled_texts
from tests.helpers.command_line import bert_probe as run

Folders = Callable[[str, str], Path]

TABLE = "text,label\nA small boat.,O\nNobody reads.,B-LOC\n"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "data.csv"
    file.write_text(TABLE, encoding="utf-8")
    return file


def test_tables_equal_those_of_the_library(trained_folder: Folders, data: Path) -> None:
    folder = trained_folder("bert", "text-classification")
    expected = Evaluate().of(load(folder), read_labeled_texts(data), read_labeled_texts(data))
    rows = run("evaluate", str(folder), str(data), "--training", str(data)).rows
    assert rows[0] == ["measure", "value"]
    assert {name: float(value) for name, value in rows[1:]} == dict(expected.table().to_numpy().tolist())
    assert run("evaluate", "--model", str(folder), str(data), "--training", str(data)).rows == rows
    texts = run("evaluate", str(folder), str(data), "--show", "texts").records
    assert [text["line"] for text in texts] == ["2", "3"]
    words = data.with_suffix(".conll")
    words.write_text("One O\n\nTwo B-LOC\n", encoding="utf-8")
    labeler = trained_folder("bert", "token-classification")
    header, *_ = run("evaluate", str(labeler), str(words), "--show", "confusion").rows
    assert header == ["true", "O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def test_missing_or_superfluous_arguments_are_refused(trained_folder: Folders, data: Path) -> None:
    folder = str(trained_folder("bert", "text-classification"))
    assert "Pass the FOLDER of a trained model and a file of DATA, in this order." in run("evaluate").refusal
    assert (
        "Pass the FOLDER of a trained model and a file of DATA, in this order."
        in run("evaluate", folder, folder, str(data)).refusal
    )
    assert ("Pass a single model: either its FOLDER before DATA, or --model.") in run(
        "evaluate", str(data)
    ).refusal
    assert (
        "Pass a single model: either its FOLDER before DATA, or --model."
        in run("evaluate", folder, str(data), "--model", folder).refusal
    )
    data.write_text("text,label\nOne,good\n", encoding="utf-8")
    assert "line 2: good is not a label of" in run("evaluate", folder, str(data)).refusal
