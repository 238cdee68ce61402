"""Clusters of vectors, and the words that are typical of each cluster."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from bert_probe.model.trace import Array

MAX_CLUSTERED = 5_000
"""Maximum number of rows that are clustered. Of more rows, a sample is drawn with a fixed seed."""
MIN_SAMPLES = 2
"""Number of rows, including itself, within the core distance of a row (HDBSCAN). A larger number leaves more
rows without a cluster."""
CLUSTER_WORDS = 8
"""Maximum number of words that describe a cluster."""


def cluster(unit: Array, min_cluster: int) -> tuple[Array, Array]:
    """Return the rows that were clustered with HDBSCAN, and their clusters (−1 for none)."""
    from sklearn.cluster import HDBSCAN

    rows = np.arange(len(unit))
    if len(unit) > MAX_CLUSTERED:
        rows = np.sort(np.random.default_rng(0).choice(len(unit), MAX_CLUSTERED, replace=False))
    if len(rows) <= min_cluster:
        return rows, np.full(len(rows), -1)
    # In many dimensions, computing the distances of all pairs is 18 times as fast as using trees.
    labels = HDBSCAN(
        min_cluster_size=min_cluster, min_samples=MIN_SAMPLES, algorithm="brute", copy=True
    ).fit_predict(unit[rows])
    return rows, np.where(labels < 0, -1, labels)


def cluster_words(texts: Sequence[str], labels: Array) -> list[list[str]]:
    """Return the most typical words of each cluster, which occur more often in it than in other texts.

    Words are ranked by the z-score of their log-odds ratio between the cluster and all other texts, with the
    counts in all texts as the prior (Monroe, Colaresi and Quinn 2008). Words that are frequent in all texts
    do not have a high score.

    Args:
        texts: the texts, also those in no cluster.
        labels: cluster of each text, from 0; negative for no cluster.
    """
    words_by_cluster: list[Counter[str]] = [Counter() for _ in range(int(labels.max(initial=-1)) + 1)]
    total: Counter[str] = Counter()
    for text, label in zip(texts, labels, strict=True):
        words = re.findall(r"\w{2,}", text.casefold())
        total.update(words)
        if label >= 0:
            words_by_cluster[label].update(words)
    size = total.total()
    results = []
    for counts in words_by_cluster:
        scores = {word: _log_odds(n, counts.total(), total[word], size) for word, n in counts.items()}
        ranked = sorted(scores, key=lambda word: (-scores[word], word))[:CLUSTER_WORDS]
        results.append([word for word in ranked if scores[word] > 0])
    return results


def _log_odds(count: int, size: int, total_count: int, total_size: int) -> float:
    """Return the z-score of the log-odds ratio of a word between some of the texts and all other texts.

    Args:
        count: occurrences in these texts, which have `size` words.
        total_count: occurrences in all texts, which have `total_size` words.
    """
    own, other = count + total_count, 2 * total_count - count
    ratio = np.log(own / (size + total_size - own)) - np.log(other / (2 * total_size - size - other))
    return float(ratio / np.sqrt(1 / own + 1 / other))
