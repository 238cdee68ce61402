"""Test sentence scores: order, pairs, limits, and provenance of tables."""

from __future__ import annotations

import hashlib
import itertools
import json
import tracemalloc
import weakref
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bert_probe
from bert_probe import DimensionCurve, Sentences
from bert_probe.analyses.vectors import sentences
from bert_probe.analyses.vectors import similarity as similarity_module
from bert_probe.analyses.vectors.sentences import PairwiseScores
from bert_probe.errors import (
    EmptyTextError,
    OutOfMemoryError,
    SelectionError,
    ShapeError,
    TextError,
    TooLongError,
    UnavailableError,
)
from bert_probe.model import forward as passes
from bert_probe.model import preflight
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.ui.sentence_input import SENTENCES
from tests.helpers import families
from tests.helpers.exactness import assert_exact
from tests.helpers.gate import examples


@pytest.mark.parametrize("name", families.representative(families.FAMILIES))
def test_sentence_vectors_do_not_depend_on_the_batch(
    name: str, double_family: Callable[[str], Checkpoint]
) -> None:
    checkpoint = double_family(name)
    texts = list(families.SENTENCES[:5])
    together = Sentences().of(checkpoint, texts).vectors
    for row, text in enumerate(texts):
        assert_exact(together[row], checkpoint.trace(text).states[-1].mean(axis=0))


@settings(max_examples=examples(15), deadline=None)
@given(order=st.permutations(range(len(SENTENCES))))
def test_vectors_do_not_depend_on_order(minilm: Checkpoint, order: list[int]) -> None:
    plain = Sentences("model").of(minilm, SENTENCES)
    turned = Sentences("model").of(minilm, [SENTENCES[i] for i in order])
    assert np.array_equal(turned.vectors, plain.vectors[order]), "identical in the last digit"
    assert np.array_equal(turned.scores, plain.scores[np.ix_(order, order)])


def _made(vectors: list[list[float]]) -> PairwiseScores:
    return PairwiseScores(np.array(vectors))


def test_cosines_and_pairs_equal_hand_computation() -> None:
    result = _made([[3, 4], [4, 3], [-3, -4], [0, 5], [6, 8]])
    assert_exact(result.scores[0], [1, 0.96, -1, 0.8, 1])
    pairs = result.nearest(3)
    assert [(pair.first, pair.second) for pair in pairs] == [(0, 4), (0, 1), (1, 4)], "ties keep their order"
    assert_exact(np.array([pair.score for pair in pairs]), [1, 0.96, 0.96])
    assert len(result.nearest(1000)) == 10


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 7, 300, 10_000])
def test_pairs_equal_direct_computation_in_blocks(
    similarity: str, dtype: type[np.floating[Any]], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(similarity_module, "_BLOCK_ROWS", 8)
    # Small integers and repeated rows cause many ties, and the cosine of the row of zeros is NaN.
    vectors = np.random.default_rng(0).integers(-2, 3, (45, 3)).astype(dtype)
    vectors[[3, 40]], vectors[20:25] = 0, vectors[5:10]
    compared = PairwiseScores(vectors, similarity)
    pairs = [(i, j, float(compared.scores[i, j])) for i, j in itertools.combinations(range(45), 2)]
    expected = sorted(pairs, key=lambda pair: (np.isnan(pair[2]), -np.nan_to_num(pair[2]), pair[:2]))[:count]
    actual = compared.nearest(count)
    np.testing.assert_allclose(
        [pair.score for pair in actual], [score for *_, score in expected], rtol=1e-14, atol=1e-15
    )
    if dtype == np.float32:  # the rounding of a score in float64 may depend on its place in a block
        assert [(pair.first, pair.second) for pair in actual] == [pair[:2] for pair in expected]


def test_pairs_of_many_sentences_need_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).standard_normal((1_500, 4)).astype(np.float32)
    monkeypatch.setattr(similarity_module, "_BLOCK_ROWS", 100)
    tracemalloc.start()
    try:
        pairs = PairwiseScores(vectors).nearest(5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(pairs) == 5
    assert peak < 1_500**2 / 2, "less than a byte for each pair"


@pytest.mark.parametrize(
    ("question", "size"),
    [
        (Sentences(), 24 * 20_000**2),
        (Sentences(show="vectors", order="tree"), 24 * 20_000**2),
        (Sentences(show="nearest", count=1_000_000), 400_000_000),
    ],
)
def test_tables_that_do_not_fit_into_memory_are_refused(
    question: Sentences, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a"] * 20_000
    monkeypatch.setattr(preflight, "free_memory", lambda: size)
    question.check_memory(None, texts)
    monkeypatch.setattr(preflight, "free_memory", lambda: size - 1)
    with pytest.raises(OutOfMemoryError, match=r"The table of 20,000 sentences needs about .* Use fewer"):
        question.check_memory(None, texts)
    Sentences(show="vectors").check_memory(None, texts)


def test_tree_order_groups_similar_sentences() -> None:
    # The vectors alternate between two groups around different directions.
    # In the result, the groups are separate, and within each group, the most similar vectors are adjacent.
    angles = [0.0, 1.5, 0.2, 1.7, 0.1, 1.6]
    result = _made([[float(np.cos(angle)), float(np.sin(angle))] for angle in angles])
    order = [angles[index] for index in result.order]
    assert order == sorted(angles) or order == sorted(angles, reverse=True)


def test_tree_order_groups_reference_sentences_by_subject(minilm: Checkpoint) -> None:
    result = Sentences("model", order="tree").of(minilm, SENTENCES)
    places = {index: place for place, index in enumerate(result.order)}
    for item, other in [(2, 3), (1, 6), (7, 8), (5, 9), (0, 4)]:
        assert abs(places[item] - places[other]) == 1
    best = {(pair.first, pair.second) for pair in result.compared.nearest(5)}
    assert best == {(2, 3), (5, 9), (1, 6), (7, 8), (0, 4)}


def test_many_sentences_run_in_small_batches_with_progress(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    original = passes.forward

    def watched(checkpoint: Any, texts: Any) -> Any:
        sizes.append(len(texts) * max(len(text) for text in texts))
        return original(checkpoint, texts)

    monkeypatch.setattr(sentences, "forward", watched)
    result: list[tuple[int, int]] = []
    texts = [f"{sentence} {number}" for number in range(20) for sentence in SENTENCES]
    Sentences("mean").of(minilm, texts, progress=lambda done, total: result.append((done, total)))
    assert max(sizes) <= sentences.BATCH_TOKENS
    assert (result[0], result[-1]) == ((0, 200), (200, 200))
    assert result == sorted(result)


def test_equal_sentences_are_encoded_once(minilm: Checkpoint) -> None:
    answer: list[tuple[int, int]] = []
    texts = [*SENTENCES, SENTENCES[0].upper(), *SENTENCES]
    result = Sentences().of(minilm, texts, progress=lambda done, total: answer.append((done, total)))
    assert answer[-1] == (10, 10)
    assert np.array_equal(result.vectors[:10], result.vectors[11:])
    assert result.scores[0, 10] == result.scores[0, 11] == 1


@pytest.mark.prove
def test_only_vectors_stay_in_memory(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[weakref.ref[torch.Tensor]] = []
    original = passes.forward

    def watched(checkpoint: Any, texts: Any) -> Any:
        assert sum(item() is not None for item in stored) <= 1, (
            "the previous batch is freed when this one replaces it"
        )
        output, mask = original(checkpoint, texts)
        assert output.hidden_states is None
        stored.append(weakref.ref(output.last_hidden_state))
        return output, mask

    monkeypatch.setattr(sentences, "forward", watched)
    result = Sentences().of(minilm, [f"{number} boats and {number} bridges" for number in range(600)])
    assert len(stored) > 4
    assert all(item() is None for item in stored)
    assert result.vectors.base is None, "not a view of a larger array"


@pytest.mark.parametrize(
    ("sentences", "error", "sentence"),
    [
        ([], EmptyTextError, "There are no sentences"),
        ("one string", TextError, "list of sentences"),
        (["fine", "  "], EmptyTextError, "Sentence 2: The text contains only spaces"),
        (["fine", "\u200b"], EmptyTextError, "Sentence 2: The text has no tokens, because"),
        (
            ["word " * 600],
            TooLongError,
            "Sentence 1: The text has 602 tokens, but this model accepts at most 512",
        ),
        (["fine", "\ud800"], TextError, "Sentence 2: .*surrogate"),
        (["fine", 3], TextError, "Sentence 2: A text must be a string"),
    ],
)
def test_unreadable_sentences_are_named_by_number(
    minilm: Checkpoint, sentences: Any, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        Sentences().of(minilm, sentences)


def test_long_sentences_are_truncated_on_request(minilm: Checkpoint) -> None:
    result = Sentences("mean").of(minilm, ["word " * 600, "short"], truncate=True)
    assert (result.tokens, result.dropped, result.cut) == ((512, 3), (90, 0), (0,))


def test_single_sentence_has_vector_but_no_pairs(minilm: Checkpoint) -> None:
    result = Sentences().of(minilm, ["alone"])
    assert result.scores.tolist() == [[1.0]]
    with pytest.raises(UnavailableError, match="A single sentence"):
        result.showing(show="nearest").table()
    with pytest.raises(UnavailableError, match="A single sentence"):
        result.showing(order="tree").table()


def test_zero_vectors_and_wrong_shapes_raise(minilm: Checkpoint) -> None:
    with pytest.raises(UnavailableError, match="all zeros"):
        _ = _made([[0, 0], [1, 0]]).order
    result = Sentences().of(minilm, ["a"])
    with pytest.raises(ShapeError, match="one per sentence"):
        replace(result, compared=_made([[0, 0], [0, 0]]))
    with pytest.raises(ShapeError, match="one per sentence"):
        replace(result, tokens=(1, 2))
    with pytest.raises(SelectionError, match="count is 0"):
        _made([[1, 0], [0, 1]]).nearest(0)
    with pytest.raises(SelectionError, match="count must be 1 or more, not 0"):
        Sentences(count=0)


def test_tables_have_sentences_and_provenance(minilm: Checkpoint) -> None:
    texts = ["same", "same", "word " * 300]
    result = Sentences("model").of(minilm, texts)
    matrix = result.table()
    assert (matrix.index.name, list(matrix.columns)) == ("sentence", texts)
    assert np.array_equal(matrix.to_numpy(), result.scores)
    description = matrix.attrs["provenance"]
    assert (description["question"]["pooling"], description["facts"]["tokens_dropped_of_sentence"]) == (
        "model",
        {"3": 46},
    )
    assert (description["sentences"], description["tokens_dropped"]) == (3, 46)
    assert description["facts"]["recipe"]["max_tokens"] == 256
    assert "count" not in description["question"]
    vectors = result.showing(show="vectors").table()
    assert np.array_equal(vectors.to_numpy(), result.vectors)
    nearest = result.showing(show="nearest", count=1).table()
    assert nearest.iloc[0].tolist() == [1.0, 1, 2, "same", "same"]
    assert nearest.attrs["provenance"]["question"]["count"] == 1
    for frame in (matrix, vectors, nearest):
        assert json.loads(bert_probe.core.files.to_bytes(frame, "json"))


def test_all_tables_follow_tree_order(minilm: Checkpoint) -> None:
    in_given_order = Sentences("model").of(minilm, SENTENCES)
    turned = in_given_order.showing(order="tree")
    order = list(turned.order)
    assert order != sorted(order)
    assert in_given_order.order == tuple(range(len(SENTENCES)))
    assert np.array_equal(turned.table().to_numpy(), in_given_order.scores[np.ix_(order, order)])
    assert list(turned.table().columns) == [SENTENCES[index] for index in order]
    vectors = turned.showing(show="vectors").table()
    assert np.array_equal(vectors.to_numpy(), in_given_order.vectors[order])
    assert list(vectors.index) == list(turned.table().index)
    assert turned.compared is in_given_order.compared, "computed once for all tables"


def test_label_of_another_sentence_raises(minilm: Checkpoint) -> None:
    item, other = (Sentences().of(minilm, texts) for texts in (["a boat", "a ship"], ["a map", "a mill"]))
    for show in ("scores", "vectors", "nearest"):
        frame = item.showing(show=show).table()
        description = frame.attrs["provenance"]
        assert description["sentences_sha256"] != other.provenance["sentences_sha256"]
        assert description["sentences_sha256"] == hashlib.sha256(b"a boat\na ship\n").hexdigest()
        assert description["question"]["show"] == show
    with pytest.raises(SelectionError, match="pooling changes the computation, not only the table"):
        item.showing(pooling="cls")
    with pytest.raises(FrozenInstanceError):
        item.question = other.question  # type: ignore[misc]


def test_nearest_considers_all_pairs(minilm: Checkpoint) -> None:
    result = Sentences("max").of(minilm, SENTENCES)
    expected = sorted(
        ((float(result.scores[i, j]), i, j) for i, j in itertools.combinations(range(10), 2)), reverse=True
    )
    assert [(p.score, p.first, p.second) for p in result.compared.nearest(8)] == expected[:8]


def test_vectors_that_do_not_fit_into_memory_are_refused_before_they_are_allocated(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "free_memory", lambda: 2 * 384 * 16 - 1)
    with pytest.raises(OutOfMemoryError, match=r"Comparing 2 texts needs about .* Use fewer texts"):
        Sentences().of(minilm, ["a boat", "a map"])


def test_lists_of_other_libraries_are_accepted(minilm: Checkpoint) -> None:
    texts = ["a boat", "a river"]
    expected = Sentences().of(minilm, texts)
    lists: tuple[Any, ...] = (pd.Series(texts), np.array(texts), (text for text in texts))
    for items in lists:
        assert np.array_equal(Sentences().of(minilm, items).vectors, expected.vectors)
    curve = DimensionCurve().of(minilm, (text for text in [*texts, "a ship"]))
    assert curve.frame().equals(DimensionCurve().of(minilm, [*texts, "a ship"]).frame())
    wrong: tuple[Any, ...] = (pd.DataFrame({"text": texts}), {"text": "a"}, None, 4)
    for items in wrong:
        with pytest.raises(TextError, match="Pass a list of sentences, not a"):
            Sentences().of(minilm, items)
