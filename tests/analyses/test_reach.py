"""Test token rollout: hand-computed cases and invariants."""

from __future__ import annotations

import numpy as np
import pytest

from bert_probe import Attention, TokenRollout
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.command_line import bert_probe
from tests.helpers.exactness import assert_repeatable, assert_rounded
from tests.helpers.traces import hand_trace

TEXT = "Mehdi loves Electroencephalography"
FIRST = np.array([[[1.0, 0.0], [0.5, 0.5]]])
SECOND = np.array([[[0.0, 1.0], [0.0, 1.0]]])


def test_token_rollout_equals_hand_computation() -> None:
    trace = hand_trace([FIRST, SECOND], "sun moon")
    # R₁ = [[1, 0], [¼, ¾]] and R₂ = [[⅝, ⅜], [¼, ¾]]. "from" selects a column, and "into" a row.
    for selected, direction, expected in (
        (0, "from", [[1, 0.25], [0.625, 0.25]]),
        (1, "from", [[0, 0.75], [0.375, 0.75]]),
        (0, "into", [[1, 0], [0.625, 0.375]]),
        (1, "into", [[0.25, 0.75], [0.25, 0.75]]),
    ):
        np.testing.assert_array_equal(TokenRollout(selected, direction).of(trace).values, expected)


def test_token_rollout_is_column_or_row_of_each_rollout(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    out = TokenRollout(2, "from", residual=0.3).of(trace)
    into = TokenRollout(2, "into", residual=0.3).of(trace)
    for layer in range(trace.layers):
        full = Attention(layer, measure="rollout", residual=0.3).of(trace).weights
        assert_rounded(out.values[layer], full[:, 2], 2)
        assert_rounded(into.values[layer], full[2], 2)
    assert_rounded(into.values.sum(axis=1), np.ones(trace.layers), len(trace.tokens))


def test_token_rollout_of_words_equals_merged_rollout(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    reached = TokenRollout("Electroencephalography", "into", words=True).of(trace)
    assert str(reached.units[reached.chosen]) == "Electroencephalography"
    full = Attention(measure="rollout", words=True).of(trace).weights
    assert_rounded(reached.values[-1], full[reached.chosen], len(trace.tokens))
    last = reached.units[reached.chosen].positions[-1]  # type: ignore[union-attr]
    by_piece = TokenRollout(last, "into", words=True).of(trace)
    np.testing.assert_array_equal(by_piece.values, reached.values)


@pytest.mark.parametrize(
    "options",
    [{"token": 99}, {"token": "nobody"}, {"token": 0, "direction": "up"}, {"token": 0, "residual": 2}],
)
def test_invalid_token_raises(minilm: Checkpoint, options: dict[str, object]) -> None:
    with pytest.raises(SelectionError):
        TokenRollout(**options).of(minilm.trace("we left"))  # type: ignore[arg-type]


def test_residual_weight_is_in_the_provenance(minilm: Checkpoint) -> None:
    trace = minilm.trace("we left")
    table = Attention(measure="rollout", residual=0.2).of(trace).table()
    assert table.attrs["provenance"]["question"]["residual"] == 0.2
    reached = TokenRollout(1, residual=0.2).of(trace).table()
    description = reached.attrs["provenance"]
    question = description["question"]
    assert (question["token"], question["direction"], question["residual"]) == (1, "from", 0.2)
    assert description["facts"] == {"token": "we"}
    assert list(reached.index) == [str(layer) for layer in range(1, 7)]


def rows_of(*arguments: str) -> list[list[str]]:
    return bert_probe(*arguments).rows


@pytest.mark.prove
def test_command_traces_word(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    header, *rows = rows_of("rollout", TEXT, "--token", "loves", "--direction", "into", "--residual", "0.25")
    assert header == ["layer", *map(str, trace.tokens)]
    place = list(trace.tokens).index("loves")
    expected = TokenRollout(place, "into", residual=0.25).of(trace).values
    assert_repeatable([[float(cell) for cell in row[1:]] for row in rows], expected)
    assert rows_of(
        "rollout", TEXT, "--position", str(place), "--direction", "into", "--residual", "0.25"
    ) == [
        header,
        *rows,
    ]
    header, *_ = rows_of("rollout", TEXT, "--token", "Electroencephalography", "--words")
    assert header == ["layer", "[CLS]", "Mehdi", "loves", "Electroencephalography", "[SEP]"]


def test_word_of_several_tokens_requires_words(capfd: pytest.CaptureFixture[str]) -> None:
    from bert_probe.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(["rollout", TEXT, "--token", "Electroencephalography"])
    assert ended.value.code == 2
    assert "Add --words" in capfd.readouterr().err
