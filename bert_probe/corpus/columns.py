"""Read measures and sentences from the tables of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow.parquet as pq

from bert_probe.core.provenance import InputRecord
from bert_probe.core.snippets import url_parameters
from bert_probe.corpus.inputs import PROFILES
from bert_probe.corpus.store import Store
from bert_probe.corpus.table_files import store_errors
from bert_probe.corpus.tables import ROWS
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array


@dataclass(frozen=True)
class SentenceRow:
    """A sentence of a store and its source.

    Attributes:
        row: number of the record, from 1.
        file: name of the input file.
        line: line number in the file, from 1.
        text: the sentence.
        dropped: number of tokens removed by truncation.
    """

    row: int
    file: str
    line: int
    text: str
    dropped: int


def read_measure(store: Store, measure: str, heads: Sequence[int], progress: Progress = no_progress) -> Array:
    """Return one measure of some heads for every row of a store, as float32 of shape [head, row].

    Args:
        store: a store with profiles.
        measure: one of the measures of `Heads`.
        heads: flat head indices: layer × heads per layer + head, with layer and head from 0.
        progress: called with the number of shards read and their total.
    """
    values = np.empty((len(heads), store.rows), np.float32)
    done, files = 0, store.files(PROFILES)
    for number, file in enumerate(files):
        with store_errors(store.folder.name):
            column = pq.read_table(file, columns=[measure])[measure].to_numpy()
            shard = column.reshape(-1, store.sizes.layers * store.sizes.heads)
            values[:, done : done + len(shard)] = shard.T[list(heads)]
        done += len(shard)
        progress(number + 1, len(files))
    return values


def row_numbers(store: Store) -> Array:
    """Return the record numbers of all sentences of a store, from 1, in the order of the store (int64)."""
    with store_errors(store.folder.name):
        shards = [pq.read_table(file, columns=["row"])["row"].to_numpy() for file in store.files(ROWS)]
        return np.concatenate([np.empty(0, np.int64), *shards]).astype(np.int64, casting="safe")


def sentences(store: Store, rows: Sequence[int]) -> tuple[SentenceRow, ...]:
    """Return the sentences with the given record numbers, in the given order."""
    files = store.files(ROWS)
    rows_by_shard: dict[int, set[int]] = {}
    with store_errors(store.folder.name):
        for row in rows:
            rows_by_shard.setdefault(store.shard_of(row), set()).add(row)
        by_row = {
            sentence.row: sentence
            for shard, shard_rows in rows_by_shard.items()
            for sentence in _read_sentences(str(files[shard]), shard_rows)
        }
        return tuple(by_row[row] for row in rows)


def _read_sentences(file: str, rows: set[int]) -> Iterator[SentenceRow]:
    table = pq.read_table(
        file,
        columns=["row", "file", "line", "text", "tokens_dropped"],
        filters=[("row", "in", rows)],
        partitioning=None,  # otherwise, pyarrow would interpret a folder named a=b as a column
    )
    for values in table.to_pylist():
        if None in values.values():
            raise ValueError("a row without a text, a file or a line")
        yield SentenceRow(*values.values())


def rank_columns(ranking: Sequence[SentenceRow]) -> dict[str, Sequence[Any]]:
    """Return the columns that identify ranked sentences: rank, row, file, line."""
    return {
        "rank": range(1, len(ranking) + 1),
        "row": [sentence.row for sentence in ranking],
        "file": [sentence.file for sentence in ranking],
        "line": [sentence.line for sentence in ranking],
    }


def links(store: Store, ranking: Sequence[SentenceRow], parameters: Sequence[dict[str, str]]) -> list[str]:
    """Return the URL of each sentence's head view within the app; "" if the model is only in memory.

    Args:
        store: the store that contains the sentences; the head views use its model.
        ranking: the sentences.
        parameters: URL parameters of each head view, such as layer and head.
    """
    words = {"words": "1"} if store.question.words else {}
    urls = []
    for sentence, selection in zip(ranking, parameters, strict=True):
        text = {"text": sentence.text, "pair": None, "tokens_dropped": sentence.dropped}
        inputs = url_parameters(InputRecord(store.manifest["model"], (text,)))
        urls.append("" if inputs is None else f"/attention?{urlencode({**inputs, **selection, **words})}")
    return urls
