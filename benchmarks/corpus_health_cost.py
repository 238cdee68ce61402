"""Health of a corpus: duplicates, outliers and hubs among 50,000 vectors, from all pairs.

The number of pairs grows with the square of the number of vectors, so 100,000 take four times as long.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from benchmarks.pairs import Line
from bert_probe.corpus.health import CorpusHealth
from bert_probe.corpus.vector_files import make_vector_set

ROWS, SIZE, CENTERS = 50_000, 384, 200
TARGET = 15  # equivalent to 60 s for 100,000 vectors


def lines() -> Iterator[Line]:
    draw = np.random.default_rng(0)
    centers = draw.normal(size=(CENTERS, SIZE))
    vectors = centers[draw.integers(CENTERS, size=ROWS)] + draw.normal(size=(ROWS, SIZE))
    vector_set = make_vector_set("random", vectors.astype(np.float32))
    start = time.perf_counter()
    CorpusHealth().of(vector_set)
    seconds = time.perf_counter() - start
    yield Line(
        f"`CorpusHealth` of {ROWS:,} vectors of {SIZE}, with clusters of a sample",
        "wall clock, one run",
        f"{seconds:.0f} s",
        f"at most {TARGET} s",
        seconds <= TARGET,
    )
