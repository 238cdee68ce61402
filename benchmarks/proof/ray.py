"""Test that stores built with Ray equal local ones, also if processes are killed or interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

import bert_probe
from benchmarks.pairs import Line
from benchmarks.proof.theme import Run
from bert_probe.analyses.attention.heads import MEASURES, measure_heads
from bert_probe.corpus.build import build_corpus
from bert_probe.corpus.inputs import IngestConfig
from bert_probe.corpus.store import open_corpus
from bert_probe.corpus.workers import RayRunner, ready
from bert_probe.text.words import word_lens
from tests.helpers.exactness import ULP, largest
from tests.helpers.families import SENTENCES, build

FAMILIES = ("bert", "roberta", "mpnet")
ROWS = 40
"""Number of sentences of a store."""
SHARD = 8
KEEP = ("profiles", "vectors", "neighbors")
NEAR = 4 * ULP
"""Relative tolerance, because values are computed in float64 and stored as float32."""
_ACTOR = "ray::RayActor"
PATIENCE = 120
"""Time limit in seconds for the start of Ray, and for its end."""


def lines(run: Run) -> Iterator[Line]:
    torch.set_num_threads(1)
    texts = [f"{SENTENCES[number % len(SENTENCES)]} {number}" for number in range(ROWS)]
    file = run.folder / "lines.txt"
    file.write_text("\n".join(texts), encoding="utf-8")
    models = {}
    for family in FAMILIES:
        build(family, run.folder / family)
        models[family] = bert_probe.load(run.folder / family, dtype="float64")
    with ready(None, 2):
        yield _alike(run, models, file, texts)
        yield _killed(run, file)
    yield _interrupted(run)


def _alike(run: Run, models: Mapping[str, bert_probe.Checkpoint], file: Path, texts: list[str]) -> Line:
    same, off = 0, 0.0
    for family, checkpoint in models.items():
        for words in (False, True):
            question = IngestConfig(layers=(0, -1), keep=KEEP, words=words)
            name = f"{family} {'words' if words else 'pieces'}"
            with_threads, with_ray = (
                build_corpus(
                    checkpoint, question, [file], run.folder / f"{name} {where}", shard_rows=SHARD, on=on
                )
                for where, on in (("here", None), ("there", RayRunner()))
            )
            if with_threads.digest == with_ray.digest:
                same += 1
            else:
                run.failed(f"{name}: different numbers than without Ray")
            far = _off(with_ray, checkpoint, texts, words)
            off = max(off, far)
            if far > NEAR:
                run.failed(f"{name}: off by {far:.2g} from a loop over traces")
    return Line(
        f"Stores of {len(models)} families, of tokens and of words, {len(texts)} sentences each",
        "Ray, threads and a loop over single traces; models in float64, stored as float32",
        f"{same} of {2 * len(models)} have the digest of threads; at most {off:.1g} relative difference "
        "from the loop",
        f"all, and {NEAR:.1g}",
        same == 2 * len(models) and off <= NEAR,
    )


def _off(store: bert_probe.Store, checkpoint: bert_probe.Checkpoint, texts: list[str], words: bool) -> float:
    """Return the maximum relative difference between a store and separate traces of its texts."""
    tables = {name: store.table(name).to_table().to_pandas() for name in KEEP}
    far = [0.0]
    for row, text in enumerate(texts, 1):
        trace = checkpoint.trace(text)
        lens = word_lens(trace) if words else None
        own = {name: table[table["row"] == row] for name, table in tables.items()}
        measures = measure_heads(trace, lens)
        pairs = [(own["profiles"][name], measures[name].ravel()) for name in MEASURES]
        for layer in (0, trace.layers):
            vectors = own["vectors"][own["vectors"]["layer"] == layer]["vector"]
            states = trace.states[layer]
            pairs.append((np.stack(list(vectors)), states if lens is None else lens.average(states)))
        weights = np.stack([trace.attention(layer) for layer in range(trace.layers)])
        weights = weights if lens is None else lens.merge(weights)
        pairs.append((own["neighbors"]["weight"], weights.max(axis=-1).ravel()))
        far += [largest(np.asarray(ours) - theirs) / (largest(theirs) or 1.0) for ours, theirs in pairs]
    return max(far)


def _killed(run: Run, file: Path) -> Line:
    """Kill the process of a Ray actor during a build; Ray must replace it and repeat its work."""
    checkpoint, question = bert_probe.load(), IngestConfig(keep=KEEP)
    lines = file.with_name("more.txt")
    lines.write_text(file.read_text(encoding="utf-8") * 20, encoding="utf-8")
    straight = build_corpus(checkpoint, question, [lines], run.folder / "straight", shard_rows=50)
    killed: list[int] = []

    def kill(_: Mapping[str, Any]) -> None:
        for process in [] if killed else _processes(_ACTOR):
            process.kill()
            killed.append(process.pid)

    store = build_corpus(
        checkpoint,
        question,
        [lines],
        run.folder / "killed",
        shard_rows=50,
        on=RayRunner(workers=2),
        on_shard=kill,
    )
    same = bool(killed) and store.digest == straight.digest
    if not same:
        run.failed(f"{len(killed)} actors killed: {store.rows} rows of {straight.rows}, or other numbers")
    return Line(
        "Actors killed during a run",
        f"{straight.rows:,} sentences, {len(straight.shards)} shards, compared with an uninterrupted "
        "local run",
        f"{len(killed)} killed; the same digest: {'yes' if same else 'no'}",
        "the same",
        same,
    )


def _interrupted(run: Run) -> Line:
    """Interrupt `corpus run --on ray`; its processes must end, and the next run must continue the store."""
    store, log, temporary = run.folder / "interrupted", run.folder / "log.jsonl", _temporary()
    command = [sys.executable, "-m", "bert_probe", "corpus", "run", str(run.folder / "more.txt")]
    command += ["--out", str(store), "--shard-rows", "50", "--keep", ",".join(KEEP), "--on", "ray"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--log", str(log)], stderr=subprocess.PIPE, env=environment, start_new_session=True
    )
    end = time.monotonic() + PATIENCE
    while not (log.exists() and log.read_text()) and time.monotonic() < end and process.poll() is None:
        time.sleep(0.1)
    below = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    watch = threading.Timer(PATIENCE, process.kill)
    watch.start()
    _, output = process.communicate()
    watch.cancel()
    _, left = psutil.wait_procs(below, timeout=10)
    shards = len(open_corpus(store).shards)
    subprocess.run(command, stderr=subprocess.DEVNULL, env=environment, check=True, timeout=5 * PATIENCE)
    same = open_corpus(store).digest == open_corpus(run.folder / "straight").digest
    clean = not left and _temporary() == temporary and b"Traceback" not in output
    if not (same and clean):
        run.failed(f"Ctrl+C: {left} left, {_temporary() - temporary} left, {output[-300:]!r}, same: {same}")
    return Line(
        "Ctrl+C on corpus run --on ray",
        f"after {shards} shards; {len(below)} processes, and their output folder",
        f"{len(left)} processes left, {'no files' if clean else 'files'}; after continuing, the same digest: "
        f"{'yes' if same else 'no'}",
        "nothing left, same digest",
        same and clean,
    )


def _processes(name: str) -> list[psutil.Process]:
    """Return at most one descendant of this process with a command-line argument that starts with `name`."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(part.startswith(name) for part in process.cmdline()):
                processes.append(process)
    return processes[:1]


def _temporary() -> set[Path]:
    return set(Path("/tmp").glob("ray-*"))
