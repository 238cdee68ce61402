"""Measure the time of a search relative to sentence-transformers, and of queries on encoded documents."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util.similarity import maxsim as rival_maxsim

import bert_probe
from benchmarks.pairs import Line, paired
from benchmarks.trace_cost import text_of
from bert_probe.analyses.retrieval.late_interaction import TokenVectors, maxsim
from bert_probe.model.checkpoint import Checkpoint

COUNT = 50
ENCODED = 1_400
LENGTHS = (60, 120, 160, 200, 240, 320)
QUERIES = 21
TARGET = 1.15
QUERY_TARGET = 150.0
VECTORS = 1_000_000
VECTOR_TARGET = 300.0
TOKEN_DOCUMENTS = 2_000
"""Number of documents in the MaxSim benchmark."""


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
        raise RuntimeError(f"The scores differ by {off:.2g}, so the run times cannot be compared.")
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
    yield _maxsim_line()
    with TemporaryDirectory() as folder:
        yield _vector_line(checkpoint, Path(folder, "vectors.npy"))


def _vector_line(checkpoint: Checkpoint, file: Path) -> Line:
    """Measure queries on a million memory-mapped vectors, and compare the ranking with brute force."""
    size = checkpoint.description.hidden_size
    vectors = np.lib.format.open_memmap(file, "w+", np.float32, (VECTORS, size))
    random = np.random.default_rng(0)
    for start in range(0, VECTORS, 50_000):
        vectors[start : start + 50_000] = random.standard_normal((50_000, size), np.float32)
    query = bert_probe.VectorSearch("0")
    start_time = time.perf_counter()
    index = query.index(checkpoint, bert_probe.read_vectors(file))
    opening = time.perf_counter() - start_time
    result = query.of(checkpoint, index)
    encoded = bert_probe.Sentences("model").of(checkpoint, ["0"]).vectors[0].astype(np.float64)
    cosines = np.concatenate(
        [_cosines(vectors[start : start + 50_000], encoded) for start in range(0, VECTORS, 50_000)]
    )
    expected = np.argsort(-cosines, kind="stable")[:10]
    if [int(document.id) - 1 for document in result.documents] != expected.tolist():
        raise RuntimeError("The best documents differ from those of brute force in float64.")
    searches = [bert_probe.VectorSearch(f"query {number}") for number in range(QUERIES)]
    processes, walls = [], []
    for search in searches:
        process = time.process_time()
        walls.append(1000 * _seconds(partial(search.of, checkpoint, index)))
        processes.append(1000 * (time.process_time() - process))
    return Line(
        f"A query on {VECTORS:,} × {size} memory-mapped float32 vectors, opened in {opening:.0f} s",
        "brute force in float64; same documents",
        f"{median(walls):.0f} ms (median of {QUERIES}; process time {median(processes):.0f} ms)",
        f"at most {VECTOR_TARGET:.0f} ms",
        median(walls) <= VECTOR_TARGET,
    )


def _cosines(block: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Return the cosine similarity of each row with the query, computed in float64."""
    rows = block.astype(np.float64)
    cosines: np.ndarray = rows @ query / (np.linalg.norm(rows, axis=1) * np.linalg.norm(query))
    return cosines


def _maxsim_line() -> Line:
    random = np.random.default_rng(0)
    lengths = random.integers(60, 181, TOKEN_DOCUMENTS)
    ends = np.cumsum(lengths)
    vectors = random.normal(size=(int(ends[-1]), 128)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    query = vectors[:32]
    spans = np.stack([ends - lengths, ends], axis=1)
    documents = TokenVectors(vectors, spans, (0,) * TOKEN_DOCUMENTS)
    tensors = [torch.from_numpy(vectors[first:last]) for first, last in spans]
    query_tensor = torch.from_numpy(query)

    def theirs() -> np.ndarray:
        scores: np.ndarray = rival_maxsim([query_tensor], tensors)[0].numpy()
        return scores

    off = float(np.abs(maxsim(query, documents) - theirs()).max())
    if off > 1e-4:
        raise RuntimeError(f"The scores differ by {off:.2g}, so the run times cannot be compared.")
    timed = paired(partial(maxsim, query, documents), theirs, min_rounds=9)
    low, high = timed.spread
    return Line(
        f"MaxSim of 32 tokens with {TOKEN_DOCUMENTS:,} documents of 60 to 180 tokens, 128 dimensions",
        "maxsim of sentence-transformers, which MultiVectorEncoder.similarity calls; same scores",
        f"{timed.ratio:.3f} × (quartiles {low:.3f} to {high:.3f}; {len(timed.ours)} pairs)",
        f"at most {TARGET:.2f} ×",
        timed.ratio <= TARGET,
    )


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
