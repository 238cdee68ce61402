"""Finding heads: the weight between two words, its rank, words by name and by position, and the command."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from bert_probe.analyses.attention.find_heads import FindHeads, FindHeadsResult, WordPairs
from bert_probe.cli.main import main
from bert_probe.core.provenance import InputRecord
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.words import word_lens
from tests.helpers.exactness import assert_exact
from tests.helpers.traces import hand_trace

TEXT = "Mehdi loves Tallahassee, and we love it."


def test_weights_and_ranks_by_hand() -> None:
    one = [[0.25, 0.25, 0.25, 0.25], [0.5, 0.125, 0.25, 0.125], [0.125, 0.5, 0.25, 0.125], [1, 0, 0, 0]]
    two = [[0.25, 0.25, 0.25, 0.25], [0.125, 0.125, 0.5, 0.25], [1, 0, 0, 0], [0, 0, 0, 1]]
    found = FindHeads([(1, 2), (2, 1)]).of(hand_trace([np.array([one, two])]))
    # The sun's row gives the moon 0.25, in place 2, and 0.5 in place 1; the moon's the sun 0.5 and 0.
    assert found.weights.tolist() == [[(0.25 + 0.5) / 2, (0.5 + 0) / 2]]
    assert found.ranks.tolist() == [[1.5, 1.5]]
    assert [(one.layer, one.head, one.weight, one.rank) for one in found.ranked] == [
        (0, 0, 0.375, 1.5),
        (0, 1, 0.25, 1.5),
    ]


def test_heads_of_one_weight_stay_in_their_order() -> None:
    same = np.full((2, 3, 4, 4), 0.25)
    ranked = FindHeads([(1, 2)]).of(hand_trace([*same])).ranked
    assert [(one.layer, one.head) for one in ranked] == [
        (layer, head) for layer in (0, 1) for head in range(3)
    ]
    assert all(one.rank == 1 for one in ranked)


def test_heads_are_ranked_by_the_weight_between_two_words(double_minilm: Checkpoint) -> None:
    trace = double_minilm.trace(TEXT)
    found = FindHeads([("loves", "Tallahassee")]).of(trace)
    merged = [word_lens(trace).merge(trace.attention(layer)) for layer in range(6)]
    direct = {(layer, head): merged[layer][head, 2, 3] for layer in range(6) for head in range(12)}
    assert [(one.layer, one.head) for one in found.ranked] == sorted(direct, key=lambda at: (-direct[at], at))
    best = found.ranked[0]
    row = merged[best.layer][best.head, 2]
    assert_exact(np.float64(best.weight), row[3])
    assert best.rank == 1 + sum(value > row[3] for value in row)


def test_several_pairs_are_averaged(double_minilm: Checkpoint) -> None:
    trace = double_minilm.trace(TEXT)
    pairs = [("loves", "Mehdi"), ("love", "we")]
    one, two = (FindHeads([pair]).of(trace) for pair in pairs)
    both = FindHeads(pairs).of(trace)
    assert_exact(both.weights, (one.weights + two.weights) / 2)
    assert_exact(both.ranks, (one.ranks + two.ranks) / 2)


def test_a_word_is_named_or_given_by_the_position_of_any_piece(minilm: Checkpoint) -> None:
    trace = minilm.trace("We love Tallahassee, and it loves what we love.")
    pieces = next(unit for unit in word_lens(trace).units if unit == "Tallahassee").positions
    assert len(pieces) > 1
    last = next(unit for unit in word_lens(trace).units[::-1] if unit == "love").position
    named = FindHeads([("Tallahassee", "love:2"), ("we", "[CLS]")]).of(trace)
    placed = FindHeads([(pieces[-1], last), (last - 1, 0)]).of(trace)
    assert named.question == placed.question
    assert placed.question.pairs == (("Tallahassee", "love:2"), ("we", "[CLS]"))
    np.testing.assert_array_equal(named.weights, placed.weights)
    about = placed.provenance
    assert about["question"]["pairs"] == [["Tallahassee", "love:2"], ["we", "[CLS]"]]
    assert about["facts"]["positions"] == [[[*pieces], [last]], [[last - 1], [0]]]


@pytest.mark.parametrize(
    "pairs",
    [
        ((4, 11), ("ground", "it:2")),
        (("2024", "a-b"), ("a-b", "2024"), ("x,y", "5%"), ("größe", ":1")),
        ((0, 0),),
    ],
)
def test_any_name_passes_through_an_address(
    minilm: Checkpoint, pairs: tuple[tuple[int | str, int | str], ...]
) -> None:
    asked = FindHeads(pairs)
    assert FindHeads.from_address(asked.address(), minilm.description) == asked
    assert asked.pairs == pairs


def test_an_address_of_positions_is_written_plainly() -> None:
    assert FindHeads([(11, 9), (4, 5)]).address() == {"find_pairs": "11-9,4-5"}


@pytest.mark.parametrize("written", ["", "4", "4-", "-4", "4-5,,", "4-5,6"])
def test_an_address_without_pairs_is_refused(minilm: Checkpoint, written: str) -> None:
    with pytest.raises(SelectionError, match="is not a word pair"):
        FindHeads.from_address({"find_pairs": written}, minilm.description)


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ([], "No word pair"),
        ("ground", "must be a list"),
        (["ab"], "not of 'ab'"),
        ([("a",)], "not of"),
        ([("a", -1)], "-1 is not a word"),
        ([("a", True)], "True is not a word"),
        ([("a", 1.0)], "1.0 is not a word"),
        ([(None, "a")], "None is not a word"),
    ],
)
def test_what_is_no_pair_of_words_is_refused(pairs: object, sentence: str) -> None:
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
def test_words_that_are_not_in_the_text_are_refused(
    minilm: Checkpoint, pair: tuple[str, str | int], sentence: str
) -> None:
    with pytest.raises(SelectionError, match=sentence):
        FindHeads([pair]).of(minilm.trace(TEXT))


def test_weights_without_their_ranks_are_refused(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    found = FindHeads([(1, 2)]).of(trace)
    with pytest.raises(ShapeError, match=r"both must be \[layer, head\]"):
        FindHeadsResult(found.question, InputRecord.of(trace), found.words, found.weights, found.ranks[1:])


def test_the_table_counts_as_people_do_and_knows_its_text(minilm: Checkpoint) -> None:
    found = FindHeads([("loves", "Mehdi")]).of(minilm.trace(TEXT))
    table = found.table()
    assert list(table) == ["layer", "head", "weight", "rank_in_row"]
    assert table["rank_in_row"].dtype == np.int64
    best = found.ranked[0]
    assert tuple(table.iloc[0]) == (best.layer + 1, best.head + 1, best.weight, best.rank)
    assert table.attrs["provenance"]["text"] == TEXT
    assert WordPairs().to_json(found.question.pairs) == [["loves", "Mehdi"]]


def test_the_command_line_gives_the_library_s_numbers(
    minilm: Checkpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["find", TEXT, "--query", "loves", "--key", "Mehdi", "--query", "LOVE", "--key", "we"])
    out, err = capfd.readouterr()
    assert (stopped.value.code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == ["layer", "head", "weight", "rank_in_row"]
    found = FindHeads([("loves", "Mehdi"), ("love", "we")]).of(minilm.trace(TEXT)).ranked
    assert [(int(row["layer"]), int(row["head"])) for row in rows] == [
        (one.layer + 1, one.head + 1) for one in found
    ]
    assert [float(row["weight"]) for row in rows] == [one.weight for one in found]


@pytest.mark.parametrize(
    "words", [("--query", "nobody", "--key", "Mehdi"), ("--query", "Mehdi"), ("--key", "Mehdi")]
)
def test_bad_input_is_one_line_and_status_2(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["find", TEXT, *words])
    out, err = capfd.readouterr()
    assert (stopped.value.code, out, err.count("\n")) == (2, "", 1)
