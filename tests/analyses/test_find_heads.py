"""Test head search: weights between two words and their ranks, words by name or position, and the command."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from bert_probe.analyses.attention import find_heads
from bert_probe.analyses.attention.find_heads import FindHeads, FindHeadsResult, WordPairs
from bert_probe.cli.main import main
from bert_probe.core.provenance import InputRecord
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.words import word_lens
from tests.helpers.exactness import assert_exact
from tests.helpers.traces import hand_trace

TEXT = "Mehdi loves Tallahassee, and we love it."


def test_weights_and_ranks_equal_hand_computation() -> None:
    item = [[0.25, 0.25, 0.25, 0.25], [0.5, 0.125, 0.25, 0.125], [0.125, 0.5, 0.25, 0.125], [1, 0, 0, 0]]
    two = [[0.25, 0.25, 0.25, 0.25], [0.125, 0.125, 0.5, 0.25], [1, 0, 0, 0], [0, 0, 0, 1]]
    result = FindHeads([(1, 2), (2, 1)]).of(hand_trace([np.array([item, two])]))
    # In the first head, sun attends to moon with 0.25 (rank 2), and moon to sun with 0.5.
    # In the second head, sun attends to moon with 0.5 (rank 1), and moon to sun with 0.
    assert result.weights.tolist() == [[(0.25 + 0.5) / 2, (0.5 + 0) / 2]]
    assert result.ranks.tolist() == [[1.5, 1.5]]
    assert [(item.layer, item.head, item.weight, item.rank) for item in result.ranked] == [
        (0, 0, 0.375, 1.5),
        (0, 1, 0.25, 1.5),
    ]


def test_ties_keep_the_order_of_heads() -> None:
    same = np.full((2, 3, 4, 4), 0.25)
    ranked = FindHeads([(1, 2)]).of(hand_trace([*same])).ranked
    assert [(item.layer, item.head) for item in ranked] == [
        (layer, head) for layer in (0, 1) for head in range(3)
    ]
    assert all(item.rank == 1 for item in ranked)


def test_heads_are_ranked_by_the_weight_between_two_words(double_minilm: Checkpoint) -> None:
    trace = double_minilm.trace(TEXT)
    result = FindHeads([("loves", "Tallahassee")]).of(trace)
    merged = [word_lens(trace).merge(trace.attention(layer)) for layer in range(6)]
    direct = {(layer, head): merged[layer][head, 2, 3] for layer in range(6) for head in range(12)}
    assert [(item.layer, item.head) for item in result.ranked] == sorted(
        direct, key=lambda cell: (-direct[cell], cell)
    )
    best = result.ranked[0]
    row = merged[best.layer][best.head, 2]
    assert_exact(np.float64(best.weight), row[3])
    assert best.rank == 1 + sum(value > row[3] for value in row)


def test_several_pairs_are_averaged(double_minilm: Checkpoint) -> None:
    trace = double_minilm.trace(TEXT)
    pairs = [("loves", "Mehdi"), ("love", "we")]
    item, two = (FindHeads([pair]).of(trace) for pair in pairs)
    both = FindHeads(pairs).of(trace)
    assert_exact(both.weights, (item.weights + two.weights) / 2)
    assert_exact(both.ranks, (item.ranks + two.ranks) / 2)


@pytest.mark.parametrize("weights", [1, 1_000, 2_000])
def test_heads_are_read_in_blocks(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch, weights: int) -> None:
    trace = minilm.trace(TEXT)
    question = FindHeads([("loves", "Mehdi"), ("love", "we")])
    expected = question.of(trace)
    monkeypatch.setattr(find_heads, "_BLOCK_WEIGHTS", weights)
    result = question.of(trace)
    assert np.array_equal(result.weights, expected.weights)
    assert np.array_equal(result.ranks, expected.ranks)


def test_word_is_selected_by_name_or_token_position(minilm: Checkpoint) -> None:
    trace = minilm.trace("We love Tallahassee, and it loves what we love.")
    pieces = next(unit for unit in word_lens(trace).units if unit == "Tallahassee").positions
    assert len(pieces) > 1
    last = next(unit for unit in word_lens(trace).units[::-1] if unit == "love").position
    by_name = FindHeads([("Tallahassee", "love:2"), ("we", "[CLS]")]).of(trace)
    placed = FindHeads([(pieces[-1], last), (last - 1, 0)]).of(trace)
    assert by_name.question == placed.question
    assert placed.question.pairs == (("Tallahassee", "love:2"), ("we", "[CLS]"))
    np.testing.assert_array_equal(by_name.weights, placed.weights)
    description = placed.provenance
    assert description["question"]["pairs"] == [["Tallahassee", "love:2"], ["we", "[CLS]"]]
    assert description["facts"]["positions"] == [[[*pieces], [last]], [[last - 1], [0]]]


@pytest.mark.parametrize(
    "pairs",
    [
        ((4, 11), ("ground", "it:2")),
        (("2024", "a-b"), ("a-b", "2024"), ("x,y", "5%"), ("größe", ":1")),
        ((0, 0),),
    ],
)
def test_word_names_round_trip_through_url(
    minilm: Checkpoint, pairs: tuple[tuple[int | str, int | str], ...]
) -> None:
    question = FindHeads(pairs)
    assert FindHeads.from_address(question.address(), minilm.description) == question
    assert question.pairs == pairs


def test_url_contains_positions() -> None:
    assert FindHeads([(11, 9), (4, 5)]).address() == {"find_pairs": "11-9,4-5"}


@pytest.mark.parametrize("address_value", ["", "4", "4-", "-4", "4-5,,", "4-5,6"])
def test_url_without_pairs_raises(minilm: Checkpoint, address_value: str) -> None:
    with pytest.raises(SelectionError, match="is not a word pair"):
        FindHeads.from_address({"find_pairs": address_value}, minilm.description)


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ([], "no word pairs"),
        ("ground", "must be a list"),
        (["ab"], "but contains 'ab'"),
        ([("a",)], "but contains"),
        ([("a", -1)], "-1 is neither a word nor"),
        ([("a", True)], "True is neither a word nor"),
        ([("a", 1.0)], "1.0 is neither a word nor"),
        ([(None, "a")], "None is neither a word nor"),
    ],
)
def test_invalid_word_pairs_raise(pairs: object, sentence: str) -> None:
    with pytest.raises(SelectionError, match=sentence):
        FindHeads(pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        (("nobody", "Mehdi"), "no word nobody"),
        (("Mehdi", "loves:2"), "no loves:2"),
        (("Mehdi", 99), "There is no token 99"),
    ],
)
def test_unknown_words_raise(minilm: Checkpoint, pair: tuple[str, str | int], sentence: str) -> None:
    with pytest.raises(SelectionError, match=sentence):
        FindHeads([pair]).of(minilm.trace(TEXT))


def test_weights_without_ranks_raise_error(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    result = FindHeads([(1, 2)]).of(trace)
    with pytest.raises(ShapeError, match=r"must have shape \[layer, head\]"):
        FindHeadsResult(
            result.question, InputRecord.of(trace), result.words, result.weights, result.ranks[1:]
        )


def test_table_counts_from_1_and_has_provenance(minilm: Checkpoint) -> None:
    result = FindHeads([("loves", "Mehdi")]).of(minilm.trace(TEXT))
    table = result.table()
    assert list(table) == ["layer", "head", "weight", "rank_in_row"]
    assert table["rank_in_row"].dtype == np.int64
    best = result.ranked[0]
    assert tuple(table.iloc[0]) == (best.layer + 1, best.head + 1, best.weight, best.rank)
    assert table.attrs["provenance"]["text"] == TEXT
    assert WordPairs().to_json(result.question.pairs) == [["loves", "Mehdi"]]


def test_command_line_equals_library(minilm: Checkpoint, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["find", TEXT, "--query", "loves", "--key", "Mehdi", "--query", "LOVE", "--key", "we"])
    out, err = capfd.readouterr()
    assert (stopped.value.code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == ["layer", "head", "weight", "rank_in_row"]
    result = FindHeads([("loves", "Mehdi"), ("love", "we")]).of(minilm.trace(TEXT)).ranked
    assert [(int(row["layer"]), int(row["head"])) for row in rows] == [
        (item.layer + 1, item.head + 1) for item in result
    ]
    assert [float(row["weight"]) for row in rows] == [item.weight for item in result]


@pytest.mark.parametrize(
    "words", [("--query", "nobody", "--key", "Mehdi"), ("--query", "Mehdi"), ("--key", "Mehdi")]
)
def test_invalid_input_prints_one_line_and_exits_2(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["find", TEXT, *words])
    out, err = capfd.readouterr()
    assert (stopped.value.code, out, err.count("\n")) == (2, "", 1)
