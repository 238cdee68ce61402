"""The commands on what is inside: steps, vectors and how they are made, parameters."""

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
"""The command opens the model anew: the same numbers, but for what a batch may change of float32."""


def rows(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def numbers(row: dict[str, str]) -> list[float]:
    return [float(cell) for cell in list(row.values())[1:]]


def test_steps(minilm: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
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
    for asked, options in (
        (AttentionSteps(5, 2, 11, 9), "--layer 6 --head 3 --query 11 --key 9"),
        (AttentionSteps(query="ground"), "--layer 6 --query 11"),
    ):
        assert asked.of(trace).shell == f"bert-probe steps {options} '{TEXT}'"


def test_anatomy(minilm: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    found = Embedding("ground").of(minilm.trace(TEXT)).frame()
    shown = rows(["anatomy", TEXT, "--token", "ground"], capsys)
    assert [row["step"] for row in shown] == ["word", "position", "segment", "sum", "LayerNorm"]
    Expected(found.to_numpy(), SAME).check([numbers(row) for row in shown])
    assert shown == rows(["anatomy", TEXT, "--token", "11"], capsys)
    assert rows(["anatomy", TEXT], capsys) == rows(["anatomy", TEXT, "--token", "almost"], capsys)


def test_pooler(minilm: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    found = Pooler().of(minilm.trace(TEXT)).frame()
    shown = rows(["pooler", TEXT], capsys)
    assert [row["step"] for row in shown] == ["cls", "W·cls + b", "tanh(W·cls + b)", "model"]
    Expected(found.to_numpy(), SAME).check([numbers(row) for row in shown])


def test_parameters_have_six_columns_or_all(minilm: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    six, all_of_them = rows(["parameters"], capsys), rows(["parameters", "--all-columns"], capsys)
    assert list(six[0]) == ["name", "group", "shape", "count", "dtype", "bytes"]
    assert list(all_of_them[0]) == list(Parameters().of(minilm).frame())
    assert [row | one for row, one in zip(all_of_them, six, strict=True)] == all_of_them
    assert len(six) == 103


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["steps", "--query", "Mehdi", "--head", "1"],
            "Mehdi has 2 tokens: me (1), ##hdi (2). Choose one by its position.",
        ),
        (
            ["steps", "--query", "6", "--head", "1"],
            "There is no token 6: this text has tokens 0 to 5. If it is a word",
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
def test_bad_arguments_are_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([arguments[0], "Mehdi loves AI", *arguments[1:]])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
