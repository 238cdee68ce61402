"""Test that evaluations of a model equal those of sentence-transformers, which encodes the texts itself."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from bert_probe import RetrievalEvaluation, SimilarityEvaluation
from bert_probe.analyses.evaluation.measures import MEASURES
from bert_probe.analyses.vectors.similarity import baseline_sentences
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.datasets import everyday_topics
from bert_probe.text.documents import Document, as_documents
from bert_probe.text.labeled_texts import parse_labeled_texts
from bert_probe.text.retrieval_data import Judgments

pytestmark = pytest.mark.prove


@pytest.fixture(scope="module")
def reference(minilm: Checkpoint) -> Any:
    """Return the built-in model as loaded by sentence-transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sentence_transformers import SentenceTransformer
    return SentenceTransformer(str(minilm.folder), device="cpu")


@pytest.fixture(scope="module")
def topics() -> list[tuple[str, str]]:
    """Return the texts and topics of 300 sentences."""
    return [(str(row.text), str(row.label)) for row in everyday_topics().rows]


def test_correlations_of_300_pairs(minilm: Checkpoint, reference: Any, topics: list[tuple[str, str]]) -> None:
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    draw = np.random.default_rng(0)
    rows = [draw.choice(len(topics), 2, replace=False) for _ in range(300)]
    pairs = [(topics[i], topics[j]) for i, j in rows]
    # Pairs of the same topic have a high score.
    # The noise gives some pairs tied scores, and most pairs distinct ones.
    scores = [3.0 * (a[1] == b[1]) + float(draw.integers(0, 20)) / 10 for a, b in pairs]
    lines = [f"{a}\t{b}\t{score}" for ((a, _), (b, _)), score in zip(pairs, scores, strict=True)]
    data = parse_labeled_texts("\n".join(["text_a\ttext_b\tscore", *lines]).encode(), "pairs.tsv")
    evaluator = EmbeddingSimilarityEvaluator(
        [a for (a, _), _ in pairs], [b for _, (b, _) in pairs], scores, write_csv=False
    )
    expected = evaluator(reference)
    result = SimilarityEvaluation().of(minilm, data)
    actual = result.table().set_index("measure")["value"]
    # Two pairs whose cosines differ by rounding may swap ranks, which changes Σd² by at most 2 · 299.
    swaps = int((np.diff(np.sort(result.models[0].values[0])) < 1e-6).sum())
    tolerance = 1e-9 + swaps * 6 * 2 * 299 / (300 * (300**2 - 1))
    assert tolerance < 1e-3
    assert actual["cosine_spearman"] == pytest.approx(expected["spearman_cosine"], abs=tolerance)
    assert actual["cosine_pearson"] == pytest.approx(expected["pearson_cosine"], abs=1e-6)


def test_rankings_of_300_documents(minilm: Checkpoint, reference: Any, topics: list[tuple[str, str]]) -> None:
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    draw = np.random.default_rng(0)
    order = draw.permutation(len(topics))
    queries = {f"q{number}": topics[row] for number, row in enumerate(order[:40])}
    texts = [(f"d{number}", topics[row]) for number, row in enumerate(order[40:])]
    texts += [(f"b{number}", (text, "")) for number, text in enumerate(baseline_sentences())]
    relevant: dict[str, set[str]] = {
        query: {name for name, (_, other) in texts if other == topic and draw.random() < 0.3}
        for query, (_, topic) in queries.items()
    }
    assert len(texts) == 300
    evaluator = InformationRetrievalEvaluator(
        {query: text for query, (text, _) in queries.items()},
        {name: text for name, (text, _) in texts},
        relevant,
        precision_recall_at_k=[10, 100],
        map_at_k=[1000],
        write_csv=False,
    )
    values = evaluator(reference)
    names = ("ndcg@10", "recall@10", "recall@100", "mrr@10", "map@1000")
    result = RetrievalEvaluation().of(
        minilm,
        as_documents(Document(text, name) for name, (text, _) in texts),
        as_documents(Document(text, query) for query, (text, _) in queries.items()),
        Judgments.of({query: dict.fromkeys(documents, 1) for query, documents in relevant.items()}),
    )
    actual = dict(zip(MEASURES, result.systems[0].values.mean(axis=0), strict=True))
    np.testing.assert_allclose(
        [actual[name] for name in names], [values[f"cosine_{name}"] for name in names], atol=1e-6
    )
    assert 0.2 < actual["ndcg@10"] < 0.95  # the task is neither trivial nor impossible
