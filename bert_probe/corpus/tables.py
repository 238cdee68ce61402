"""Define the tables of a store, and compute the columns of its statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from bert_probe.analyses.attention.heads import MEASURES
from bert_probe.corpus.inputs import ANSWERS, NEIGHBORS, PROFILES, VECTORS, IngestConfig
from bert_probe.model.lengths import max_input_tokens
from bert_probe.model.trace import Array

BINS = 64
"""Number of bins in each histogram of a head measure."""


def bin_edges(measure: str, max_tokens: int | None) -> Array:
    """Return the edges of the bins in a measure's histogram (float64); there is one more edge than bins.

    The bins of shares and relative measures range from 0 to 1. The bins of entropy and distance range from 0
    to the maximum for the longest text. Distance bins have equal widths in log(1 + distance), because most
    attention goes to near tokens.

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
        profiles: measures of every head, float32 of shape [sentence, layer, head, measure].
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
    """Return the index of the bin that contains each value, from 0.

    A bin includes its lower edge. Values that rounding moves outside the edges are in the first or last bin.
    """
    return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, BINS - 1)


def _histograms(values: Array, edges: Array) -> Array:
    """Return the histogram of each row of a matrix, as int64 of shape [row, bin]."""
    flat = bin_indices(values, edges) + np.arange(len(values))[:, None] * BINS
    counts: Array = np.bincount(flat.ravel(), minlength=len(values) * BINS).reshape(-1, BINS)
    return counts


ROWS, TOKENS, STATISTICS, REFUSALS = "rows", "tokens", "statistics", "refusals"

Tables = Mapping[str, pa.Table]
"""The tables of a shard, by table name."""

_ROW, _INDEX, _POSITION = pa.int64(), pa.int16(), pa.int32()


@dataclass(frozen=True)
class TableSchema:
    """The columns and the file format of a table.

    Rows, lines, positions, words, layers and heads count from 1, except for the layers of vectors. These
    count from 0, which is the output of the embeddings.

    Attributes:
        schema: Arrow schema.
        ending: file name extension: "parquet", or "arrow" for an uncompressed Arrow IPC file, which can be
            memory-mapped.
    """

    schema: pa.Schema
    ending: str = "parquet"


def layouts(question: IngestConfig, hidden_size: int) -> dict[str, TableSchema]:
    """Return the schemas of the tables that a store has, by table name.

    Args:
        question: the configuration of the store, which determines its optional tables.
        hidden_size: number of components of a vector.
    """
    schemas = {
        ROWS: TableSchema(_ROWS),
        TOKENS: TableSchema(_TOKENS),
        PROFILES: TableSchema(_PROFILES),
        STATISTICS: TableSchema(_STATISTICS),
        VECTORS: TableSchema(_vectors(question.dtype, hidden_size), "arrow"),
        NEIGHBORS: TableSchema(_NEIGHBORS),
        ANSWERS: TableSchema(_ANSWERS),
        REFUSALS: TableSchema(_REFUSALS),
    }
    names = {ROWS, TOKENS, REFUSALS, *question.keep, *({STATISTICS} if PROFILES in question.keep else ())}
    return {name: schema for name, schema in schemas.items() if name in names}


_ROWS = pa.schema(
    {
        "row": _ROW,
        "file": pa.string(),
        "line": pa.int64(),
        "text": pa.string(),
        "tokens": pa.int32(),
        "tokens_dropped": pa.int32(),
        "about": pa.string(),
    }
)
_TOKENS = pa.schema(
    {
        "row": _ROW,
        "position": _POSITION,
        "id": pa.int32(),
        "token": pa.string(),
        "text": pa.string(),
        "word": pa.int32(),
        "start": pa.int32(),
        "end": pa.int32(),
        "special": pa.bool_(),
        "tag": pa.string(),
        "head": pa.int32(),
        "relation": pa.string(),
    }
)
_PROFILES = pa.schema({"row": _ROW, "layer": _INDEX, "head": _INDEX, **dict.fromkeys(MEASURES, pa.float32())})
_NEIGHBORS = pa.schema(
    {
        "row": _ROW,
        "layer": _INDEX,
        "head": _INDEX,
        "query": _POSITION,
        "key": _POSITION,
        "weight": pa.float32(),
    }
)
_ANSWERS = pa.schema(
    {
        "row": _ROW,
        "position": _POSITION,
        "label": pa.string(),
        "logit": pa.float32(),
        "probability": pa.float32(),
    }
)
_STATISTICS = pa.schema(
    {
        "layer": _INDEX,
        "head": _INDEX,
        "measure": pa.string(),
        "count": pa.int64(),
        "sum": pa.float64(),
        "squares": pa.float64(),
        "min": pa.float64(),
        "max": pa.float64(),
        "bins": pa.list_(pa.int64(), BINS),
    }
)
_REFUSALS = pa.schema(
    {"row": _ROW, "file": pa.string(), "line": pa.int64(), "text": pa.string(), "reason": pa.string()}
)


def _vectors(dtype: str, hidden_size: int) -> pa.Schema:
    component = {"float32": pa.float32(), "float16": pa.float16()}[dtype]
    vector = pa.list_(component, hidden_size)
    return pa.schema({"row": _ROW, "position": _POSITION, "layer": _INDEX, "vector": vector})
