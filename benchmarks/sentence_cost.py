"""Measure the time of sentence embeddings relative to sentence-transformers, with equal vectors."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Iterator

import numpy as np
from sentence_transformers import SentenceTransformer

import bert_probe
from benchmarks.pairs import Line
from benchmarks.trace_cost import text_of
from bert_probe.analyses.vectors.sentences import BATCH_TOKENS

COUNT = 2000
LENGTHS = (6, 8, 10, 14, 18, 24, 32, 48, 64)
TARGET = 1.15
MEMORY_TARGET = 80.0


def lines() -> Iterator[Line]:
    checkpoint = bert_probe.load()
    rival = SentenceTransformer(str(checkpoint.folder), device=checkpoint.description.device)
    rng = random.Random(0)
    texts = [f"{number} {text_of(rng.choice(LENGTHS))}" for number in range(COUNT)]
    tokens = sum(len(checkpoint.encoder.inputs(text)) for text in texts)
    batch = round(BATCH_TOKENS * COUNT / tokens)  # BERT Probe has about as many tokens per batch

    def ours(some: list[str]) -> np.ndarray:
        return bert_probe.Sentences("model").of(checkpoint, some).vectors

    def theirs(some: list[str]) -> np.ndarray:
        return rival.encode(some, batch_size=batch, show_progress_bar=False)

    few = texts[: COUNT // 10]
    off = float(np.abs(ours(few) - theirs(few)).max())
    if off > 1e-5:
        raise RuntimeError(f"The vectors differ by {off:.2g}, so the run times cannot be compared.")
    before = _peak()
    ours(texts)
    grown = _peak() - before
    took = [_seconds(work, texts) for work in (ours, theirs, theirs, ours)]
    ratio = (took[0] + took[3]) / (took[1] + took[2])
    yield Line(
        f"Vectors of {COUNT:,} sentences, {tokens:,} tokens, all-MiniLM-L6-v2",
        f"SentenceTransformer.encode, {batch} sentences per batch, as many tokens as ours; same numbers",
        f"{ratio:.3f} × ({took[0]:.1f} and {took[3]:.1f} s to {took[1]:.1f} and {took[2]:.1f} s)",
        f"at most {TARGET:.2f} ×",
        ratio <= TARGET,
    )
    yield Line(
        f"Additional memory for {COUNT:,} sentences, compared with {len(few)}",
        f"vectors of {COUNT * 384 * 4 / 1e6:.1f} MB; the remainder is torch's cache for each batch shape",
        f"{grown:.1f} MB",
        f"at most {MEMORY_TARGET:.0f} MB",
        grown <= MEMORY_TARGET,
    )


def _seconds(work: Callable[[list[str]], np.ndarray], texts: list[str]) -> float:
    start = time.perf_counter()
    work(texts)
    return time.perf_counter() - start


def _peak() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
