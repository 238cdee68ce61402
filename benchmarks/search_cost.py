"""Time of a search against sentence-transformers, with equal scores, and of a query on encoded documents."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import numpy as np
from sentence_transformers import SentenceTransformer

import bert_probe
from benchmarks.pairs import Line
from benchmarks.trace_cost import text_of

COUNT = 350
LENGTHS = (60, 120, 160, 200, 240, 320)
QUERIES = 21
TARGET = 1.15
QUERY_TARGET = 150.0


def lines() -> Iterator[Line]:
    checkpoint = bert_probe.load()
    rival = SentenceTransformer(str(checkpoint.folder), device=checkpoint.description.device)
    rng = random.Random(0)
    documents = [f"{number} {text_of(rng.choice(LENGTHS))}" for number in range(COUNT)]
    query = text_of(12)

    def ours() -> np.ndarray:
        return bert_probe.Search(query).of(checkpoint, documents).scores["bi-encoder"]

    def theirs() -> np.ndarray:
        vectors = rival.encode_document(documents, show_progress_bar=False)
        scores: np.ndarray = (rival.encode_query([query]) @ vectors.T)[0]
        return scores

    off = float(np.abs(ours() - theirs()).max())
    if off > 1e-5:
        raise RuntimeError(f"The scores differ by {off:.2g}, so they are not rivals.")
    took = [_seconds(work) for work in (ours, theirs, theirs, ours)]
    ratio = (took[0] + took[3]) / (took[1] + took[2])
    yield Line(
        f"Search in {COUNT:,} documents of 60 to 256 tokens, all-MiniLM-L6-v2",
        "SentenceTransformer.encode of documents and query, and a matrix product; same scores",
        f"{ratio:.3f} × ({took[0]:.1f} and {took[3]:.1f} s to {took[1]:.1f} and {took[2]:.1f} s)",
        f"at most {TARGET:.2f} ×",
        ratio <= TARGET,
    )
    index = bert_probe.Search(query).index(checkpoint, documents * 4)
    searches = [bert_probe.Search(f"{query} {number}") for number in range(QUERIES)]
    milliseconds = 1000 * median(_seconds(partial(search.of, checkpoint, index)) for search in searches)
    yield Line(
        f"A query on {4 * COUNT:,} encoded documents",
        "nothing",
        f"{milliseconds:.0f} ms (median of {QUERIES})",
        f"at most {QUERY_TARGET:.0f} ms",
        milliseconds <= QUERY_TARGET,
    )


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
