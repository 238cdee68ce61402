"""The records of a corpus in parts, a shard each: what is worked on at once, and held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from bert_probe.corpus.ingest import NEIGHBOURS, VECTORS, IngestConfig
from bert_probe.corpus.inputs import Record
from bert_probe.model.checkpoint import Checkpoint

SHARD_ROWS = 2000
"""Records of a part at most, unless somebody says otherwise: what is lost when a run is ended."""
SHARD_BYTES = 2**29
"""Memory that a part takes, about: one of long texts, or of many layers, has fewer records."""
TEXT_BYTES = 4
"""Of UTF-8 that are a token, about."""
TOKEN_BYTES = 2048
"""Memory of a token, about, beside what is kept of it."""
NEIGHBOUR_BYTES = 32
"""The same of a token and a head, where its neighbours are kept."""


def text_bytes(question: IngestConfig, checkpoint: Checkpoint) -> int:
    """How much UTF-8 a part holds at most, but for a single record that has more.

    Args:
        question: resolved, see `IngestConfig.of`.
    """
    about, token = checkpoint.description, TOKEN_BYTES
    if VECTORS in question.keep:
        token += len(question.layers or ()) * about.hidden_size * np.dtype(question.dtype).itemsize
    if NEIGHBOURS in question.keep:
        token += about.layers * about.heads * NEIGHBOUR_BYTES
    return SHARD_BYTES // token * TEXT_BYTES


def parted(records: Iterable[Record], most: int, most_bytes: int) -> Iterator[tuple[Record, ...]]:
    """The records, so many at a time; the same ones are parted the same way.

    Args:
        most: records of a part.
        most_bytes: of UTF-8 of a part; a record that has more is one by itself.
    """
    part: list[Record] = []
    size = 0
    for record in records:
        own = len((record.text or "").encode())
        if part and (len(part) == most or size + own > most_bytes):
            yield tuple(part)
            part, size = [], 0
        part.append(record)
        size += own
    if part:
        yield tuple(part)
