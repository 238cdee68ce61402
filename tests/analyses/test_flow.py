"""Rollout up to each layer and the reach of one token, by hand and by what must always hold."""

from __future__ import annotations

import csv
import io
import json
import zipfile

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import bert_probe
from bert_probe.analyses.flow import rollout, rollouts, trace_rollout
from bert_probe.cli.main import app
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.results import files
from tests.analyses.test_attention import hand_trace

TEXT = "Mehdi loves Electroencephalography"
FIRST = np.array([[[1.0, 0.0], [0.5, 0.5]]])
SECOND = np.array([[[0.0, 1.0], [0.0, 1.0]]])


def test_rollouts_by_hand() -> None:
    """½(A₁ + I) = [[1, 0], [¼, ¾]]; ½(A₂ + I) = [[½, ½], [0, 1]] from the left gives [[⅝, ⅜], [¼, ¾]]."""
    first, second = rollouts([FIRST, SECOND])
    np.testing.assert_allclose(first, [[1, 0], [0.25, 0.75]])
    np.testing.assert_allclose(second, [[0.625, 0.375], [0.25, 0.75]])


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 4), st.floats(0, 1, allow_subnormal=False)
)
def test_rows_of_every_rollout_sum_to_one(seed: int, tokens: int, layers: int, residual: float) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.ones(tokens), (layers, 2, tokens))
    for reached in rollouts(weights, residual):
        np.testing.assert_allclose(reached.sum(axis=1), 1)
        assert (reached >= 0).all()


def test_rollout_multiplies_later_layers_from_the_left() -> None:
    first = np.array([[[1.0, 0.0], [1.0, 0.0]]], dtype=np.float32)
    second = np.array([[[0.0, 1.0], [0.0, 1.0]]], dtype=np.float32)
    # ½(A₂ + I) · ½(A₁ + I) = [[.5, .5], [0, 1]] · [[1, 0], [.5, .5]]; the wrong order would give
    # [[.5, .5], [.25, .75]].
    np.testing.assert_allclose(rollout([first, second]), [[0.75, 0.25], [0.5, 0.5]], atol=1e-7)
    np.testing.assert_allclose(rollout([first, second], residual=0), [[1, 0], [1, 0]], atol=1e-7)
    np.testing.assert_allclose(rollout([first, second], residual=1), np.eye(2), atol=1e-7)
    # A quarter kept: [[.25, .75], [0, 1]] · [[1, 0], [.75, .25]].
    quarter = rollout([first, second], residual=0.25)
    np.testing.assert_allclose(quarter, [[0.8125, 0.1875], [0.75, 0.25]], atol=1e-7)


def test_a_rollout_of_wrong_layers_or_share_is_refused() -> None:
    for wrong in ([], [np.zeros((2, 3))], [np.ones((1, 2, 2)), np.ones((1, 3, 3))]):
        with pytest.raises(ShapeError):
            rollout(wrong)
    for share in (1.5, -0.1, float("nan")):
        with pytest.raises(SelectionError, match="between 0 and 1"):
            rollout([FIRST], residual=share)


def test_reach_by_hand() -> None:
    trace = hand_trace([FIRST, SECOND], "sun moon")
    # R₁ = [[1, 0], [¼, ¾]] and R₂ = [[⅝, ⅜], [¼, ¾]]: columns from, rows into.
    for chosen, direction, expected in (
        (0, "from", [[1, 0.25], [0.625, 0.25]]),
        (1, "from", [[0, 0.75], [0.375, 0.75]]),
        (0, "into", [[1, 0], [0.625, 0.375]]),
        (1, "into", [[0.25, 0.75], [0.25, 0.75]]),
    ):
        reached = bert_probe.reach(trace, chosen, direction)  # type: ignore[arg-type]
        np.testing.assert_allclose(reached.values, expected, atol=1e-7)
        np.testing.assert_array_equal(
            bert_probe.reach(trace, chosen, "into").values[-1], trace_rollout(trace)[chosen]
        )


def test_reach_is_a_column_or_a_row_of_the_rollout_up_to_each_layer(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    out = bert_probe.reach(trace, 2, "from", residual=0.3)
    into = bert_probe.reach(trace, 2, "into", residual=0.3)
    for layer in range(trace.layers):
        whole = bert_probe.attention_map(trace, layer, measure="rollout", residual=0.3).weights
        np.testing.assert_allclose(out.values[layer], whole[:, 2], atol=1e-6)
        np.testing.assert_allclose(into.values[layer], whole[2], atol=1e-6)
    np.testing.assert_allclose(into.values.sum(axis=1), 1, atol=1e-6)


def test_reach_of_words_is_that_of_the_merged_rollout(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    reached = bert_probe.reach(trace, -2, "into", words=True)
    assert str(reached.units[reached.chosen]) == "Electroencephalography"
    whole = bert_probe.attention_map(trace, -1, measure="rollout", words=True).weights
    np.testing.assert_allclose(reached.values[-1], whole[reached.chosen], atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"chosen": 99}, {"chosen": 0, "direction": "up"}, {"chosen": 0, "residual": 2}]
)
def test_what_cannot_be_reached_is_refused(minilm: Checkpoint, options: dict[str, object]) -> None:
    with pytest.raises(bert_probe.SelectionError):
        bert_probe.reach(minilm.trace("we left"), **options)  # type: ignore[arg-type]


def test_the_residual_share_travels_with_the_numbers(minilm: Checkpoint) -> None:
    trace = minilm.trace("we left")
    table = bert_probe.attention_table(trace, measure="rollout", residual=0.2)
    assert table.attrs["provenance"]["view"]["residual"] == 0.2
    assert "residual" not in bert_probe.attention_table(trace).attrs["provenance"]["view"]
    reached = bert_probe.reach_table(bert_probe.reach(trace, 1, residual=0.2), trace)
    view = reached.attrs["provenance"]["view"]
    assert (view["token"], view["position"], view["direction"], view["residual"]) == ("we", 1, "from", 0.2)
    assert list(reached.index) == [str(layer) for layer in range(1, 7)]


def test_the_long_form_takes_every_measure(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    options = {"measure": "value-norm", "checkpoint": minilm, "words": True}
    table = bert_probe.attention_long(trace, [1], [3], **options)
    expected = bert_probe.attention_map(trace, 1, 3, **options).weights
    np.testing.assert_allclose(table["weight"].to_numpy().reshape(expected.shape), expected)
    with zipfile.ZipFile(io.BytesIO(files.attention_zip(trace, **options))) as archive:
        rows = list(csv.DictReader(io.StringIO(archive.read("attention.csv").decode())))
        view = json.loads(archive.read("attention.csv.meta.json"))["view"]
    assert len(rows) == trace.layers * trace.heads * expected.size
    assert (view["measure"], view["words"]) == ("value-norm", True)


def printed(*arguments: str) -> list[list[str]]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return list(csv.reader(io.StringIO(result.stdout)))


def test_the_command_line_follows_a_word(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    header, *rows = printed("rollout", TEXT, "--token", "loves", "--direction", "into", "--residual", "0.25")
    assert header == ["layer", *map(str, trace.tokens)]
    place = list(trace.tokens).index("loves")
    expected = bert_probe.reach(trace, place, "into", residual=0.25).values
    np.testing.assert_allclose([[float(cell) for cell in row[1:]] for row in rows], expected, atol=1e-6)
    header, *_ = printed("rollout", TEXT, "--token", "Electroencephalography", "--words")
    assert header == ["layer", "[CLS]", "Mehdi", "loves", "Electroencephalography", "[SEP]"]


def test_a_word_of_several_pieces_needs_words(capfd: pytest.CaptureFixture[str]) -> None:
    from bert_probe.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(["rollout", TEXT, "--token", "Electroencephalography"])
    assert ended.value.code == 2
    assert "Add --words" in capfd.readouterr().err
