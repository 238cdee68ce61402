"""Test the structural probe: hand-computed distances, trees and scores, and recovery of a known map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.stats import spearmanr

from bert_probe import StructuralProbe
from bert_probe.analyses.probing import structural_probe, vectors
from bert_probe.analyses.probing.structural_probe import (
    StructuralProbeResult,
    Tree,
    batch_trees,
    distances,
    rank_correlations,
    spanning_tree,
    squared_distances,
    train_map,
)
from bert_probe.core import files
from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Cancelled
from bert_probe.text.tagged_sentences import ROOT, TaggedSentence
from tests.helpers import treebank
from tests.helpers.command_line import bert_probe
from tests.helpers.exactness import assert_repeatable
from tests.helpers.treebank import SAILING, SAILING_FILE, SLEEPING, TAGGED

SENTENCE = "The boat crosses the river, slowly."
BOAT = (1, 2, ROOT, 4, 2, 2)
"""Index of the syntactic head of each word of "The boat crosses the river .", counted from 0."""


@pytest.fixture(scope="module")
def probe_result(minilm: Checkpoint) -> StructuralProbeResult:
    return StructuralProbe(rank=8, layers=[0, 4]).of(minilm, SAILING, SLEEPING)


def test_tree_distances_equal_hand_computation() -> None:
    assert distances(BOAT).tolist() == [
        [0, 1, 2, 4, 3, 3],
        [1, 0, 1, 3, 2, 2],
        [2, 1, 0, 2, 1, 1],
        [4, 3, 2, 0, 1, 3],
        [3, 2, 1, 1, 0, 2],
        [3, 2, 1, 3, 2, 0],
    ]
    far = np.inf
    forest = [[0, 1, far, far], [1, 0, far, far], [far, far, 0, 1], [far, far, 1, 0]]
    assert distances((1, ROOT, ROOT, 2)).tolist() == forest
    circle = [[0, far, far], [far, 0, far], [far, far, 0]]
    assert distances((1, 0, ROOT)).tolist() == circle, "the path reaches the root"
    assert distances(()).shape == (0, 0)


def test_spanning_trees_equal_hand_computation_and_scipy() -> None:
    points = np.array([[0.0], [1.0], [7.0], [3.0]])
    apart = squared_distances(points)
    assert apart.tolist() == [[0, 1, 49, 9], [1, 0, 36, 4], [49, 36, 0, 16], [9, 4, 16, 0]]
    everyone = np.ones(4, dtype=bool)
    assert spanning_tree(apart, everyone) == {(0, 1), (1, 3), (2, 3)}
    assert spanning_tree(apart, np.array([True, True, True, False])) == {(0, 1), (1, 2)}
    assert spanning_tree(apart, ~everyone) == set()
    assert spanning_tree(np.zeros((3, 3)), everyone[:3]) == {(0, 1), (0, 2)}, "distances of 0 are edges too"
    apart = squared_distances(np.random.default_rng(1).normal(size=(30, 4)))
    assert spanning_tree(apart, np.ones(30, dtype=bool)) == reference_tree(apart)


def reference_tree(apart: np.ndarray) -> set[tuple[int, int]]:
    joined = np.argwhere(minimum_spanning_tree(apart).toarray())
    return {(min(pair), max(pair)) for pair in joined.tolist()}


def test_edges_and_neighbor_baseline_exclude_punctuation() -> None:
    counted = np.array([True, True, True, True, True, False])
    tree = Tree(np.arange(6), distances(BOAT).astype(np.uint8), counted)
    assert tree.edges == {(0, 1), (1, 2), (3, 4), (2, 4)}
    assert tree.in_a_row == {(0, 1), (1, 2), (2, 3), (3, 4)}
    between = replace(tree, counted=np.array([True, True, True, False, True, False]))
    assert between.edges == {(0, 1), (1, 2), (2, 4)}
    assert between.in_a_row == {(0, 1), (1, 2), (2, 4)}


def test_rank_correlations_equal_scipy() -> None:
    generator = np.random.default_rng(2)
    item, other = generator.integers(4, size=(2, 5, 7))
    expected = [spearmanr(*rows).statistic for rows in zip(item, other, strict=True)]
    np.testing.assert_allclose(rank_correlations(item, other), expected)
    assert np.isnan(rank_correlations(np.zeros((1, 3)), np.array([[0, 1, 2]]))).all()


def planted(count: int, rng: np.random.Generator) -> tuple[torch.Tensor, list[Tree]]:
    """Return word vectors that encode random trees, and the trees.

    The vector of a word is the sum of one direction for each edge on its path to the root. Noise dimensions
    with larger variance are appended, and all dimensions are rotated together.
    """
    size, remaining = 7, 5
    mixed = np.linalg.qr(rng.normal(size=(size + remaining, size + remaining))).Q
    rows, trees = [], []
    for place in range(count):
        heads = [ROOT, *(int(rng.integers(word)) for word in range(1, size))]
        ways = np.zeros((size, size))
        for word in range(1, size):
            ways[word] = ways[heads[word]]
            ways[word, word] = 1
        shuffled = rng.permutation(size)
        noise = 3 * rng.normal(size=(size, remaining))
        rows.append(np.hstack([ways, noise])[shuffled] @ mixed)
        apart = distances(heads)[np.ix_(shuffled, shuffled)].astype(np.uint8)
        trees.append(Tree(place * size + np.arange(size), apart, np.ones(size, dtype=bool)))
    return torch.from_numpy(np.concatenate(rows)), trees


def test_known_map_is_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structural_probe, "STEP_WORDS", 28)
    inputs, trees = planted(300, np.random.default_rng(3))
    reports: list[int] = []
    result = train_map(
        inputs,
        batch_trees(trees[60:]),
        batch_trees(trees[30:60]),
        7,
        np.random.default_rng(4),
        reports.append,
    )
    assert result.shape == (7, 12)
    assert sum(reports) == structural_probe.MAX_EPOCHS
    points = inputs.numpy() @ result.T
    for tree in trees[:30]:
        apart = squared_distances(points[tree.rows])
        assert spanning_tree(apart, tree.counted) == tree.edges
        assert abs(apart - tree.distances).mean() < 0.01


def test_scores_equal_hand_computation(minilm: Checkpoint, probe_result: StructuralProbeResult) -> None:
    # The baseline connects adjacent words.
    # In "Every engineer reads a map", "engineer"–"reads" is an edge, but "reads"–"a" is not.
    # In "Night falls slowly", both pairs of adjacent words are edges.
    assert probe_result.baseline == 5 / 6
    assert probe_result.edges == 6
    assert probe_result.counts == (2, 1, 2)
    # Each word is one token. The first held-out tree has six words; the second tree has too few words for a
    # correlation.
    clause, short = (minilm.trace(item.text) for item in SLEEPING)
    for place, layer in enumerate(probe_result.layers):
        first, second = (
            squared_distances(trace.vectors(layer)[1:-1] @ probe_result.maps[place].T)
            for trace in (clause, short)
        )
        gold = [{(0, 1), (1, 2), (3, 4), (2, 4)}, {(0, 1), (1, 2)}]
        right = len(reference_tree(first[:5, :5]) & gold[0]) + len(reference_tree(second) & gold[1])
        assert probe_result.uuas[place] == right / 6
        true = distances(SLEEPING[0].heads)
        of_words = [spearmanr(*rows).statistic for rows in zip(first, true, strict=True)]
        assert probe_result.spearman[place] == pytest.approx(np.mean(of_words))


def test_layer_result_does_not_depend_on_other_layers(
    minilm: Checkpoint, probe_result: StructuralProbeResult
) -> None:
    alone = StructuralProbe(rank=8, layers=[4]).of(minilm, SAILING, SLEEPING)
    assert_repeatable(alone.maps[0], probe_result.maps[1])
    other = StructuralProbe(rank=8, layers=[4], seed=1).of(minilm, SAILING, SLEEPING)
    assert not np.allclose(other.maps[0], alone.maps[0], atol=0.01)
    full = StructuralProbe(rank=5000, layers=[4]).of(minilm, SAILING * 2)
    assert full.question.rank == 384
    assert sum(full.counts) == 6


def test_predicted_tree_of_sentence_is_spanning_tree(
    minilm: Checkpoint, probe_result: StructuralProbeResult
) -> None:
    trace = minilm.trace(SENTENCE)
    tree = probe_result.tree(trace, -3)
    assert tree.layer == 4
    assert tree.words == ("The", "boat", "crosses", "the", "river", ",", "slowly", ".")
    places = [0, 1, 2, 3, 4, 6]
    apart = squared_distances(trace.vectors(4)[1:-1] @ probe_result.maps[1].T)
    assert_repeatable(tree.distances, apart)
    joined = reference_tree(apart[np.ix_(places, places)])
    assert set(tree.edges) == {(places[item], places[other]) for item, other in joined}
    table = tree.table()
    assert list(table) == ["place", "word", "other_place", "other_word", "distance"]
    assert list(table["word"]) == [tree.words[place - 1] for place in table["place"]]
    assert (table.attrs["provenance"]["layer"], table.attrs["provenance"]["text"]) == (4, SENTENCE)
    assert probe_result.tree(trace).layer == probe_result.best
    paired = probe_result.tree(minilm.trace(SENTENCE, "It sinks."), 0)
    assert paired.words == tree.words
    assert probe_result.tree(minilm.trace("?!")).edges == ()


def test_tree_of_unprobed_layer_or_model_raises_error(
    probe_result: StructuralProbeResult, minilm: Checkpoint, trained_on: Callable[[str, str], Checkpoint]
) -> None:
    with pytest.raises(SelectionError, match="one of the probed layers: 0, 4"):
        probe_result.tree(minilm.trace(SENTENCE), 2)
    with pytest.raises(SelectionError, match="not computed with the model of the probe"):
        probe_result.tree(trained_on("bert", "fill-mask").trace(SENTENCE), 0)
    with pytest.raises(TextError, match="256 words, but at most 255"):
        probe_result.tree(minilm.trace("go " * 256))


def heads(*head_indices: int) -> TaggedSentence:
    """Return a sentence whose words have the given syntactic heads, counted from 1."""
    rows = tuple((f"w{number}", "X", head, "dep") for number, head in enumerate(head_indices, 1))
    return treebank.read(treebank.conllu(rows))[0]


@pytest.mark.prove
def test_sentences_without_tree_are_skipped_and_forests_split(minilm: Checkpoint) -> None:
    alone, forest, long = heads(0), heads(0, 1, 0, 3), heads(0, *range(1, 256))
    question = StructuralProbe(rank=2, layers=[0])
    result = question.of(minilm, (*SAILING, alone, long, forest, TAGGED[0]), SLEEPING, truncate=True)
    assert sum(result.counts) == 3 + 2 + 2
    assert result.left_out == 3
    measured = question.of(minilm, SAILING, (forest, alone))
    assert (measured.edges, measured.baseline) == (2, 1.0)
    assert measured.uuas[0] == 1.0
    assert np.isnan(measured.spearman).all(), "the order of two words has no correlation"
    assert measured.metadata["sentences_left_out"] == 1


YES = treebank.read(treebank.conllu((("Yes", "INTJ", 0, "root"), (".", "PUNCT", 1, "punct"))))


@pytest.mark.parametrize(
    ("data", "held_out", "message"),
    [
        (TAGGED, SLEEPING, "data has no tree with two words"),
        (SAILING, TAGGED, "held_out has no tree with two words"),
        (SAILING, (heads(0),), "Use a treebank: a CoNLL-U file"),
        (SAILING, YES, "held_out has no tree with two words other than punctuation"),
        (SAILING[:1], SLEEPING, "Training needs at least two trees"),
        (SAILING[:1], None, "A single text cannot be split"),
    ],
)
def test_invalid_structural_probe_raises_error(
    minilm: Checkpoint,
    data: tuple[TaggedSentence, ...],
    held_out: tuple[TaggedSentence, ...] | None,
    message: str,
) -> None:
    with pytest.raises(TextError) as refused:
        StructuralProbe(layers=[0]).of(minilm, data, held_out)
    assert message in str(refused.value)


def test_infinite_vectors_raise_unavailable_error(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "vectors_by_layer", lambda *_: [[torch.full((15, 4), torch.nan)] * 2])
    with pytest.raises(UnavailableError, match="Layer 0 has vectors that are not finite"):
        StructuralProbe(layers=[0]).of(minilm, SAILING, SLEEPING)


def test_progress_counts_all_steps_and_can_cancel(minilm: Checkpoint) -> None:
    observed: list[tuple[int, int]] = []
    StructuralProbe(rank=2, layers=[0]).of(
        minilm, SAILING, SLEEPING, progress=lambda *update: observed.append(update)
    )
    assert observed[-1] == (2 + structural_probe.MAX_EPOCHS,) * 2

    def report(done: int, total: int) -> None:
        if total and done >= 4:
            raise Cancelled

    with pytest.raises(Cancelled):
        StructuralProbe(layers=[0]).of(minilm, SAILING, SLEEPING, progress=report)


def test_command_equals_library(minilm: Checkpoint, tmp_path: Path) -> None:
    file = tmp_path / "data.conllu"
    file.write_text(SAILING_FILE, encoding="utf-8")
    inputs = ["trees", str(file), "--held-out", str(file), "--layers", "0,last", "--rank", "4"]
    ended = bert_probe(*inputs, built_in=minilm)
    assert ended.text == files.to_csv(StructuralProbe(4, [0, -1]).of(minilm, SAILING, SAILING).table())
    assert ended.text.splitlines()[0] == "layer,uuas,baseline,spearman"
    assert "data has no tree" in bert_probe("trees", write(tmp_path), built_in=minilm).refusal


def write(folder: Path) -> str:
    """Write a file of tagged words without syntactic heads, and return its path."""
    file = folder / "tags.conll"
    file.write_text(treebank.TAGGED_FILE, encoding="utf-8")
    return str(file)
