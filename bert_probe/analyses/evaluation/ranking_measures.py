"""Measures of rankings against judgments, by ir-measures (MacAvaney, Macdonald and Ounis 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bert_probe.core.extras import require
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array

DEPTH = 1_000
"""Number of documents at the top of a ranking that are evaluated."""
MEASURES: Mapping[str, str] = {
    "ndcg@10": "nDCG@10",
    "recall@10": "R@10",
    "recall@100": "R@100",
    "mrr@10": "RR@10",
    f"map@{DEPTH}": f"AP@{DEPTH}",
}
"""Name of a measure → its name in ir-measures."""
BLOCK = 100
"""Number of rankings that are evaluated at once."""


def evaluate_rankings(
    rankings: Sequence[Array],
    documents: Sequence[str],
    grades: Sequence[Mapping[str, int]],
    progress: Progress = no_progress,
) -> Array:
    """Return the `MEASURES` of each query, float64 [query, measure], 0 to 1.

    Args:
        rankings: for each query, the indices of the ranked documents, the best first; it may be empty.
        documents: the IDs of the documents.
        grades: for each query, the grade of each judged document, by ID.
        progress: called with the number of queries done and the total.

    Raises:
        UnavailableError: the package ir-measures is not installed.
    """
    require("ir_measures")
    import ir_measures

    names = {name: ir_measures.parse_measure(measure) for name, measure in MEASURES.items()}
    values = np.zeros((len(rankings), len(names)))  # all measures are 0 for an empty ranking
    columns = {measure: column for column, measure in enumerate(names.values())}
    for start in range(0, len(rankings), BLOCK):
        progress(start, len(rankings))
        queries = [query for query in range(start, min(start + BLOCK, len(rankings))) if len(rankings[query])]
        if not queries:
            continue
        qrels = {str(query): dict(grades[query]) for query in queries}
        # trec_eval resolves ties by ID; scores derived from ranks keep the order of the ranking.
        run = {
            str(query): {
                documents[index]: -float(rank) for rank, index in enumerate(rankings[query][:DEPTH].tolist())
            }
            for query in queries
        }
        for metric in ir_measures.iter_calc(list(names.values()), qrels, run):
            values[int(metric.query_id), columns[metric.measure]] = metric.value
    return values
