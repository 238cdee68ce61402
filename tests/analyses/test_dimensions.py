"""Test the effect of truncated vectors on scores: parity with sentence-transformers, NumPy and SciPy."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

import bert_probe
from bert_probe import DimensionCurve
from bert_probe.analyses.evaluation.vector_comparison import _costs
from bert_probe.errors import UnavailableError
from bert_probe.model.from_model import keep_float64
from tests.helpers import families, sentence_models

TEXTS = [*families.SENTENCES, "a boat", "night night", "the river is dark", "a map of the night"]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", ["truncated", "manhattan"])
def test_curve_equals_sentence_transformers(
    name: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = sentence_models.save(name, family_folder("bert"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | {"matryoshka_dimensions": [20, 24, 99, "8"]}
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint, model = bert_probe.load(folder, dtype="float64"), sentence_models.reference(folder, "float64")
    keep_float64(checkpoint.model)
    result = DimensionCurve("model").of(checkpoint, TEXTS)
    selected = {12} if name == "truncated" else set()
    assert set(result.sizes) == {8, 16, 32} | {20, 24} | selected
    pairs = [*combinations(range(len(TEXTS)), 2)]

    def scores(size: int) -> np.ndarray:
        vectors = model.encode(TEXTS, truncate_dim=size)
        values: np.ndarray = model.similarity(vectors, vectors).numpy()
        return values

    full = scores(32)
    np.fill_diagonal(full, -np.inf)
    for row in result.table().itertuples():
        part = scores(row.dimensions)
        a, b = np.array([(full[pair], part[pair]) for pair in pairs]).T
        assert row.pearson == pytest.approx(pearsonr(a, b).statistic, abs=1e-10)
        assert row.spearman == pytest.approx(spearmanr(a, b).statistic, abs=1e-10)
        np.fill_diagonal(part, -np.inf)
        assert row.same_neighbor == np.mean(full.argmax(axis=1) == part.argmax(axis=1))
    assert tuple(result.table().iloc[-1])[1:] == pytest.approx((1, 1, 1), abs=1e-12)
    assert "With 16 of 32 dimensions" in result.finding


def test_costs_worked_by_hand() -> None:
    """Sentences 1 and 2, 1 and 3, and 2 and 3 have the dot products 2, 1 and 0.

    With only the first dimension, their dot products are 2, 0 and 0.
    """
    vectors = np.array([[2.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    pearson, spearman, same = _costs(vectors, "dot", (1, 2))
    assert pearson == pytest.approx([np.sqrt(3) / 2, 1])
    assert spearman == pytest.approx([np.sqrt(3) / 2, 1])
    # With one dimension, sentence 3 has the score 0 with both other sentences; ties go to the first one.
    assert same.tolist() == [1, 1]
    # With one dimension, the first and the third vector are zero, so no pair has a defined cosine, and the
    # correlation is undefined.
    pearson, _, same = _costs(np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 2.0]]), "cosine", (1, 2))
    assert np.isnan(pearson[0])
    assert same[1] == 1


def test_too_few_sentences_and_sparse_vectors_raise(
    family_folder: Callable[[str], Path], trained_folder: Callable[[str, str], Path], tmp_path: Path
) -> None:
    checkpoint = bert_probe.load(family_folder("bert"))
    with pytest.raises(UnavailableError, match="2 sentences are too few"):
        DimensionCurve().of(checkpoint, ["a", "b"])
    with sentence_models.without_warnings():
        from sentence_transformers import SparseEncoder
        from sentence_transformers.base.modules import Transformer
        from sentence_transformers.sparse_encoder.modules import SpladePooling

        masked = str(trained_folder("bert", "fill-mask"))
        modules = [Transformer(masked, transformer_task="fill-mask"), SpladePooling()]
        SparseEncoder(modules=modules, device="cpu").save(str(tmp_path), create_model_card=False)
    with pytest.raises(UnavailableError, match="dimensions of this SparseEncoder are the tokens"):
        DimensionCurve("model").of(bert_probe.load(tmp_path), ["a", "b", "c"])
