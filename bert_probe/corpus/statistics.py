"""What is known of a measure over many sentences before any of them is read again: of each shard a few
numbers and a histogram of every head, which add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from bert_probe.analyses.attention.head_measures import MEASURES
from bert_probe.model.lengths import most_tokens
from bert_probe.model.trace import Array

BINS = 64
"""Of a histogram."""


def edges(measure: str, max_tokens: int | None) -> Array:
    """Where the bins of a measure begin and end, float64 [bin + 1].

    Shares and what is relative lie between 0 and 1. Entropy goes up to that of the longest text; so does
    distance, whose bins grow with it, as most attention stays near.

    Args:
        max_tokens: of the model, see `Description`.
    """
    longest = most_tokens(max_tokens)
    if measure == "entropy_bits":
        return np.linspace(0, np.log2(longest), BINS + 1)
    if measure == "mean_distance":
        return np.expm1(np.linspace(0, np.log1p(longest), BINS + 1))
    return np.linspace(0, 1, BINS + 1)


def statistics(profiles: Array, max_tokens: int | None) -> dict[str, Any]:
    """Columns of the table of statistics.

    Args:
        profiles: [sentence, layer, head, measure], as they are stored.
    """
    count, layers, heads, _ = profiles.shape
    grid = [(layer, head, name) for name in MEASURES for layer in range(layers) for head in range(heads)]
    values = profiles.astype(np.float64).transpose(3, 1, 2, 0).reshape(len(grid), count)
    bins = np.concatenate(
        [
            _histograms(part, edges(name, max_tokens))
            for name, part in zip(MEASURES, np.split(values, len(MEASURES)), strict=True)
        ]
    )
    none = np.full(len(grid), np.nan)
    return {
        "layer": [layer + 1 for layer, _, _ in grid],
        "head": [head + 1 for _, head, _ in grid],
        "measure": [name for _, _, name in grid],
        "count": np.full(len(grid), count),
        "sum": values.sum(axis=1),
        "squares": (values**2).sum(axis=1),
        "least": values.min(axis=1) if count else none,
        "most": values.max(axis=1) if count else none,
        "bins": pa.FixedSizeListArray.from_arrays(pa.array(bins.ravel()), BINS),
    }


def bins_of(values: Array, ends: Array) -> Array:
    """The bin of each value, from 0; a bin has its low end. Roundings beyond the ends count to the last."""
    return np.clip(np.searchsorted(ends, values, side="right") - 1, 0, BINS - 1)


def _histograms(values: Array, ends: Array) -> Array:
    """How many of each row lie in each bin, int64 [row, bin]."""
    each = bins_of(values, ends) + np.arange(len(values))[:, None] * BINS
    counted: Array = np.bincount(each.ravel(), minlength=len(values) * BINS).reshape(-1, BINS)
    return counted
