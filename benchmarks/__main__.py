"""``python -m benchmarks [name …]``: run benchmarks, print the results, and update RESULTS.md."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from transformers.utils import logging

from benchmarks import (
    answer_cost,
    api_cost,
    attribution_cost,
    corpus_cost,
    corpus_health_cost,
    corpus_ray_cost,
    corpus_statistics_cost,
    evaluation_cost,
    heads_cost,
    machine,
    map_cost,
    nearest_contexts_cost,
    rerun_cost,
    search_cost,
    sentence_cost,
    similarity_cost,
    start_cost,
    trace_cost,
    trace_memory,
    training_cost,
    view_cost,
)
from benchmarks.pairs import Line

_ALL: dict[str, Callable[[], Iterator[Line]]] = {
    "trace": trace_cost.lines,
    "decoder": trace_cost.decoder_lines,
    "memory": trace_memory.lines,
    "similarity": similarity_cost.lines,
    "sentences": sentence_cost.lines,
    "search": search_cost.lines,
    "evaluation": evaluation_cost.lines,
    "heads": heads_cost.lines,
    "answers": answer_cost.lines,
    "attribution": attribution_cost.lines,
    "corpus-ray": corpus_ray_cost.lines,
    "training": training_cost.lines,
    "corpus": corpus_cost.lines,
    "corpus-statistics": corpus_statistics_cost.lines,
    "corpus-health": corpus_health_cost.lines,
    "nearest-contexts": nearest_contexts_cost.lines,
    "rerun": rerun_cost.lines,
    "api": api_cost.lines,
    "views": view_cost.lines,
    "map": map_cost.lines,
    "start": start_cost.lines,
}
_RESULTS = Path(__file__).with_name("RESULTS.md")
_HEAD = """# Benchmark results

`make bench` runs all benchmarks and writes this file; `python -m benchmarks NAME …` runs some of them again.

A ratio is BERT Probe's median time divided by the median time of the baseline. Both run alternately in one
process, in alternating order, after a warm-up, with garbage collection disabled. The quartiles are those of
the ratios of individual pairs of runs.
"""
_COLUMNS = "| what | against | measured | target | met |\n|---|---|---|---|---|\n"


def main(names: list[str]) -> None:
    unknown = set(names) - set(_ALL)
    if unknown:
        sys.exit(f"Unknown benchmark: {', '.join(sorted(unknown))}. Choose from {', '.join(_ALL)}.")
    logging.disable_progress_bar()
    for name in names or _ALL:
        done: list[Line] = []
        for line in _ALL[name]():
            print(f"{line.what}\n    against  {line.rival}\n    measured {line.measured}", flush=True)
            if line.met is not None:
                print(f"    target   {line.target}: {'met' if line.met else 'NOT MET'}", flush=True)
            done.append(line)
        _write(name, done)
        print(f"Written to {_RESULTS.relative_to(Path.cwd())}", flush=True)


def _write(name: str, lines: list[Line]) -> None:
    """Replace one benchmark's section in RESULTS.md; keep the other sections."""
    parts = machine.sections(_RESULTS)
    parts[name] = f"\n## {name}\n\n{machine.described()}\n\n{_COLUMNS}{machine.table(lines)}"
    _RESULTS.write_text(_HEAD + "".join(parts[name] for name in _ALL if name in parts), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
