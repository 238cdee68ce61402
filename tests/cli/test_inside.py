"""Test the commands steps, anatomy, pooler and parameters."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from bert_probe import AttentionSteps, Checkpoint, Embedding, Parameters, Pooler
from bert_probe.cli.main import main
from tests.helpers.exactness import Expected
from tests.helpers.families import TEXT

SAME = 64 * float(np.finfo(np.float32).eps)
"""Relative tolerance between float32 results of different batches or of different model objects."""


def rows(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def numbers(row: dict[str, str]) -> list[float]:
    return [float(cell) for cell in list(row.values())[1:]]


def test_steps_equal_those_of_the_library(minilm: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    trace = minilm.trace(TEXT)
    by_word = rows(["steps", TEXT, "--query", "ground", "--layer", "2", "--head", "3"], capsys)
    assert by_word == rows(["steps", TEXT, "--query", "11", "--layer", "2", "--head", "3"], capsys)
    weights = [float(row["weight"]) for row in by_word]
    Expected(trace.attention(1, 2)[11], SAME).check(weights)
    vectors = rows(["steps", TEXT, "--query", "ground", "--key", "left", "--head", "3"], capsys)
    assert [row["step"] for row in vectors] == ["q", "k", "q×k", "v", "weight×v", "output", "model"]
    assert trace.k is not None
    Expected(trace.k[5, 2, 9], SAME).check(numbers(vectors[1]))
    assert vectors == rows(["steps", TEXT, "--query", "11", "--key", "9", "--head", "3"], capsys)
    for question, options in (
        (AttentionSteps(5, 2, 11, 9), "--layer 6 --head 3 --query 11 --key 9"),
        (AttentionSteps(query="ground"), "--layer 6 --query 11"),
    ):
        assert question.of(trace).shell == f"bert-probe steps {options} '{TEXT}'"


def test_anatomy_equals_that_of_the_library(minilm: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    expected = Embedding("ground").of(minilm.trace(TEXT)).frame()
    printed = rows(["anatomy", TEXT, "--token", "ground"], capsys)
    assert [row["step"] for row in printed] == ["word", "position", "segment", "sum", "LayerNorm"]
    Expected(expected.to_numpy(), SAME).check([numbers(row) for row in printed])
    assert printed == rows(["anatomy", TEXT, "--token", "11"], capsys)
    assert rows(["anatomy", TEXT], capsys) == rows(["anatomy", TEXT, "--token", "almost"], capsys)


def test_pooler_equals_that_of_the_library(minilm: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    expected = Pooler().of(minilm.trace(TEXT)).frame()
    printed = rows(["pooler", TEXT], capsys)
    assert [row["step"] for row in printed] == ["cls", "W·cls + b", "tanh(W·cls + b)", "model"]
    Expected(expected.to_numpy(), SAME).check([numbers(row) for row in printed])


def test_parameters_have_six_columns_or_all(minilm: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    main_columns, all_columns = rows(["parameters"], capsys), rows(["parameters", "--all-columns"], capsys)
    assert list(main_columns[0]) == ["name", "group", "shape", "count", "dtype", "bytes"]
    assert list(all_columns[0]) == list(Parameters().of(minilm).frame())
    assert [row | part for row, part in zip(all_columns, main_columns, strict=True)] == all_columns
    assert len(main_columns) == 103


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["steps", "--query", "Mehdi", "--head", "1"],
            "Mehdi has 2 tokens: me (1), ##hdi (2). Choose one of these tokens by its position.",
        ),
        (
            ["steps", "--query", "6", "--head", "1"],
            "There is no token 6: this text has tokens 0 to 5. To select the word",
        ),
        (["steps", "--query", "9" * 5000, "--head", "1"], "this text has tokens 0 to 5."),
        (["steps", "--query", "²", "--head", "1"], "There is no word ² in this text."),
        (["steps", "--query", "hates", "--head", "1"], "There is no word hates in this text."),
        (["steps", "--query", "1", "--key", "hates", "--head", "1"], "There is no word hates in this text."),
        (["steps", "--query", "1", "--head", "mean"], "There is no head mean: this model has heads 1 to 12."),
        (["anatomy", "--token", "6"], "There is no token 6: this text has tokens 0 to 5."),
        (["anatomy", "--token", "Mehdi"], "Mehdi has 2 tokens: me (1), ##hdi (2)."),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([arguments[0], "Mehdi loves AI", *arguments[1:]])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
