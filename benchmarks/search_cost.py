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
from benchmarks.pairs import Line, paired
from benchmarks.trace_cost import text_of

COUNT = 50
ENCODED = 1_400
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
    timed = paired(ours, theirs, min_rounds=9)
    low, high = timed.spread
    yield Line(
        f"Search in {COUNT:,} documents of 60 to 256 tokens, all-MiniLM-L6-v2",
        "SentenceTransformer.encode of documents and query, and a matrix product; same scores",
        f"{timed.ratio:.3f} × (quartiles {low:.3f} to {high:.3f}; {len(timed.ours)} pairs)",
        f"at most {TARGET:.2f} ×",
        timed.ratio <= TARGET,
    )
    index = bert_probe.Search(query).index(checkpoint, documents * (ENCODED // COUNT))
    searches = [bert_probe.Search(f"{query} {number}") for number in range(QUERIES)]
    milliseconds = 1000 * median(_seconds(partial(search.of, checkpoint, index)) for search in searches)
    yield Line(
        f"A query on {ENCODED:,} encoded documents",
        "nothing",
        f"{milliseconds:.0f} ms (median of {QUERIES})",
        f"at most {QUERY_TARGET:.0f} ms",
        milliseconds <= QUERY_TARGET,
    )


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
