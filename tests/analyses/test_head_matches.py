"""Test head matches between two models: parity with raw transformers, hand-computed cases, and invariants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, call

import numpy as np
import pytest
import torch

from bert_probe import HeadMatches
from bert_probe.analyses.comparison import model_similarity
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.views import pictures
from bert_probe.views.heatmaps import matched_head_heatmaps
from tests.helpers.changed import changed_checkpoint
from tests.helpers.exactness import assert_exact
from tests.helpers.families import LONG, PAIR, TEXT
from tests.helpers.raw import Raw

Folders = Callable[[str], Path]
Opened = Callable[[str], Checkpoint]


def test_matches_of_two_tokenizers_equal_raw_models(double_family: Opened, family_folder: Folders) -> None:
    a, b = (double_family(name).trace(TEXT, PAIR) for name in ("bert", "roberta"))
    result = HeadMatches().of(a, b)
    assert result.similarity.shape == (3, 4, 3, 4)
    assert [span.text for span in result.spans.spans][:4] == ["[CLS] · <s>", "Almost", "before", "we"]
    assert len(result.spans.rows) < min(len(a.tokens), len(b.tokens))
    maps = []
    for trace, name, side in ((a, "bert", "a"), (b, "roberta", "b")):
        raw = Raw(family_folder(name), "float64").run(trace.encoding).attentions
        places = [list(getattr(span, side)) for span in result.spans.spans]
        rows = [[layer[0][:, tokens].mean(dim=1) for tokens in places] for layer in raw]
        maps.append(
            [
                torch.stack(
                    [torch.stack([row[:, keys].sum(dim=1) for keys in places], dim=1) for row in layer], 1
                )
                for layer in rows
            ]
        )
    for (x, item), (y, other) in ((p, q) for p in enumerate(maps[0]) for q in enumerate(maps[1])):
        expected = 1 - (item[:, None] - other[None]).abs().sum(dim=-1).mean(dim=-1) / 2
        assert_exact(result.similarity[x, :, y], expected.numpy())
    assert 0.05 < result.matrix.min() < result.matrix.max() < 0.95


def test_matches_equal_hand_computation(family: Opened) -> None:
    checkpoint = family(
        "longformer"
    )  # The trace of this family stores attention weights, which can be replaced.
    a, b = checkpoint.trace("w"), changed_checkpoint(checkpoint).trace("w")
    item = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2]], np.float32)
    two = np.array([[0.2, 0.2, 0.6], [0.1, 0.1, 0.8], [0.9, 0.1, 0.0]], np.float32)
    a = replace(a, weights=(np.stack([item, item, two, item]),) * 3)
    b = replace(b, weights=(np.stack([two, two, two, item]),) * 3)
    result = HeadMatches().of(a, b)
    # The absolute differences of the three rows sum to 0.8, 0 and 1.
    # Total variation is half of each sum, averaged over the rows.
    expected = [[0.7, 0.7, 0.7, 1], [0.7, 0.7, 0.7, 1], [1, 1, 1, 0.7], [0.7, 0.7, 0.7, 1]]
    np.testing.assert_allclose(result.matrix, np.tile(expected, (3, 3)), atol=1e-7)
    # Ties go to the first head, so only one of several equal heads is matched in both directions.
    assert result.best[:4].tolist() == [3, 3, 0, 3]
    assert result.mutual[:4].tolist() == [True, False, True, False]
    best = result.table()
    assert best.iloc[1].tolist() == [1, 2, 1, 4, 1.0, False]
    assert list(best) == ["layer_a", "head_a", "layer_b", "head_b", "similarity", "mutual"]
    assert "The best match is head 1.1 of A and head 1.4 of B: similarity 1." in result.finding
    table = result.showing(show="all").table()
    assert len(table) == 144
    row = table.query("layer_a == 2 and head_a == 3 and layer_b == 3 and head_b == 4")
    assert row["similarity"].item() == pytest.approx(0.7)


def test_similarity_of_a_head_with_itself_is_1(family: Opened) -> None:
    for name in ("bert", "eurobert", "mpnet"):
        a, b = family(name).trace(TEXT), family(name).trace(TEXT)
        result = HeadMatches().of(a, b)
        assert np.diagonal(result.matrix).tolist() == [1.0] * 12
        assert result.matrix.min() < 0.9
        assert result.metadata == {"spans": len(a.tokens)}
        np.testing.assert_array_equal(result.matrix, result.matrix.T)


def test_swapping_a_and_b_mirrors_the_result(double_family: Opened) -> None:
    a, b = (double_family(name).trace(TEXT) for name in ("albert", "eurobert"))
    present, back = HeadMatches().of(a, b), HeadMatches().of(b, a)
    assert_exact(present.matrix, back.matrix.T)
    assert present.matrix.min() >= 0


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_result_does_not_depend_on_chunk_size(
    layers: int, family: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = family("bert")
    for b in (family("roberta").trace(TEXT), checkpoint.trace(TEXT)):
        a = checkpoint.trace(TEXT)
        full = HeadMatches().of(a, b)
        size = 8 * a.heads * len(full.spans.rows) * len(full.spans.spans)
        progress = Mock()
        with monkeypatch.context() as patch:
            patch.setattr(model_similarity, "CHUNK_BYTES", layers * size)
            parts = HeadMatches().of(a, b, progress)
        np.testing.assert_array_equal(parts.matrix, full.matrix)
        assert progress.call_args == call(9, 9)
        assert progress.call_count == 3 * -(-3 // max(layers, 1))


def test_different_texts_raise_selection_error(family: Opened) -> None:
    a, b = family("bert"), family("roberta")
    with pytest.raises(SelectionError, match="read different texts"):
        HeadMatches().of(a.trace("we left"), b.trace("we left it"))
    with pytest.raises(SelectionError, match="the models did not read the same text"):
        HeadMatches().of(*(item.trace(LONG * 10, truncate=True) for item in (a, b)))


def test_matrix_and_two_maps_have_charts(family: Opened) -> None:
    a, b = family("bert").trace(TEXT), family("roberta").trace(TEXT)
    result = HeadMatches().of(a, b)
    (sampled,) = pictures.heatmaps_of(result)
    assert (sampled.rows[5], sampled.columns[11]) == ("2.2", "3.4")
    np.testing.assert_array_equal(sampled.values, result.matrix)
    for side, item in enumerate(matched_head_heatmaps(result, a, b, 5, 11)):
        np.testing.assert_allclose(item.values.sum(axis=1), 1, atol=1e-6)
        assert item.values.shape == (len(result.spans.rows), len(result.spans.spans))
        assert item.drawing["caption"] == ("Head 2.2 of A", "Head 3.4 of B")[side]
    table = result.maps_frame(a, b, 5, 11)
    assert list(table)[4:] == ["weight_a_2.2", "weight_b_3.4"]
    place = len(result.spans.spans) + 3  # table row of query 2 and key 4, counted from 1
    query, key = (result.spans.spans[index] for index in (result.spans.rows[1], 3))
    expected = [result.spans.rows[1], query.text, 3, key.text]
    assert table.iloc[place].tolist()[:4] == expected
    assert table.iloc[place, 5] == matched_head_heatmaps(result, a, b, 5, 11)[1].values[1, 3]
    difference = np.subtract(
        *(matched_map.values for matched_map in matched_head_heatmaps(result, a, b, 5, 11))
    )
    assert 1 - np.abs(difference).sum(axis=1).mean() / 2 == pytest.approx(result.matrix[5, 11], abs=1e-6)
