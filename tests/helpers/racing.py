"""Runs two processes that write to the same path at the same time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from bert_probe.errors import ExportError


def race(write: Callable[[str], object]) -> list[str]:
    """Return the outcomes of two writers, "saved by NAME" or "refused", sorted.

    Args:
        write: called with the writer's name, "a" or "b", in a separate process.
    """
    context = multiprocessing.get_context("fork")
    barrier, outcomes = context.Barrier(2), context.SimpleQueue()
    processes = [context.Process(target=_run, args=(write, name, barrier, outcomes)) for name in "ab"]
    for process in processes:
        process.start()
    outcomes_by_process = sorted(outcomes.get() for _ in processes)
    for process in processes:
        process.join()
    return outcomes_by_process


def _run(write: Callable[[str], object], name: str, barrier: Any, outcomes: Any) -> None:
    barrier.wait()
    try:
        write(name)
    except ExportError:
        outcomes.put("refused")
    except BaseException as error:
        outcomes.put(repr(error))
    else:
        outcomes.put(f"saved by {name}")
