"""Measure time and memory for building a corpus store, relative to sentence-transformers."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from sentence_transformers import SentenceTransformer

import bert_probe
from benchmarks.pairs import Line
from benchmarks.trace_cost import text_of
from bert_probe.corpus.build import build_corpus
from bert_probe.corpus.inputs import IngestConfig
from bert_probe.model.checkpoint import Checkpoint

LENGTHS = (4, 5, 6, 7, 9, 11, 13, 15, 17, 19, 21, 24, 27, 31, 38, 57)
"""Token counts of the generated sentences, distributed like English sentences on the web: 19 on average."""
ROUNDS, PART = 10, 2_000
"""20,000 sentences in 10 parts. Both libraries process each part, so that other load affects both equally."""
WORKED = 8_000
FEW, MANY = 20_000, 200_000
SHORT = (4, 5, 6, 7, 8)
TARGET = 1.35
TARGET_MEMORY = 1.15

_MEASURED = """
import json, resource, sys
import bert_probe
checkpoint = bert_probe.load()
store = bert_probe.build_corpus(checkpoint, bert_probe.IngestConfig(), [sys.argv[1]], sys.argv[2])
print(json.dumps([store.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3]))
"""

_APART = """
import sys, time
import torch
import bert_probe
torch.set_num_threads(1)
checkpoint = bert_probe.load()
make = lambda source, folder: bert_probe.build_corpus(checkpoint, bert_probe.IngestConfig(), [source], folder)
make(sys.argv[1], sys.argv[3] + "-warm")
print("ready", flush=True)
sys.stdin.readline()
began = time.perf_counter()
make(sys.argv[2], sys.argv[3])
print(time.perf_counter() - began)
"""


def lines() -> Iterator[Line]:
    checkpoint = bert_probe.load()
    with tempfile.TemporaryDirectory() as folder:
        yield _beside_encode(checkpoint, Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        yield _by_two(checkpoint, Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        yield _beside_processes(checkpoint, Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        yield _in_memory(Path(folder))


def _beside_encode(checkpoint: Checkpoint, folder: Path) -> Line:
    """Compare `build_corpus` with `SentenceTransformer.encode`.

    The time of `build_corpus` includes writing the store and computing its checksums. Both models are loaded
    before the measurement.
    """
    rival = SentenceTransformer(str(checkpoint.folder), device=checkpoint.description.device)
    rival.encode(make_texts(200, LENGTHS), show_progress_bar=False)
    build_corpus(
        checkpoint, IngestConfig(), [_file(folder, "warm", make_texts(200, LENGTHS))], folder / "warm"
    )
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(ROUNDS):
        texts = make_texts(PART, LENGTHS, number)
        file, store = _file(folder, str(number), texts), folder / f"store-{number}"
        sides: list[tuple[list[float], Callable[[], object]]] = [
            (ours, partial(build_corpus, checkpoint, IngestConfig(), [file], store)),
            (theirs, partial(rival.encode, texts, show_progress_bar=False)),
        ]
        for took, work in sides if number % 2 else reversed(sides):
            took.append(_seconds(work))
    ratio = sum(ours) / sum(theirs)
    low, _, high = statistics.quantiles([own / rival for own, rival in zip(ours, theirs, strict=True)], n=4)
    return Line(
        f"A store of {ROUNDS * PART:,} sentences: measures of all heads and a layer of vectors, "
        "all-MiniLM-L6-v2",
        "SentenceTransformer.encode on the same sentences, one vector each, 32 sentences per batch",
        f"{ratio:.2f} × ({sum(ours):.0f} s to {sum(theirs):.0f} s; quartiles of {ROUNDS} parts "
        f"{low:.2f} to {high:.2f})",
        f"at most {TARGET:.2f} ×",
        ratio <= TARGET,
    )


def _by_two(checkpoint: Checkpoint, folder: Path) -> Line:
    file = _file(folder, "texts", make_texts(WORKED, LENGTHS))
    took: dict[int, list[float]] = {1: [], 2: []}
    for number, workers in enumerate((1, 2, 2, 1)):
        store = folder / f"store-{number}"
        took[workers].append(
            _seconds(partial(build_corpus, checkpoint, IngestConfig(), [file], store, workers=workers))
        )
    ratio = sum(took[2]) / sum(took[1])
    return Line(
        f"A store of {WORKED:,} sentences with two workers",
        "one worker, whose forward passes use all cores",
        f"{ratio:.2f} × ({sum(took[2]) / 2:.0f} s to {sum(took[1]) / 2:.0f} s)",
        "",
        None,
    )


def _beside_processes(checkpoint: Checkpoint, folder: Path) -> Line:
    """Compare two worker threads with two independent processes.

    Each process builds a store of half of the texts. The processes never communicate, so they are the fastest
    parallel baseline.
    """
    warm, texts = _file(folder, "warm", make_texts(200, LENGTHS)), make_texts(WORKED, LENGTHS)
    complete = _file(folder, "whole", texts)
    halves = [_file(folder, str(half), texts[half::2]) for half in range(2)]
    build_corpus(checkpoint, IngestConfig(), [warm], folder / "warm", workers=2)
    threads: list[float] = []
    processes: list[float] = []
    for number, took in enumerate([threads, processes, processes, threads] * 2):
        store = folder / f"store-{number}"
        if took is processes:
            took.append(_of_both(warm, halves, store))
        else:
            took.append(
                _seconds(partial(build_corpus, checkpoint, IngestConfig(), [complete], store, workers=2))
            )
    ratio = sum(threads) / sum(processes)
    return Line(
        f"A store of {WORKED:,} sentences with two workers, threads of one process with one model",
        "two independent processes, half of the sentences each",
        f"{ratio:.2f} × ({sum(threads) / 4:.0f} s to {sum(processes) / 4:.0f} s)",
        "",
        None,
    )


def _of_both(warm: Path, halves: list[Path], target: Path) -> float:
    """Build one store per process; return the longer run time in seconds, without imports and loading."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _APART, str(warm), str(half), f"{target}-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, half in enumerate(halves)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    return max(float(process.communicate()[0]) for process in processes)


def _in_memory(folder: Path) -> Line:
    peaks = {}
    for count in (FEW, MANY):
        command = [
            sys.executable,
            "-c",
            _MEASURED,
            str(_file(folder, str(count), make_texts(count, SHORT))),
        ]
        done = subprocess.run(
            [*command, str(folder / f"store-{count}")], capture_output=True, text=True, check=True
        )
        rows, peaks[count] = json.loads(done.stdout)
        if rows != count:
            raise RuntimeError(f"{rows:,} of {count:,} sentences were read.")
    ratio = peaks[MANY] / peaks[FEW]
    return Line(
        f"Peak memory of a process that builds a store of {MANY:,} short sentences",
        f"the same for {FEW:,}",
        f"{ratio:.2f} × ({peaks[MANY]:.0f} MB to {peaks[FEW]:.0f} MB, including torch and the model)",
        f"at most {TARGET_MEMORY:.2f} ×",
        ratio <= TARGET_MEMORY,
    )


def make_texts(count: int, lengths: tuple[int, ...], seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [f"{number} {text_of(rng.choice(lengths) - 1)}" for number in range(count)]


def _file(folder: Path, name: str, texts: list[str]) -> Path:
    file = folder / f"{name}.txt"
    file.write_text("\n".join(texts), encoding="utf-8")
    return file


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
