"""The tables of a store: their columns and file formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from bert_probe.analyses.attention.head_measures import MEASURES
from bert_probe.corpus.ingest import ANSWERS, NEIGHBORS, PROFILES, VECTORS, IngestConfig
from bert_probe.corpus.statistics import BINS

ROWS, TOKENS, STATISTICS, REFUSALS = "rows", "tokens", "statistics", "refusals"

Tables = Mapping[str, pa.Table]
"""Table name → rows."""

_ROW, _INDEX, _POSITION = pa.int64(), pa.int16(), pa.int32()


@dataclass(frozen=True)
class TableSchema:
    """The columns and the file format of a table.

    Rows, lines, positions, words, layers and heads count from 1. The layers of vectors count from 0, the
    output of the embeddings.

    Attributes:
        schema: Arrow schema.
        ending: file name extension: "parquet", or "arrow" for an uncompressed Arrow IPC file, which can be
            memory-mapped.
    """

    schema: pa.Schema
    ending: str = "parquet"


def layouts(question: IngestConfig, hidden_size: int) -> dict[str, TableSchema]:
    """Return table name → schema, for the tables of a store with this configuration.

    Args:
        question: what the store keeps.
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
