"""Summary statistics and histograms of head measures for one shard, which can be summed over shards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from bert_probe.analyses.attention.head_measures import MEASURES
from bert_probe.model.lengths import max_input_tokens
from bert_probe.model.trace import Array

BINS = 64
"""Number of bins of each histogram."""


def bin_edges(measure: str, max_tokens: int | None) -> Array:
    """Return the edges of a measure's histogram bins, float64 [bin + 1].

    Shares and relative measures range from 0 to 1. Entropy and distance range up to their maximum for the
    longest text. Distance bins have equal widths in log(1 + distance), as most attention goes to near tokens.

    Args:
        measure: one of `MEASURES`.
        max_tokens: maximum input length of the model in tokens, see `Description`.
    """
    longest = max_input_tokens(max_tokens)
    if measure == "entropy_bits":
        return np.linspace(0, np.log2(longest), BINS + 1)
    if measure == "mean_distance":
        return np.expm1(np.linspace(0, np.log1p(longest), BINS + 1))
    return np.linspace(0, 1, BINS + 1)


def statistics_columns(profiles: Array, max_tokens: int | None) -> dict[str, Any]:
    """Return the columns of a shard's table of statistics.

    Args:
        profiles: measures of every head, float32 [sentence, layer, head, measure].
        max_tokens: maximum input length of the model in tokens, see `Description`.
    """
    count, layers, heads, _ = profiles.shape
    grid = [(layer, head, name) for name in MEASURES for layer in range(layers) for head in range(heads)]
    values = profiles.astype(np.float64).transpose(3, 1, 2, 0).reshape(len(grid), count)
    bins = np.concatenate(
        [
            _histograms(measured, bin_edges(name, max_tokens))
            for name, measured in zip(MEASURES, np.split(values, len(MEASURES)), strict=True)
        ]
    )
    no_value = np.full(len(grid), np.nan)
    return {
        "layer": [layer + 1 for layer, _, _ in grid],
        "head": [head + 1 for _, head, _ in grid],
        "measure": [name for _, _, name in grid],
        "count": np.full(len(grid), count),
        "sum": values.sum(axis=1),
        "squares": (values**2).sum(axis=1),
        "min": values.min(axis=1) if count else no_value,
        "max": values.max(axis=1) if count else no_value,
        "bins": pa.FixedSizeListArray.from_arrays(pa.array(bins.ravel()), BINS),
    }


def bin_indices(values: Array, edges: Array) -> Array:
    """Return the bin of each value, from 0.

    A bin includes its lower edge. Values outside the edges, due to rounding, fall into the first or last bin.
    """
    return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, BINS - 1)


def _histograms(values: Array, edges: Array) -> Array:
    """Count the values of each row in each bin: [row, value] → int64 [row, bin]."""
    flat = bin_indices(values, edges) + np.arange(len(values))[:, None] * BINS
    counts: Array = np.bincount(flat.ravel(), minlength=len(values) * BINS).reshape(-1, BINS)
    return counts
