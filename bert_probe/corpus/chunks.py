"""Split the records of a corpus into chunks, one for each shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from bert_probe.corpus.ingest import NEIGHBORS, VECTORS, IngestConfig
from bert_probe.corpus.inputs import Record
from bert_probe.model.checkpoint import Checkpoint

SHARD_ROWS = 2000
"""Default maximum number of records in a chunk; an interrupted run loses the chunks in progress."""
SHARD_BYTES = 2**29
"""Approximate memory of a chunk. With long texts or many layers, a chunk has fewer records."""
TEXT_BYTES = 4
"""Approximate bytes of UTF-8 per token."""
TOKEN_BYTES = 2048
"""Approximate memory per token, in addition to its vectors and neighbors."""
NEIGHBOR_BYTES = 32
"""Approximate memory per token and head, if neighbors are kept."""


def max_text_bytes(question: IngestConfig, checkpoint: Checkpoint) -> int:
    """Return the maximum bytes of UTF-8 in a chunk, so that it takes about `SHARD_BYTES` of memory.

    Args:
        question: resolved, see `IngestConfig.of`.
        checkpoint: the model.
    """
    description, token_bytes = checkpoint.description, TOKEN_BYTES
    if VECTORS in question.keep:
        layers = len(question.layers or ())
        token_bytes += layers * description.hidden_size * np.dtype(question.dtype).itemsize
    if NEIGHBORS in question.keep:
        token_bytes += description.layers * description.heads * NEIGHBOR_BYTES
    return SHARD_BYTES // token_bytes * TEXT_BYTES


def chunked(records: Iterable[Record], max_records: int, max_bytes: int) -> Iterator[tuple[Record, ...]]:
    """Split records into chunks, the same records always in the same way.

    Args:
        records: the records in input order.
        max_records: maximum number of records in a chunk.
        max_bytes: maximum bytes of UTF-8 in a chunk; a longer record is a chunk of its own.
    """
    chunk: list[Record] = []
    chunk_bytes = 0
    for record in records:
        record_bytes = len((record.text or "").encode())
        if chunk and (len(chunk) == max_records or chunk_bytes + record_bytes > max_bytes):
            yield tuple(chunk)
            chunk, chunk_bytes = [], 0
        chunk.append(record)
        chunk_bytes += record_bytes
    if chunk:
        yield tuple(chunk)
