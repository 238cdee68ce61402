"""How far long work is: told by what works, to whom it may concern."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], None]
"""Called by work with how much is done and how much there is; what it raises ends the work.

The total is 0 while nobody knows it yet, and may grow. Reports may come from several threads.
"""

Watch: TypeAlias = Callable[[str, str], AbstractContextManager[Progress]]
"""Called by work of several parts as each begins, with what it does and what it counts ("B" for bytes); the
report is used within the block."""


class Cancelled(Exception):  # noqa: N818 - a wish, no error
    """Nobody wants this work any more. Raised by a `Progress`; the work lets it through."""


def part_of(report: Progress, number: int, count: int) -> Progress:
    """The report of one of several pieces of work that are alike, from 0, one after the other."""
    return lambda done, total: report(number * total + done, count * total)


def no_progress(done: int, total: int) -> None:
    """A `Progress` for work that nobody watches."""


def unwatched(label: str, unit: str) -> AbstractContextManager[Progress]:  # noqa: ARG001 - as all that watch
    """A `Watch` for work that nobody watches."""
    return nullcontext(no_progress)
