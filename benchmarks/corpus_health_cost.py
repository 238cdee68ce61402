"""Measure the time of a corpus health analysis of 100,000 vectors, which compares all pairs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from benchmarks.pairs import Line
from bert_probe.corpus.health import CorpusHealth
from bert_probe.corpus.vector_files import make_vector_set

ROWS, SIZE, CENTERS = 100_000, 384, 200
TARGET = 60


def lines() -> Iterator[Line]:
    draw = np.random.default_rng(0)
    centers = draw.normal(size=(CENTERS, SIZE))
    vectors = centers[draw.integers(CENTERS, size=ROWS)] + draw.normal(size=(ROWS, SIZE))
    vector_set = make_vector_set("random", vectors.astype(np.float32))
    start, processor_start = time.perf_counter(), time.process_time()
    CorpusHealth().of(vector_set)
    seconds, processor_seconds = time.perf_counter() - start, time.process_time() - processor_start
    yield Line(
        f"`CorpusHealth` of {ROWS:,} vectors of {SIZE}, with clusters of a sample",
        "wall clock, one run",
        f"{seconds:.0f} s (processor time {processor_seconds:.0f} s)",
        f"at most {TARGET} s",
        seconds <= TARGET,
    )
