"""How far work is, on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm

from bert_probe.model.progress import Progress, no_progress
from bert_probe.runtime import terminal

PATIENCE = 1.0
"""Seconds before a bar is drawn: shorter work is never seen."""


@contextmanager
def terminal_bar(label: str, unit: str) -> Iterator[Progress]:
    """A progress bar on standard error, while the block lasts; it is wiped away at the end.

    Nothing at all is written where standard error is no terminal, or within the first second. What the first
    report says was done before, and counts towards no rate; the rate is that of all the time since.

    Args:
        label: what is done, before the bar.
        unit: what is counted; "B" for bytes, which are shown as MB.
    """
    screen = terminal.direct(sys.stderr)
    if screen is None or not screen.isatty():
        yield no_progress
        return
    in_bytes = unit == "B"
    with tqdm(
        desc=label,
        unit=unit if in_bytes else f" {unit}",
        unit_scale=in_bytes,
        delay=PATIENCE,
        smoothing=0,
        miniters=0,
        leave=False,
        position=0,  # else lower for every bar that is open, drawn or not, as the hub client's are
        ncols=_columns(screen) - 1,
        nrows=24,  # of a terminal that says it has none it would write nothing
        file=screen,
    ) as bar:
        bar.initial = None

        def report(done: int, total: int) -> None:
            if bar.initial is None:
                bar.initial = done
            bar.n, bar.total = done, total or None
            bar.update(0)

        yield report


def _columns(screen: TextIO) -> int:
    """Width of the terminal; 80 where it does not say, as one without a window."""
    try:
        return os.get_terminal_size(screen.fileno()).columns or 80
    except OSError:
        return 80
