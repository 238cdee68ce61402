"""Test that broken and hostile checkpoints are refused or give correct vectors, with bounded memory."""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModel, AutoTokenizer

import bert_probe
from benchmarks.pairs import Line
from benchmarks.proof.broken_checkpoints import Broken, every
from benchmarks.proof.theme import Run
from bert_probe.errors import ProbeError
from bert_probe.model.from_model import keep_float64
from bert_probe.model.loading import load
from tests.helpers.exactness import EXACT, largest
from tests.helpers.families import TEXT, build

CHECKPOINTS = 150
MEMORY = 2_000_000_000
"""Limit in bytes on the additional address space for opening a checkpoint."""
SECONDS = 30
"""Time limit in seconds for opening a checkpoint."""
FAMILIES = ("bert", "roberta", "albert", "modernbert", "deberta-v2", "distilbert")
KINDS = ("built-in", *FAMILIES)
"""The checkpoints to modify in turn: the built-in model, and a tiny checkpoint of each family."""
_NAMES = [family.replace("-", "_") for family in FAMILIES]
_MODULES = [f"transformers.models.{name}.modeling_{name}" for name in _NAMES]
_PROCESSES = multiprocessing.get_context("forkserver")
"""A fork server, because torch's threads do not survive a fork of a process that has computed."""


@dataclass(frozen=True)
class End:
    """The result of opening a checkpoint.

    Attributes:
        how: "refused" (with an error message), "opened", "wrong" (different vectors), "raised" (any other
            exception) or "killed" (by a signal or the time limit).
        message: The error message, or a description of the failure.
        peak: Peak memory in bytes, in addition to the memory in use before; 0 for a killed process.
        seconds: Run time in seconds.
    """

    how: str
    message: str
    peak: int
    seconds: float


def lines(run: Run) -> Iterator[Line]:
    _quieten()
    sources = _sources(run)
    # Import the modules once, before forking, because imports take longer than opening a model.
    _PROCESSES.set_forkserver_preload([__name__, *_MODULES])
    cases = every(run.lots("checkpoints"), run.times(CHECKPOINTS))
    ends: list[tuple[str, End]] = []
    for number, case in enumerate(cases):
        if run.left < 0:
            break
        family = KINDS[number % len(KINDS)]
        end = _opened(run, case, sources[family])
        ends.append((f"{family}, {case.name}", end))
        if end.how not in ("refused", "opened") or (case.must, end.how) in _WRONG:
            run.failed(f"{family}, {case.name}: {end.how} (must be {case.must}). {end.message}")
    counts = ", ".join(f"{how} {count}" for how, count in Counter(end.how for _, end in ends).most_common())
    yield Line(
        "Broken or hostile checkpoints",
        f"each in a process with {MEMORY / 1e9:.0f} GB of address space and {SECONDS} s",
        f"{len(ends)} of {len(cases)}: {counts}",
        "an error message, or correct numbers",
        len(ends) == len(cases) and not run.failures,
    )
    name, peak_end = max(ends, key=lambda item: item[1].peak)
    yield Line("Peak memory above the imports", name, f"{peak_end.peak / 1e6:.0f} MB", "", None)
    name, longest = max(ends, key=lambda item: item[1].seconds)
    yield Line("Longest run", name, f"{longest.seconds:.1f} s", f"{SECONDS} s", longest.seconds < SECONDS)


_WRONG = {("refused", "opened"), ("same", "refused")}


def _quieten() -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def _sources(run: Run) -> dict[str, Path]:
    folders = {"built-in": run.folder / "built-in"}
    shutil.copytree(bert_probe.load().folder or "", folders["built-in"])
    for family in FAMILIES:
        folders[family] = run.folder / family
        build(family, folders[family])
    return folders


def _opened(run: Run, case: Broken, source: Path) -> End:
    """Copy a checkpoint, modify the copy, open it in a separate process, and return the result."""
    folder = run.folder / "broken"
    shutil.copytree(source, folder)
    case.change(folder)
    try:
        return _apart(folder, source, case.must == "same")
    finally:
        shutil.rmtree(folder)


def _apart(folder: Path, source: Path, same: bool) -> End:
    listening, telling = _PROCESSES.Pipe(duplex=False)
    child = _PROCESSES.Process(target=_within_bounds, args=(folder, source if same else folder, telling))
    start = time.monotonic()
    child.start()
    telling.close()
    heard = listening.poll(SECONDS)
    seconds = time.monotonic() - start
    try:
        how, message, peak = listening.recv() if heard else ("killed", f"Silent for {SECONDS} s.", 0)
    except EOFError:
        child.join()
        how, message, peak = "killed", f"Signal {-(child.exitcode or 0)}.", 0
    child.kill()
    child.join()
    listening.close()
    return End(how, message, peak, seconds)


# The following code runs in the process that opens a checkpoint


def _within_bounds(folder: Path, reference: Path, telling: Connection) -> None:
    _quieten()
    torch.set_num_threads(1)
    before = _memory("VmRSS")
    address_space = _memory("VmSize") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (address_space, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    how, message = _end(folder, reference)
    telling.send((how, message[:2_000], max(0, _memory("VmHWM") - before)))


def _memory(name: str) -> int:
    """Return an entry of /proc/self/status, such as VmRSS, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def _end(folder: Path, reference: Path) -> tuple[str, str]:
    try:
        checkpoint = load(folder, dtype="float64")
        keep_float64(checkpoint.model)
        trace = checkpoint.trace(TEXT)
    except ProbeError as error:
        text = str(error)
        sentence = "\n" not in text and text.endswith(".") and len(text) < 2_000
        return ("refused", text) if sentence else ("wrong", f"no sentence: {text}")
    except BaseException as error:  # any exception except a ProbeError is a failure
        return "raised", f"{type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return _compared(trace.vectors(-1), reference)


def _compared(vectors: np.ndarray, reference: Path) -> tuple[str, str]:
    """Compare vectors with those that transformers computes for a folder.

    Returns:
        ("opened", "") if they are equal within rounding, otherwise ("wrong", reason).
    """
    try:
        model: Any = AutoModel.from_pretrained(
            reference, dtype=torch.float64, attn_implementation="eager", use_safetensors=True
        ).eval()
        keep_float64(model)
        tokenizer: Any = AutoTokenizer.from_pretrained(reference)
        with torch.inference_mode():
            theirs = model(**tokenizer(TEXT, return_tensors="pt")).last_hidden_state[0].numpy()
    except Exception as error:  # transformers raises many types of exceptions
        return "wrong", f"opens, where transformers says {type(error).__name__}: {error}"
    if theirs.shape != vectors.shape:
        return "wrong", f"vectors {vectors.shape}; transformers gives {theirs.shape}"
    off = largest(theirs - vectors)
    near = off <= EXACT * largest(theirs)
    return ("opened", "") if near else ("wrong", f"off by {off:.2g} of {largest(theirs):.2g}")
