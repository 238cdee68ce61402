"""``python -m benchmarks [name …]``: measure, print, and write RESULTS.md when all were measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from transformers.utils import logging

from benchmarks import (
    answer_cost,
    api_cost,
    heads_cost,
    machine,
    near_cost,
    rerun_cost,
    sentence_cost,
    similarity_cost,
    start_cost,
    trace_cost,
    trace_memory,
    training_cost,
    view_cost,
    why_cost,
)
from benchmarks.pairs import Line

_ALL: dict[str, Callable[[], Iterator[Line]]] = {
    "trace": trace_cost.lines,
    "memory": trace_memory.lines,
    "similarity": similarity_cost.lines,
    "sentences": sentence_cost.lines,
    "heads": heads_cost.lines,
    "answers": answer_cost.lines,
    "why": why_cost.lines,
    "training": training_cost.lines,
    "near": near_cost.lines,
    "rerun": rerun_cost.lines,
    "api": api_cost.lines,
    "views": view_cost.lines,
    "start": start_cost.lines,
}
_RESULTS = Path(__file__).with_name("RESULTS.md")


def main(names: list[str]) -> None:
    unknown = set(names) - set(_ALL)
    if unknown:
        sys.exit(f"There is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(_ALL)}.")
    logging.disable_progress_bar()
    done: list[Line] = []
    for name in names or _ALL:
        for line in _ALL[name]():
            print(f"{line.what}\n    against  {line.rival}\n    measured {line.measured}", flush=True)
            if line.met is not None:
                print(f"    target   {line.target}: {'met' if line.met else 'NOT MET'}", flush=True)
            done.append(line)
    if not names:
        _RESULTS.write_text(_report(done), encoding="utf-8")
        print(f"Written to {_RESULTS.relative_to(Path.cwd())}")


def _report(done: list[Line]) -> str:
    head = f"""# Measured

{machine.described()} Written by `make bench`.

Ratios are those of the medians of one paired run: both sides in turn in one process, who begins
alternating, after a warm-up, without garbage collection. The quartiles are of the ratios within pairs.

| what | against | measured | target | met |
|---|---|---|---|---|
"""
    return head + machine.table(done)


if __name__ == "__main__":
    main(sys.argv[1:])
