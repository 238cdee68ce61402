"""Many sentences: order, pairs, limits, and tables that say whose they are."""

from __future__ import annotations

import hashlib
import itertools
import json
import weakref
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bert_probe
from bert_probe import Sentences
from bert_probe.analyses.vectors import sentences
from bert_probe.analyses.vectors.sentences import PairwiseCosines
from bert_probe.errors import (
    EmptyTextError,
    SelectionError,
    ShapeError,
    TextError,
    TooLongError,
    UnavailableError,
)
from bert_probe.model import forward as passes
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.ui.examples import SENTENCES
from tests.helpers import families
from tests.helpers.exactness import assert_exact
from tests.helpers.gate import examples


@pytest.mark.parametrize("name", families.representative(families.FAMILIES))
def test_sentences_of_every_family_do_not_depend_on_their_company(
    name: str, double_family: Callable[[str], Checkpoint]
) -> None:
    checkpoint = double_family(name)
    texts = list(families.SENTENCES[:5])
    together = Sentences().of(checkpoint, texts).vectors
    for row, text in enumerate(texts):
        assert_exact(together[row], checkpoint.trace(text).states[-1].mean(axis=0))


@settings(max_examples=examples(15), deadline=None)
@given(order=st.permutations(range(len(SENTENCES))))
def test_the_order_given_changes_nothing(minilm: Checkpoint, order: list[int]) -> None:
    plain = Sentences("model").of(minilm, SENTENCES)
    turned = Sentences("model").of(minilm, [SENTENCES[i] for i in order])
    assert np.array_equal(turned.vectors, plain.vectors[order]), "to the last digit"
    assert np.array_equal(turned.cosines, plain.cosines[np.ix_(order, order)])


def _made(vectors: list[list[float]]) -> PairwiseCosines:
    return PairwiseCosines(np.array(vectors))


def test_cosines_and_pairs_by_hand() -> None:
    found = _made([[3, 4], [4, 3], [-3, -4], [0, 5], [6, 8]])
    assert_exact(found.cosines[0], [1, 0.96, -1, 0.8, 1])
    pairs = found.nearest(3)
    assert [(pair.first, pair.second) for pair in pairs] == [(0, 4), (0, 1), (1, 4)], (
        "equal ones in their order"
    )
    assert_exact(np.array([pair.cosine for pair in pairs]), [1, 0.96, 0.96])
    assert len(found.nearest(1000)) == 10


def test_alike_sentences_stand_together() -> None:
    # Two groups around two directions, given in turn; within them the nearest are neighbours.
    angles = [0.0, 1.5, 0.2, 1.7, 0.1, 1.6]
    found = _made([[float(np.cos(angle)), float(np.sin(angle))] for angle in angles])
    order = [angles[index] for index in found.order]
    assert order == sorted(angles) or order == sorted(angles, reverse=True)


def test_the_shipped_sentences_are_ordered_by_subject(minilm: Checkpoint) -> None:
    found = Sentences("model", order="tree").of(minilm, SENTENCES)
    places = {index: place for place, index in enumerate(found.order)}
    for one, other in [(2, 3), (1, 6), (7, 8), (5, 9), (0, 4)]:
        assert abs(places[one] - places[other]) == 1
    best = {(pair.first, pair.second) for pair in found.compared.nearest(5)}
    assert best == {(2, 3), (5, 9), (1, 6), (7, 8), (0, 4)}


def test_many_sentences_are_read_in_small_batches_and_reported(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    original = passes.forward

    def watched(checkpoint: Any, texts: Any) -> Any:
        sizes.append(len(texts) * max(len(text) for text in texts))
        return original(checkpoint, texts)

    monkeypatch.setattr(sentences, "forward", watched)
    told: list[tuple[int, int]] = []
    texts = [f"{sentence} {number}" for number in range(20) for sentence in SENTENCES]
    Sentences("mean").of(minilm, texts, report=lambda done, total: told.append((done, total)))
    assert max(sizes) <= sentences.BATCH_TOKENS
    assert (told[0], told[-1]) == ((0, 200), (200, 200))
    assert told == sorted(told)


def test_equal_sentences_are_read_once_and_are_equal(minilm: Checkpoint) -> None:
    told: list[tuple[int, int]] = []
    texts = [*SENTENCES, SENTENCES[0].upper(), *SENTENCES]
    found = Sentences().of(minilm, texts, report=lambda done, total: told.append((done, total)))
    assert told[-1] == (10, 10)
    assert np.array_equal(found.vectors[:10], found.vectors[11:])
    assert found.cosines[0, 10] == found.cosines[0, 11] == 1


def test_nothing_but_the_vectors_is_kept(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    original = passes.forward

    def watched(checkpoint: Any, texts: Any) -> Any:
        assert sum(one() is not None for one in held) <= 1, "the batch before, until this one takes its place"
        output, mask = original(checkpoint, texts)
        assert output.hidden_states is None
        held.append(weakref.ref(output.last_hidden_state))
        return output, mask

    monkeypatch.setattr(sentences, "forward", watched)
    found = Sentences().of(minilm, [f"{number} boats and {number} bridges" for number in range(600)])
    assert len(held) > 4
    assert all(one() is None for one in held)
    assert found.vectors.base is None, "no view that holds something larger"


@pytest.mark.parametrize(
    ("given_", "error", "sentence"),
    [
        ([], EmptyTextError, "No sentences"),
        ("one string", TextError, "list of sentences"),
        (["fine", "  "], EmptyTextError, "Sentence 2: The text holds only spaces"),
        (["fine", "\u200b"], EmptyTextError, "Sentence 2: The text holds no character"),
        (["word " * 600], TooLongError, "Sentence 1: 602 tokens; this model accepts 512"),
        (["fine", "\ud800"], TextError, "Sentence 2: .*surrogate"),
        (["fine", 3], TextError, "Sentence 2: A text must be a string"),
    ],
)
def test_bad_sentences_are_refused_by_number(
    minilm: Checkpoint, given_: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        Sentences().of(minilm, given_)


def test_long_sentences_are_cut_when_asked_for(minilm: Checkpoint) -> None:
    found = Sentences("mean").of(minilm, ["word " * 600, "short"], truncate=True)
    assert (found.tokens, found.dropped, found.cut) == ((512, 3), (90, 0), (0,))


def test_one_sentence_has_a_vector_and_nothing_to_compare(minilm: Checkpoint) -> None:
    found = Sentences().of(minilm, ["alone"])
    assert found.cosines.tolist() == [[1.0]]
    with pytest.raises(UnavailableError, match="One sentence"):
        found.showing(show="nearest").table()
    with pytest.raises(UnavailableError, match="One sentence"):
        found.showing(order="tree").table()


def test_vectors_of_zeros_and_wrong_shapes_are_refused(minilm: Checkpoint) -> None:
    with pytest.raises(UnavailableError, match="all zeros"):
        _ = _made([[0, 0], [1, 0]]).order
    found = Sentences().of(minilm, ["a"])
    with pytest.raises(ShapeError, match="do not match"):
        replace(found, compared=_made([[0, 0], [0, 0]]))
    with pytest.raises(ShapeError, match="do not match"):
        replace(found, tokens=(1, 2))
    with pytest.raises(SelectionError, match="count is 0"):
        _made([[1, 0], [0, 1]]).nearest(0)
    with pytest.raises(SelectionError, match="count is 0; 1 or more"):
        Sentences(count=0)


def test_tables_name_sentences_and_say_where_they_come_from(minilm: Checkpoint) -> None:
    texts = ["same", "same", "word " * 300]
    found = Sentences("model").of(minilm, texts)
    matrix = found.table()
    assert (matrix.index.name, list(matrix.columns)) == ("sentence", texts)
    assert np.array_equal(matrix.to_numpy(), found.cosines)
    about = matrix.attrs["provenance"]
    assert (about["question"]["pooling"], about["facts"]["tokens_dropped_of_sentence"]) == (
        "model",
        {"3": 46},
    )
    assert (about["sentences"], about["tokens_dropped"]) == (3, 46)
    assert about["facts"]["recipe"]["max_tokens"] == 256
    assert "count" not in about["question"]
    vectors = found.showing(show="vectors").table()
    assert np.array_equal(vectors.to_numpy(), found.vectors)
    nearest = found.showing(show="nearest", count=1).table()
    assert nearest.iloc[0].tolist() == [1.0, 1, 2, "same", "same"]
    assert nearest.attrs["provenance"]["question"]["count"] == 1
    for frame in (matrix, vectors, nearest):
        assert json.loads(bert_probe.core.files.to_bytes(frame, "json"))


def test_the_order_of_the_tree_is_that_of_every_table(minilm: Checkpoint) -> None:
    given_ = Sentences("model").of(minilm, SENTENCES)
    turned = given_.showing(order="tree")
    order = list(turned.order)
    assert order != sorted(order)
    assert given_.order == tuple(range(len(SENTENCES)))
    assert np.array_equal(turned.table().to_numpy(), given_.cosines[np.ix_(order, order)])
    assert list(turned.table().columns) == [SENTENCES[index] for index in order]
    vectors = turned.showing(show="vectors").table()
    assert np.array_equal(vectors.to_numpy(), given_.vectors[order])
    assert list(vectors.index) == list(turned.table().index)
    assert turned.compared is given_.compared, "worked out once for all tables"


def test_a_label_cannot_be_another_s(minilm: Checkpoint) -> None:
    one, other = (Sentences().of(minilm, texts) for texts in (["a boat", "a ship"], ["a map", "a mill"]))
    for show in ("cosines", "vectors", "nearest"):
        frame = one.showing(show=show).table()
        about = frame.attrs["provenance"]
        assert about["sentences_sha256"] != other.provenance["sentences_sha256"]
        assert about["sentences_sha256"] == hashlib.sha256(b"a boat\na ship\n").hexdigest()
        assert about["question"]["show"] == show
    with pytest.raises(SelectionError, match="pooling changes the answer itself"):
        one.showing(pooling="cls")
    with pytest.raises(FrozenInstanceError):
        one.question = other.question  # type: ignore[misc]


def test_every_pair_is_looked_at(minilm: Checkpoint) -> None:
    found = Sentences("max").of(minilm, SENTENCES)
    expected = sorted(
        ((float(found.cosines[i, j]), i, j) for i, j in itertools.combinations(range(10), 2)), reverse=True
    )
    assert [(p.cosine, p.first, p.second) for p in found.compared.nearest(8)] == expected[:8]
