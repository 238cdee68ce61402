"""Measure the search for nearest contexts among a million vectors: its time, and the recall of an index.

A store of a few thousand texts is enlarged with copies of its shards, which have new row numbers and shifted
vectors. Each vector is shifted by half the difference of two other vectors, so that shifts are realistic.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

import bert_probe
from benchmarks.pairs import Line
from bert_probe.corpus.contexts import EXACT_UP_TO, NearestContextsResult
from bert_probe.corpus.schema import MANIFEST
from bert_probe.corpus.store import Store, write_json, write_shard
from bert_probe.text.datasets import everyday_topics
from bert_probe.text.words import word_lens, word_name

VECTORS = EXACT_UP_TO + 1
TEXTS = 3000
SHARD_ROWS = 1000
QUERIES = 25
TARGET, RECALL_TARGET = 0.2, 0.95
MOVED = 0.5


def lines() -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as folder:
        store = _store(Path(folder))
        checkpoint = store.checkpoint(trust=True)
        queries = [*_asked(checkpoint)]

        def timed(exact: bool) -> tuple[float, list[NearestContextsResult]]:
            """Return the median time of a search with its forward pass in seconds, after a warm-up."""
            took, results = [], []
            for text, word in queries:
                start = time.perf_counter()
                results.append(
                    bert_probe.NearestContexts(word, exact=exact).of(store, checkpoint.trace(text))
                )
                took.append(time.perf_counter() - start)
            return statistics.median(took[1:]), results[1:]

        seconds, exact = timed(exact=True)
        yield Line(
            f"`NearestContexts` among {store.tokens:,} vectors of "
            f"{store.manifest['sizes']['hidden_size']}, exact, warm",
            f"wall clock, median of {len(exact)} words, including the forward pass",
            f"{1000 * seconds:.0f} ms",
            f"at most {1000 * TARGET:.0f} ms",
            seconds <= TARGET,
        )
        seconds, approximate = timed(exact=False)
        recall = statistics.mean(map(_share, approximate, exact))
        stated = approximate[0].metadata
        yield Line(
            f"The same with an index, {stated['search'].partition(',')[0]}: recall@10 of the contexts",
            f"the exact search; the index states {stated['recall_at_10']:.3f}",
            f"{recall:.3f} in {1000 * seconds:.0f} ms",
            f"at least {RECALL_TARGET}, at most {1000 * TARGET:.0f} ms",
            recall >= RECALL_TARGET and seconds <= TARGET,
        )


def _share(approximate: NearestContextsResult, exact: NearestContextsResult) -> float:
    true = {context.row for context in exact.contexts}
    return len(true & {context.row for context in approximate.contexts}) / len(true)


def _texts() -> list[str]:
    """Return texts that consist of two everyday sentences."""
    sentences, rng = [row.text for row in everyday_topics().rows], random.Random(0)
    return [f"{rng.choice(sentences)} {rng.choice(sentences)}" for _ in range(TEXTS)]


def _asked(checkpoint: bert_probe.Checkpoint) -> Iterator[tuple[str, str]]:
    """Yield a random text and one of its words for each query."""
    rng = random.Random(1)
    for text in rng.sample(_texts(), QUERIES + 1):
        trace = checkpoint.trace(text)
        unit = rng.choice([unit for unit in word_lens(trace).units if not unit.special and unit.isalpha()])
        yield text, word_name(trace, unit)


def _store(folder: Path) -> Store:
    """Build a store and add shifted copies of its shards until it has at least `VECTORS` vectors."""
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in _texts()), encoding="utf-8")
    store = bert_probe.build_corpus(
        bert_probe.load(),
        bert_probe.IngestConfig(keep=("vectors",)),
        [folder / "texts.txt"],
        folder / "store",
        shard_rows=SHARD_ROWS,
    )
    first = [*_tables(store)]
    rng, number, tokens = np.random.default_rng(0), len(first), store.tokens
    while tokens < VECTORS:
        again, part = divmod(number, len(first))
        tables = {name: _later(table, again * TEXTS) for name, table in first[part].items()}
        tables["vectors"] = _moved(tables["vectors"], rng)
        tokens += write_shard(
            store.folder, number, number * SHARD_ROWS + 1, SHARD_ROWS, tables, store.layouts
        ).tokens
        number += 1
    write_json(store.folder / MANIFEST, {**store.manifest, "records": number * SHARD_ROWS})
    return bert_probe.open_corpus(store.folder)


def _tables(store: Store) -> Iterator[dict[str, pa.Table]]:
    """Yield the tables of each shard by name."""
    for number in range(len(store.shards)):
        rows = ds.field("row")
        here = (rows > number * SHARD_ROWS) & (rows <= (number + 1) * SHARD_ROWS)
        yield {name: store.table(name).to_table(filter=here) for name in store.layouts}


def _later(table: pa.Table, rows: int) -> pa.Table:
    """Return a copy of a table with row numbers increased by `rows`."""
    return table.set_column(0, "row", pa.array(table["row"].to_numpy() + rows))


def _moved(table: pa.Table, rng: np.random.Generator) -> pa.Table:
    """Return a copy of a table with each vector shifted by the scaled difference of two random vectors."""
    stored = table["vector"].combine_chunks()
    vectors = stored.flatten().to_numpy().reshape(len(stored), -1)
    first, second = (rng.permutation(len(vectors)) for _ in range(2))
    numbers = pa.array((vectors + np.float32(MOVED) * (vectors[first] - vectors[second])).ravel())
    moved = pa.FixedSizeListArray.from_arrays(numbers, vectors.shape[1])
    return table.set_column(table.schema.get_field_index("vector"), "vector", moved)
