"""Numbers and sentences of a store, read back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow.parquet as pq

from bert_probe.core.provenance import InputRecord
from bert_probe.core.snippets import url_parameters
from bert_probe.corpus.ingest import PROFILES
from bert_probe.corpus.store import Store
from bert_probe.corpus.table_files import reading
from bert_probe.corpus.tables import ROWS
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array


@dataclass(frozen=True)
class SentenceRow:
    """A row of a store, where it stands.

    Attributes:
        row: number of the record, from 1.
        dropped: tokens of it that were cut off.
    """

    row: int
    file: str
    line: int
    text: str
    dropped: int


def profile(store: Store, measure: str, heads: Sequence[int], report: Progress = no_progress) -> Array:
    """A measure of some heads of every row, float32 [head, row]; rows in the order of the store.

    Args:
        heads: as numbers from 0 over all layers.
        report: told how many shards are read, and of how many.
    """
    values = np.empty((len(heads), store.rows), np.float32)
    done, files = 0, store.files(PROFILES)
    for number, file in enumerate(files):
        with reading(store.folder.name):
            column = pq.read_table(file, columns=[measure])[measure].to_numpy()
            part = column.reshape(-1, store.sizes.layers * store.sizes.heads)
            values[:, done : done + len(part)] = part.T[list(heads)]
        done += len(part)
        report(number + 1, len(files))
    return values


def row_numbers(store: Store) -> Array:
    """Numbers of the rows that were read, from 1, [row]; in the order of the store."""
    with reading(store.folder.name):
        parts = [pq.read_table(file, columns=["row"])["row"].to_numpy() for file in store.files(ROWS)]
        return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64, casting="safe")


def sentences(store: Store, rows: Sequence[int]) -> tuple[SentenceRow, ...]:
    """Some rows by their numbers, in the order given; only the shards that hold one are opened."""
    files = store.files(ROWS)
    wanted: dict[int, list[int]] = {}
    with reading(store.folder.name):
        for row in rows:
            wanted.setdefault(store.shard_of(row), []).append(row)
        found = {
            one.row: one
            for shard, some in wanted.items()
            for one in _sentences_in(str(files[shard]), set(some))
        }
        return tuple(found[row] for row in rows)


def ranked(found: Sequence[SentenceRow]) -> dict[str, Sequence[Any]]:
    """Columns that say which rows these are: rank, row, file, line."""
    return {
        "rank": range(1, len(found) + 1),
        "row": [one.row for one in found],
        "file": [one.file for one in found],
        "line": [one.line for one in found],
    }


def _sentences_in(file: str, rows: set[int]) -> Iterator[SentenceRow]:
    table = pq.read_table(
        file,
        columns=["row", "file", "line", "text", "tokens_dropped"],
        filters=[("row", "in", rows)],
        partitioning=None,  # a folder called a=b is no column
    )
    lines = table.to_pylist()
    if any(value is None for line in lines for value in line.values()):
        raise ValueError("a row without a text, a file or a line")
    yield from (SentenceRow(*line.values()) for line in lines)


def links(store: Store, found: Sequence[SentenceRow], choices: Sequence[dict[str, str]]) -> list[str]:
    """Of each sentence the address, within the app, of the head view that shows it.

    Args:
        choices: of each what of the view is to be seen.
    """
    return [_link(store, one, choice) for one, choice in zip(found, choices, strict=True)]


def _link(store: Store, one: SentenceRow, chosen: dict[str, str]) -> str:
    text = {"text": one.text, "pair": None, "tokens_dropped": one.dropped}
    words = {"words": "1"} if store.question.words else {}
    given = url_parameters(InputRecord(store.manifest["model"], (text,)))
    return "" if given is None else f"/attention?{urlencode({**given, **chosen, **words})}"
