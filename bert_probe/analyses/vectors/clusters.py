"""Clusters of vectors, and the words that are typical of each cluster."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from bert_probe.model.trace import Array

MAX_CLUSTERED = 5_000
"""Maximum number of rows that are clustered. Of more rows, a sample is drawn with a fixed seed."""
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
    # Trees do not help in many dimensions: the distances of all pairs are computed 18 times faster.
    labels = HDBSCAN(min_cluster_size=min_cluster, algorithm="brute", copy=True).fit_predict(unit[rows])
    return rows, np.where(labels < 0, -1, labels)


def cluster_words(texts: Sequence[str], labels: Array) -> list[list[str]]:
    """Return the most typical words of each cluster, by class-based TF-IDF (Grootendorst 2022)."""
    words_by_cluster: list[Counter[str]] = [Counter() for _ in range(int(labels.max(initial=-1)) + 1)]
    for text, label in zip(texts, labels, strict=True):
        if label >= 0:
            words_by_cluster[label].update(re.findall(r"\w{2,}", text.casefold()))
    total: Counter[str] = sum(words_by_cluster, Counter())
    mean = sum(total.values()) / max(1, len(words_by_cluster))
    results = []
    for words in words_by_cluster:
        count = sum(words.values())
        weights = {word: n / count * np.log1p(mean / total[word]) for word, n in words.items()}
        results.append(sorted(weights, key=lambda word: (-weights[word], word))[:CLUSTER_WORDS])
    return results
