"""Measure the memory of a trace: hidden states, queries, keys and values, but no attention matrices."""

from __future__ import annotations

from collections.abc import Iterator

import bert_probe
from benchmarks.pairs import Line
from benchmarks.trace_cost import text_of

TARGET = 40e6


def lines() -> Iterator[Line]:
    trace = bert_probe.load().trace(text_of(512))
    weights = trace.layers * trace.heads * len(trace.tokens) ** 2 * 4
    yield Line(
        "Memory of a trace of 512 tokens, all-MiniLM-L6-v2",
        f"all attention weights stored as float32: {weights / 1e6:.1f} MB",
        f"{trace.nbytes / 1e6:.1f} MB",
        f"at most {TARGET / 1e6:.0f} MB",
        trace.nbytes <= TARGET,
    )
