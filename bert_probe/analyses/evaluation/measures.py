"""Measures that compare rankings with relevance judgments, and bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from bert_probe.core.extras import require
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array

RESAMPLES = 2_000
"""Number of bootstrap resamples."""
INTERVAL = (2.5, 97.5)
"""Percentiles of the resamples that are the bounds of a 95% interval."""
_SEED = 0
_BLOCK_NUMBERS = 500_000
"""Maximum number of resample weights, or of intermediate values of a measure, that are in memory at once."""
DEPTH = 1_000
"""Number of top-ranked documents that are evaluated."""
MEASURES: Mapping[str, str] = {
    "ndcg@10": "nDCG@10",
    "recall@10": "R@10",
    "recall@100": "R@100",
    "mrr@10": "RR@10",
    f"map@{DEPTH}": f"AP@{DEPTH}",
}
"""Mapping from the name of each measure to its name in ir-measures (MacAvaney et al. 2022)."""
BLOCK = 100
"""Number of rankings that are evaluated at once."""


def resample_weights(count: int, resamples: int = RESAMPLES) -> Iterator[Array]:
    """Yield how often each resample contains each example, in blocks of shape [resample, example].

    The seed is fixed: equal numbers of examples give equal resamples, so that the difference between two
    models can be computed within each resample.
    """
    random = np.random.default_rng(_SEED)
    block = max(1, _BLOCK_NUMBERS // count)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        indices = random.integers(count, size=(size, count)) + count * np.arange(size)[:, None]
        yield np.bincount(indices.ravel(), minlength=size * count).reshape(size, count)


def bootstrap(
    measure: Callable[[Array], Array], count: int, progress: Progress = no_progress, size: int = 1
) -> Array:
    """Return the values of a measure on bootstrap resamples, shape [resample, …].

    Args:
        measure: function that takes the weights of resamples (how often each contains each example),
            [resample, example], and returns the value of the measure on each resample, [resample, …].
        count: number of examples.
        progress: called with the number of resamples done and the total.
        size: number of intermediate values that `measure` holds in memory per resample.
    """
    block, parts, done = max(1, _BLOCK_NUMBERS // size), [], 0
    for weights in resample_weights(count):
        for start in range(0, len(weights), block):
            parts.append(measure(weights[start : start + block]))
            done += len(weights[start : start + block])
            progress(done, RESAMPLES)
    return np.concatenate(parts)


def bootstrap_means(values: Array, progress: Progress = no_progress) -> Array:
    """Return the mean over the examples in each resample, shape [resample, …].

    Args:
        values: values of the examples, [example, …].
        progress: called with the number of resamples done and the total.
    """
    flat = values.reshape(len(values), -1)
    means = bootstrap(lambda weights: weights @ flat / len(values), len(values), progress)
    return means.reshape(len(means), *values.shape[1:])


def interval(samples: Array) -> tuple[float, float]:
    """Return the bounds of the 95% percentile interval (Efron and Tibshirani 1993, chapter 13).

    Args:
        samples: value of a measure on each resample, [resample]; NaN (undefined) values are ignored.

    Returns:
        The bounds; NaN if the measure is undefined in every resample.
    """
    defined = samples[~np.isnan(samples)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.percentile(defined, INTERVAL)
    return float(low), float(high)


def weighted_ranks(weights: Array, values: Array) -> Array:
    """Return the rank of each example in each resample, shape [resample, example]. Ties have their mean rank.

    Args:
        weights: how often each resample contains each example, [resample, example].
        values: values by which the examples are ranked, ascending, [example].
    """
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(values[order]) != 0))
    counts = np.add.reduceat(weights[:, order], starts, axis=1)
    ranks = np.cumsum(counts, axis=1) - counts + (counts + 1) / 2
    _, positions = np.unique(values, return_inverse=True)
    weighted: Array = ranks[:, positions]
    return weighted


def weighted_pearson(weights: Array, x: Array, y: Array) -> Array:
    """Return Pearson's correlation of x and y in each resample, shape [resample]; NaN if x or y is constant.

    Args:
        weights: how often each resample contains each example, [resample, example].
        x, y: values of shape [example] or [resample, example].
    """
    total = weights.sum(axis=1, keepdims=True)
    centered = [values - (weights * values).sum(axis=1, keepdims=True) / total for values in (x, y)]
    first, second = centered
    products = (weights * first * second).sum(axis=1)
    norms = np.sqrt((weights * first**2).sum(axis=1) * (weights * second**2).sum(axis=1))
    is_varied = np.logical_and(*(_is_varied(weights, values) for values in (x, y)))
    correlations = np.divide(
        products, norms, out=np.full(len(weights), np.nan), where=is_varied & (norms > 0)
    )
    bounded: Array = np.clip(correlations, -1, 1)  # rounding may exceed −1 and 1
    return bounded


def _is_varied(weights: Array, values: Array) -> Array:
    """Return whether each resample contains at least two different values, bool of shape [resample]."""
    is_drawn = weights > 0
    varied: Array = np.where(is_drawn, values, -np.inf).max(axis=1) > np.where(is_drawn, values, np.inf).min(
        axis=1
    )
    return varied


def bootstrap_correlations(labels: Array, scores: Array, progress: Progress = no_progress) -> Array:
    """Return the correlation of scores with labels in each resample, shape [resample, score, 2].

    The last dimension has Spearman's and Pearson's correlation.

    Args:
        labels: label of each text pair, [pair].
        scores: one or more scores of each text pair, [score, pair].
        progress: called with the number of resamples done and the total.
    """

    def correlations(weights: Array) -> Array:
        label_ranks = weighted_ranks(weights, labels)
        columns = [
            [
                weighted_pearson(weights, label_ranks, weighted_ranks(weights, values)),
                weighted_pearson(weights, labels, values),
            ]
            for values in scores
        ]
        return np.moveaxis(np.array(columns), -1, 0)

    return bootstrap(correlations, len(labels), progress)


def evaluate_rankings(
    rankings: Sequence[Array],
    documents: Sequence[str],
    grades: Sequence[Mapping[str, int]],
    progress: Progress = no_progress,
) -> Array:
    """Return the `MEASURES` of the ranking for each query, float64 of shape [query, measure], 0 to 1.

    Args:
        rankings: for each query, the indices of the ranked documents, best first; may be empty.
        documents: the IDs of the documents.
        grades: for each query, a mapping from the ID of each judged document to its relevance grade.
        progress: called with the number of queries done and the total.

    Raises:
        UnavailableError: the package ir-measures is not installed.
    """
    require("ir_measures")
    import ir_measures

    names = {name: ir_measures.parse_measure(measure) for name, measure in MEASURES.items()}
    values = np.zeros((len(rankings), len(names)))  # an empty ranking keeps the value 0
    columns = {measure: column for column, measure in enumerate(names.values())}
    for start in range(0, len(rankings), BLOCK):
        progress(start, len(rankings))
        queries = [query for query in range(start, min(start + BLOCK, len(rankings))) if len(rankings[query])]
        if not queries:
            continue
        qrels = {str(query): dict(grades[query]) for query in queries}
        # trec_eval sorts documents with equal scores by ID, so pass ranks as scores to keep the order.
        run = {
            str(query): {
                documents[index]: -float(rank) for rank, index in enumerate(rankings[query][:DEPTH].tolist())
            }
            for query in queries
        }
        for metric in ir_measures.iter_calc(list(names.values()), qrels, run):
            values[int(metric.query_id), columns[metric.measure]] = metric.value
    return values
