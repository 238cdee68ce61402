"""The tables of a store: their columns, and how they are laid down in files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from bert_probe.analyses.attention.head_measures import MEASURES
from bert_probe.corpus.ingest import ANSWERS, NEIGHBOURS, PROFILES, VECTORS, IngestConfig
from bert_probe.corpus.statistics import BINS

ROWS, TOKENS, STATISTICS, REFUSALS = "rows", "tokens", "statistics", "refusals"

Tables = Mapping[str, pa.Table]
"""Name of a table → its rows."""

_ROW, _PLACE, _POSITION = pa.int64(), pa.int16(), pa.int32()


@dataclass(frozen=True)
class TableSchema:
    """A table of a store.

    Attributes:
        schema: its columns. Rows, lines, positions, words, layers and heads count from 1, layers of vectors
            from 0, which is the output of the embeddings.
        ending: of its files: "parquet", or "arrow" for an uncompressed Arrow IPC file, which is read where it
            lies.
    """

    schema: pa.Schema
    ending: str = "parquet"


def layouts(question: IngestConfig, hidden_size: int) -> dict[str, TableSchema]:
    """The tables that a store has whose question this is."""
    made = {
        ROWS: TableSchema(_ROWS),
        TOKENS: TableSchema(_TOKENS),
        PROFILES: TableSchema(_PROFILES),
        STATISTICS: TableSchema(_STATISTICS),
        VECTORS: TableSchema(_vectors(question.dtype, hidden_size), "arrow"),
        NEIGHBOURS: TableSchema(_NEIGHBOURS),
        ANSWERS: TableSchema(_ANSWERS),
        REFUSALS: TableSchema(_REFUSALS),
    }
    kept = {ROWS, TOKENS, REFUSALS, *question.keep, *({STATISTICS} if PROFILES in question.keep else ())}
    return {name: layout for name, layout in made.items() if name in kept}


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
_PROFILES = pa.schema({"row": _ROW, "layer": _PLACE, "head": _PLACE, **dict.fromkeys(MEASURES, pa.float32())})
_NEIGHBOURS = pa.schema(
    {
        "row": _ROW,
        "layer": _PLACE,
        "head": _PLACE,
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
        "layer": _PLACE,
        "head": _PLACE,
        "measure": pa.string(),
        "count": pa.int64(),
        "sum": pa.float64(),
        "squares": pa.float64(),
        "least": pa.float64(),
        "most": pa.float64(),
        "bins": pa.list_(pa.int64(), BINS),
    }
)
_REFUSALS = pa.schema(
    {"row": _ROW, "file": pa.string(), "line": pa.int64(), "text": pa.string(), "reason": pa.string()}
)


def _vectors(dtype: str, hidden_size: int) -> pa.Schema:
    number = {"float32": pa.float32(), "float16": pa.float16()}[dtype]
    vector = pa.list_(number, hidden_size)
    return pa.schema({"row": _ROW, "position": _POSITION, "layer": _PLACE, "vector": vector})
