"""Late interaction: the vectors of tokens and MaxSim against sentence-transformers, and the parts of a score."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_probe
from bert_probe import Search, SearchExplanation
from bert_probe.analyses.vectors.late_interaction import (
    document_config,
    encode_documents,
    encode_tokens,
    query_config,
)
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.float64 import keep_float64
from tests.helpers import families, multi_vector_models
from tests.helpers.exactness import assert_exact, expect_raw

QUERY = "Where does the river lead?"
DOCUMENTS = [*families.SENTENCES, "a boat", "night, " * 8, "A Boat!"]


@pytest.fixture(scope="module")
def layout_folder(
    family_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Return a function: layout → folder with the checkpoint, saved on first use.

    Tests must not change it.
    """
    root = tmp_path_factory.mktemp("multi-vector")

    def folder(name: str) -> Path:
        path = root / name.replace(" ", "-").replace(",", "")
        if not path.exists():
            family = multi_vector_models.LAYOUTS[name].family
            multi_vector_models.save(name, family_folder(family), path)
        return path

    return folder


def _double(folder: Path) -> Checkpoint:
    checkpoint = bert_probe.load(folder, dtype="float64")
    keep_float64(checkpoint.model)
    return checkpoint


def _vectors(checkpoint: Checkpoint) -> list[np.ndarray]:
    """Return the vectors of queries and documents, [token, size] each."""
    queries = [encode_tokens(checkpoint, query_config(checkpoint), text).vectors for text in DOCUMENTS]
    documents = encode_documents(checkpoint, document_config(checkpoint), DOCUMENTS, False, str)
    return [*queries, *(documents.vectors[first:last] for first, last in documents.spans)]


@pytest.mark.parametrize("name", multi_vector_models.LAYOUTS)
def test_vectors_equal_multi_vector_encoder(name: str, layout_folder: Callable[[str], Path]) -> None:
    folder = layout_folder(name)
    checkpoint = _double(folder)
    assert checkpoint.multi_vector_error is None
    model = multi_vector_models.reference(folder, "float64")
    # One query at a time, because the padding of a batch must not matter.
    queries = [model.encode_query(text, convert_to_numpy=True) for text in DOCUMENTS]
    expected = [*queries, *model.encode_document(DOCUMENTS, convert_to_numpy=True)]
    vectors = _vectors(checkpoint)
    assert [len(text) for text in vectors] == [len(text) for text in expected]
    assert_exact(np.concatenate(vectors), np.concatenate(expected))


@pytest.mark.parametrize("name", multi_vector_models.LAYOUTS)
def test_scores_equal_multi_vector_encoder(name: str, layout_folder: Callable[[str], Path]) -> None:
    folder = layout_folder(name)
    model = multi_vector_models.reference(folder)
    vectors = model.encode_document(DOCUMENTS)
    expected = model.similarity(model.encode_query([QUERY]), vectors)[0].double().numpy()
    exact = _scores(multi_vector_models.reference(folder, "float64"))
    has_vectors = np.array([len(document) > 0 for document in vectors])
    result = Search(QUERY, ("late-interaction",)).of(bert_probe.load(folder), DOCUMENTS)
    scores = result.scores["late-interaction"]
    assert scores.dtype == np.float32
    assert np.isnan(scores).tolist() == (~has_vectors).tolist()
    expect_raw(expected[has_vectors], exact[has_vectors]).check(scores[has_vectors])
    assert result.notes == ()


def _scores(model: Any) -> np.ndarray:
    """Return the scores of a `MultiVectorEncoder` in float64; its own function rounds to float32."""
    query = model.encode_query(QUERY, convert_to_numpy=True)
    scores = [
        (query @ document.T).max(axis=1).sum() if len(document) else np.nan
        for document in model.encode_document(DOCUMENTS, convert_to_numpy=True)
    ]
    return np.array(scores) / (len(query) if model.similarity_fn_name == "meanmaxsim" else 1)
