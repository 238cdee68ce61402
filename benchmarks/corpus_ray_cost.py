"""Measure the time of building a corpus with Ray actors, relative to threads in one process."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import bert_probe
from benchmarks.pairs import Line
from benchmarks.sentence_cost import LENGTHS
from benchmarks.trace_cost import text_of
from bert_probe.corpus.build import build_corpus
from bert_probe.corpus.inputs import IngestConfig
from bert_probe.corpus.workers import RayRunner, ShardRunner, ThreadRunner

COUNT = 4000
SHARD = 500
WORKERS = 2
TARGET = 1.15


def lines() -> Iterator[Line]:
    """Measure two runs with threads and two with Ray actors, each with `WORKERS` single-threaded workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(WORKERS)
    try:
        with TemporaryDirectory() as folder:
            yield from _lines(Path(folder))
    finally:
        torch.set_num_threads(before)


def _lines(folder: Path) -> Iterator[Line]:
    checkpoint, rng = bert_probe.load(), random.Random(0)
    file = folder / "lines.txt"
    file.write_text("\n".join(f"{number} {text_of(rng.choice(LENGTHS))}" for number in range(COUNT)))
    digests: set[str] = set()

    def read(on: ShardRunner) -> tuple[float, float]:
        """Return the time until the first shard, and the time from the first shard to the end, in seconds."""
        begun, first = time.perf_counter(), list[float]()
        store = build_corpus(
            checkpoint,
            IngestConfig(),
            [file],
            folder / f"store {len(digests)} {begun}",
            shard_rows=SHARD,
            on=on,
            on_shard=lambda _: first.append(time.perf_counter() - begun),
        )
        digests.add(store.digest)
        return first[0], time.perf_counter() - begun - first[0]

    threads, ray = ThreadRunner(WORKERS), RayRunner(workers=WORKERS)
    took = [read(on) for on in (threads, ray, ray, threads)]
    if len(digests) > 1:
        raise RuntimeError("Ray and threads give different stores, so their times cannot be compared.")
    first, later = ([run[place] for run in took] for place in range(2))
    ratio = (later[1] + later[2]) / (later[0] + later[3])
    yield Line(
        f"A corpus of {COUNT:,} sentences with Ray, {WORKERS} workers, after the first shard",
        f"{WORKERS} threads of one process; shards of {SHARD} on both sides; the same store",
        f"{ratio:.2f} × ({later[1]:.1f} and {later[2]:.1f} s to {later[0]:.1f} and {later[3]:.1f} s)",
        f"at most {TARGET:.2f} ×",
        ratio <= TARGET,
    )
    yield Line(
        "Time until the first shard is written",
        f"threads: {first[0]:.1f} and {first[3]:.1f} s, with the model open",
        f"{first[1]:.1f} and {first[2]:.1f} s: Ray starts, and its workers open the model",
        "",
        None,
    )
