"""Measure the time of profiling all heads and of ablating each head, relative to forward passes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch

import bert_probe
from benchmarks.pairs import Line, Work, paired
from benchmarks.trace_cost import text_of
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.forward import BATCH_TOKENS, pad

PROFILED = 512
ABLATED = 20
TARGET_PROFILES = 0.5
TARGET_ABLATION = 1.5


def lines() -> Iterator[Line]:
    checkpoint = bert_probe.load()
    yield _profiles(checkpoint)
    yield _ablation(checkpoint)


def _profiles(checkpoint: Checkpoint) -> Line:
    text = text_of(PROFILED)
    trace = checkpoint.trace(text)
    timed = paired(lambda: bert_probe.Heads().of(trace), passes(checkpoint, text, 1))
    low, high = timed.spread
    return Line(
        f"All measures of all {trace.layers * trace.heads} heads, {PROFILED} tokens, all-MiniLM-L6-v2",
        "the forward pass of the model, with fused attention",
        f"{timed.ratio:.2f} × (quartiles of {len(timed.ours)} pairs {low:.2f} to {high:.2f})",
        f"at most {TARGET_PROFILES:.1f} ×",
        timed.ratio <= TARGET_PROFILES,
    )


def _ablation(checkpoint: Checkpoint) -> Line:
    text = text_of(ABLATED)
    trace = checkpoint.trace(text)
    heads = trace.layers * trace.heads
    name = f"Each of {heads} heads ablated in turn, {ABLATED} tokens, all-MiniLM-L6-v2"
    work = partial(bert_probe.HeadAblationSweep().of, trace)
    return against_passes(name, work, checkpoint, text, heads, heads, TARGET_ABLATION)


def against_passes(
    name: str, work: Work, checkpoint: Checkpoint, text: str, count: int, max_batch: int, target: float
) -> Line:
    """Compare work with the equivalent number of forward passes, divided by the speedup of batching.

    Args:
        count: Number of forward passes to which the work is equivalent.
        max_batch: Maximum batch size.
    """
    batch = min(max_batch, BATCH_TOKENS // len(checkpoint.encode(text)))
    batched = passes(checkpoint, text, batch)
    single = paired(passes(checkpoint, text, 1), batched)
    # The time of a single pass ÷ the speedup of batching equals the time of a batched pass ÷ the batch size.
    # Run batched passes and the work alternately, so that other load affects both equally.
    timed = paired(work, batched)
    share = batch / count
    ratio, (low, high) = timed.ratio * share, timed.spread
    return Line(
        name,
        f"{count} forward passes of {statistics.median(single.ours) * 1e3:.1f} ms ÷ "
        f"{single.ratio * batch:.1f}, the speedup of a batch of {batch}",
        f"{ratio:.2f} × (quartiles of {len(timed.ours)} pairs {low * share:.2f} to {high * share:.2f})",
        f"at most {target:.1f} ×",
        ratio <= target,
    )


def passes(checkpoint: Checkpoint, text: str, count: int) -> Callable[[], object]:
    """Return a function that runs the same text ``count`` times in one forward pass."""
    inputs = pad([checkpoint.encode(text)] * count, {})

    def forward() -> object:
        with torch.inference_mode():
            return checkpoint.model(**inputs)

    return forward
